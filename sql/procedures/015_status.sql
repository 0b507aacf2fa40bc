-- Status of queues, from the figures of the last refresh.

-- get_status_queues_v2: the queues of a tenant with their cached figures, newest queue first.
--   p_filters  {"queue"?,"namespace"?,"task"?,"_tenant"?}, exact; "" is no filter
-- Returns {"queues":[{"id","name","namespace","task","createdAt","partitions","messages":{"total","pending","processing","completed",
-- "deadLetter"}}],"pagination":{"limit","offset"}}. pending includes what is leased; a queue made since the last refresh shows zeros.
-- Locks: none. Called by: pg.QueueStatuses.
CREATE OR REPLACE FUNCTION queen.get_status_queues_v2(p_filters JSONB DEFAULT '{}', p_limit INTEGER DEFAULT 100, p_offset INTEGER DEFAULT 0)
RETURNS JSONB
LANGUAGE sql STABLE
AS $$
    SELECT jsonb_build_object('queues', COALESCE(jsonb_agg(jsonb_build_object(
               'id', x.id, 'name', x.name, 'namespace', x.namespace, 'task', x.task, 'createdAt', queen.iso_ms_v1(x.created_at),
               'partitions', x.partitions, 'messages', jsonb_build_object('total', x.total, 'pending', x.pending,
                   'processing', x.processing, 'completed', x.completed, 'deadLetter', x.dead))
               ORDER BY x.created_at DESC, x.id DESC), '[]'::JSONB),
               'pagination', jsonb_build_object('limit', GREATEST(COALESCE(p_limit, 100), 0), 'offset', GREATEST(COALESCE(p_offset, 0), 0)))
      FROM (SELECT q.*, COALESCE(s.child_count, 0) AS partitions,
                   COALESCE(s.total_messages, 0) AS total, COALESCE(s.pending_messages, 0) AS pending,
                   COALESCE(s.processing_messages, 0) AS processing, COALESCE(s.completed_messages, 0) AS completed,
                   COALESCE(s.dead_letter_messages, 0) AS dead
              FROM (SELECT q.id, q.name, q.namespace, q.task, q.created_at
                      FROM queen.queues q
                     WHERE q.tenant_id = COALESCE(NULLIF(p_filters ->> '_tenant', '')::UUID, '00000000-0000-0000-0000-000000000001')
                       AND (COALESCE(p_filters ->> 'queue', '') = '' OR q.name = p_filters ->> 'queue')
                       AND (COALESCE(p_filters ->> 'namespace', '') = '' OR q.namespace = p_filters ->> 'namespace')
                       AND (COALESCE(p_filters ->> 'task', '') = '' OR q.task = p_filters ->> 'task')
                     ORDER BY q.created_at DESC, q.id DESC
                     LIMIT GREATEST(COALESCE(p_limit, 100), 0) OFFSET GREATEST(COALESCE(p_offset, 0), 0)) q
              LEFT JOIN queen.stats s ON s.stat_type = 'queue' AND s.stat_key = q.id::TEXT) x
$$;

GRANT EXECUTE ON FUNCTION queen.get_status_queues_v2(JSONB, INTEGER, INTEGER) TO PUBLIC;
