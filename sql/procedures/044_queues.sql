-- Queue lists with live figures, partitions by page, depth, capacity, purge, and seek to an offset.

-- log_queue_list_v1: the queues of a tenant, newest first.
--   p_filters  {"queue"?,"namespace"?,"task"?: exact,"limit"?: absent is all,"offset"? = 0,"cached"?: true takes every figure from the last
--              refresh and leaves segments out: the form for a page that polls,"_tenant"?}
-- Returns {"queues":[{"id","name","namespace","task","createdAt":ISO-ms,"partitions","retainedBytes","segments":{"segments",
-- "messages"},"messages":{"total","pending":without what is leased,"processing"}, and what the command-line client shows:
-- "partitionCount","priority","leaseTime","retryLimit","maxSize","encryptionEnabled"}]}. partitions, segments and total are live, the
-- rest is from the last refresh. Counting segments reads an index of all segments of the page's queues.
-- Locks: none. Called by: pg.ListQueues.
CREATE OR REPLACE FUNCTION queen.log_queue_list_v1(p_filters JSONB DEFAULT '{}')
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    v_tenant UUID := COALESCE(NULLIF(p_filters ->> '_tenant', '')::UUID, '00000000-0000-0000-0000-000000000001');
    v_cached BOOLEAN := COALESCE((p_filters ->> 'cached')::BOOLEAN, FALSE);
    v_ids    UUID[];
    v_result JSONB;
BEGIN
    SELECT COALESCE(array_agg(x.id), '{}') INTO v_ids
      FROM (SELECT q.id FROM queen.queues q
             WHERE q.tenant_id = v_tenant
               AND (COALESCE(p_filters ->> 'queue', '') = '' OR q.name = p_filters ->> 'queue')
               AND (COALESCE(p_filters ->> 'namespace', '') = '' OR q.namespace = p_filters ->> 'namespace')
               AND (COALESCE(p_filters ->> 'task', '') = '' OR q.task = p_filters ->> 'task')
             ORDER BY q.created_at DESC, q.id DESC
             LIMIT (p_filters ->> 'limit')::INT OFFSET GREATEST(COALESCE((p_filters ->> 'offset')::INT, 0), 0)) x;
    WITH live AS (
        SELECT p.queue_id, count(*) AS partitions, sum(GREATEST(p.last_offset - p.log_start + 1, 0)) AS messages
          FROM queen.log_partitions p
         WHERE NOT v_cached AND p.queue_id = ANY (v_ids)
         GROUP BY p.queue_id),
    counted AS (
        SELECT p.queue_id, count(*) AS segments
          FROM queen.log_partitions p
          JOIN queen.log_segments s ON s.partition_id = p.id
         WHERE NOT v_cached AND p.queue_id = ANY (v_ids)
         GROUP BY p.queue_id)
    SELECT jsonb_build_object('queues', COALESCE(jsonb_agg(jsonb_build_object(
               'id', q.id, 'name', q.name, 'namespace', q.namespace, 'task', q.task, 'createdAt', queen.iso_ms_v1(q.created_at),
               'partitions', CASE WHEN v_cached THEN COALESCE(s.child_count, 0) ELSE COALESCE(l.partitions, 0) END,
               'partitionCount', CASE WHEN v_cached THEN COALESCE(s.child_count, 0) ELSE COALESCE(l.partitions, 0) END,
               'priority', COALESCE(q.priority, 0), 'leaseTime', COALESCE(q.lease_time, 60), 'retryLimit', COALESCE(q.retry_limit, 3),
               'maxSize', COALESCE(q.max_queue_size, 0), 'encryptionEnabled', COALESCE(q.encryption_enabled, FALSE),
               'retainedBytes', COALESCE(s.retained_bytes, 0),
               'messages', jsonb_build_object(
                   'total', CASE WHEN v_cached THEN COALESCE(s.total_messages, 0) ELSE COALESCE(l.messages, 0) END,
                   'pending', GREATEST(COALESCE(s.pending_messages - s.processing_messages, 0), 0),
                   'processing', COALESCE(s.processing_messages, 0)))
               || CASE WHEN v_cached THEN '{}'::JSONB ELSE jsonb_build_object('segments', jsonb_build_object(
                   'segments', COALESCE(c.segments, 0), 'messages', COALESCE(l.messages, 0))) END
               ORDER BY q.created_at DESC, q.id DESC), '[]'::JSONB))
      INTO v_result
      FROM queen.queues q
      LEFT JOIN live l ON l.queue_id = q.id
      LEFT JOIN counted c ON c.queue_id = q.id
      LEFT JOIN queen.stats s ON s.stat_type = 'queue' AND s.stat_key = q.id::TEXT
     WHERE q.id = ANY (v_ids);
    RETURN v_result;
END $$;

-- log_partition_list_v1: the partitions of a queue by page.
--   p_filters  {"prefix"?: literal start of the name,"group"?: figures of this group alone,"sort"?: "name" (default), "depth" (most
--              pending first) or "age" (oldest pending message first; partitions without one last),"leases"?: true says who holds each,
--              "limit"? = 100,"after"?: "next" of the page before}
-- Returns {"error":"Queue not found"} or {"partitions":[{"id","name","createdAt","lastWriteAt":ISO-ms,"messages":{"total","pending",
-- "processing","completed","failed":null,"deadLetter"},"oldestMessage","newestMessage":ISO-ms|null}],"next":text|null}; with leases also
-- "leases":[{"consumerGroup","leaseId":null while a redelivery waits for its time,"leaseExpiresAt":ISO-ms,"live":false when it ran out and
-- nobody took the batch since,"heldSeconds","messageCount","attemptCount","batchRetryCount"}].
-- By name a page reads only its own partitions. By depth or age every partition of the queue is looked at, and what moves between
-- pages moves: a partition whose figure changes may be seen twice or not at all.
-- Locks: none. Called by: pg.ListPartitions.
CREATE OR REPLACE FUNCTION queen.log_partition_list_v1(
    p_queue TEXT, p_filters JSONB DEFAULT '{}', p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    v_queue  UUID := (SELECT q.id FROM queen.queues q WHERE q.tenant_id = p_tenant AND q.name = p_queue);
    v_sort   TEXT := COALESCE(NULLIF(p_filters ->> 'sort', ''), 'name');
    v_limit  INT := GREATEST(COALESCE((p_filters ->> 'limit')::INT, 100), 1);
    v_prefix TEXT := NULLIF(p_filters ->> 'prefix', '');
    v_group  TEXT := NULLIF(p_filters ->> 'group', '');
    v_key    NUMERIC := NULLIF(split_part(p_filters ->> 'after', '|', 1), '')::NUMERIC;
    v_name   TEXT := CASE WHEN COALESCE(p_filters ->> 'after', '') <> '' THEN substr(p_filters ->> 'after', strpos(p_filters ->> 'after', '|') + 1) END;
    v_leases BOOLEAN := COALESCE((p_filters ->> 'leases')::BOOLEAN, FALSE);
    v_ids    UUID[];
    v_result JSONB;
BEGIN
    IF v_queue IS NULL THEN
        RETURN jsonb_build_object('error', 'Queue not found');
    END IF;
    IF v_sort = 'name' THEN
        -- The names behind the cursor in index order; the unique index is in the database's collation, so that is the order here.
        SELECT array_agg(x.id) INTO v_ids
          FROM (SELECT p.id FROM queen.log_partitions p
                 WHERE p.queue_id = v_queue AND (v_name IS NULL OR p.name > v_name) AND (v_prefix IS NULL OR starts_with(p.name, v_prefix))
                 ORDER BY p.name LIMIT v_limit) x;
    END IF;
    WITH figures AS MATERIALIZED (
        SELECT f.r_id, f.r_name, f.r_created_at, f.r_written_at, f.r_total, f.r_dlq,
               CASE WHEN v_group IS NULL THEN f.r_pending ELSE own.pending END AS pending,
               CASE WHEN v_group IS NULL THEN f.r_processing ELSE own.leased END AS processing,
               CASE WHEN v_group IS NULL THEN f.r_completed ELSE GREATEST(f.r_total - own.pending - f.r_dlq, 0) END AS completed,
               CASE WHEN v_group IS NULL THEN f.r_seen ELSE own.seen END AS seen
          FROM queen.log_partition_figures_v1(v_queue) f
         CROSS JOIN LATERAL (
                SELECT GREATEST(p.last_offset - GREATEST(COALESCE(c.committed, -1), p.log_start - 1), 0) AS pending,
                       GREATEST(COALESCE(c.committed, -1), p.log_start - 1) AS seen,
                       CASE WHEN c.worker_id IS NOT NULL AND c.lease_expires_at > now()
                            THEN LEAST(GREATEST(c.batch_end - c.committed, 0),
                                       GREATEST(p.last_offset - GREATEST(c.committed, p.log_start - 1), 0)) ELSE 0 END AS leased
                  FROM queen.log_partitions p
                  LEFT JOIN queen.log_consumers c ON c.partition_id = p.id AND c.consumer_group = v_group
                 WHERE p.id = f.r_id) own
         WHERE (v_sort <> 'name' OR f.r_id = ANY (v_ids)) AND (v_prefix IS NULL OR starts_with(f.r_name, v_prefix))),
    keyed AS (
        SELECT f.*, o.oldest,
               CASE v_sort WHEN 'depth' THEN f.pending WHEN 'age' THEN round(COALESCE(-extract(epoch FROM o.oldest) * 1000000, -1e18)) ELSE 0 END AS key
          FROM figures f
         CROSS JOIN LATERAL (SELECT CASE WHEN f.pending > 0 THEN queen.log_oldest_pending_at_v1(f.r_id, f.seen + 1) END AS oldest) o),
    page AS (
        SELECT k.*, row_number() OVER (ORDER BY k.key DESC, k.r_name) AS ord
          FROM keyed k
         WHERE v_sort = 'name' OR v_name IS NULL OR k.key < v_key OR (k.key = v_key AND k.r_name > v_name)
         ORDER BY ord LIMIT v_limit)
    SELECT jsonb_build_object(
               'partitions', COALESCE(jsonb_agg(jsonb_build_object('id', g.r_id, 'name', g.r_name, 'createdAt', queen.iso_ms_v1(g.r_created_at),
                   'lastWriteAt', queen.iso_ms_v1(g.r_written_at),
                   'messages', jsonb_build_object('total', g.r_total, 'pending', g.pending, 'processing', g.processing,
                       'completed', g.completed, 'failed', NULL, 'deadLetter', g.r_dlq),
                   'oldestMessage', queen.iso_ms_v1(g.oldest),
                   'newestMessage', queen.iso_ms_v1(CASE WHEN g.r_total > 0 THEN queen.log_newest_at_v1(g.r_id) END))
                   || CASE WHEN v_leases THEN jsonb_build_object('leases', (
                        SELECT COALESCE(jsonb_agg(jsonb_build_object('consumerGroup', c.consumer_group, 'leaseId', NULLIF(c.worker_id, '__retry__'),
                                   'leaseExpiresAt', queen.iso_ms_v1(c.lease_expires_at), 'live', c.lease_expires_at > now(),
                                   'heldSeconds', round(extract(epoch FROM now() - c.lease_acquired_at), 1),
                                   'messageCount', GREATEST(c.batch_end - c.committed, 0), 'attemptCount', c.attempt_count,
                                   'batchRetryCount', c.batch_retry_count) ORDER BY c.consumer_group COLLATE "C"), '[]'::JSONB)
                          FROM queen.log_consumers c
                         WHERE c.partition_id = g.r_id AND c.worker_id IS NOT NULL AND c.lease_expires_at IS NOT NULL
                           AND (v_group IS NULL OR c.consumer_group = v_group)
                           AND (c.lease_expires_at > now() OR c.worker_id <> '__retry__' AND c.batch_end > c.committed)))
                      ELSE '{}'::JSONB END ORDER BY g.ord), '[]'::JSONB),
               'next', CASE WHEN count(*) = v_limit THEN (array_agg(g.key || '|' || g.r_name ORDER BY g.ord DESC))[1] END)
      INTO v_result
      FROM page g;
    RETURN v_result;
END $$;

-- log_queue_depth_v1: what a queue has to give, by partition, by offset arithmetic alone.
--   p_group  a group's own depth; '' or NULL judges by the slowest group that counts
-- Returns {"queue","group","depth","partitions":[{"partition","partitionId","depth"}]}, deepest first, empty ones left out, or
-- {"error":"Queue not found"}. Locks: none. Called by: pg.QueueDepth.
CREATE OR REPLACE FUNCTION queen.log_queue_depth_v1(
    p_queue TEXT, p_group TEXT, p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    v_queue  UUID := (SELECT q.id FROM queen.queues q WHERE q.tenant_id = p_tenant AND q.name = p_queue);
    v_group  TEXT := NULLIF(p_group, '');
    v_result JSONB;
BEGIN
    IF v_queue IS NULL THEN
        RETURN jsonb_build_object('error', 'Queue not found');
    END IF;
    SELECT jsonb_build_object('queue', p_queue, 'group', v_group, 'depth', COALESCE(sum(x.depth), 0),
               'partitions', COALESCE(jsonb_agg(jsonb_build_object('partition', x.name, 'partitionId', x.id, 'depth', x.depth)
                   ORDER BY x.depth DESC, x.name COLLATE "C") FILTER (WHERE x.depth > 0), '[]'::JSONB))
      INTO v_result
      FROM (SELECT p.id, p.name, GREATEST(p.last_offset - GREATEST(
                       CASE WHEN v_group IS NOT NULL THEN COALESCE(min(c.committed) FILTER (WHERE c.consumer_group = v_group), -1)
                            ELSE COALESCE(min(c.committed) FILTER (WHERE c.consumer_group <> '__QUEUE_MODE__'), min(c.committed), -1) END,
                       p.log_start - 1), 0) AS depth
              FROM queen.log_partitions p
              LEFT JOIN queen.log_consumers c ON c.partition_id = p.id
             WHERE p.queue_id = v_queue
             GROUP BY p.id) x;
    RETURN v_result;
END $$;

-- log_capacity_v1: depth and room of the queues that have a limit. p_filters as log_queue_list_v1.
-- Returns {"queues":[{"queue","maxSize","queueDepth","remainingCapacity","full"}]} by name. The depth is the one that a push is
-- judged by. Locks: none. Called by: pg.QueueCapacity.
CREATE OR REPLACE FUNCTION queen.log_capacity_v1(p_filters JSONB DEFAULT '{}')
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    v_result JSONB;
BEGIN
    SELECT jsonb_build_object('queues', COALESCE(jsonb_agg(jsonb_build_object('queue', x.name, 'maxSize', x.max_queue_size,
               'queueDepth', x.depth, 'remainingCapacity', GREATEST(x.max_queue_size - x.depth, 0), 'full', x.depth >= x.max_queue_size)
               ORDER BY x.name COLLATE "C"), '[]'::JSONB))
      INTO v_result
      FROM (SELECT q.name, q.max_queue_size, d.depth
              FROM queen.queues q
             CROSS JOIN LATERAL (
                    SELECT COALESCE(sum(GREATEST(p.last_offset - GREATEST(c.worst, p.log_start - 1), 0)), 0)::BIGINT AS depth
                      FROM queen.log_partitions p
                     CROSS JOIN LATERAL (
                            SELECT COALESCE(min(x.committed) FILTER (WHERE x.consumer_group <> '__QUEUE_MODE__'), min(x.committed), -1) AS worst
                              FROM queen.log_consumers x WHERE x.partition_id = p.id) c
                     WHERE p.queue_id = q.id) d
             WHERE q.tenant_id = COALESCE(NULLIF(p_filters ->> '_tenant', '')::UUID, '00000000-0000-0000-0000-000000000001')
               AND q.max_queue_size > 0
               AND (COALESCE(p_filters ->> 'queue', '') = '' OR q.name = p_filters ->> 'queue')
               AND (COALESCE(p_filters ->> 'namespace', '') = '' OR q.namespace = p_filters ->> 'namespace')
               AND (COALESCE(p_filters ->> 'task', '') = '' OR q.task = p_filters ->> 'task')
             ORDER BY q.name
             LIMIT (p_filters ->> 'limit')::INT OFFSET GREATEST(COALESCE((p_filters ->> 'offset')::INT, 0), 0)) x;
    RETURN v_result;
END $$;

-- log_purge_v1: delete stored messages of a queue, because an operator says so.
--   p_partition  '' or NULL is every partition
--   p_mode       'consumed': whole segments that every group, queue mode included, has passed. 'all': everything stored, read or
--                not, what is pushed meanwhile included; leases stay, and their acks still resolve
--   p_dry_run    count and delete nothing; "messages" then is what would go, for 'consumed' up to a segment per partition too many
--   p_limit      most segments deleted in this call
-- Returns {"queue","mode","dryRun","partitions":touched,"messages":deleted,"unread":of those not consumed by the slowest group that
-- counts,"done":nothing is left to delete}, or {"error"}: Queue not found, mode must be …. Repeat while done is false.
-- Locks: partition rows FOR NO KEY UPDATE ascending by id, kept until the end of the call. Writes retention_history rows of type
-- 'purge'. Called by: pg.PurgeQueue, one transaction per call.
CREATE OR REPLACE FUNCTION queen.log_purge_v1(
    p_queue TEXT, p_partition TEXT, p_mode TEXT, p_dry_run BOOLEAN, p_limit INTEGER,
    p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    v_queue    UUID := (SELECT q.id FROM queen.queues q WHERE q.tenant_id = p_tenant AND q.name = p_queue);
    v_left     INT := GREATEST(COALESCE(p_limit, 1000), 1);
    v_part     RECORD;
    v_step     JSONB;
    v_touched  BIGINT := 0;
    v_messages BIGINT := 0;
    v_unread   BIGINT := 0;
    v_start    BIGINT;
    v_done     BOOLEAN := TRUE;
BEGIN
    IF v_queue IS NULL THEN
        RETURN jsonb_build_object('error', 'Queue not found');
    ELSIF p_mode IS NULL OR p_mode NOT IN ('consumed', 'all') THEN
        RETURN jsonb_build_object('error', 'mode must be "consumed" or "all"');
    ELSIF p_dry_run THEN
        SELECT count(*), COALESCE(sum(x.gone), 0), COALESCE(sum(GREATEST(x.log_start + x.gone - 1 - GREATEST(x.worst, x.log_start - 1), 0)), 0)
          INTO v_touched, v_messages, v_unread
          FROM (SELECT p.log_start, c.worst,
                       CASE p_mode WHEN 'all' THEN GREATEST(p.last_offset - p.log_start + 1, 0)
                                   ELSE GREATEST(LEAST(c.slowest, p.last_offset) - p.log_start + 1, 0) END AS gone
                  FROM queen.log_partitions p
                 CROSS JOIN LATERAL (
                        SELECT COALESCE(min(x.committed), -1) AS slowest,
                               COALESCE(min(x.committed) FILTER (WHERE x.consumer_group <> '__QUEUE_MODE__'), min(x.committed), -1) AS worst
                          FROM queen.log_consumers x WHERE x.partition_id = p.id) c
                 WHERE p.queue_id = v_queue AND (COALESCE(p_partition, '') = '' OR p.name = p_partition)) x
         WHERE x.gone > 0;
    ELSE
        FOR v_part IN
            SELECT p.id
              FROM queen.log_partitions p
             CROSS JOIN LATERAL (SELECT min(x.committed) AS slowest FROM queen.log_consumers x WHERE x.partition_id = p.id) c
             WHERE p.queue_id = v_queue AND (COALESCE(p_partition, '') = '' OR p.name = p_partition)
               AND p.last_offset >= p.log_start
               AND (p_mode = 'all' OR (c.slowest >= p.log_start AND c.slowest >= (
                       SELECT s.end_offset FROM queen.log_segments s
                        WHERE s.partition_id = p.id AND s.base_offset >= p.log_start
                        ORDER BY s.base_offset LIMIT 1)))
             ORDER BY p.id
             LIMIT v_left + 1
        LOOP
            IF v_left <= 0 THEN
                v_done := FALSE;
                EXIT;
            END IF;
            SELECT p.log_start INTO v_start FROM queen.log_partitions p WHERE p.id = v_part.id FOR NO KEY UPDATE;
            CONTINUE WHEN NOT FOUND;
            v_step := queen.log_retention_step_v1(v_part.id, CASE WHEN p_mode = 'all' THEN 'infinity'::TIMESTAMPTZ END,
                CASE WHEN p_mode = 'consumed' THEN 'infinity'::TIMESTAMPTZ END, v_left, 'purge');
            v_touched := v_touched + 1;
            v_left := v_left - GREATEST((v_step ->> 'deleted')::INT, 1);
            v_messages := v_messages + (v_step ->> 'new_log_start')::BIGINT - v_start;
            v_unread := v_unread + GREATEST((v_step ->> 'new_log_start')::BIGINT - 1 - GREATEST(v_start - 1, (
                SELECT COALESCE(min(c.committed) FILTER (WHERE c.consumer_group <> '__QUEUE_MODE__'), min(c.committed), -1)
                  FROM queen.log_consumers c WHERE c.partition_id = v_part.id)), 0);
            v_done := v_done AND (v_step ->> 'done')::BOOLEAN;
        END LOOP;
    END IF;
    RETURN jsonb_build_object('queue', p_queue, 'mode', p_mode, 'dryRun', COALESCE(p_dry_run, FALSE), 'partitions', v_touched,
        'messages', v_messages, 'unread', v_unread, 'done', v_done);
END $$;

-- log_seek_offset_v1: put the cursor of a group so that p_offset is delivered next; see log_seek_core_v1.
--   p_partition  NULL is every partition of the queue
-- Returns {"success":true,"consumerGroup","queueName","partitionName":null for all,"seekToEnd":false,"targetTimestamp":null,
-- "targetOffset","partitionsUpdated","updated":true}, or
-- {"success":false,"error"}: offset must not be negative, Queue not found or has no partitions, Partition not found.
-- Locks: log_seek_core_v1. Called by: pg.SeekGroup, pg.SeekPartition.
CREATE OR REPLACE FUNCTION queen.log_seek_offset_v1(
    p_group TEXT, p_queue TEXT, p_partition TEXT, p_offset BIGINT, p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_rows BIGINT;
BEGIN
    IF COALESCE(p_offset, -1) < 0 THEN
        RETURN jsonb_build_object('success', FALSE, 'error', 'offset must not be negative');
    END IF;
    v_rows := queen.log_seek_core_v1((SELECT q.id FROM queen.queues q WHERE q.tenant_id = p_tenant AND q.name = p_queue), p_partition,
        p_group, FALSE, NULL, p_offset);
    IF v_rows = 0 THEN
        RETURN jsonb_build_object('success', FALSE, 'consumerGroup', p_group, 'queueName', p_queue, 'partitionsUpdated', 0,
            'error', CASE WHEN p_partition IS NULL THEN 'Queue not found or has no partitions' ELSE 'Partition not found' END);
    END IF;
    RETURN jsonb_build_object('success', TRUE, 'consumerGroup', p_group, 'queueName', p_queue, 'partitionName', p_partition,
        'seekToEnd', FALSE, 'targetTimestamp', NULL, 'targetOffset', p_offset, 'partitionsUpdated', v_rows, 'updated', TRUE);
END $$;

-- log_clone_group_v1: put the cursor of a group where that of another group is.
--   p_from       the group that is copied; where it has no cursor it counts as one that has passed nothing
--   p_partition  NULL is every partition of the queue
--   p_dry_run    only counts what would be read again
-- What p_from has leased and not acknowledged is before p_group, too: nothing is skipped. The cursors of p_from stay as they are.
-- Otherwise it is a seek, see log_seek_core_v1.
-- Returns {"success":true,"dryRun":true,"consumerGroup","queueName","partitionName":null for all,"seekToEnd":false,"targetTimestamp":null,
-- "targetGroup","partitionsUpdated","updated":false,"partitionsMoved","again","skipped","pending","leases"}, the figures as of
-- log_seek_preview_v1, or without them and with "updated":true, or {"success":false,"error"}: Queue not found or has no partitions,
-- Partition not found, The group to copy was not found there.
-- Locks: as log_seek_core_v1; none for a dry run. Called by: pg.SeekGroup, pg.SeekPartition, pg.SeekPreview.
CREATE OR REPLACE FUNCTION queen.log_clone_group_v1(
    p_group TEXT, p_from TEXT, p_queue TEXT, p_partition TEXT, p_dry_run BOOLEAN,
    p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    v_queue  UUID;
    v_ids    UUID[];
    v_result JSONB := jsonb_build_object('success', TRUE, 'consumerGroup', p_group, 'queueName', p_queue, 'partitionName', p_partition,
                          'seekToEnd', FALSE, 'targetTimestamp', NULL, 'targetGroup', p_from);
    v_counts JSONB;
BEGIN
    SELECT q.id INTO v_queue FROM queen.queues q WHERE q.tenant_id = p_tenant AND q.name = p_queue;
    IF COALESCE(p_dry_run, FALSE) THEN
        SELECT array_agg(p.id) INTO v_ids
          FROM queen.log_partitions p WHERE p.queue_id = v_queue AND (p_partition IS NULL OR p.name = p_partition);
    ELSE
        SELECT array_agg(l.id) INTO v_ids
          FROM (SELECT p.id FROM queen.log_partitions p
                 WHERE p.queue_id = v_queue AND (p_partition IS NULL OR p.name = p_partition)
                 ORDER BY p.id
                   FOR NO KEY UPDATE) l;
    END IF;
    IF v_ids IS NULL THEN
        RETURN jsonb_build_object('success', FALSE, 'consumerGroup', p_group, 'queueName', p_queue, 'partitionsUpdated', 0,
            'error', CASE WHEN p_partition IS NULL THEN 'Queue not found or has no partitions' ELSE 'Partition not found' END);
    END IF;
    IF NOT EXISTS (SELECT 1 FROM queen.log_consumers c WHERE c.partition_id = ANY (v_ids) AND c.consumer_group = p_from) THEN
        RETURN jsonb_build_object('success', FALSE, 'consumerGroup', p_group, 'queueName', p_queue, 'partitionsUpdated', 0,
            'error', 'The group to copy was not found there');
    END IF;
    IF COALESCE(p_dry_run, FALSE) THEN
        WITH moved AS (
            SELECT GREATEST(COALESCE(c.committed, -1), p.log_start - 1) AS old, GREATEST(COALESCE(f.committed, -1), p.log_start - 1) AS new,
                   p.last_offset, c.worker_id IS NOT NULL AND c.worker_id <> '__retry__' AND c.lease_expires_at > clock_timestamp() AS leased
              FROM queen.log_partitions p
              LEFT JOIN queen.log_consumers c ON c.partition_id = p.id AND c.consumer_group = p_group
              LEFT JOIN queen.log_consumers f ON f.partition_id = p.id AND f.consumer_group = p_from
             WHERE p.id = ANY (v_ids))
        SELECT jsonb_build_object('dryRun', TRUE, 'updated', FALSE, 'partitionsUpdated', count(*), 'partitionsMoved', count(*) FILTER (WHERE m.new <> m.old),
                   'again', COALESCE(sum(GREATEST(m.old - m.new, 0)), 0), 'skipped', COALESCE(sum(GREATEST(m.new - m.old, 0)), 0),
                   'pending', COALESCE(sum(GREATEST(m.last_offset - m.new, 0)), 0), 'leases', count(*) FILTER (WHERE m.leased))
          INTO v_counts
          FROM moved m;
        RETURN v_result || v_counts;
    END IF;
    -- A statement of its own: it sees every ack that committed before the locks were obtained.
    INSERT INTO queen.log_consumers AS c (partition_id, consumer_group, committed)
    SELECT p.id, p_group, LEAST(GREATEST(COALESCE(f.committed, -1), p.log_start - 1), p.last_offset)
      FROM queen.log_partitions p
      LEFT JOIN queen.log_consumers f ON f.partition_id = p.id AND f.consumer_group = p_from
     WHERE p.id = ANY (v_ids)
     ORDER BY p.id
        ON CONFLICT (partition_id, consumer_group) DO UPDATE
       SET committed = EXCLUDED.committed, batch_end = NULL, worker_id = NULL, lease_expires_at = NULL,
           batch_retry_count = 0, attempt_offset = NULL, attempt_count = 0, isolate_end = NULL;
    DELETE FROM queen.consumer_watermarks w WHERE w.queue_id = v_queue AND w.consumer_group = p_group;
    INSERT INTO queen.hotlist_repairs (tenant_id, queue_id, consumer_group) VALUES (p_tenant, v_queue, p_group);
    RETURN v_result || jsonb_build_object('partitionsUpdated', cardinality(v_ids), 'updated', TRUE);
END $$;

GRANT EXECUTE ON FUNCTION queen.log_queue_list_v1(JSONB) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_partition_list_v1(TEXT, JSONB, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_queue_depth_v1(TEXT, TEXT, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_capacity_v1(JSONB) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_purge_v1(TEXT, TEXT, TEXT, BOOLEAN, INTEGER, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_seek_offset_v1(TEXT, TEXT, TEXT, BIGINT, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_clone_group_v1(TEXT, TEXT, TEXT, TEXT, BOOLEAN, UUID) TO PUBLIC;
