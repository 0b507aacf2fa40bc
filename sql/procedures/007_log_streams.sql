-- Streams: one cycle of a streaming query (state, sink pushes, source ack) as one commit.

-- log_streams_state_v1: apply the state operations of one (query, partition), in order.
--   p_ops  [{"type":"upsert"|"delete","key","value"?,"sealed"?,"aliases"?:[]}]; value defaults to {}. For a key named twice the last
--          operation counts. An encrypted row has its envelope in sealed; aliases are the other names that the row may have: in clear,
--          or made with other encryption keys
-- Returns the number of operations. Another type raises "Unknown state_op type: …", a missing key "state_op key is required".
-- Locks: the state rows, ascending by key. Called by: log_streams_cycle_v1.
CREATE OR REPLACE FUNCTION queen.log_streams_state_v1(p_query_id UUID, p_partition_id UUID, p_ops JSONB)
RETURNS INT
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_bad  RECORD;
    v_gone TEXT[];
BEGIN
    IF p_ops IS NULL OR jsonb_typeof(p_ops) <> 'array' THEN
        RETURN 0;
    END IF;
    SELECT o.v ->> 'type' AS type, o.v ->> 'key' AS key INTO v_bad
      FROM jsonb_array_elements(p_ops) WITH ORDINALITY AS o (v, ord)
     WHERE o.v ->> 'type' IS NULL OR o.v ->> 'type' NOT IN ('upsert', 'delete') OR o.v ->> 'key' IS NULL
     ORDER BY o.ord LIMIT 1;
    IF FOUND AND (v_bad.type IS NULL OR v_bad.type NOT IN ('upsert', 'delete')) THEN
        RAISE EXCEPTION 'Unknown state_op type: %', COALESCE(v_bad.type, 'null') USING ERRCODE = 'QU004';
    ELSIF FOUND THEN
        RAISE EXCEPTION 'state_op key is required' USING ERRCODE = 'QU004';
    END IF;

    INSERT INTO queen_streams.state AS s (query_id, partition_id, key, value, sealed, updated_at)
    SELECT p_query_id, p_partition_id, l.key, COALESCE(l.v -> 'value', '{}'), l.v ->> 'sealed', clock_timestamp()
      FROM (SELECT DISTINCT ON (o.v ->> 'key') o.v ->> 'key' AS key, o.v
              FROM jsonb_array_elements(p_ops) WITH ORDINALITY AS o (v, ord)
             ORDER BY o.v ->> 'key', o.ord DESC) l
     WHERE l.v ->> 'type' = 'upsert'
     ORDER BY l.key
        ON CONFLICT (query_id, partition_id, key) DO UPDATE
           SET value = EXCLUDED.value, sealed = EXCLUDED.sealed, updated_at = EXCLUDED.updated_at;
    -- By a list of keys: joined to the operations, the planner, which expects a handful, would walk all of them for each state row.
    v_gone := ARRAY(SELECT l.key
                      FROM (SELECT DISTINCT ON (o.v ->> 'key') o.v ->> 'key' AS key, o.v ->> 'type' AS type
                              FROM jsonb_array_elements(p_ops) WITH ORDINALITY AS o (v, ord)
                             ORDER BY o.v ->> 'key', o.ord DESC) l
                     WHERE l.type = 'delete'
                     UNION
                    SELECT jsonb_array_elements_text(o.v -> 'aliases')
                      FROM jsonb_array_elements(p_ops) AS o (v)
                     WHERE jsonb_typeof(o.v -> 'aliases') = 'array'
                     ORDER BY 1);
    IF cardinality(v_gone) > 0 THEN
        DELETE FROM queen_streams.state s
         WHERE s.query_id = p_query_id AND s.partition_id = p_partition_id AND s.key = ANY (v_gone);
    END IF;
    RETURN jsonb_array_length(p_ops);
END $$;

-- log_streams_push_v1: push the sink segments of one cycle.
--   p_sinks  [{"queue","partition","count","hashesB64","blobB64","plain"?,"traces"?}]
-- Returns [{"queue","partition", …verdict}] in input order. A segment whose messages are all stored already stays a duplicate
-- verdict. One with some stored and some new raises, because nothing of it was written: the detail of the error is
-- [{"queue","partition","dups":[{"i","off"}]}] for all such segments, so that the caller can drop those frames and repeat the cycle.
-- A full bounded queue raises QUEUE_FULL (53400). Locks and errors otherwise: those of log_push_multi_v1.
-- Called by: log_streams_cycle_v1.
CREATE OR REPLACE FUNCTION queen.log_streams_push_v1(p_tenant UUID, p_sinks JSONB)
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_verdicts JSONB;
    v_partial  JSONB;
    v_bad      RECORD;
    v_held     BIGINT[];
    v_again    JSONB;
BEGIN
    IF p_sinks IS NULL OR jsonb_typeof(p_sinks) <> 'array' OR jsonb_array_length(p_sinks) = 0 THEN
        RETURN '[]'::JSONB;
    END IF;
    v_verdicts := queen.log_push_elements_v1(p_tenant, p_sinks);

    SELECT jsonb_agg(jsonb_build_object('queue', s.v -> 'queue', 'partition', s.v -> 'partition',
                                                              'dups', r.v -> 'dups') ORDER BY r.ord)
      INTO v_partial
      FROM jsonb_array_elements(v_verdicts) WITH ORDINALITY AS r (v, ord)
      JOIN jsonb_array_elements(p_sinks) WITH ORDINALITY AS s (v, ord) ON s.ord = r.ord
     WHERE r.v ->> 'status' = 'duplicate' AND jsonb_array_length(r.v -> 'dups') < (s.v ->> 'count')::INT;
    IF v_partial IS NOT NULL THEN
        RAISE EXCEPTION 'partial duplicate in sink queue "%" partition "%": indexes % of % messages are stored already',
            v_partial -> 0 ->> 'queue', v_partial -> 0 ->> 'partition',
            (SELECT string_agg(d.v ->> 'i', ',') FROM jsonb_array_elements(v_partial -> 0 -> 'dups') AS d (v)),
            (SELECT s.v ->> 'count' FROM jsonb_array_elements(p_sinks) AS s (v)
              WHERE s.v -> 'queue' = v_partial -> 0 -> 'queue' AND s.v -> 'partition' = v_partial -> 0 -> 'partition' LIMIT 1)
            USING ERRCODE = 'unique_violation', DETAIL = v_partial::TEXT;
    END IF;

    -- A complete duplicate holds back the other segments of its bounded queue: push those again without it. Their rows are locked
    -- already.
    SELECT array_agg(r.ord ORDER BY r.ord) INTO v_held
      FROM jsonb_array_elements(v_verdicts) WITH ORDINALITY AS r (v, ord)
     WHERE r.v ->> 'status' = 'held';
    IF v_held IS NOT NULL THEN
        v_again := queen.log_push_elements_v1(p_tenant, (
            SELECT jsonb_agg(p_sinks -> (h.ord - 1)::INT ORDER BY h.ord) FROM unnest(v_held) AS h (ord)));
        SELECT jsonb_agg(COALESCE(a.v, r.v) ORDER BY r.ord) INTO v_verdicts
          FROM jsonb_array_elements(v_verdicts) WITH ORDINALITY AS r (v, ord)
          LEFT JOIN jsonb_array_elements(v_again) WITH ORDINALITY AS a (v, k) ON v_held[a.k] = r.ord;
    END IF;

    SELECT r.v ->> 'status' AS status, p_sinks -> (r.ord - 1)::INT ->> 'queue' AS queue,
           p_sinks -> (r.ord - 1)::INT ->> 'partition' AS partition
      INTO v_bad
      FROM jsonb_array_elements(v_verdicts) WITH ORDINALITY AS r (v, ord)
     WHERE r.v ->> 'status' NOT IN ('queued', 'duplicate')
     ORDER BY r.v ->> 'status' <> 'full', r.ord LIMIT 1;
    IF FOUND AND v_bad.status = 'full' THEN
        RAISE EXCEPTION 'QUEUE_FULL queue "%" is full; cycle rolled back', v_bad.queue USING ERRCODE = '53400';
    ELSIF FOUND THEN
        RAISE EXCEPTION 'sink queue "%" partition "%" refused the push (%)', v_bad.queue, v_bad.partition, v_bad.status
            USING ERRCODE = 'QU004';
    END IF;

    RETURN (SELECT jsonb_agg(jsonb_build_object('queue', s.v -> 'queue', 'partition', s.v -> 'partition') || r.v
                                        ORDER BY r.ord)
              FROM jsonb_array_elements(v_verdicts) WITH ORDINALITY AS r (v, ord)
              JOIN jsonb_array_elements(p_sinks) WITH ORDINALITY AS s (v, ord) ON s.ord = r.ord);
END $$;

-- log_streams_ack_v1: acknowledge the source batch of one cycle.
--   p_worker   the live lease's holder; required
--   p_ok       false releases the lease and leaves the cursor
--   p_release  true completes the whole leased batch; false (gate) moves the cursor over exactly p_count stored messages, skipping
--              retention gaps, at most to batch_end, and keeps the lease unless it gets there
--   p_count    messages completed; negative counts as 0
-- Returns {"success":true,"count":n,"lease_released":bool,"dlq":false}; n is what the cursor passed for a gate, p_count otherwise.
-- Raises "invalid or expired lease" or "no leased batch". Locks: the consumer row. Called by: log_streams_cycle_v1.
CREATE OR REPLACE FUNCTION queen.log_streams_ack_v1(
    p_partition_id UUID, p_group TEXT, p_worker TEXT, p_ok BOOLEAN, p_release BOOLEAN, p_count BIGINT)
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_row    queen.log_consumers%ROWTYPE;
    v_count  BIGINT := GREATEST(COALESCE(p_count, 0), 0);
    v_from   BIGINT;
    v_stored BIGINT;  -- stored messages in (committed, batch_end]
    v_cursor BIGINT;
    v_done   BOOLEAN;
BEGIN
    SELECT * INTO v_row FROM queen.log_consumers c
     WHERE c.partition_id = p_partition_id AND c.consumer_group = p_group
       FOR UPDATE;
    IF NOT FOUND OR v_row.worker_id IS NULL OR v_row.worker_id IS DISTINCT FROM p_worker OR p_worker = '__retry__'
       OR v_row.lease_expires_at IS NULL OR v_row.lease_expires_at < clock_timestamp() THEN
        RAISE EXCEPTION 'invalid or expired lease' USING ERRCODE = 'QU004';
    END IF;

    IF NOT p_ok THEN
        UPDATE queen.log_consumers c SET worker_id = NULL, lease_expires_at = NULL, batch_end = NULL
         WHERE c.partition_id = p_partition_id AND c.consumer_group = p_group;
        RETURN jsonb_build_object('success', TRUE, 'count', 0, 'lease_released', TRUE, 'dlq', FALSE);
    END IF;
    IF v_row.batch_end IS NULL THEN
        RAISE EXCEPTION 'no leased batch' USING ERRCODE = 'QU004';
    END IF;

    IF p_release THEN
        v_cursor := v_row.batch_end;
    ELSE
        v_from := COALESCE((SELECT s.base_offset FROM queen.log_segments s
                             WHERE s.partition_id = p_partition_id AND s.base_offset <= v_row.committed + 1
                             ORDER BY s.base_offset DESC LIMIT 1), v_row.committed + 1);
        SELECT max(w.total),
               min(w.hi - (w.total - v_count)) FILTER (WHERE w.total >= v_count)
          INTO v_stored, v_cursor
          FROM (SELECT LEAST(s.end_offset, v_row.batch_end) AS hi,
                       sum(LEAST(s.end_offset, v_row.batch_end) - GREATEST(s.base_offset, v_row.committed + 1) + 1)
                           OVER (ORDER BY s.base_offset)::BIGINT AS total
                  FROM queen.log_segments s
                 WHERE s.partition_id = p_partition_id AND s.base_offset BETWEEN v_from AND v_row.batch_end
                   AND s.end_offset > v_row.committed) w;
        IF v_count = 0 THEN
            v_cursor := v_row.committed;
        ELSIF COALESCE(v_stored, 0) <= v_count THEN  -- all that is left of the batch, even when retention took it
            v_cursor := v_row.batch_end;
            v_count := COALESCE(v_stored, 0);
        END IF;
    END IF;

    v_done := v_cursor >= v_row.batch_end;
    UPDATE queen.log_consumers c
       SET committed         = GREATEST(c.committed, v_cursor),
           total_consumed    = c.total_consumed + v_count,
           worker_id         = CASE WHEN v_done THEN NULL ELSE c.worker_id END,
           lease_expires_at  = CASE WHEN v_done THEN NULL ELSE c.lease_expires_at END,
           batch_end         = CASE WHEN v_done THEN NULL ELSE c.batch_end END,
           batch_retry_count = CASE WHEN v_done THEN 0 ELSE c.batch_retry_count END,
           attempt_count     = CASE WHEN v_done THEN 0 ELSE c.attempt_count END,
           attempt_offset    = CASE WHEN v_done THEN NULL
                                    WHEN c.attempt_offset <= v_cursor THEN v_cursor + 1
                                    ELSE c.attempt_offset END
     WHERE c.partition_id = p_partition_id AND c.consumer_group = p_group;
    RETURN jsonb_build_object('success', TRUE, 'count', v_count, 'lease_released', v_done, 'dlq', FALSE);
END $$;

-- log_streams_expect_v1: refuse a cycle that was computed from state which is no longer the stored one.
--   p_expected  [{"key","value"}]: each row must have exactly this value; null or absent: there must be no such row. Where the state is
--               encrypted {"shown":key,"key"?,"sealed"?,"value"?,"names":[…]}: of all names that the row may have key alone must
--               exist, with this envelope, or in clear with this value; without key none may
-- Raises "state changed: …" naming the first key that differs. Two runners may compute from the same state, one of them without a
-- lease (an idle flush): the one that commits second is refused here and reads again.
-- Locks: none; the caller holds the advisory lock of the state shard. Called by: log_streams_cycle_v1.
CREATE OR REPLACE FUNCTION queen.log_streams_expect_v1(p_query_id UUID, p_partition_id UUID, p_expected JSONB)
RETURNS VOID
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_key TEXT;
BEGIN
    IF p_expected IS NULL OR jsonb_typeof(p_expected) <> 'array' THEN
        RETURN;
    END IF;
    SELECT COALESCE(e.v ->> 'shown', e.v ->> 'key', '') INTO v_key
      FROM jsonb_array_elements(p_expected) WITH ORDINALITY AS e (v, ord)
      LEFT JOIN queen_streams.state s ON s.query_id = p_query_id AND s.partition_id = p_partition_id AND s.key = e.v ->> 'key'
     WHERE CASE WHEN e.v ? 'names'
                THEN s.sealed IS DISTINCT FROM e.v ->> 'sealed'
                     OR e.v ->> 'sealed' IS NULL AND s.value IS DISTINCT FROM e.v -> 'value'
                     OR EXISTS (SELECT 1 FROM queen_streams.state o
                                 WHERE o.query_id = p_query_id AND o.partition_id = p_partition_id
                                   AND o.key = ANY (ARRAY(SELECT jsonb_array_elements_text(e.v -> 'names')))
                                   AND o.key IS DISTINCT FROM e.v ->> 'key')
                ELSE s.value IS DISTINCT FROM NULLIF(e.v -> 'value', 'null'::jsonb) END
     ORDER BY e.ord LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'state changed: key "%" is not as the cycle expects it; read the state again', v_key USING ERRCODE = 'QU004';
    END IF;
END $$;

-- log_streams_seals_v1: whether the state of a query must be encrypted: its source queue, its sink queue or the queue of the partition
-- demands that, or rows of it are encrypted. An unknown query, and one of another tenant, is FALSE.
-- Locks: none. Called by: pg.StreamSeals, log_streams_cycle_v1.
CREATE OR REPLACE FUNCTION queen.log_streams_seals_v1(p_tenant UUID, p_query_id UUID, p_partition_id UUID)
RETURNS BOOLEAN
LANGUAGE sql STABLE
AS $$
    SELECT COALESCE((
        SELECT s.sealed
            OR EXISTS (SELECT 1 FROM queen.queues q
                        WHERE q.tenant_id = p_tenant AND q.name IN (s.source_queue, s.sink_queue) AND q.encryption_enabled)
            OR EXISTS (SELECT 1 FROM queen.log_partitions lp JOIN queen.queues q ON q.id = lp.queue_id
                        WHERE lp.id = p_partition_id AND q.tenant_id = p_tenant AND q.encryption_enabled)
          FROM queen_streams.queries s
         WHERE s.id = p_query_id AND s.tenant_id = p_tenant), FALSE)
$$;

-- log_streams_seal_v1: what a cycle must respect about encryption, under the advisory lock of its state shard.
--   p_request  the element: ring (ids of all encryption keys that the caller has) says that its state is encrypted
-- Raises "the state of this query must be encrypted" for a cycle in clear that reads or writes state, and "an encryption key is missing"
-- when others encrypt with a key that is not in the ring: what lies under names of that key would be overlooked.
-- Locks: the query's row, when its first encrypted state is written. Called by: log_streams_cycle_v1.
CREATE OR REPLACE FUNCTION queen.log_streams_seal_v1(p_tenant UUID, p_query_id UUID, p_partition_id UUID, p_request JSONB)
RETURNS VOID
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    IF jsonb_typeof(p_request -> 'ring') = 'array' THEN
        IF EXISTS (SELECT 1 FROM queen.encryption_keys k WHERE NOT p_request -> 'ring' ? k.id) THEN
            RAISE EXCEPTION 'an encryption key is missing' USING ERRCODE = 'QU004';
        END IF;
        UPDATE queen_streams.queries s SET sealed = TRUE WHERE s.id = p_query_id AND NOT s.sealed;
    ELSIF (jsonb_typeof(p_request -> 'state_ops') = 'array' OR jsonb_typeof(p_request -> 'if_state') = 'array')
      AND queen.log_streams_seals_v1(p_tenant, p_query_id, p_partition_id) THEN
        RAISE EXCEPTION 'the state of this query must be encrypted' USING ERRCODE = 'QU004';
    END IF;
END $$;

-- log_streams_cycle_v1: commit cycles of streaming queries.
--   p_requests  [{"idx"|"index","tenant"?,"query_id","partition_id","consumer_group"?,"worker","release_lease"?=true,"ring"?:[],
--                 "if_state"?,"state_ops"?,"sink_segments"?,"ack"?:{"ok"?=true,"count"?=0}|null}]; an empty group is
--                __QUEUE_MODE__; if_state is what log_streams_expect_v1 checks before anything is written, ring what
--                log_streams_seal_v1 does
-- Pass ONE element per call: with several, the consumer lock of one precedes the partition locks of the next, against the global
-- order.
-- Returns [{"idx","result":{"success","query_id","partition_id","queueName","state_ops_applied","push_results","ack_result"}}].
-- An element that fails is rolled back alone and answers success:false with "error" (and "duplicates", see log_streams_push_v1; and
-- "must_seal":true or "key_missing":true, see log_streams_seal_v1).
-- Deadlock, serialization failure and lock timeout are not caught: they fail the call, which the caller repeats.
-- The query and the source partition must belong to the tenant; sinks resolve within it.
-- Locks, in this order: advisory lock of (query, partition), so that cycles of one state shard commit one at a time; the query's row,
-- once; state rows;
-- what log_push_multi_v1 takes; the consumer row. Called by: pg.StreamsCycle.
CREATE OR REPLACE FUNCTION queen.log_streams_cycle_v1(p_requests JSONB)
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_el      RECORD;
    v_tenant  UUID;
    v_query   UUID;
    v_pid     UUID;
    v_queue   TEXT;
    v_applied INT;
    v_pushed  JSONB;
    v_acked   JSONB;
    v_error   TEXT;
    v_detail  TEXT;
    v_result  JSONB;
    v_results JSONB := '[]'::JSONB;
BEGIN
    IF p_requests IS NULL OR jsonb_typeof(p_requests) <> 'array' THEN
        RETURN '[]'::JSONB;
    END IF;
    FOR v_el IN SELECT r.v, r.ord FROM jsonb_array_elements(p_requests) WITH ORDINALITY AS r (v, ord) ORDER BY r.ord LOOP
        v_queue := NULL;
        BEGIN
            IF COALESCE(v_el.v ->> 'query_id', '') = '' THEN
                RAISE EXCEPTION 'query_id is required' USING ERRCODE = 'QU004';
            ELSIF COALESCE(v_el.v ->> 'partition_id', '') = '' THEN
                RAISE EXCEPTION 'partition_id is required' USING ERRCODE = 'QU004';
            END IF;
            v_tenant := COALESCE(NULLIF(v_el.v ->> 'tenant', '')::UUID, '00000000-0000-0000-0000-000000000001');
            v_query := (v_el.v ->> 'query_id')::UUID;
            v_pid := (v_el.v ->> 'partition_id')::UUID;
            IF NOT EXISTS (SELECT 1 FROM queen_streams.queries s WHERE s.id = v_query AND s.tenant_id = v_tenant) THEN
                RAISE EXCEPTION 'query not owned by tenant' USING ERRCODE = 'QU004';
            END IF;
            SELECT q.name INTO v_queue
              FROM queen.log_partitions lp JOIN queen.queues q ON q.id = lp.queue_id
             WHERE lp.id = v_pid AND q.tenant_id = v_tenant;
            IF v_queue IS NULL THEN
                RAISE EXCEPTION 'partition not owned by tenant' USING ERRCODE = 'QU004';
            END IF;

            PERFORM pg_advisory_xact_lock(hashtextextended(v_query::TEXT || ':' || v_pid::TEXT, 0));
            PERFORM queen.log_streams_seal_v1(v_tenant, v_query, v_pid, v_el.v);
            PERFORM queen.log_streams_expect_v1(v_query, v_pid, v_el.v -> 'if_state');
            v_applied := queen.log_streams_state_v1(v_query, v_pid, v_el.v -> 'state_ops');
            v_pushed := queen.log_streams_push_v1(v_tenant, v_el.v -> 'sink_segments');
            v_acked := NULL;
            IF jsonb_typeof(v_el.v -> 'ack') = 'object' THEN
                v_acked := queen.log_streams_ack_v1(
                    v_pid, COALESCE(NULLIF(v_el.v ->> 'consumer_group', ''), '__QUEUE_MODE__'), v_el.v ->> 'worker',
                    COALESCE((v_el.v -> 'ack' ->> 'ok')::BOOLEAN, TRUE),
                    COALESCE((v_el.v ->> 'release_lease')::BOOLEAN, TRUE),
                    COALESCE((v_el.v -> 'ack' ->> 'count')::BIGINT, 0));
            END IF;
            v_result := jsonb_build_object('success', TRUE, 'query_id', v_query, 'partition_id', v_pid,
                'queueName', v_queue, 'state_ops_applied', v_applied, 'push_results', v_pushed, 'ack_result', v_acked);
        EXCEPTION
            WHEN serialization_failure OR deadlock_detected OR lock_not_available THEN
                RAISE;
            WHEN OTHERS THEN
                GET STACKED DIAGNOSTICS v_error = MESSAGE_TEXT, v_detail = PG_EXCEPTION_DETAIL;
                v_result := jsonb_build_object('success', FALSE, 'query_id', v_el.v -> 'query_id',
                    'partition_id', v_el.v -> 'partition_id', 'queueName', v_queue, 'state_ops_applied', 0,
                    'push_results', '[]'::JSONB, 'ack_result', NULL, 'error', v_error);
                IF v_error LIKE 'partial duplicate %' THEN
                    v_result := v_result || jsonb_build_object('duplicates', v_detail::JSONB);
                ELSIF v_error = 'the state of this query must be encrypted' THEN
                    v_result := v_result || '{"must_seal":true}';
                ELSIF v_error = 'an encryption key is missing' THEN
                    v_result := v_result || '{"key_missing":true}';
                END IF;
        END;
        v_results := v_results || jsonb_build_array(jsonb_build_object(
            'idx', COALESCE(v_el.v -> 'idx', v_el.v -> 'index', to_jsonb(v_el.ord - 1)), 'result', v_result));
    END LOOP;
    RETURN v_results;
END $$;

GRANT EXECUTE ON FUNCTION queen.log_streams_expect_v1(UUID, UUID, JSONB) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_streams_state_v1(UUID, UUID, JSONB) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_streams_push_v1(UUID, JSONB) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_streams_ack_v1(UUID, TEXT, TEXT, BOOLEAN, BOOLEAN, BIGINT) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_streams_seals_v1(UUID, UUID, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_streams_seal_v1(UUID, UUID, UUID, JSONB) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_streams_cycle_v1(JSONB) TO PUBLIC;
