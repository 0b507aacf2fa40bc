-- Administration of groups, messages, dead letters and traces on the log tables.
--
-- Lag arithmetic, here and in every later file: nothing is counted message by message.
--   pending(partition, group) = GREATEST(last_offset - GREATEST(committed, log_start - 1), 0)
--   time lag = age of the segment that holds the first pending message
-- When a partition has named groups, they alone decide its pending, processing and status figures: a stray pop without a group
-- (__QUEUE_MODE__) must not distort them. Retention alone keeps the minimum over all cursors.

-- queen.hotlist_repairs: "forget what you know about this group's work": a seek or a delete gave a group work that no push
-- announces. NULL queue is all queues of the tenant, NULL group all groups. Brokers read every marker younger than 10 minutes and
-- skip the ids they applied; ids are allotted before commit, so "greater than the last one" would miss some.
CREATE TABLE IF NOT EXISTS queen.hotlist_repairs (
    id             BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_id      UUID NOT NULL DEFAULT '00000000-0000-0000-0000-000000000001',
    queue_id       UUID,
    consumer_group TEXT,
    created_at     TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
);
-- Brokers read it every second, and whoever may seek may fill it.
DO $$ BEGIN
    IF to_regclass('queen.hotlist_repairs_created_idx') IS NULL THEN
        CREATE INDEX hotlist_repairs_created_idx ON queen.hotlist_repairs (created_at);
    END IF;
END $$;

-- parse_time_v1: a timestamp that a client sent. NULL and '' are NULL; a value without a zone is UTC. Anything else that is no
-- finite date or timestamp raises 22007; words that the type itself would accept (now, tomorrow, infinity) are none.
-- Locks: none. Called by: the readers with time filters, seeks, subscriptions.
CREATE OR REPLACE FUNCTION queen.parse_time_v1(p_text TEXT)
RETURNS TIMESTAMPTZ
LANGUAGE plpgsql STABLE
SET TimeZone = 'UTC'
SET DateStyle = 'ISO, YMD'
AS $$
BEGIN
    IF COALESCE(p_text, '') = '' THEN
        RETURN NULL;
    ELSIF p_text !~ '^\s*\d{4,6}-\d{1,2}-\d{1,2}' THEN
        RAISE EXCEPTION 'invalid timestamp: "%"', left(p_text, 64) USING ERRCODE = '22007';
    END IF;
    RETURN p_text::TIMESTAMPTZ;
END $$;

-- log_oldest_pending_at_v1: created_at of the segment that holds an offset, or of the next one when it fell into a retention gap;
-- NULL when there is neither. Two primary key steps, never a walk. Locks: none.
-- Called by: every reader that shows a time lag.
CREATE OR REPLACE FUNCTION queen.log_oldest_pending_at_v1(p_pid UUID, p_wanted BIGINT)
RETURNS TIMESTAMPTZ
LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT COALESCE(
        (SELECT h.created_at
           FROM (SELECT s.end_offset, s.created_at FROM queen.log_segments s
                  WHERE s.partition_id = p_pid AND s.base_offset <= p_wanted
                  ORDER BY s.base_offset DESC LIMIT 1) h
          WHERE h.end_offset >= p_wanted),
        (SELECT s.created_at FROM queen.log_segments s
          WHERE s.partition_id = p_pid AND s.base_offset > p_wanted
          ORDER BY s.base_offset LIMIT 1))
$$;

-- log_seek_core_v1: put the cursor of a group on N partitions of one queue.
--   p_queue_id   the queue; p_partition NULL takes all its partitions
--   exactly one of: p_to_end; p_timestamp, the first message stored at or after it is delivered next; p_offset, that offset is
--   delivered next (below the retained messages: the oldest one; beyond the end: the next push)
-- Returns the number of partitions. Exactness of a timestamp: a segment's created_at is the time of all its messages, so the
-- seek is exact per message as far as the stored data tells them apart, which is per segment; of a segment it never skips a part.
-- The lease is released, retry and attempt state are reset, a missing row is created, the group's empty-scan watermark goes, and
-- a repair marker makes every broker look again.
-- Locks: the partition rows FOR NO KEY UPDATE ascending by id, so that "to end" is the end at one moment and no push falls between
-- reading and writing it; then the consumer rows ascending by (partition id, group); then the watermark row.
-- Called by: log_seek_one_v1, log_seek_consumer_group_v1, log_seek_partition_v1, log_seek_offset_v1.
CREATE OR REPLACE FUNCTION queen.log_seek_core_v1(
    p_queue_id UUID, p_partition TEXT, p_group TEXT, p_to_end BOOLEAN, p_timestamp TIMESTAMPTZ, p_offset BIGINT)
RETURNS BIGINT
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    v_ids  UUID[];
    v_rows BIGINT;
BEGIN
    SELECT array_agg(l.id) INTO v_ids
      FROM (SELECT p.id FROM queen.log_partitions p
             WHERE p.queue_id = p_queue_id AND (p_partition IS NULL OR p.name = p_partition)
             ORDER BY p.id
               FOR NO KEY UPDATE) l;
    IF v_ids IS NULL THEN
        RETURN 0;
    END IF;
    -- A statement of its own: it sees every push that committed before the locks were obtained.
    INSERT INTO queen.log_consumers AS c (partition_id, consumer_group, committed)
    SELECT p.id, p_group,
           CASE WHEN p_to_end THEN p.last_offset
                WHEN p_offset IS NOT NULL THEN LEAST(GREATEST(p_offset, p.log_start), p.last_offset + 1) - 1
                ELSE COALESCE(queen.log_segment_since_v1(p.id, p.log_start, p.last_offset, p_timestamp) - 1, p.last_offset) END
      FROM queen.log_partitions p
     WHERE p.id = ANY (v_ids)
     ORDER BY p.id
        ON CONFLICT (partition_id, consumer_group) DO UPDATE
       SET committed = EXCLUDED.committed, batch_end = NULL, worker_id = NULL, lease_expires_at = NULL,
           batch_retry_count = 0, attempt_offset = NULL, attempt_count = 0, isolate_end = NULL;
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    DELETE FROM queen.consumer_watermarks w WHERE w.queue_id = p_queue_id AND w.consumer_group = p_group;
    INSERT INTO queen.hotlist_repairs (tenant_id, queue_id, consumer_group)
    SELECT q.tenant_id, q.id, p_group FROM queen.queues q WHERE q.id = p_queue_id;
    RETURN v_rows;
END $$;

-- log_segment_since_v1: base offset of the first segment of a partition stored at or after p_at; NULL when there is none.
--   p_log_start, p_last_offset  bounds of the live segments
-- Halves the range by primary key steps, then walks at most a few hundred offsets: created_at never decreases along a partition,
-- give or take the one-second quantum of last_write_at, which the margin of two seconds covers. Locks: none.
-- Called by: log_seek_core_v1.
CREATE OR REPLACE FUNCTION queen.log_segment_since_v1(p_pid UUID, p_log_start BIGINT, p_last_offset BIGINT, p_at TIMESTAMPTZ)
RETURNS BIGINT
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    v_lo   BIGINT := p_log_start;
    v_hi   BIGINT := p_last_offset;
    v_mid  BIGINT;
    v_time TIMESTAMPTZ;
BEGIN
    WHILE v_hi - v_lo > 256 LOOP
        v_mid := v_lo + (v_hi - v_lo) / 2;
        SELECT s.created_at INTO v_time FROM queen.log_segments s
         WHERE s.partition_id = p_pid AND s.base_offset <= v_mid
         ORDER BY s.base_offset DESC LIMIT 1;
        IF v_time < p_at - INTERVAL '2 seconds' THEN
            v_lo := v_mid;
        ELSE
            v_hi := v_mid;
        END IF;
    END LOOP;
    RETURN (SELECT s.base_offset FROM queen.log_segments s
             WHERE s.partition_id = p_pid AND s.base_offset >= v_lo AND s.created_at >= p_at
             ORDER BY s.base_offset LIMIT 1);
END $$;

-- log_seek_one_v1: seek one partition. p_last_offset and p_log_start are ignored: the values that count are those under the lock.
-- Locks: as log_seek_core_v1. Called by: none of ours; the catalogue promises it.
CREATE OR REPLACE FUNCTION queen.log_seek_one_v1(
    p_partition_id UUID, p_last_offset BIGINT, p_log_start BIGINT, p_group TEXT, p_to_end BOOLEAN, p_timestamp TIMESTAMPTZ)
RETURNS VOID
LANGUAGE sql VOLATILE
AS $$
    SELECT queen.log_seek_core_v1(p.queue_id, p.name, p_group, COALESCE(p_to_end, FALSE), p_timestamp, NULL)
      FROM queen.log_partitions p WHERE p.id = p_partition_id
$$;

-- log_seek_consumer_group_v1: seek a group on every partition of a queue; see log_seek_core_v1 for what a seek does.
-- Returns {"success":true,"consumerGroup","queueName","seekToEnd","targetTimestamp":ISO-ms|null,"partitionsUpdated"}, or
-- {"success":false,"error":"Must specify either toEnd=true or a timestamp"}, or {"success":false,"error":"Queue not found or has
-- no partitions","consumerGroup","queueName","partitionsUpdated":0}. Locks: log_seek_core_v1. Called by: pg.SeekGroup.
CREATE OR REPLACE FUNCTION queen.log_seek_consumer_group_v1(
    p_group TEXT, p_queue TEXT, p_to_end BOOLEAN DEFAULT FALSE, p_timestamp TIMESTAMPTZ DEFAULT NULL,
    p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_rows BIGINT;
BEGIN
    IF NOT COALESCE(p_to_end, FALSE) AND p_timestamp IS NULL THEN
        RETURN jsonb_build_object('success', FALSE, 'error', 'Must specify either toEnd=true or a timestamp');
    END IF;
    v_rows := queen.log_seek_core_v1((SELECT q.id FROM queen.queues q WHERE q.tenant_id = p_tenant AND q.name = p_queue),
        NULL, p_group, COALESCE(p_to_end, FALSE), p_timestamp, NULL);
    IF v_rows = 0 THEN
        RETURN jsonb_build_object('success', FALSE, 'error', 'Queue not found or has no partitions', 'consumerGroup', p_group,
                                  'queueName', p_queue, 'partitionsUpdated', 0);
    END IF;
    RETURN jsonb_build_object('success', TRUE, 'consumerGroup', p_group, 'queueName', p_queue,
        'seekToEnd', COALESCE(p_to_end, FALSE),
        'targetTimestamp', CASE WHEN NOT COALESCE(p_to_end, FALSE) THEN queen.iso_ms_v1(p_timestamp) END,
        'partitionsUpdated', v_rows);
END $$;

-- log_seek_partition_v1: seek a group on one partition.
-- Returns {"success":true,"consumerGroup","queueName","partitionName","seekToEnd","targetTimestamp":ISO-ms|null,"updated":true}, or
-- {"success":false,"error"}: Must specify …, Partition not found. Locks: log_seek_core_v1. Called by: pg.SeekPartition.
CREATE OR REPLACE FUNCTION queen.log_seek_partition_v1(
    p_group TEXT, p_queue TEXT, p_partition TEXT, p_to_end BOOLEAN DEFAULT FALSE, p_timestamp TIMESTAMPTZ DEFAULT NULL,
    p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    IF NOT COALESCE(p_to_end, FALSE) AND p_timestamp IS NULL THEN
        RETURN jsonb_build_object('success', FALSE, 'error', 'Must specify either toEnd=true or a timestamp');
    END IF;
    IF p_partition IS NULL
       OR queen.log_seek_core_v1((SELECT q.id FROM queen.queues q WHERE q.tenant_id = p_tenant AND q.name = p_queue),
            p_partition, p_group, COALESCE(p_to_end, FALSE), p_timestamp, NULL) = 0 THEN
        RETURN jsonb_build_object('success', FALSE, 'error', 'Partition not found');
    END IF;
    RETURN jsonb_build_object('success', TRUE, 'consumerGroup', p_group, 'queueName', p_queue, 'partitionName', p_partition,
        'seekToEnd', COALESCE(p_to_end, FALSE),
        'targetTimestamp', CASE WHEN NOT COALESCE(p_to_end, FALSE) THEN queen.iso_ms_v1(p_timestamp) END, 'updated', TRUE);
END $$;

-- log_delete_cursors_v1: delete the cursors of a group, in one queue or (p_queue_id NULL) in all queues of a tenant, and tell the
-- brokers. Returns their number. Locks: the consumer rows ascending by (partition id, group).
-- Called by: log_delete_consumer_group_v1, log_delete_consumer_group_for_queue_v1.
CREATE OR REPLACE FUNCTION queen.log_delete_cursors_v1(p_group TEXT, p_queue_id UUID, p_tenant UUID)
RETURNS BIGINT
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    v_ids  UUID[];
    v_rows BIGINT;
BEGIN
    SELECT array_agg(l.partition_id) INTO v_ids
      FROM (SELECT c.partition_id
              FROM queen.log_consumers c
              JOIN queen.log_partitions p ON p.id = c.partition_id
              JOIN queen.queues q ON q.id = p.queue_id
             WHERE c.consumer_group = p_group AND q.tenant_id = p_tenant AND (p_queue_id IS NULL OR q.id = p_queue_id)
             ORDER BY c.partition_id
               FOR UPDATE OF c) l;
    DELETE FROM queen.log_consumers c WHERE c.partition_id = ANY (v_ids) AND c.consumer_group = p_group;
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    INSERT INTO queen.hotlist_repairs (tenant_id, queue_id, consumer_group) VALUES (p_tenant, p_queue_id, p_group);
    RETURN v_rows;
END $$;

-- log_delete_consumer_group_v1: delete a group in all queues of a tenant: cursors, watermarks, and with p_delete_metadata its
-- subscriptions, so that its next pop is a first contact. In flight leases of the group end: their acks find no cursor.
-- Returns {"success":true,"consumerGroup","deletedPartitions":cursors,"metadataDeleted"}; an unknown group is no error.
-- Locks: log_delete_cursors_v1, then delete_consumer_group_v1. Called by: pg.DeleteGroup.
CREATE OR REPLACE FUNCTION queen.log_delete_consumer_group_v1(
    p_group TEXT, p_delete_metadata BOOLEAN DEFAULT TRUE, p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_rows BIGINT := queen.log_delete_cursors_v1(p_group, NULL, p_tenant);
BEGIN
    RETURN queen.delete_consumer_group_v1(p_group, COALESCE(p_delete_metadata, TRUE), p_tenant)
           || jsonb_build_object('deletedPartitions', v_rows);
END $$;

-- log_delete_consumer_group_for_queue_v1: the same in one queue. Returns {"success":true,"consumerGroup","queueName",
-- "deletedPartitions","metadataDeleted"}; an unknown group or queue is no error. Locks: those of log_delete_cursors_v1.
-- Called by: pg.DeleteGroupForQueue.
CREATE OR REPLACE FUNCTION queen.log_delete_consumer_group_for_queue_v1(
    p_group TEXT, p_queue TEXT, p_delete_metadata BOOLEAN DEFAULT TRUE,
    p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_queue UUID := (SELECT q.id FROM queen.queues q WHERE q.tenant_id = p_tenant AND q.name = p_queue);
    v_rows  BIGINT := 0;
BEGIN
    IF v_queue IS NOT NULL THEN
        v_rows := queen.log_delete_cursors_v1(p_group, v_queue, p_tenant);
    END IF;
    RETURN queen.delete_consumer_group_for_queue_v1(p_group, p_queue, COALESCE(p_delete_metadata, TRUE), p_tenant)
           || jsonb_build_object('deletedPartitions', v_rows);
END $$;

-- log_group_lag_v1: what every cursor of a tenant has before it.
--   p_group, p_queue_id  NULL is all
-- Returns one row per (queue, partition, group): the lag in messages, and created_at of the first pending message (NULL when none
-- is). Locks: none. Called by: get_consumer_groups_v4, get_lagging_partitions_v1, get_consumer_group_details_v1.
CREATE OR REPLACE FUNCTION queen.log_group_lag_v1(p_group TEXT, p_queue_id UUID, p_tenant UUID)
RETURNS TABLE (r_queue_id UUID, r_queue TEXT, r_pid UUID, r_partition TEXT, r_group TEXT, r_lag BIGINT, r_oldest TIMESTAMPTZ,
               r_worker TEXT, r_leased BOOLEAN, r_consumed BIGINT)
LANGUAGE sql STABLE
AS $$
    SELECT x.queue_id, x.queue, x.pid, x.name, x.consumer_group, x.lag,
           CASE WHEN x.lag > 0 THEN queen.log_oldest_pending_at_v1(x.pid, x.seen + 1) END, x.worker_id, x.leased, x.total_consumed
      FROM (SELECT q.id AS queue_id, q.name::TEXT AS queue, p.id AS pid, p.name, c.consumer_group,
                   GREATEST(p.last_offset - GREATEST(c.committed, p.log_start - 1), 0) AS lag,
                   GREATEST(c.committed, p.log_start - 1) AS seen, NULLIF(c.worker_id, '__retry__') AS worker_id,
                   COALESCE(c.worker_id <> '__retry__' AND c.lease_expires_at > now(), FALSE) AS leased, c.total_consumed
              FROM queen.queues q
              JOIN queen.log_partitions p ON p.queue_id = q.id
              JOIN queen.log_consumers c ON c.partition_id = p.id
             WHERE q.tenant_id = p_tenant AND (p_queue_id IS NULL OR q.id = p_queue_id)
               AND (p_group IS NULL OR c.consumer_group = p_group)
            OFFSET 0) x
$$;

-- get_consumer_groups_v4: the groups of a tenant, one entry per (group, queue) that has a cursor, ordered by group, then queue.
-- Returns [{"name","topics":[queue],"queueName","members","partitionCursors","partitionsWithLag","totalLag","maxTimeLag":s,
-- "state","storage":"segments","subscriptionMode","subscriptionTimestamp":ISO-ms,"subscriptionCreatedAt":ISO-ms}]; the subscription
-- fields are null without a record. "queue", "lagMessages" and "lagSeconds" say the same under the command-line client's names. state: Lagging when maxTimeLag > 300, else Stable when anything was ever consumed, else Dead.
-- Locks: none. Called by: pg.ConsumerGroups.
CREATE OR REPLACE FUNCTION queen.get_consumer_groups_v4(p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE sql STABLE
AS $$
    SELECT COALESCE(jsonb_agg(jsonb_build_object(
               'name', g.r_group, 'topics', jsonb_build_array(g.r_queue), 'queueName', g.r_queue,
               'members', g.cursors, 'partitionCursors', g.cursors, 'partitionsWithLag', g.lagging, 'totalLag', g.lag,
               'maxTimeLag', g.age, 'queue', g.r_queue, 'lagMessages', g.lag, 'lagSeconds', g.age,
               'state', CASE WHEN g.age > 300 THEN 'Lagging' WHEN g.consumed > 0 THEN 'Stable' ELSE 'Dead' END,
               'storage', 'segments', 'subscriptionMode', m.subscription_mode,
               'subscriptionTimestamp', queen.iso_ms_v1(m.subscription_timestamp),
               'subscriptionCreatedAt', queen.iso_ms_v1(m.created_at))
               ORDER BY g.r_group COLLATE "C", g.r_queue COLLATE "C"), '[]'::JSONB)
      FROM (SELECT l.r_queue_id, l.r_queue, l.r_group, count(*) AS cursors, count(*) FILTER (WHERE l.r_lag > 0) AS lagging,
                   sum(l.r_lag) AS lag, sum(l.r_consumed) AS consumed,
                   COALESCE(GREATEST(floor(extract(epoch FROM now() - min(l.r_oldest))), 0), 0)::BIGINT AS age
              FROM queen.log_group_lag_v1(NULL, NULL, p_tenant) l
             GROUP BY l.r_queue_id, l.r_queue, l.r_group) g
      LEFT JOIN queen.consumer_groups_metadata m
        ON m.tenant_id = p_tenant AND m.consumer_group = g.r_group AND m.queue_id = g.r_queue_id
       AND m.partition_name = '' AND m.namespace = '' AND m.task = ''
$$;

-- get_lagging_partitions_v1: the (group, partition) pairs whose oldest pending message is older than p_min_lag_seconds, oldest
-- first. A backlog that retention removed does not lag.
-- Returns [{"consumer_group","queue_name","partition_name","partition_id","worker_id","offset_lag","time_lag_seconds","lag_hours":2
-- decimals,"oldest_unconsumed_at":ISO-ms,"last_consumed_at":null}]. Locks: none. Called by: pg.LaggingPartitions.
CREATE OR REPLACE FUNCTION queen.get_lagging_partitions_v1(
    p_min_lag_seconds INTEGER DEFAULT 0, p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE sql STABLE
AS $$
    SELECT COALESCE(jsonb_agg(jsonb_build_object(
               'consumer_group', g.r_group, 'queue_name', g.r_queue, 'partition_name', g.r_partition, 'partition_id', g.r_pid,
               'worker_id', g.r_worker, 'offset_lag', g.r_lag, 'time_lag_seconds', g.age,
               'lag_hours', round(g.age / 3600.0, 2), 'oldest_unconsumed_at', queen.iso_ms_v1(g.r_oldest),
               'last_consumed_at', NULL)
               ORDER BY g.r_oldest, g.r_group COLLATE "C", g.r_queue COLLATE "C", g.r_partition COLLATE "C"), '[]'::JSONB)
      FROM (SELECT l.*, GREATEST(floor(extract(epoch FROM now() - l.r_oldest)), 0)::BIGINT AS age
              FROM queen.log_group_lag_v1(NULL, NULL, p_tenant) l
             WHERE l.r_oldest IS NOT NULL) g
     WHERE g.age > COALESCE(p_min_lag_seconds, 0)
$$;

-- get_consumer_group_details_v1: the cursors of one group, by queue.
-- Returns {"<queue>":{"partitions":[{"partition","workerId":last lease id,"lastConsumedAt":null,"totalConsumed","offsetLag",
-- "timeLagSeconds","leaseActive"}]}}, partitions ordered by name; {} for a group without a cursor.
-- Locks: none. Called by: pg.ConsumerGroupDetails.
CREATE OR REPLACE FUNCTION queen.get_consumer_group_details_v1(
    p_consumer_group TEXT, p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE sql STABLE
AS $$
    SELECT COALESCE(jsonb_object_agg(q.r_queue, jsonb_build_object('partitions', q.partitions)), '{}'::JSONB)
      FROM (SELECT l.r_queue, jsonb_agg(jsonb_build_object(
                       'partition', l.r_partition, 'workerId', l.r_worker, 'lastConsumedAt', NULL,
                       'totalConsumed', l.r_consumed, 'offsetLag', l.r_lag,
                       'timeLagSeconds', COALESCE(GREATEST(floor(extract(epoch FROM now() - l.r_oldest)), 0), 0)::BIGINT,
                       'leaseActive', l.r_leased) ORDER BY l.r_partition COLLATE "C") AS partitions
              FROM queen.log_group_lag_v1(p_consumer_group, NULL, p_tenant) l
             GROUP BY l.r_queue) q
$$;

-- record_trace_v1: store what a client says about a message. The message need not exist.
--   p_data  {"transactionId":required, at most 255 characters,"partitionId"?,"consumerGroup"?="__QUEUE_MODE__","eventType"?="info",
--            "data"?={},"encrypted"?:data is an envelope,"workerId"?,"traceNames"?:[text]}; repeated and empty names count once and not
--            at all
-- Returns {"success":true,"traceId"} or {"success":false,"error"}. Raises 22P02 for a partitionId that is no UUID, 22001 for text
-- that is too long. Locks: none beyond its inserts. Called by: pg.RecordTrace, after the ownership of the partition was checked.
CREATE OR REPLACE FUNCTION queen.record_trace_v1(p_data JSONB)
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_id UUID;
BEGIN
    IF COALESCE(p_data ->> 'transactionId', '') = '' THEN
        RETURN jsonb_build_object('success', FALSE, 'error', 'transactionId is required');
    END IF;
    INSERT INTO queen.message_traces (partition_id, transaction_id, consumer_group, event_type, data, encrypted, worker_id, created_at)
    VALUES (NULLIF(p_data ->> 'partitionId', '')::UUID, p_data ->> 'transactionId',
            COALESCE(NULLIF(p_data ->> 'consumerGroup', ''), '__QUEUE_MODE__'), COALESCE(NULLIF(p_data ->> 'eventType', ''), 'info'),
            COALESCE(p_data -> 'data', '{}'::JSONB), COALESCE((p_data ->> 'encrypted')::BOOLEAN, FALSE), p_data ->> 'workerId', clock_timestamp())
    RETURNING id INTO v_id;
    INSERT INTO queen.message_trace_names (trace_id, trace_name)
    SELECT DISTINCT v_id, n.v
      FROM jsonb_array_elements_text(CASE WHEN jsonb_typeof(p_data -> 'traceNames') = 'array' THEN p_data -> 'traceNames'
                                          ELSE '[]'::JSONB END) AS n (v)
     WHERE COALESCE(n.v, '') <> '';
    RETURN jsonb_build_object('success', TRUE, 'traceId', v_id);
END $$;

GRANT EXECUTE ON FUNCTION queen.parse_time_v1(TEXT) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_oldest_pending_at_v1(UUID, BIGINT) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_segment_since_v1(UUID, BIGINT, BIGINT, TIMESTAMPTZ) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_seek_core_v1(UUID, TEXT, TEXT, BOOLEAN, TIMESTAMPTZ, BIGINT) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_seek_one_v1(UUID, BIGINT, BIGINT, TEXT, BOOLEAN, TIMESTAMPTZ) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_seek_consumer_group_v1(TEXT, TEXT, BOOLEAN, TIMESTAMPTZ, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_seek_partition_v1(TEXT, TEXT, TEXT, BOOLEAN, TIMESTAMPTZ, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_delete_cursors_v1(TEXT, UUID, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_delete_consumer_group_v1(TEXT, BOOLEAN, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_delete_consumer_group_for_queue_v1(TEXT, TEXT, BOOLEAN, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_group_lag_v1(TEXT, UUID, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.get_consumer_groups_v4(UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.get_lagging_partitions_v1(INTEGER, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.get_consumer_group_details_v1(TEXT, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.record_trace_v1(JSONB) TO PUBLIC;
