-- Reads of what clients recorded about messages (record_trace_v1 in file 010 writes it). Times are ISO-ms.

-- get_message_traces_v1: the traces of one message, oldest first.
--   the caller has proven that the partition belongs to its tenant
-- Returns {"traces":[{"id","event_type","data","consumer_group","worker_id","created_at","trace_names":[text]}]}; one with an envelope as
-- its data has "isEncrypted":true as well.
-- Locks: none. Called by: pg.MessageTraces.
CREATE OR REPLACE FUNCTION queen.get_message_traces_v1(p_partition_id UUID, p_transaction_id TEXT)
RETURNS JSONB
LANGUAGE sql STABLE
AS $$
    SELECT jsonb_build_object('traces', COALESCE(jsonb_agg(jsonb_build_object(
               'id', t.id, 'event_type', t.event_type, 'data', t.data, 'consumer_group', t.consumer_group,
               'worker_id', t.worker_id, 'created_at', queen.iso_ms_v1(t.created_at), 'trace_names',
               COALESCE((SELECT jsonb_agg(n.trace_name ORDER BY n.trace_name COLLATE "C")
                           FROM queen.message_trace_names n WHERE n.trace_id = t.id), '[]'::JSONB))
               || CASE WHEN t.encrypted THEN '{"isEncrypted": true}' ELSE '{}' END::JSONB
               ORDER BY t.created_at, t.id), '[]'::JSONB))
      FROM queen.message_traces t
     WHERE t.partition_id = p_partition_id AND t.transaction_id = p_transaction_id
$$;

-- traces_of_name_v1: the traces that carry a name, oldest first, as far as their partition belongs to the tenant; one whose partition is
-- gone belongs to nobody.
--   p_filters  {"limit"? = 100,"offset"? = 0,"after"?: "next" of the page before}
-- Returns {"traces":[{"id","transaction_id","partition_id","event_type","data","consumer_group","worker_id","created_at",
-- "queue_name","partition_name","message_payload":null,"trace_names"}],"total":all of them,"pagination":{"limit","offset"},
-- "next":time|id of the last one, null on the last page}.
-- Locks: none. Called by: pg.TracesByName, get_traces_by_name_v1.
CREATE OR REPLACE FUNCTION queen.traces_of_name_v1(
    p_trace_name TEXT, p_filters JSONB DEFAULT '{}', p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    v_limit  INT := GREATEST(COALESCE((p_filters ->> 'limit')::INT, 100), 0);
    v_offset INT := GREATEST(COALESCE((p_filters ->> 'offset')::INT, 0), 0);
    v_after  TEXT := NULLIF(p_filters ->> 'after', '');
    v_at     TIMESTAMPTZ := split_part(v_after, '|', 1)::TIMESTAMPTZ;
    v_id     UUID := split_part(v_after, '|', 2)::UUID;
    v_result JSONB;
BEGIN
    WITH visible AS MATERIALIZED (
        SELECT t.id, t.created_at, q.name AS queue, p.name AS partition
          FROM queen.message_trace_names m
          JOIN queen.message_traces t ON t.id = m.trace_id
          JOIN queen.log_partitions p ON p.id = t.partition_id
          JOIN queen.queues q ON q.id = p.queue_id
         WHERE m.trace_name = p_trace_name AND q.tenant_id = p_tenant),
    page AS MATERIALIZED (
        SELECT x.*, row_number() OVER (ORDER BY x.created_at, x.id) AS ord
          FROM (SELECT v.* FROM visible v
                 WHERE v_after IS NULL OR (v.created_at, v.id) > (v_at, v_id)
                 ORDER BY v.created_at, v.id
                 LIMIT v_limit + 1 OFFSET v_offset) x)
    SELECT jsonb_build_object(
        'traces', (SELECT COALESCE(jsonb_agg(jsonb_build_object(
                'id', t.id, 'transaction_id', t.transaction_id, 'partition_id', t.partition_id, 'event_type', t.event_type,
                'data', t.data, 'consumer_group', t.consumer_group, 'worker_id', t.worker_id,
                'created_at', queen.iso_ms_v1(t.created_at), 'queue_name', g.queue, 'partition_name', g.partition,
                'message_payload', NULL, 'trace_names',
                (SELECT jsonb_agg(n.trace_name ORDER BY n.trace_name COLLATE "C") FROM queen.message_trace_names n WHERE n.trace_id = t.id))
                || CASE WHEN t.encrypted THEN '{"isEncrypted": true}' ELSE '{}' END::JSONB
                ORDER BY g.ord), '[]'::JSONB)
              FROM page g JOIN queen.message_traces t ON t.id = g.id WHERE g.ord <= v_limit),
        'total', (SELECT count(*) FROM visible),
        'pagination', jsonb_build_object('limit', v_limit, 'offset', v_offset),
        'next', (SELECT queen.iso_us_v1(l.created_at) || '|' || l.id FROM page l
                  WHERE l.ord = v_limit AND EXISTS (SELECT 1 FROM page x WHERE x.ord > v_limit)))
      INTO v_result;
    RETURN v_result;
END $$;

-- get_traces_by_name_v1: traces_of_name_v1 without "next". Locks: none. Called by: builds older than that.
CREATE OR REPLACE FUNCTION queen.get_traces_by_name_v1(
    p_trace_name TEXT, p_limit INTEGER DEFAULT 100, p_offset INTEGER DEFAULT 0,
    p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE sql STABLE
AS $$
    SELECT queen.traces_of_name_v1(p_trace_name, jsonb_build_object('limit', p_limit, 'offset', p_offset), p_tenant) - 'next'
$$;

-- trace_names_v1: the trace names that a tenant can read, most recently used first.
--   p_filters  {"contains"?: somewhere in the name, in any case,"limit"? = 50,"offset"? = 0,"after"?: "next" of the page before}
-- Returns {"trace_names":[{"trace_name","trace_count","message_count":distinct messages,"first_seen","last_seen"}],"total":names that fit on
-- all pages,"pagination","next":microseconds|name of the last one, null on the last page}. A name that is used between two pages moves to
-- the front. Locks: none. Called by: pg.TraceNames, get_available_trace_names_v1.
CREATE OR REPLACE FUNCTION queen.trace_names_v1(
    p_filters JSONB DEFAULT '{}', p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    v_limit    INT := GREATEST(COALESCE((p_filters ->> 'limit')::INT, 50), 0);
    v_offset   INT := GREATEST(COALESCE((p_filters ->> 'offset')::INT, 0), 0);
    v_contains TEXT := lower(COALESCE(p_filters ->> 'contains', ''));
    v_after    TEXT := NULLIF(p_filters ->> 'after', '');
    v_key      NUMERIC := split_part(v_after, '|', 1)::NUMERIC;
    v_name     TEXT := substr(v_after, strpos(v_after, '|') + 1);
    v_result   JSONB;
BEGIN
    WITH names AS MATERIALIZED (
        SELECT n.trace_name, count(*) AS traces, count(DISTINCT (t.partition_id, t.transaction_id)) AS messages,
               min(t.created_at) AS first_seen, max(t.created_at) AS seen, round(extract(epoch FROM max(t.created_at)) * 1000000) AS key
          FROM queen.message_trace_names n
          JOIN queen.message_traces t ON t.id = n.trace_id
          JOIN queen.log_partitions p ON p.id = t.partition_id
          JOIN queen.queues q ON q.id = p.queue_id
         WHERE q.tenant_id = p_tenant AND (v_contains = '' OR strpos(lower(n.trace_name), v_contains) > 0)
         GROUP BY n.trace_name),
    page AS MATERIALIZED (
        SELECT x.*, row_number() OVER (ORDER BY x.key DESC, x.trace_name COLLATE "C") AS ord
          FROM (SELECT n.* FROM names n
                 WHERE v_after IS NULL OR n.key < v_key OR n.key = v_key AND n.trace_name COLLATE "C" > v_name
                 ORDER BY n.key DESC, n.trace_name COLLATE "C"
                 LIMIT v_limit + 1 OFFSET v_offset) x)
    SELECT jsonb_build_object(
        'trace_names', (SELECT COALESCE(jsonb_agg(jsonb_build_object('trace_name', g.trace_name, 'trace_count', g.traces,
                'message_count', g.messages, 'first_seen', queen.iso_ms_v1(g.first_seen), 'last_seen', queen.iso_ms_v1(g.seen))
                ORDER BY g.ord), '[]'::JSONB) FROM page g WHERE g.ord <= v_limit),
        'total', (SELECT count(*) FROM names),
        'pagination', jsonb_build_object('limit', v_limit, 'offset', v_offset),
        'next', (SELECT l.key || '|' || l.trace_name FROM page l
                  WHERE l.ord = v_limit AND EXISTS (SELECT 1 FROM page x WHERE x.ord > v_limit)))
      INTO v_result;
    RETURN v_result;
END $$;

-- get_available_trace_names_v1: trace_names_v1 without "next". Locks: none. Called by: builds older than that.
CREATE OR REPLACE FUNCTION queen.get_available_trace_names_v1(
    p_limit INTEGER DEFAULT 50, p_offset INTEGER DEFAULT 0, p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE sql STABLE
AS $$
    SELECT queen.trace_names_v1(jsonb_build_object('limit', p_limit, 'offset', p_offset), p_tenant) - 'next'
$$;

GRANT EXECUTE ON FUNCTION queen.get_message_traces_v1(UUID, TEXT) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.get_traces_by_name_v1(TEXT, INTEGER, INTEGER, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.get_available_trace_names_v1(INTEGER, INTEGER, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.traces_of_name_v1(TEXT, JSONB, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.trace_names_v1(JSONB, UUID) TO PUBLIC;
