-- Roll-ups of queen.stats and their readers.

-- aggregate_label_stats_v1: the work of the two roll-ups by name. p_label is 'namespace' or 'task'. Returns the number of names.
-- Locks: the rows of queen.stats that it deletes and writes.
CREATE OR REPLACE FUNCTION queen.aggregate_label_stats_v1(p_label TEXT)
RETURNS BIGINT
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_rows BIGINT;
BEGIN
    DELETE FROM queen.stats s
     WHERE s.stat_type = p_label
       AND NOT EXISTS (SELECT 1 FROM queen.queues q WHERE s.stat_key = CASE p_label WHEN 'task' THEN q.task ELSE q.namespace END);
    INSERT INTO queen.stats AS s (stat_type, stat_key, child_count, total_messages, pending_messages, processing_messages,
        completed_messages, dead_letter_messages, retained_bytes, oldest_pending_at, avg_lag_seconds, max_lag_seconds,
        ingested_per_second, processed_per_second, last_computed_at)
    SELECT p_label, CASE p_label WHEN 'task' THEN q.task ELSE q.namespace END AS label, count(*), sum(x.total_messages),
           sum(x.pending_messages), sum(x.processing_messages), sum(x.completed_messages), sum(x.dead_letter_messages),
           sum(x.retained_bytes), min(x.oldest_pending_at), COALESCE(avg(x.avg_lag_seconds), 0)::INT,
           COALESCE(max(x.max_lag_seconds), 0), LEAST(COALESCE(sum(x.ingested_per_second), 0), 99999999),
           LEAST(COALESCE(sum(x.processed_per_second), 0), 99999999), clock_timestamp()
      FROM queen.queues q
      JOIN queen.stats x ON x.stat_type = 'queue' AND x.stat_key = q.id::TEXT
     WHERE COALESCE(CASE p_label WHEN 'task' THEN q.task ELSE q.namespace END, '') <> ''
     GROUP BY label
     ORDER BY label
        ON CONFLICT (stat_type, stat_key) DO UPDATE
       SET child_count = EXCLUDED.child_count, total_messages = EXCLUDED.total_messages,
           pending_messages = EXCLUDED.pending_messages, processing_messages = EXCLUDED.processing_messages,
           completed_messages = EXCLUDED.completed_messages, dead_letter_messages = EXCLUDED.dead_letter_messages,
           retained_bytes = EXCLUDED.retained_bytes, oldest_pending_at = EXCLUDED.oldest_pending_at,
           avg_lag_seconds = EXCLUDED.avg_lag_seconds, max_lag_seconds = EXCLUDED.max_lag_seconds,
           ingested_per_second = EXCLUDED.ingested_per_second, processed_per_second = EXCLUDED.processed_per_second,
           last_computed_at = EXCLUDED.last_computed_at;
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    RETURN v_rows;
END $$;

-- aggregate_namespace_stats_v1, aggregate_task_stats_v1: one row per namespace (task) that a queue carries, over all tenants;
-- rows of names that no queue carries any more go. Readers that serve a tenant sum its queue rows instead.
-- Returns {"namespacesUpdated":n} ({"tasksUpdated":n}). Locks: stats rows ascending by key. Called by: log_refresh_all_stats_v1.
CREATE OR REPLACE FUNCTION queen.aggregate_namespace_stats_v1()
RETURNS JSONB
LANGUAGE sql VOLATILE
AS $$ SELECT jsonb_build_object('namespacesUpdated', queen.aggregate_label_stats_v1('namespace')) $$;

CREATE OR REPLACE FUNCTION queen.aggregate_task_stats_v1()
RETURNS JSONB
LANGUAGE sql VOLATILE
AS $$ SELECT jsonb_build_object('tasksUpdated', queen.aggregate_label_stats_v1('task')) $$;

-- aggregate_system_stats_v2: the one row of the whole system; child_count is the number of partitions.
-- Returns {"systemUpdated":1}. Rates are sums of rates that are never negative. Locks: the row.
-- Called by: log_refresh_all_stats_v1.
CREATE OR REPLACE FUNCTION queen.aggregate_system_stats_v2()
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    INSERT INTO queen.stats AS s (stat_type, stat_key, child_count, total_messages, pending_messages, processing_messages,
        completed_messages, dead_letter_messages, retained_bytes, oldest_pending_at, avg_lag_seconds, max_lag_seconds,
        median_lag_seconds, avg_offset_lag, max_offset_lag, ingested_per_second, processed_per_second, last_computed_at)
    SELECT 'system', 'global', LEAST(COALESCE(sum(x.child_count), 0), 2147483647)::INT, COALESCE(sum(x.total_messages), 0),
           COALESCE(sum(x.pending_messages), 0), COALESCE(sum(x.processing_messages), 0), COALESCE(sum(x.completed_messages), 0),
           COALESCE(sum(x.dead_letter_messages), 0), COALESCE(sum(x.retained_bytes), 0), min(x.oldest_pending_at),
           COALESCE(avg(x.avg_lag_seconds), 0)::INT, COALESCE(max(x.max_lag_seconds), 0),
           COALESCE(percentile_disc(0.5) WITHIN GROUP (ORDER BY x.max_lag_seconds), 0), COALESCE(avg(x.avg_offset_lag), 0)::INT,
           COALESCE(max(x.max_offset_lag), 0), LEAST(GREATEST(COALESCE(sum(x.ingested_per_second), 0), 0), 99999999),
           LEAST(GREATEST(COALESCE(sum(x.processed_per_second), 0), 0), 99999999), clock_timestamp()
      FROM queen.stats x
     WHERE x.stat_type = 'queue'
        ON CONFLICT (stat_type, stat_key) DO UPDATE
       SET child_count = EXCLUDED.child_count, total_messages = EXCLUDED.total_messages,
           pending_messages = EXCLUDED.pending_messages, processing_messages = EXCLUDED.processing_messages,
           completed_messages = EXCLUDED.completed_messages, dead_letter_messages = EXCLUDED.dead_letter_messages,
           retained_bytes = EXCLUDED.retained_bytes, oldest_pending_at = EXCLUDED.oldest_pending_at,
           avg_lag_seconds = EXCLUDED.avg_lag_seconds, max_lag_seconds = EXCLUDED.max_lag_seconds,
           median_lag_seconds = EXCLUDED.median_lag_seconds, avg_offset_lag = EXCLUDED.avg_offset_lag,
           max_offset_lag = EXCLUDED.max_offset_lag, ingested_per_second = EXCLUDED.ingested_per_second,
           processed_per_second = EXCLUDED.processed_per_second, last_computed_at = EXCLUDED.last_computed_at;
    RETURN jsonb_build_object('systemUpdated', 1);
END $$;

-- get_queues_v2: the queues of a tenant with cached figures, newest first.
-- Returns {"queues":[{"id","name","namespace","task","createdAt","partitions","retainedBytes","messages":{"total","pending":without
-- what is leased,"processing"}}]}. Locks: none. Called by: none of ours (log_queue_list_v1 has live figures).
CREATE OR REPLACE FUNCTION queen.get_queues_v2(p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE sql STABLE
AS $$
    SELECT jsonb_build_object('queues', COALESCE(jsonb_agg(jsonb_build_object(
               'id', q.id, 'name', q.name, 'namespace', q.namespace, 'task', q.task, 'createdAt', queen.iso_ms_v1(q.created_at),
               'partitions', COALESCE(s.child_count, 0), 'retainedBytes', COALESCE(s.retained_bytes, 0),
               'messages', jsonb_build_object('total', COALESCE(s.total_messages, 0),
                   'pending', GREATEST(COALESCE(s.pending_messages - s.processing_messages, 0), 0),
                   'processing', COALESCE(s.processing_messages, 0)))
               ORDER BY q.created_at DESC, q.id DESC), '[]'::JSONB))
      FROM queen.queues q
      LEFT JOIN queen.stats s ON s.stat_type = 'queue' AND s.stat_key = q.id::TEXT
     WHERE q.tenant_id = p_tenant
$$;

-- label_list_v1: the work of get_namespaces_v2 and get_tasks_v2. p_label is 'namespace' or 'task'. Returns the array. Locks: none.
CREATE OR REPLACE FUNCTION queen.label_list_v1(p_label TEXT, p_tenant UUID)
RETURNS JSONB
LANGUAGE sql STABLE
AS $$
    SELECT COALESCE(jsonb_agg(jsonb_build_object(p_label, x.label, 'queues', x.queues, 'partitions', x.partitions,
               'messages', jsonb_build_object('total', x.total, 'pending', x.pending)) ORDER BY x.label COLLATE "C"), '[]'::JSONB)
      FROM (SELECT l.label, count(*) AS queues, COALESCE(sum(s.child_count), 0) AS partitions,
                   COALESCE(sum(s.total_messages), 0) AS total,
                   COALESCE(sum(GREATEST(s.pending_messages - s.processing_messages, 0)), 0) AS pending
              FROM queen.queues q
             CROSS JOIN LATERAL (SELECT CASE p_label WHEN 'task' THEN q.task ELSE q.namespace END AS label) l
              LEFT JOIN queen.stats s ON s.stat_type = 'queue' AND s.stat_key = q.id::TEXT
             WHERE q.tenant_id = p_tenant AND COALESCE(l.label, '') <> ''
             GROUP BY l.label) x
$$;

-- get_namespaces_v2, get_tasks_v2: the names that a tenant's queues carry, ordered; queues without one are left out.
-- Returns {"namespaces":[{"namespace","queues","partitions","messages":{"total","pending":without what is leased}}]} ({"tasks":[{
-- "task",…}]}), cached figures. Locks: none. Called by: pg.Namespaces, pg.Tasks.
CREATE OR REPLACE FUNCTION queen.get_namespaces_v2(p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE sql STABLE
AS $$ SELECT jsonb_build_object('namespaces', queen.label_list_v1('namespace', p_tenant)) $$;

CREATE OR REPLACE FUNCTION queen.get_tasks_v2(p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE sql STABLE
AS $$ SELECT jsonb_build_object('tasks', queen.label_list_v1('task', p_tenant)) $$;

-- get_system_metrics_v1: what the collectors of the replicas sampled, by bucket.
--   p_filters  {"from"? = an hour ago,"to"? = now,"hostname"?,"workerId"?}
-- Returns {"timeRange":{"from","to"},"replicas":[{"hostname","port","workerId","timeSeries":[{"timestamp":ISO-ms,"sampleCount",
-- "metrics"}]}],"replicaCount","bucketMinutes","pointCount":most points of one replica}. Numeric leaves of metrics are {"avg":
-- weighted by samples,"min","max","last"}, null where nothing was sampled; shared_state is the last one, as it was written.
-- Raises 22007 for an unreadable time. Locks: none. Called by: pg.SystemMetrics.
CREATE OR REPLACE FUNCTION queen.get_system_metrics_v1(p_filters JSONB DEFAULT '{}')
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    v_to      TIMESTAMPTZ := COALESCE(queen.parse_time_v1(p_filters ->> 'to'), now());
    v_from    TIMESTAMPTZ := COALESCE(queen.parse_time_v1(p_filters ->> 'from'), now() - INTERVAL '1 hour');
    v_minutes INTEGER := queen.series_bucket_minutes_v1(v_from, v_to);
    v_result  JSONB;
BEGIN
    WITH leaves (path) AS (
        VALUES ('{cpu,user_us}'::TEXT[]), ('{cpu,system_us}'), ('{memory,rss_bytes}'), ('{memory,virtual_bytes}'),
               ('{database,pool_size}'), ('{database,pool_idle}'), ('{database,pool_active}'), ('{threadpool,db,pool_size}'),
               ('{threadpool,db,queue_size}'), ('{threadpool,system,pool_size}'), ('{threadpool,system,queue_size}'),
               ('{registries,response}')),
    samples AS MATERIALIZED (
        SELECT m.hostname, m.port, m.worker_id, queen.series_bucket_v1(m.timestamp, v_minutes) AS bucket, m.timestamp, m.sample_count, m.metrics
          FROM queen.system_metrics m
         WHERE m.timestamp >= v_from AND m.timestamp <= v_to
           AND (COALESCE(p_filters ->> 'hostname', '') = '' OR m.hostname = p_filters ->> 'hostname')
           AND (COALESCE(p_filters ->> 'workerId', '') = '' OR m.worker_id = p_filters ->> 'workerId')),
    points AS (
        SELECT s.hostname, s.port, s.worker_id, s.bucket, sum(s.sample_count) AS samples,
               (array_agg(s.metrics -> 'shared_state' ORDER BY s.timestamp DESC))[1] AS shared
          FROM samples s GROUP BY 1, 2, 3, 4),
    -- A leaf is stored as a number or as an object with avg, min, max and last.
    numbers AS (
        SELECT s.hostname, s.port, s.worker_id, s.bucket, l.path, s.timestamp, s.sample_count,
               CASE jsonb_typeof(x.leaf) WHEN 'number' THEN (x.leaf #>> '{}')::NUMERIC WHEN 'object' THEN (x.leaf ->> 'avg')::NUMERIC END AS avg,
               CASE jsonb_typeof(x.leaf) WHEN 'number' THEN (x.leaf #>> '{}')::NUMERIC WHEN 'object' THEN (x.leaf ->> 'min')::NUMERIC END AS low,
               CASE jsonb_typeof(x.leaf) WHEN 'number' THEN (x.leaf #>> '{}')::NUMERIC WHEN 'object' THEN (x.leaf ->> 'max')::NUMERIC END AS high,
               CASE jsonb_typeof(x.leaf) WHEN 'number' THEN (x.leaf #>> '{}')::NUMERIC WHEN 'object' THEN (x.leaf ->> 'last')::NUMERIC END AS last
          FROM samples s CROSS JOIN leaves l CROSS JOIN LATERAL (SELECT s.metrics #> l.path) AS x (leaf)),
    aggregated AS (
        SELECT n.hostname, n.port, n.worker_id, n.bucket, n.path, jsonb_build_object(
                   'avg', round(sum(n.avg * n.sample_count) / NULLIF(sum(n.sample_count) FILTER (WHERE n.avg IS NOT NULL), 0), 2),
                   'min', min(n.low), 'max', max(n.high),
                   'last', (array_agg(n.last ORDER BY n.timestamp DESC) FILTER (WHERE n.last IS NOT NULL))[1]) AS leaf
          FROM numbers n GROUP BY 1, 2, 3, 4, 5),
    trees AS (
        SELECT a.hostname, a.port, a.worker_id, a.bucket, jsonb_object_agg(array_to_string(a.path, '.'), a.leaf) AS leaf
          FROM aggregated a GROUP BY 1, 2, 3, 4),
    replicas AS (
        SELECT p.hostname, p.port, p.worker_id, count(*) AS n, jsonb_agg(jsonb_build_object(
                   'timestamp', queen.iso_ms_v1(p.bucket), 'sampleCount', p.samples, 'metrics', jsonb_build_object(
                       'cpu', jsonb_build_object('user_us', t.leaf -> 'cpu.user_us', 'system_us', t.leaf -> 'cpu.system_us'),
                       'memory', jsonb_build_object('rss_bytes', t.leaf -> 'memory.rss_bytes', 'virtual_bytes', t.leaf -> 'memory.virtual_bytes'),
                       'database', jsonb_build_object('pool_size', t.leaf -> 'database.pool_size', 'pool_idle', t.leaf -> 'database.pool_idle',
                           'pool_active', t.leaf -> 'database.pool_active'),
                       'threadpool', jsonb_build_object(
                           'db', jsonb_build_object('pool_size', t.leaf -> 'threadpool.db.pool_size', 'queue_size', t.leaf -> 'threadpool.db.queue_size'),
                           'system', jsonb_build_object('pool_size', t.leaf -> 'threadpool.system.pool_size',
                               'queue_size', t.leaf -> 'threadpool.system.queue_size')),
                       'registries', jsonb_build_object('response', t.leaf -> 'registries.response'),
                       'shared_state', COALESCE(p.shared, '{}'::JSONB))) ORDER BY p.bucket) AS series
          FROM points p JOIN trees t USING (hostname, port, worker_id, bucket)
         GROUP BY 1, 2, 3)
    SELECT jsonb_build_object('timeRange', jsonb_build_object('from', queen.iso_ms_v1(v_from), 'to', queen.iso_ms_v1(v_to)),
               'replicas', COALESCE(jsonb_agg(jsonb_build_object('hostname', r.hostname, 'port', r.port, 'workerId', r.worker_id,
                   'timeSeries', r.series) ORDER BY r.hostname, r.port, r.worker_id), '[]'::JSONB),
               'replicaCount', count(*), 'bucketMinutes', v_minutes, 'pointCount', COALESCE(max(r.n), 0))
      INTO v_result
      FROM replicas r;
    RETURN v_result;
END $$;

GRANT EXECUTE ON FUNCTION queen.aggregate_namespace_stats_v1() TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.aggregate_task_stats_v1() TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.aggregate_system_stats_v2() TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.aggregate_label_stats_v1(TEXT) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.get_queues_v2(UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.label_list_v1(TEXT, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.get_namespaces_v2(UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.get_tasks_v2(UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.get_system_metrics_v1(JSONB) TO PUBLIC;
