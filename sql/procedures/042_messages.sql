-- Browsing messages. The broker decodes the segments; SQL names them and says what became of each message.

-- log_message_state_v1: what became of the message at an offset.
--   p_group  judge by this group alone; NULL judges by the named groups, or by __QUEUE_MODE__ in a partition that has none
-- Returns one row. r_status: dead_letter when a dead letter lies at the offset, else completed when every group that counts has
-- passed it, else processing when a live lease of one covers it, else pending. r_queue_status: the same by __QUEUE_MODE__ alone, without
-- dead_letter. r_consumed of r_groups named groups have passed it. r_lease: latest live lease that covers it.
-- Inlined by the planner. Locks: none. Called by: log_message_scan_v1, get_message_detail_v1, get_trace_messages_v1.
CREATE OR REPLACE FUNCTION queen.log_message_state_v1(p_pid UUID, p_off BIGINT, p_group TEXT)
RETURNS TABLE (r_status TEXT, r_queue_status TEXT, r_consumed BIGINT, r_groups BIGINT, r_queue_mode BOOLEAN, r_lease TIMESTAMPTZ)
LANGUAGE sql STABLE
AS $$
    SELECT CASE WHEN EXISTS (SELECT 1 FROM queen.log_dlq d
                              WHERE d.partition_id = p_pid AND d."offset" = p_off AND (p_group IS NULL OR d.consumer_group = p_group))
                THEN 'dead_letter'
                WHEN p_group IS NOT NULL
                THEN CASE WHEN g.own_passed THEN 'completed' WHEN g.own_lease IS NOT NULL THEN 'processing' ELSE 'pending' END
                WHEN g.named > 0
                THEN CASE WHEN g.passed = g.named THEN 'completed' WHEN g.named_lease IS NOT NULL THEN 'processing' ELSE 'pending' END
                WHEN g.queue_passed THEN 'completed' WHEN g.queue_lease IS NOT NULL THEN 'processing' ELSE 'pending' END,
           CASE WHEN g.queue_passed THEN 'completed' WHEN g.queue_lease IS NOT NULL THEN 'processing' ELSE 'pending' END,
           g.passed, g.named, g.queue_mode,
           CASE WHEN p_group IS NOT NULL THEN g.own_lease WHEN g.named > 0 THEN g.named_lease ELSE g.queue_lease END
      FROM (SELECT count(*) FILTER (WHERE x.named) AS named, count(*) FILTER (WHERE x.named AND x.passed) AS passed,
                   count(*) FILTER (WHERE NOT x.named) > 0 AS queue_mode,
                   COALESCE(bool_or(x.passed) FILTER (WHERE NOT x.named), FALSE) AS queue_passed,
                   COALESCE(bool_or(x.passed) FILTER (WHERE x.own), FALSE) AS own_passed,
                   max(x.lease) FILTER (WHERE x.named) AS named_lease, max(x.lease) FILTER (WHERE NOT x.named) AS queue_lease,
                   max(x.lease) FILTER (WHERE x.own) AS own_lease
              FROM (SELECT c.consumer_group <> '__QUEUE_MODE__' AS named, c.committed >= p_off AS passed, c.consumer_group = p_group AS own,
                           CASE WHEN c.worker_id IS NOT NULL AND c.lease_expires_at > now() AND p_off > c.committed AND p_off <= c.batch_end
                                THEN c.lease_expires_at END AS lease
                      FROM queen.log_consumers c WHERE c.partition_id = p_pid) x) g
$$;

-- log_txns_range_v1: offsets between which the sidecar rows of a partition with created_at in [p_from, p_to) lie; wider by a few
-- hundred offsets at most. Halves by primary key steps; created_at never decreases along a partition, give or take the one-second
-- quantum of last_write_at, which the margins cover. Locks: none. Called by: log_message_scan_v1.
CREATE OR REPLACE FUNCTION queen.log_txns_range_v1(
    p_pid UUID, p_first BIGINT, p_last BIGINT, p_from TIMESTAMPTZ, p_to TIMESTAMPTZ, OUT r_lo BIGINT, OUT r_hi BIGINT)
RETURNS RECORD
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    v_a   BIGINT;
    v_b   BIGINT;
    v_mid BIGINT;
    v_at  TIMESTAMPTZ;
BEGIN
    v_a := p_first;
    v_b := p_last;
    WHILE v_b - v_a > 256 LOOP
        v_mid := v_a + (v_b - v_a) / 2;
        SELECT t.created_at INTO v_at FROM queen.log_txns t
         WHERE t.partition_id = p_pid AND t.base_offset <= v_mid ORDER BY t.base_offset DESC LIMIT 1;
        IF v_at < p_from - INTERVAL '2 seconds' THEN
            v_a := v_mid;
        ELSE
            v_b := v_mid;
        END IF;
    END LOOP;
    r_lo := v_a;
    v_b := p_last;
    WHILE v_b - v_a > 256 LOOP
        v_mid := v_a + (v_b - v_a) / 2;
        SELECT t.created_at INTO v_at FROM queen.log_txns t
         WHERE t.partition_id = p_pid AND t.base_offset <= v_mid ORDER BY t.base_offset DESC LIMIT 1;
        IF v_at < p_to + INTERVAL '2 seconds' THEN
            v_a := v_mid;
        ELSE
            v_b := v_mid;
        END IF;
    END LOOP;
    r_hi := v_b;
END $$;

-- log_message_frames_v1: the messages of one sidecar row that match, newest first, at most p_need.
--   p_below  only offsets below it, NULL is all; the rest as log_message_scan_v1
-- A function of its own so that its plan is kept: it runs once per segment of a page. Locks: none. Called by: log_message_scan_v1.
CREATE OR REPLACE FUNCTION queen.log_message_frames_v1(
    p_pid UUID, p_base BIGINT, p_status TEXT, p_group TEXT, p_hash BYTEA, p_below BIGINT, p_need INTEGER)
RETURNS TABLE (r_off BIGINT, r_hash BYTEA)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
BEGIN
    IF p_status IS NULL THEN
        RETURN QUERY
        SELECT p_base + u.idx, u.h
          FROM (SELECT x.hashes || ''::BYTEA AS hashes FROM queen.log_txns x
                 WHERE x.partition_id = p_pid AND x.base_offset = p_base OFFSET 0) x
         CROSS JOIN LATERAL queen.log_unnest_hashes(x.hashes) u
         WHERE (p_hash IS NULL OR u.h = p_hash) AND (p_below IS NULL OR p_base + u.idx < p_below)
         ORDER BY u.idx DESC
         LIMIT p_need;
    ELSE
        RETURN QUERY
        SELECT p_base + u.idx, u.h
          FROM (SELECT x.hashes || ''::BYTEA AS hashes FROM queen.log_txns x
                 WHERE x.partition_id = p_pid AND x.base_offset = p_base OFFSET 0) x
         CROSS JOIN LATERAL queen.log_unnest_hashes(x.hashes) u
         CROSS JOIN LATERAL queen.log_message_state_v1(p_pid, p_base + u.idx, p_group) s
         WHERE (p_hash IS NULL OR u.h = p_hash) AND (p_below IS NULL OR p_base + u.idx < p_below) AND s.r_status = p_status
         ORDER BY u.idx DESC
         LIMIT p_need;
    END IF;
END $$;

-- log_message_scan_v1: the newest p_need messages that match, by (created_at, partition id, offset) descending.
--   p_from, p_to      created_at in [p_from, p_to)
--   p_status, p_group see log_message_state_v1; NULL is all
--   p_hash            hash of the transaction id, NULL is all
--   p_after_*         only what sorts strictly behind this key; NULL starts at the newest
-- Looks at the last 2 s before the newest write first, then at four times as much, and so on: a page of recent messages touches
-- only partitions that were written to then. Within a window it takes segments newest first and stops at the p_need-th match.
-- A message is found as long as its sidecar row is kept. Locks: none. Called by: list_messages_v1.
CREATE OR REPLACE FUNCTION queen.log_message_scan_v1(
    p_queue_ids UUID[], p_partition TEXT, p_from TIMESTAMPTZ, p_to TIMESTAMPTZ, p_status TEXT, p_group TEXT, p_hash BYTEA,
    p_after_at TIMESTAMPTZ, p_after_pid UUID, p_after_off BIGINT, p_need INTEGER)
RETURNS TABLE (r_pid UUID, r_base BIGINT, r_off BIGINT, r_at TIMESTAMPTZ, r_hash BYTEA)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    v_hi   TIMESTAMPTZ := LEAST(p_to, p_after_at + INTERVAL '1 microsecond');
    v_lo   TIMESTAMPTZ;
    v_span INTERVAL := INTERVAL '2 seconds';
    v_left INTEGER := p_need;
    v_dead UUID[];
    v_seg  RECORD;
    v_row  RECORD;
BEGIN
    IF p_status = 'dead_letter' THEN
        SELECT COALESCE(array_agg(DISTINCT d.partition_id), '{}') INTO v_dead
          FROM queen.log_dlq d JOIN queen.log_partitions p ON p.id = d.partition_id
         WHERE p.queue_id = ANY (p_queue_ids) AND (p_group IS NULL OR d.consumer_group = p_group);
    END IF;
    -- last_write_at moves once a second at most: the newest message may be up to that much younger.
    SELECT LEAST(v_hi, max(w.last_write_at) + INTERVAL '2 seconds') INTO v_hi
      FROM unnest(p_queue_ids) AS q (id)
     CROSS JOIN LATERAL (
            SELECT p.last_write_at FROM queen.log_partitions p WHERE p.queue_id = q.id ORDER BY p.last_write_at DESC LIMIT 1) w
    HAVING count(*) > 0;
    WHILE v_left > 0 AND v_hi > p_from LOOP
        v_lo := GREATEST(p_from, v_hi - v_span);
        FOR v_seg IN
            SELECT p.id, t.base_offset, t.created_at
              FROM queen.log_partitions p
             CROSS JOIN LATERAL (
                    SELECT CASE WHEN p_group IS NOT NULL THEN COALESCE(min(c.committed) FILTER (WHERE c.consumer_group = p_group), -1)
                                ELSE COALESCE(min(c.committed) FILTER (WHERE c.consumer_group <> '__QUEUE_MODE__'), min(c.committed), -1) END AS worst
                      FROM queen.log_consumers c WHERE c.partition_id = p.id AND p_status IS NOT NULL) g
             CROSS JOIN LATERAL (
                    SELECT p.txns_start AS r_lo, p.last_offset AS r_hi WHERE p.last_offset - p.txns_start <= 256
                    UNION ALL
                    SELECT b.r_lo, b.r_hi FROM queen.log_txns_range_v1(p.id, p.txns_start, p.last_offset, v_lo, v_hi) b
                     WHERE p.last_offset - p.txns_start > 256) r
             CROSS JOIN LATERAL (
                    SELECT x.base_offset, x.created_at
                      FROM queen.log_txns x
                     WHERE x.partition_id = p.id AND x.base_offset BETWEEN r.r_lo AND r.r_hi
                       AND x.created_at >= v_lo AND x.created_at < v_hi
                       AND (p_after_at IS NULL OR (x.created_at, x.partition_id, x.base_offset) < (p_after_at, p_after_pid, p_after_off))
                       AND (p_status IS DISTINCT FROM 'completed' OR x.base_offset <= g.worst)
                       AND (COALESCE(p_status, '') NOT IN ('pending', 'processing') OR x.end_offset > g.worst)
                       AND (p_hash IS NULL OR position(p_hash IN x.hashes) > 0)
                     ORDER BY x.base_offset DESC
                     LIMIT CASE WHEN p_status IS NULL AND p_hash IS NULL THEN v_left END) t
             WHERE p.queue_id = ANY (p_queue_ids) AND p.last_write_at >= v_lo - INTERVAL '2 seconds'
               AND (p_partition IS NULL OR p.name = p_partition) AND (v_dead IS NULL OR p.id = ANY (v_dead))
             ORDER BY t.created_at DESC, p.id DESC, t.base_offset DESC
        LOOP
            FOR v_row IN
                SELECT f.r_off AS off, f.r_hash AS h
                  FROM queen.log_message_frames_v1(v_seg.id, v_seg.base_offset, p_status, p_group, p_hash,
                           CASE WHEN v_seg.created_at = p_after_at AND v_seg.id = p_after_pid THEN p_after_off END, v_left) f
            LOOP
                r_pid := v_seg.id;
                r_base := v_seg.base_offset;
                r_off := v_row.off;
                r_at := v_seg.created_at;
                r_hash := v_row.h;
                v_left := v_left - 1;
                RETURN NEXT;
            END LOOP;
            EXIT WHEN v_left <= 0;
        END LOOP;
        v_hi := v_lo;
        v_span := v_span * 4;
    END LOOP;
END $$;

-- list_messages_v1: messages, newest first by (created_at, partition id, offset).
--   p_filters  {"queue"?,"partition"?,"namespace"?,"task"?: exact,"status"?: pending|processing|completed|dead_letter,"group"?: judge
--              the status by this group,"from"? = an hour ago (the beginning with traceId), inclusive,"to"? = now, up to the end of its
--              minute,"txnHash"?: 32 hex digits,"traceId"?,"limit"? = 200,"offset"? = 0,"after"?: "next" of the page before, which makes
--              offset count for nothing,"_tenant"?}
-- Returns {"messages":[{"id":null,"transactionId":null,"txnHash":hex,"partitionId","queuePath":"queue/partition","queue","partition",
-- "namespace","task","status","queueStatus","busStatus":{"consumedBy","totalGroups"},"traceId":null,"producerSub":null,"queuePriority",
-- "payloadAvailable":false,"segment":{"seq":base,"frameIdx"},"offset","stored":not removed by retention,"retryCount":of the newest
-- dead letter at the offset,"createdAt":ISO-ms,"leaseExpiresAt":ISO-ms|null}],"mode":
-- {"hasQueueMode","busGroupsCount","type":bus|queue|hybrid|none} of the page,"next":text|null when the page is short}. The broker
-- fills in what lies in the segments. Raises 22007, 22P02, 22023 for unreadable filters. Locks: none. Called by: pg.ListMessages.
CREATE OR REPLACE FUNCTION queen.list_messages_v1(p_filters JSONB DEFAULT '{}')
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    v_tenant UUID := COALESCE(NULLIF(p_filters ->> '_tenant', '')::UUID, '00000000-0000-0000-0000-000000000001');
    v_trace  UUID := NULLIF(p_filters ->> 'traceId', '')::UUID;
    v_to     TIMESTAMPTZ := date_trunc('minute', COALESCE(queen.parse_time_v1(p_filters ->> 'to'), now()), 'UTC') + INTERVAL '1 minute';
    v_from   TIMESTAMPTZ := COALESCE(queen.parse_time_v1(p_filters ->> 'from'),
                                     CASE WHEN v_trace IS NULL THEN now() - INTERVAL '1 hour' ELSE '-infinity' END);
    v_status TEXT := NULLIF(p_filters ->> 'status', '');
    v_group  TEXT := NULLIF(p_filters ->> 'group', '');
    v_name   TEXT := NULLIF(p_filters ->> 'partition', '');
    v_hash   BYTEA := decode(NULLIF(p_filters ->> 'txnHash', ''), 'hex');
    v_limit  INT := GREATEST(COALESCE((p_filters ->> 'limit')::INT, 200), 0);
    v_at     TIMESTAMPTZ := queen.parse_time_v1(split_part(p_filters ->> 'after', '|', 1));
    v_pid    UUID := NULLIF(split_part(p_filters ->> 'after', '|', 2), '')::UUID;
    v_off    BIGINT := NULLIF(split_part(p_filters ->> 'after', '|', 3), '')::BIGINT;
    v_skip   INT := CASE WHEN v_at IS NULL THEN GREATEST(COALESCE((p_filters ->> 'offset')::INT, 0), 0) ELSE 0 END;
    v_queues UUID[];
    v_result JSONB;
BEGIN
    SELECT array_agg(q.id) INTO v_queues
      FROM queen.queues q
     WHERE q.tenant_id = v_tenant
       AND (COALESCE(p_filters ->> 'queue', '') = '' OR q.name = p_filters ->> 'queue')
       AND (COALESCE(p_filters ->> 'namespace', '') = '' OR q.namespace = p_filters ->> 'namespace')
       AND (COALESCE(p_filters ->> 'task', '') = '' OR q.task = p_filters ->> 'task');
    WITH found AS MATERIALIZED (
        SELECT s.* FROM queen.log_message_scan_v1(v_queues, v_name, v_from, v_to, v_status, v_group, v_hash, v_at, v_pid, v_off,
                   LEAST(v_skip::BIGINT + v_limit, 2147483647)::INT) s
         WHERE v_trace IS NULL
        UNION ALL
        -- A trace knows its messages: no scan.
        SELECT y.partition_id, y.base_offset, y."offset", y.created_at, y.h
          FROM (SELECT x.partition_id, n.base_offset, x."offset", n.created_at,
                       substring(n.hashes FROM ((x."offset" - n.base_offset) * 16 + 1)::INT FOR 16) AS h
                  FROM queen.log_traced x
                  JOIN queen.log_partitions p ON p.id = x.partition_id
                 CROSS JOIN LATERAL (
                        SELECT t.base_offset, t.end_offset, t.created_at, t.hashes FROM queen.log_txns t
                         WHERE t.partition_id = x.partition_id AND t.base_offset <= x."offset"
                         ORDER BY t.base_offset DESC LIMIT 1) n
                 WHERE x.trace_id = v_trace AND n.end_offset >= x."offset" AND p.queue_id = ANY (v_queues)
                   AND (v_name IS NULL OR p.name = v_name) AND n.created_at >= v_from AND n.created_at < v_to
                   AND (v_at IS NULL OR (n.created_at, x.partition_id, x."offset") < (v_at, v_pid, v_off))) y
         WHERE (v_hash IS NULL OR y.h = v_hash)
           AND (v_status IS NULL OR v_status = (SELECT s.r_status FROM queen.log_message_state_v1(y.partition_id, y."offset", v_group) s))),
    page AS MATERIALIZED (
        SELECT f.* FROM found f ORDER BY f.r_at DESC, f.r_pid DESC, f.r_off DESC LIMIT v_limit OFFSET v_skip),
    groups AS (
        SELECT COALESCE(bool_or(c.consumer_group = '__QUEUE_MODE__'), FALSE) AS queue_mode,
               count(DISTINCT c.consumer_group) FILTER (WHERE c.consumer_group <> '__QUEUE_MODE__') AS named
          FROM queen.log_consumers c WHERE c.partition_id IN (SELECT g.r_pid FROM page g))
    SELECT jsonb_build_object(
               'messages', COALESCE(jsonb_agg(jsonb_build_object(
                   'id', NULL, 'transactionId', NULL, 'txnHash', encode(g.r_hash, 'hex'), 'partitionId', g.r_pid,
                   'queuePath', q.name || '/' || p.name, 'queue', q.name, 'partition', p.name, 'namespace', q.namespace, 'task', q.task,
                   'status', s.r_status, 'queueStatus', s.r_queue_status,
                   'busStatus', jsonb_build_object('consumedBy', s.r_consumed, 'totalGroups', s.r_groups),
                   'traceId', NULL, 'producerSub', NULL, 'queuePriority', q.priority, 'payloadAvailable', FALSE,
                   'segment', jsonb_build_object('seq', g.r_base, 'frameIdx', g.r_off - g.r_base), 'offset', g.r_off,
                   'stored', g.r_off >= p.log_start, 'retryCount', COALESCE((
                       SELECT d.retry_count FROM queen.log_dlq d
                        WHERE d.partition_id = g.r_pid AND d."offset" = g.r_off ORDER BY d.failed_at DESC LIMIT 1), 0),
                   'createdAt', queen.iso_ms_v1(g.r_at), 'leaseExpiresAt', queen.iso_ms_v1(s.r_lease))
                   ORDER BY g.r_at DESC, g.r_pid DESC, g.r_off DESC), '[]'::JSONB),
               'mode', (SELECT jsonb_build_object('hasQueueMode', x.queue_mode, 'busGroupsCount', x.named, 'type',
                            CASE WHEN x.queue_mode AND x.named > 0 THEN 'hybrid' WHEN x.named > 0 THEN 'bus' WHEN x.queue_mode THEN 'queue'
                                 ELSE 'none' END) FROM groups x),
               'next', CASE WHEN count(*) = v_limit AND v_limit > 0 THEN
                   (array_agg(queen.iso_us_v1(g.r_at) || '|' || g.r_pid || '|' || g.r_off ORDER BY g.r_at, g.r_pid, g.r_off))[1] END)
      INTO v_result
      FROM page g
      JOIN queen.log_partitions p ON p.id = g.r_pid
      JOIN queen.queues q ON q.id = p.queue_id
     CROSS JOIN LATERAL queen.log_message_state_v1(g.r_pid, g.r_off, v_group) s;
    RETURN v_result;
END $$;

-- get_message_detail_v1: everything SQL knows about one message, addressed by the hash of its transaction id or by its offset.
--   p_hash    the newest message of the partition with this hash, as long as its sidecar row is kept; NULL uses p_offset
-- Returns NULL when there is no such message or the partition is not the tenant's, else {"offset","createdAt":ISO-ms|null,
-- "partitionId","partition","queue","queuePath","namespace","task","status","deadLetter":bool,"errorMessage","retryCount","leaseExpiresAt":ISO-ms|null,
-- "queueConfig":{"leaseTime","retryLimit","retryDelay","ttl","priority"},"mode":{"hasQueueMode","busGroupsCount","type":bus|queue},
-- "consumerGroups":[{"name","group","consumed","leaseExpiresAt"}],"deliveries":[{"group","state","attempts","attemptsExact","failures",
-- "leaseId","acquiredAt","expiresAt","redeliveryAt"}]}. errorMessage and retryCount are those of the newest dead letter at the offset.
-- deliveries says what the cursors know of this message, __QUEUE_MODE__ included: state is passed, held (in a live lease), abandoned (in
-- one that ran out), delayed (a failed batch that waits for redeliveryAt) or waiting; attempts how often it was delivered, exactly for the message
-- at the head, at least once for others of its batch, null where nothing is kept; failures of its retry budget, null but for the head.
-- Locks: none. Called by: pg.FindMessage, pg.MessageAt.
CREATE OR REPLACE FUNCTION queen.get_message_detail_v1(
    p_partition_id UUID, p_hash BYTEA, p_offset BIGINT, p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    v_off    BIGINT := p_offset;
    v_result JSONB;
BEGIN
    -- First, so that the partition of another tenant takes no longer to answer than one that does not exist.
    PERFORM 1 FROM queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id WHERE p.id = p_partition_id AND q.tenant_id = p_tenant;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    IF p_hash IS NOT NULL THEN
        SELECT t.base_offset + u.idx INTO v_off
          FROM (SELECT x.base_offset, x.hashes || ''::BYTEA AS hashes
                  FROM queen.log_txns x
                 WHERE x.partition_id = p_partition_id AND position(p_hash IN x.hashes) > 0
                OFFSET 0) t
         CROSS JOIN LATERAL queen.log_unnest_hashes(t.hashes) u
         WHERE u.h = p_hash
         ORDER BY 1 DESC LIMIT 1;
    END IF;
    IF v_off IS NULL THEN
        RETURN NULL;
    END IF;
    SELECT jsonb_build_object('offset', v_off, 'createdAt', queen.iso_ms_v1((
                   SELECT t.created_at FROM queen.log_txns t WHERE t.partition_id = p.id AND t.base_offset <= v_off
                    ORDER BY t.base_offset DESC LIMIT 1)),
               'partitionId', p.id, 'partition', p.name, 'queue', q.name, 'queuePath', q.name || '/' || p.name,
               'namespace', q.namespace, 'task', q.task, 'status', s.r_status, 'deadLetter', d.id IS NOT NULL, 'errorMessage', d.error,
               'retryCount', COALESCE(d.retry_count, 0), 'leaseExpiresAt', queen.iso_ms_v1(s.r_lease),
               'queueConfig', jsonb_build_object('leaseTime', q.lease_time, 'retryLimit', q.retry_limit, 'retryDelay', q.retry_delay,
                   'ttl', q.ttl, 'priority', q.priority),
               'mode', jsonb_build_object('hasQueueMode', s.r_queue_mode, 'busGroupsCount', s.r_groups,
                   'type', CASE WHEN s.r_groups > 0 THEN 'bus' ELSE 'queue' END),
               'consumerGroups', COALESCE((
                   SELECT jsonb_agg(jsonb_build_object('name', c.consumer_group, 'group', c.consumer_group, 'consumed', c.committed >= v_off,
                              'leaseExpiresAt', CASE WHEN c.worker_id <> '__retry__' AND c.lease_expires_at > now()
                                  THEN queen.iso_ms_v1(c.lease_expires_at) END) ORDER BY c.consumer_group COLLATE "C")
                     FROM queen.log_consumers c WHERE c.partition_id = p.id AND c.consumer_group <> '__QUEUE_MODE__'), '[]'::JSONB),
               'deliveries', COALESCE((
                   SELECT jsonb_agg(jsonb_build_object('group', x.consumer_group, 'state', x.state,
                              'attempts', CASE WHEN x.head THEN x.attempt_count WHEN x.in_batch THEN 1 END, 'attemptsExact', x.head,
                              'failures', CASE WHEN x.head THEN x.batch_retry_count END,
                              'leaseId', CASE WHEN x.in_batch THEN x.worker_id END, 'acquiredAt', CASE WHEN x.in_batch THEN queen.iso_ms_v1(x.lease_acquired_at) END,
                              'expiresAt', CASE WHEN x.in_batch THEN queen.iso_ms_v1(x.lease_expires_at) END,
                              'redeliveryAt', CASE WHEN x.state = 'delayed' THEN queen.iso_ms_v1(x.lease_expires_at) END) ORDER BY x.consumer_group COLLATE "C")
                     FROM (SELECT c.*, b.in_batch, COALESCE(v_off > c.committed AND c.attempt_offset = v_off, FALSE) AS head,
                                  CASE WHEN c.committed >= v_off THEN 'passed' WHEN b.in_batch AND c.lease_expires_at > now() THEN 'held'
                                       WHEN b.in_batch THEN 'abandoned' WHEN c.worker_id = '__retry__' AND c.lease_expires_at > now() THEN 'delayed'
                                       ELSE 'waiting' END AS state
                             FROM queen.log_consumers c
                            CROSS JOIN LATERAL (SELECT COALESCE(c.worker_id <> '__retry__' AND v_off > c.committed AND v_off <= c.batch_end, FALSE) AS in_batch) b
                            WHERE c.partition_id = p.id) x), '[]'::JSONB))
      INTO v_result
      FROM queen.log_partitions p
      JOIN queen.queues q ON q.id = p.queue_id
     CROSS JOIN LATERAL queen.log_message_state_v1(p.id, v_off, NULL) s
      LEFT JOIN LATERAL (
            SELECT x.id, x.error, x.retry_count FROM queen.log_dlq x
             WHERE x.partition_id = p.id AND x."offset" = v_off ORDER BY x.failed_at DESC LIMIT 1) d ON TRUE
     WHERE p.id = p_partition_id AND q.tenant_id = p_tenant;
    RETURN v_result;
END $$;

-- get_trace_messages_v1: the messages of a trace across all queues of a tenant, oldest first, with what became of each.
-- Returns [{"partitionId","queue","partition","offset","seq":base of its segment,"createdAt":ISO-us,"status","consumerGroups":[{"name",
-- "consumed"}]}], at most p_limit. A message is listed until retention removes it. Locks: none. Called by: pg.TraceMessages.
CREATE OR REPLACE FUNCTION queen.get_trace_messages_v1(
    p_trace_id UUID, p_limit INTEGER, p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE sql STABLE
AS $$
    SELECT COALESCE(jsonb_agg(jsonb_build_object('partitionId', x.partition_id, 'queue', x.queue, 'partition', x.partition,
               'offset', x.off, 'seq', (SELECT g.base_offset FROM queen.log_segments g
                                         WHERE g.partition_id = x.partition_id AND g.base_offset <= x.off
                                         ORDER BY g.base_offset DESC LIMIT 1),
               'createdAt', queen.iso_us_v1(x.created_at), 'status', s.r_status,
               'consumerGroups', COALESCE((
                   SELECT jsonb_agg(jsonb_build_object('name', c.consumer_group, 'consumed', c.committed >= x.off) ORDER BY c.consumer_group COLLATE "C")
                     FROM queen.log_consumers c WHERE c.partition_id = x.partition_id AND c.consumer_group <> '__QUEUE_MODE__'), '[]'::JSONB))
               ORDER BY x.created_at, x.partition_id, x.off), '[]'::JSONB)
      FROM (SELECT t.partition_id, t."offset" AS off, t.created_at, q.name AS queue, p.name AS partition
              FROM queen.log_traced t
              JOIN queen.log_partitions p ON p.id = t.partition_id
              JOIN queen.queues q ON q.id = p.queue_id
             WHERE t.trace_id = p_trace_id AND q.tenant_id = p_tenant
             ORDER BY t.created_at, t.partition_id, t."offset"
             LIMIT GREATEST(COALESCE(p_limit, 1000), 0)) x
     CROSS JOIN LATERAL queen.log_message_state_v1(x.partition_id, x.off, NULL) s
$$;

GRANT EXECUTE ON FUNCTION queen.log_message_state_v1(UUID, BIGINT, TEXT) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_txns_range_v1(UUID, BIGINT, BIGINT, TIMESTAMPTZ, TIMESTAMPTZ) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_message_frames_v1(UUID, BIGINT, TEXT, TEXT, BYTEA, BIGINT, INTEGER) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_message_scan_v1(UUID[], TEXT, TIMESTAMPTZ, TIMESTAMPTZ, TEXT, TEXT, BYTEA, TIMESTAMPTZ, UUID, BIGINT, INTEGER) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.list_messages_v1(JSONB) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.get_message_detail_v1(UUID, BYTEA, BIGINT, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.get_trace_messages_v1(UUID, INTEGER, UUID) TO PUBLIC;
