-- Dead letters: listing, counting, grouping by error, deletion and replay.
--
-- A filter is one JSON object, the same for every function here and for tasks:
--   {"queue"?,"partition"?,"consumerGroup"?,"partitionId"?,"transactionId"?,  exact
--    "from"?,"to"?            on failed_at, from inclusive, to exclusive
--    "error"?                 text that the error contains, literally
--    "shape"?                 the error's shape, see dlq_error_shape_v1
--    "_tenant"?}              "" is no filter
DO $$ BEGIN
    IF to_regclass('queen.idx_log_dlq_failed_at') IS NULL THEN
        CREATE INDEX idx_log_dlq_failed_at ON queen.log_dlq (failed_at DESC, id DESC);
    END IF;
    IF to_regclass('queen.idx_log_dlq_partition_offset') IS NULL THEN
        CREATE INDEX idx_log_dlq_partition_offset ON queen.log_dlq (partition_id, "offset", id);
    END IF;
END $$;

-- dlq_error_shape_v1: an error text with what differs from one failure to the next taken out: UUIDs, hexadecimal runs of 8 and
-- more digits that hold a digit, quoted strings and numbers. At most 300 characters of the text count. NULL is ''.
CREATE OR REPLACE FUNCTION queen.dlq_error_shape_v1(p_error TEXT)
RETURNS TEXT
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT regexp_replace(regexp_replace(regexp_replace(regexp_replace(left(COALESCE(p_error, ''), 300),
               '[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}', '<id>', 'g'),
               '"[^"]*"|''[^'']*''', '<text>', 'g'),
               '\m(?=[a-fA-F]*[0-9])[0-9a-fA-F]{8,}\M', '<hex>', 'g'),
               '[0-9]+(\.[0-9]+)?', '<n>', 'g')
$$;

-- dlq_filtered_v1: the dead letters that a filter selects, with the names of where they came from.
-- Inlined by the planner: order and limit of the caller decide the index. Pass variables: an expression would be evaluated anew for
-- every row. Locks: none.
CREATE OR REPLACE FUNCTION queen.dlq_filtered_v1(p_filters JSONB, p_tenant UUID, p_from TIMESTAMPTZ, p_to TIMESTAMPTZ)
RETURNS TABLE (id UUID, partition_id UUID, consumer_group TEXT, off BIGINT, error TEXT, failed_at TIMESTAMPTZ, queue TEXT, partition TEXT)
LANGUAGE sql STABLE
AS $$
    SELECT d.id, d.partition_id, d.consumer_group, d."offset", d.error, d.failed_at, q.name::TEXT, p.name
      FROM queen.log_dlq d
      JOIN queen.log_partitions p ON p.id = d.partition_id
      JOIN queen.queues q ON q.id = p.queue_id
     WHERE q.tenant_id = p_tenant
       AND (COALESCE(p_filters ->> 'queue', '') = '' OR q.name = p_filters ->> 'queue')
       AND (COALESCE(p_filters ->> 'partition', '') = '' OR p.name = p_filters ->> 'partition')
       AND (COALESCE(p_filters ->> 'partitionId', '') = '' OR p.id = (p_filters ->> 'partitionId')::UUID)
       AND (COALESCE(p_filters ->> 'consumerGroup', '') = '' OR d.consumer_group = p_filters ->> 'consumerGroup')
       AND (COALESCE(p_filters ->> 'transactionId', '') = '' OR d.transaction_id = p_filters ->> 'transactionId')
       AND (p_from IS NULL OR d.failed_at >= p_from) AND (p_to IS NULL OR d.failed_at < p_to)
       AND (COALESCE(p_filters ->> 'error', '') = '' OR strpos(d.error, p_filters ->> 'error') > 0)
       AND (COALESCE(p_filters ->> 'shape', '') = '' OR queen.dlq_error_shape_v1(d.error) = p_filters ->> 'shape')
$$;

-- dlq_row_v1: one dead letter as JSON, for get_dlq_messages_v1, peeks and task batches. payloadRaw is base64 of the exact bytes,
-- null when only the parsed form (data) is kept, traceContext hexadecimal. encrypted, errorSealed and traceContext: see queen.log_dlq.
-- Locks: none.
CREATE OR REPLACE FUNCTION queen.dlq_row_v1(p_id UUID, p_queue TEXT, p_partition TEXT)
RETURNS JSONB
LANGUAGE sql STABLE
AS $$
    SELECT jsonb_build_object('id', d.id, 'transactionId', d.transaction_id, 'partitionId', d.partition_id, 'queue', p_queue,
               'partition', p_partition, 'consumerGroup', d.consumer_group, 'errorMessage', d.error,
               'retryCount', COALESCE(d.retry_count, 0), 'data', d.payload, 'producerSub', NULL,
               'createdAt', queen.iso_ms_v1(d.failed_at), 'failedAt', queen.iso_ms_v1(d.failed_at),
               'offset', d."offset", 'messageId', d.message_id, 'traceId', d.trace_id,
               'payloadRaw', translate(encode(d.payload_raw, 'base64'), E'\n', ''), 'encrypted', d.encrypted,
               'errorSealed', translate(encode(d.error_sealed, 'base64'), E'\n', ''), 'traceContext', encode(d.trace_context, 'hex'))
      FROM queen.log_dlq d WHERE d.id = p_id
$$;

-- get_dlq_messages_v1: dead letters, newest failure first.
--   p_filters  the filter, and "limit"? = 100,"offset"? = 0,"after"?: "next" of the page before, which makes offset count for
--              nothing; a page starts strictly behind it, so that pages neither skip nor repeat while letters come and go
-- Returns {"messages":[{"id","transactionId","partitionId","queue","partition","consumerGroup","errorMessage","retryCount","data",
-- "producerSub":null,"createdAt":=failedAt,"failedAt":ISO-ms,"offset","messageId","traceId","payloadRaw", and more of dlq_row_v1}],"pagination":{"limit",
-- "offset"},"next":text|null when the page is short}. Raises 22007 and 22P02 for unreadable filters. Locks: none.
-- Called by: pg.ListDeadLetters.
CREATE OR REPLACE FUNCTION queen.get_dlq_messages_v1(p_filters JSONB DEFAULT '{}')
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    v_tenant UUID := COALESCE(NULLIF(p_filters ->> '_tenant', '')::UUID, '00000000-0000-0000-0000-000000000001');
    v_limit  INT := GREATEST(COALESCE((p_filters ->> 'limit')::INT, 100), 0);
    v_offset INT := GREATEST(COALESCE((p_filters ->> 'offset')::INT, 0), 0);
    v_at     TIMESTAMPTZ := queen.parse_time_v1(split_part(p_filters ->> 'after', '|', 1));
    v_id     UUID := NULLIF(split_part(p_filters ->> 'after', '|', 2), '')::UUID;
    v_from   TIMESTAMPTZ := queen.parse_time_v1(p_filters ->> 'from');
    v_to     TIMESTAMPTZ := queen.parse_time_v1(p_filters ->> 'to');
    v_result JSONB;
BEGIN
    SELECT jsonb_build_object(
               'messages', COALESCE(jsonb_agg(queen.dlq_row_v1(x.id, x.queue, x.partition) ORDER BY x.failed_at DESC, x.id DESC), '[]'::JSONB),
               'pagination', jsonb_build_object('limit', v_limit, 'offset', CASE WHEN v_at IS NULL THEN v_offset ELSE 0 END),
               'next', CASE WHEN count(*) = v_limit AND v_limit > 0 THEN
                   (array_agg(queen.iso_us_v1(x.failed_at) || '|' || x.id ORDER BY x.failed_at, x.id))[1] END)
      INTO v_result
      FROM (SELECT f.id, f.queue, f.partition, f.failed_at
              FROM queen.dlq_filtered_v1(p_filters, v_tenant, v_from, v_to) f
             WHERE v_at IS NULL OR (f.failed_at, f.id) < (v_at, v_id)
             ORDER BY f.failed_at DESC, f.id DESC
             LIMIT v_limit OFFSET CASE WHEN v_at IS NULL THEN v_offset ELSE 0 END) x;
    RETURN v_result;
END $$;

-- dlq_count_v1: how many dead letters a filter selects. Locks: none. Called by: pg.CountDeadLetters, task_create_v1.
CREATE OR REPLACE FUNCTION queen.dlq_count_v1(p_filters JSONB DEFAULT '{}')
RETURNS BIGINT
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    v_tenant UUID := COALESCE(NULLIF(p_filters ->> '_tenant', '')::UUID, '00000000-0000-0000-0000-000000000001');
    v_from   TIMESTAMPTZ := queen.parse_time_v1(p_filters ->> 'from');
    v_to     TIMESTAMPTZ := queen.parse_time_v1(p_filters ->> 'to');
BEGIN
    RETURN (SELECT count(*)
              FROM queen.dlq_filtered_v1(p_filters, v_tenant, v_from, v_to) f);
END $$;

-- dlq_shapes_v1: all dead letters that a filter selects, grouped by the shape of their error, most frequent first. "after" in the filter
-- is "next" of the page before; a shape whose figure changes between two pages may be seen twice or not at all.
-- Returns {"groups":[{"shape","sample":an error as it is,"count","queues":[names, at most 10],"firstFailedAt","lastFailedAt":ISO-ms}],
-- "total":rows,"shapes":how many there are,"next":position|null}; at most p_limit groups. Each distinct text is normalised once. Locks: none.
-- Called by: pg.DeadLetterShapes.
CREATE OR REPLACE FUNCTION queen.dlq_shapes_v1(p_filters JSONB DEFAULT '{}', p_limit INTEGER DEFAULT 50)
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    v_tenant UUID := COALESCE(NULLIF(p_filters ->> '_tenant', '')::UUID, '00000000-0000-0000-0000-000000000001');
    v_from   TIMESTAMPTZ := queen.parse_time_v1(p_filters ->> 'from');
    v_to     TIMESTAMPTZ := queen.parse_time_v1(p_filters ->> 'to');
    v_limit  INT := GREATEST(COALESCE(p_limit, 50), 0);
    v_after  TEXT := NULLIF(p_filters ->> 'after', '');
    v_n      NUMERIC := split_part(v_after, '|', 1)::NUMERIC;
    v_shape  TEXT := substr(v_after, strpos(v_after, '|') + 1);
    v_result JSONB;
BEGIN
    WITH texts AS MATERIALIZED (
        SELECT left(COALESCE(f.error, ''), 300) AS error, f.queue, count(*) AS n, min(f.failed_at) AS first, max(f.failed_at) AS last
          FROM queen.dlq_filtered_v1(p_filters, v_tenant, v_from, v_to) f
         GROUP BY 1, 2),
    shapes AS MATERIALIZED (
        SELECT queen.dlq_error_shape_v1(t.error) AS shape, min(t.error) AS sample, sum(t.n) AS n, min(t.first) AS first,
               max(t.last) AS last, (array_agg(DISTINCT t.queue))[1:10] AS queues
          FROM texts t GROUP BY 1),
    page AS MATERIALIZED (
        SELECT s.*, row_number() OVER (ORDER BY s.n DESC, s.shape COLLATE "C") AS ord
          FROM shapes s
         WHERE v_after IS NULL OR s.n < v_n OR s.n = v_n AND s.shape COLLATE "C" > v_shape
         ORDER BY s.n DESC, s.shape COLLATE "C" LIMIT v_limit + 1)
    SELECT jsonb_build_object('groups', COALESCE(jsonb_agg(jsonb_build_object('shape', x.shape, 'sample', x.sample, 'count', x.n,
                   'queues', to_jsonb(x.queues), 'firstFailedAt', queen.iso_ms_v1(x.first), 'lastFailedAt', queen.iso_ms_v1(x.last))
                   ORDER BY x.ord) FILTER (WHERE x.ord <= v_limit), '[]'::JSONB),
               'total', (SELECT COALESCE(sum(s.n), 0) FROM shapes s), 'shapes', (SELECT count(*) FROM shapes),
               'next', (SELECT l.n || '|' || l.shape FROM page l WHERE l.ord = v_limit AND EXISTS (SELECT 1 FROM page m WHERE m.ord > v_limit)))
      INTO v_result
      FROM page x;
    RETURN v_result;
END $$;

-- dlq_delete_v1: delete at most p_limit of the dead letters that a filter selects, oldest offset first. Returns how many; repeat
-- until it is less than p_limit. Locks: the log_dlq rows, ascending (partition_id, "offset", id); one that a replay or a task holds is
-- waited for. Called by: pg.DeleteDeadLetters.
CREATE OR REPLACE FUNCTION queen.dlq_delete_v1(p_filters JSONB, p_limit INTEGER)
RETURNS BIGINT
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    v_tenant UUID := COALESCE(NULLIF(p_filters ->> '_tenant', '')::UUID, '00000000-0000-0000-0000-000000000001');
    v_from   TIMESTAMPTZ := queen.parse_time_v1(p_filters ->> 'from');
    v_to     TIMESTAMPTZ := queen.parse_time_v1(p_filters ->> 'to');
    v_ids  UUID[];
    v_rows BIGINT;
BEGIN
    SELECT array_agg(x.id) INTO v_ids
      FROM (SELECT f.id
              FROM queen.dlq_filtered_v1(p_filters, v_tenant, v_from, v_to) f
             ORDER BY f.partition_id, f.off, f.id
             LIMIT GREATEST(COALESCE(p_limit, 0), 0)) x;
    PERFORM 1 FROM queen.log_dlq d WHERE d.id = ANY (v_ids) ORDER BY d.partition_id, d."offset", d.id FOR UPDATE;
    DELETE FROM queen.log_dlq d WHERE d.id = ANY (v_ids);
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    RETURN v_rows;
END $$;

-- log_dlq_move_v1: replay one dead letter: push it and delete its row, in one transaction.
--   p_frame_count  must be 1; p_hash, p_blob the packed frame, whose transaction id is 'dlq:' || p_dlq_id, so that a repeat after a
--                  lost answer is recognised
--   p_queue, p_partition  destination; NULL is where the message came from
--   p_peek         write nothing, return the row as dlq_row_v1 under "row" so that the caller can build the frame
--   p_plain        as log_push_multi_v1. The new message keeps the trace id of the row
-- Returns {"status":"moved","queue","partition","partitionId","baseOffset","createdAt":ISO-us,"consumerGroup","originalTransactionId"};
-- {"status":"gone"}: no such row under the tenant, or somebody else moved or deleted it meanwhile; {"status":"duplicate","off"},
-- {"status":"full","depth","limit","remaining"}, {"status":"config"}: nothing written, the row stays; {"status":"peek","row"}.
-- Only this row goes: letters of other groups at the same address stay.
-- Locks: what log_push_multi_v1 takes (provisioning, bounded queue, partition), then the log_dlq row: the order of queue delete and
-- partition cleanup. A row that vanished while the push waited undoes the push. Called by: pg.MoveDeadLetter, pg.DeadLetterByID.
CREATE OR REPLACE FUNCTION queen.log_dlq_move_v1(
    p_dlq_id UUID, p_frame_count INT, p_hash BYTEA, p_blob BYTEA, p_queue TEXT DEFAULT NULL, p_partition TEXT DEFAULT NULL,
    p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001', p_peek BOOLEAN DEFAULT FALSE,
    p_plain BOOLEAN DEFAULT NULL)
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_row     RECORD;
    v_verdict JSONB;
BEGIN
    SELECT q.name::TEXT AS queue, p.name AS partition, d.consumer_group, d.transaction_id, d.trace_id INTO v_row
      FROM queen.log_dlq d
      JOIN queen.log_partitions p ON p.id = d.partition_id
      JOIN queen.queues q ON q.id = p.queue_id
     WHERE d.id = p_dlq_id AND q.tenant_id = p_tenant;
    IF NOT FOUND THEN
        RETURN jsonb_build_object('status', 'gone');
    ELSIF p_peek THEN
        RETURN jsonb_build_object('status', 'peek', 'row', queen.dlq_row_v1(p_dlq_id, v_row.queue, v_row.partition));
    ELSIF p_frame_count IS DISTINCT FROM 1 THEN
        RAISE EXCEPTION 'QDLQ a move replays one message, not %', p_frame_count USING ERRCODE = 'QU003';
    END IF;
    BEGIN
        v_verdict := queen.log_push_multi_v1(ARRAY[COALESCE(p_queue, v_row.queue)], ARRAY[COALESCE(p_partition, v_row.partition)],
            ARRAY[1], ARRAY[p_hash], ARRAY[-1::INT8], ARRAY[p_blob], ARRAY[p_tenant],
            CASE WHEN p_plain IS NOT NULL THEN ARRAY[p_plain] END, FALSE,
            CASE WHEN v_row.trace_id IS NOT NULL THEN jsonb_build_array(jsonb_build_object('s', 0, 'i', 0, 't', v_row.trace_id)) END) -> 0;
        IF v_verdict ->> 'status' = 'queued' THEN
            DELETE FROM queen.log_dlq d WHERE d.id = p_dlq_id;
            IF NOT FOUND THEN
                RAISE EXCEPTION 'QDLQ gone' USING ERRCODE = 'QU005';
            END IF;
        END IF;
    EXCEPTION WHEN SQLSTATE 'QU005' THEN
        RETURN jsonb_build_object('status', 'gone');
    END;
    IF v_verdict ->> 'status' = 'queued' THEN
        RETURN jsonb_build_object('status', 'moved', 'queue', COALESCE(p_queue, v_row.queue),
            'partition', COALESCE(p_partition, v_row.partition), 'partitionId', v_verdict -> 'partitionId',
            'baseOffset', v_verdict -> 'baseOffset', 'createdAt', v_verdict -> 'createdAt',
            'consumerGroup', v_row.consumer_group, 'originalTransactionId', v_row.transaction_id);
    ELSIF NOT EXISTS (SELECT 1 FROM queen.log_dlq d WHERE d.id = p_dlq_id) THEN
        -- Moved by somebody else while this call waited for the partition.
        RETURN jsonb_build_object('status', 'gone');
    ELSIF v_verdict ->> 'status' = 'duplicate' THEN
        RETURN jsonb_build_object('status', 'duplicate', 'off', v_verdict #> '{dups,0,off}');
    END IF;
    RETURN v_verdict - 'partitionId';
END $$;

GRANT EXECUTE ON FUNCTION queen.dlq_error_shape_v1(TEXT) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.dlq_filtered_v1(JSONB, UUID, TIMESTAMPTZ, TIMESTAMPTZ) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.dlq_row_v1(UUID, TEXT, TEXT) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.get_dlq_messages_v1(JSONB) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.dlq_count_v1(JSONB) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.dlq_shapes_v1(JSONB, INTEGER) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.dlq_delete_v1(JSONB, INTEGER) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_dlq_move_v1(UUID, INT, BYTEA, BYTEA, TEXT, TEXT, UUID, BOOLEAN, BOOLEAN) TO PUBLIC;
