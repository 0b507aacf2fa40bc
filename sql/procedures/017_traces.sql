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

-- get_traces_by_name_v1: the traces that carry a name, oldest first, as far as their partition belongs to the tenant; one whose
-- partition is gone belongs to nobody.
-- Returns {"traces":[{"id","transaction_id","partition_id","event_type","data","consumer_group","worker_id","created_at",
-- "queue_name","partition_name","message_payload":null,"trace_names"}],"total":all of them,"pagination":{"limit","offset"}}.
-- Locks: none. Called by: pg.TracesByName.
CREATE OR REPLACE FUNCTION queen.get_traces_by_name_v1(
    p_trace_name TEXT, p_limit INTEGER DEFAULT 100, p_offset INTEGER DEFAULT 0,
    p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE sql STABLE
AS $$
    WITH visible AS MATERIALIZED (
        SELECT t.id, t.created_at, q.name AS queue, p.name AS partition
          FROM queen.message_trace_names m
          JOIN queen.message_traces t ON t.id = m.trace_id
          JOIN queen.log_partitions p ON p.id = t.partition_id
          JOIN queen.queues q ON q.id = p.queue_id
         WHERE m.trace_name = p_trace_name AND q.tenant_id = p_tenant),
    page AS (
        SELECT v.* FROM visible v
         ORDER BY v.created_at, v.id
         LIMIT GREATEST(COALESCE(p_limit, 100), 0) OFFSET GREATEST(COALESCE(p_offset, 0), 0))
    SELECT jsonb_build_object(
        'traces', (SELECT COALESCE(jsonb_agg(jsonb_build_object(
                'id', t.id, 'transaction_id', t.transaction_id, 'partition_id', t.partition_id, 'event_type', t.event_type,
                'data', t.data, 'consumer_group', t.consumer_group, 'worker_id', t.worker_id,
                'created_at', queen.iso_ms_v1(t.created_at), 'queue_name', g.queue, 'partition_name', g.partition,
                'message_payload', NULL, 'trace_names',
                (SELECT jsonb_agg(n.trace_name ORDER BY n.trace_name COLLATE "C") FROM queen.message_trace_names n WHERE n.trace_id = t.id))
                || CASE WHEN t.encrypted THEN '{"isEncrypted": true}' ELSE '{}' END::JSONB
                ORDER BY g.created_at, g.id), '[]'::JSONB)
              FROM page g JOIN queen.message_traces t ON t.id = g.id),
        'total', (SELECT count(*) FROM visible),
        'pagination', jsonb_build_object('limit', GREATEST(COALESCE(p_limit, 100), 0), 'offset', GREATEST(COALESCE(p_offset, 0), 0)))
$$;

-- get_available_trace_names_v1: the trace names that a tenant can read, most recently used first.
-- Returns {"trace_names":[{"trace_name","trace_count","message_count":distinct messages,"first_seen","last_seen"}],"total","pagination"}.
-- Locks: none. Called by: pg.TraceNames.
CREATE OR REPLACE FUNCTION queen.get_available_trace_names_v1(
    p_limit INTEGER DEFAULT 50, p_offset INTEGER DEFAULT 0, p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE sql STABLE
AS $$
    WITH names AS MATERIALIZED (
        SELECT n.trace_name, count(*) AS traces, count(DISTINCT (t.partition_id, t.transaction_id)) AS messages,
               min(t.created_at) AS first_seen, max(t.created_at) AS seen
          FROM queen.message_trace_names n
          JOIN queen.message_traces t ON t.id = n.trace_id
          JOIN queen.log_partitions p ON p.id = t.partition_id
          JOIN queen.queues q ON q.id = p.queue_id
         WHERE q.tenant_id = p_tenant
         GROUP BY n.trace_name)
    SELECT jsonb_build_object(
        'trace_names', (SELECT COALESCE(jsonb_agg(jsonb_build_object('trace_name', x.trace_name, 'trace_count', x.traces,
                'message_count', x.messages, 'first_seen', queen.iso_ms_v1(x.first_seen), 'last_seen', queen.iso_ms_v1(x.seen))
                ORDER BY x.seen DESC, x.trace_name COLLATE "C"), '[]'::JSONB)
              FROM (SELECT n.* FROM names n ORDER BY n.seen DESC, n.trace_name COLLATE "C"
                     LIMIT GREATEST(COALESCE(p_limit, 50), 0) OFFSET GREATEST(COALESCE(p_offset, 0), 0)) x),
        'total', (SELECT count(*) FROM names),
        'pagination', jsonb_build_object('limit', GREATEST(COALESCE(p_limit, 50), 0), 'offset', GREATEST(COALESCE(p_offset, 0), 0)))
$$;

GRANT EXECUTE ON FUNCTION queen.get_message_traces_v1(UUID, TEXT) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.get_traces_by_name_v1(TEXT, INTEGER, INTEGER, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.get_available_trace_names_v1(INTEGER, INTEGER, UUID) TO PUBLIC;
