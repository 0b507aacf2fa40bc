-- The database's part of the Prometheus page.

-- get_prometheus_metrics_v1: lifetime totals; per queue name its newest minute within 5 minutes; per broker process its newest
-- row within 5 minutes; dead letters and depths as of the last statistics, queues that hold nothing left out.
--   {system_totals:{...get_system_totals_v1},per_queue_lag:[{queue,pop_count,avg_lag_ms|null,max_lag_ms|null,push_request_count,...,
--    parked_count,bucket_age_seconds}],per_worker:[{hostname,worker_id,pid,...}],dlq:{total,per_queue:[{queue,count}]},depth:[{queue,total,pending}]}
-- Queues of several tenants that share a name are summed, and no tenant is named, because the page is public; with p_by_tenant each
-- tenant's queue is by itself and carries "tenant". Averages are weighted by
-- their samples; avg_lag_ms and max_lag_ms are null when no pop was sampled. Per minute figures are those of the minute, so the
-- current minute is only shown when there is no earlier one within the 5. Locks: none.
DROP FUNCTION IF EXISTS queen.get_prometheus_metrics_v1();
CREATE OR REPLACE FUNCTION queen.get_prometheus_metrics_v1(p_by_tenant BOOLEAN DEFAULT FALSE)
RETURNS JSONB
LANGUAGE sql STABLE
AS $$
    SELECT jsonb_build_object(
        'system_totals', queen.get_system_totals_v1(),
        'per_queue_lag', COALESCE((
            SELECT jsonb_agg(jsonb_build_object(
                       'queue', n.name, 'tenant', n.tenant, 'pop_count', n.pops, 'avg_lag_ms', n.avg_lag, 'max_lag_ms', n.max_lag,
                       'push_request_count', n.pushes, 'push_message_count', n.pushed, 'pop_empty_count', n.empty,
                       'ack_request_count', n.acks, 'ack_success_count', n.ok, 'ack_failed_count', n.failed,
                       'transaction_count', n.transactions, 'parked_count', n.parked, 'bucket_age_seconds', n.age) ORDER BY n.name, n.tenant)
              FROM (SELECT q.name, CASE WHEN p_by_tenant THEN q.tenant_id END AS tenant, sum(m.pop_count) AS pops, sum(m.push_request_count) AS pushes, sum(m.push_message_count) AS pushed,
                           sum(m.pop_empty_count) AS empty, sum(m.ack_request_count) AS acks, sum(m.ack_success_count) AS ok,
                           sum(m.ack_failed_count) AS failed, sum(m.transaction_count) AS transactions, sum(m.parked_count) AS parked,
                           round(sum(m.avg_lag_ms * m.lag_count) / NULLIF(sum(m.lag_count), 0)) AS avg_lag,
                           max(m.max_lag_ms) FILTER (WHERE m.lag_count > 0) AS max_lag,
                           GREATEST(round(EXTRACT(EPOCH FROM now() - max(m.bucket_time))), 0) AS age
                      FROM (SELECT DISTINCT ON (x.queue_id) x.*
                              FROM queen.queue_lag_metrics x
                             WHERE x.bucket_time > now() - interval '5 minutes'
                             ORDER BY x.queue_id, x.bucket_time = date_trunc('minute', now()), x.bucket_time DESC) m
                      JOIN queen.queues q ON q.id = m.queue_id
                     GROUP BY 1, 2) n), '[]'),
        'per_worker', COALESCE((
            SELECT jsonb_agg(to_jsonb(w) - '{id,created_at,bucket_time}'::text[] || jsonb_build_object('bucket_time', queen.iso_s_v1(w.bucket_time))
                       ORDER BY w.hostname, w.worker_id, w.pid)
              FROM (SELECT DISTINCT ON (x.hostname, x.worker_id, x.pid) x.*
                      FROM queen.worker_metrics x
                     WHERE x.bucket_time > now() - interval '5 minutes'
                     ORDER BY x.hostname, x.worker_id, x.pid, x.bucket_time DESC) w), '[]'),
        'dlq', (
            SELECT jsonb_build_object(
                       'total', COALESCE(sum(d.n), 0),
                       'per_queue', COALESCE(jsonb_agg(jsonb_build_object('queue', d.name, 'tenant', d.tenant, 'count', d.n) ORDER BY d.name, d.tenant), '[]'))
              FROM (SELECT q.name, CASE WHEN p_by_tenant THEN q.tenant_id END AS tenant, sum(s.dead_letter_messages) AS n
                      FROM queen.stats s
                      JOIN queen.queues q ON q.id = s.queue_id
                     WHERE s.stat_type = 'queue' AND s.dead_letter_messages > 0
                     GROUP BY 1, 2) d),
        'depth', COALESCE((
            SELECT jsonb_agg(jsonb_build_object('queue', d.name, 'tenant', d.tenant, 'total', d.total, 'pending', d.pending) ORDER BY d.name, d.tenant)
              FROM (SELECT q.name, CASE WHEN p_by_tenant THEN q.tenant_id END AS tenant, sum(s.total_messages) AS total,
                           sum(s.pending_messages) AS pending
                      FROM queen.stats s
                      JOIN queen.queues q ON q.id = s.queue_id
                     WHERE s.stat_type = 'queue' AND s.total_messages > 0
                     GROUP BY 1, 2) d), '[]'))
$$;

GRANT EXECUTE ON FUNCTION queen.get_prometheus_metrics_v1(BOOLEAN) TO PUBLIC;
