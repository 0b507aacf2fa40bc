-- What retention deleted, over time.

-- get_retention_timeseries_v1: messages deleted per bucket, oldest first, and their totals; purgeMsgs are those that an operator purged.
--   p_filters  from, to, queue, _tenant, _isolated
-- Events about partitions (types that begin and end with two underscores) are no messages and are left out. A row whose
-- partition is gone belongs to nobody any more: it is shown to the default tenant as long as no tenancy header is in use.
-- Locks: none.
CREATE OR REPLACE FUNCTION queen.get_retention_timeseries_v1(p_filters JSONB DEFAULT '{}')
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET timezone = 'UTC'
AS $$
DECLARE
    v_to      TIMESTAMPTZ := COALESCE(NULLIF(p_filters ->> 'to', '')::timestamptz, now());
    v_from    TIMESTAMPTZ := COALESCE(NULLIF(p_filters ->> 'from', '')::timestamptz, v_to - interval '1 hour');
    v_minutes INT := queen.series_bucket_minutes_v1(v_from, v_to);
    v_tenant  UUID := COALESCE(NULLIF(p_filters ->> '_tenant', '')::uuid, '00000000-0000-0000-0000-000000000001');
    v_queue   TEXT := COALESCE(p_filters ->> 'queue', '');
    v_orphans BOOLEAN := v_queue = '' AND v_tenant = '00000000-0000-0000-0000-000000000001'
                         AND NOT COALESCE((p_filters ->> '_isolated')::boolean, FALSE);
    v_series  JSONB;
    v_totals  JSONB;
BEGIN
    WITH buckets AS (
        SELECT queen.series_bucket_v1(h.executed_at, v_minutes) AS bucket,
               COALESCE(sum(h.messages_deleted) FILTER (WHERE h.retention_type = 'retention'), 0) AS retention,
               COALESCE(sum(h.messages_deleted) FILTER (WHERE h.retention_type = 'completed_retention'), 0) AS completed,
               COALESCE(sum(h.messages_deleted) FILTER (WHERE h.retention_type = 'max_wait_time_eviction'), 0) AS eviction,
               COALESCE(sum(h.messages_deleted) FILTER (WHERE h.retention_type = 'purge'), 0) AS purge,
               COALESCE(sum(h.messages_deleted), 0) AS total, count(*) AS events
          FROM queen.retention_history h
          LEFT JOIN queen.log_partitions p ON p.id = h.partition_id
          LEFT JOIN queen.queues q ON q.id = p.queue_id
         WHERE h.executed_at >= v_from AND h.executed_at <= v_to AND h.retention_type NOT LIKE '\_\_%\_\_'
           AND (q.tenant_id = v_tenant AND (v_queue = '' OR q.name = v_queue) OR v_orphans AND q.id IS NULL)
         GROUP BY 1
    )
    SELECT COALESCE(jsonb_agg(jsonb_build_object(
               'bucket', queen.iso_s_v1(b.bucket), 'retentionMsgs', b.retention, 'completedRetentionMsgs', b.completed,
               'evictionMsgs', b.eviction, 'purgeMsgs', b.purge, 'totalMsgs', b.total, 'eventCount', b.events) ORDER BY b.bucket), '[]'),
           jsonb_build_object('retentionMsgs', COALESCE(sum(b.retention), 0), 'completedRetentionMsgs', COALESCE(sum(b.completed), 0),
               'evictionMsgs', COALESCE(sum(b.eviction), 0), 'purgeMsgs', COALESCE(sum(b.purge), 0), 'totalMsgs', COALESCE(sum(b.total), 0), 'eventCount', COALESCE(sum(b.events), 0))
      INTO v_series, v_totals
      FROM buckets b;
    RETURN queen.series_head_v1(v_from, v_to, v_minutes) || jsonb_build_object(
        'series', v_series, 'totals', v_totals);
END $$;

GRANT EXECUTE ON FUNCTION queen.get_retention_timeseries_v1(JSONB) TO PUBLIC;
