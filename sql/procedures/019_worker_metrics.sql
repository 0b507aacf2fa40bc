-- What brokers counted: one row per broker process and flush, one per queue and minute; and the readers behind status and analytics.
--
-- Readers: ranges default to the last hour; a text without a zone means UTC; averages of lag are weighted by the number of
-- samples, and null when there was none. Nothing in the data plane reads these tables.

-- queen.worker_metrics: what one broker process did since its previous flush. bucket_time is the second of the flush. Columns
-- without a source in this broker (job queues, back-off) stay 0. Written with plain inserts only: the trigger below counts
-- inserted rows, and an upsert that took its update arm would not be counted.
CREATE TABLE IF NOT EXISTS queen.worker_metrics (
    id                    UUID PRIMARY KEY DEFAULT gen_random_uuid(),
    hostname              VARCHAR(255) NOT NULL,
    worker_id             INTEGER NOT NULL,
    pid                   INTEGER NOT NULL,
    bucket_time           TIMESTAMPTZ NOT NULL,
    avg_event_loop_lag_ms INTEGER DEFAULT 0,
    max_event_loop_lag_ms INTEGER DEFAULT 0,
    avg_free_slots        INTEGER DEFAULT 0,
    min_free_slots        INTEGER DEFAULT 0,
    db_connections        INTEGER DEFAULT 0,
    avg_job_queue_size    INTEGER DEFAULT 0,
    max_job_queue_size    INTEGER DEFAULT 0,
    backoff_size          INTEGER DEFAULT 0,
    jobs_done             BIGINT DEFAULT 0,
    push_request_count    BIGINT DEFAULT 0,
    pop_request_count     BIGINT DEFAULT 0,
    ack_request_count     BIGINT DEFAULT 0,
    transaction_count     BIGINT DEFAULT 0,
    push_message_count    BIGINT DEFAULT 0,
    pop_message_count     BIGINT DEFAULT 0,
    ack_message_count     BIGINT DEFAULT 0,
    ack_success_count     BIGINT DEFAULT 0,
    ack_failed_count      BIGINT DEFAULT 0,
    lag_count             BIGINT DEFAULT 0,
    avg_lag_ms            BIGINT DEFAULT 0,
    max_lag_ms            BIGINT DEFAULT 0,
    db_error_count        BIGINT DEFAULT 0,
    dlq_count             BIGINT DEFAULT 0,
    created_at            TIMESTAMPTZ DEFAULT now(),
    UNIQUE (hostname, worker_id, pid, bucket_time)
);
DO $$ BEGIN
    IF to_regclass('queen.idx_worker_metrics_bucket') IS NULL THEN
        CREATE INDEX idx_worker_metrics_bucket ON queen.worker_metrics (bucket_time DESC);
    END IF;
    IF to_regclass('queen.idx_worker_metrics_worker') IS NULL THEN
        CREATE INDEX idx_worker_metrics_worker ON queen.worker_metrics (hostname, worker_id);
    END IF;
    IF to_regclass('queen.idx_worker_metrics_created') IS NULL THEN
        CREATE INDEX idx_worker_metrics_created ON queen.worker_metrics (created_at);
    END IF;
END $$;

-- queen.queue_lag_metrics: what all brokers together did with one queue in one minute. Sums add up over brokers; avg_lag_ms is
-- weighted by lag_count; partition_count is a snapshot. partitions_created and partitions_deleted are counted by triggers.
CREATE TABLE IF NOT EXISTS queen.queue_lag_metrics (
    id                 UUID PRIMARY KEY DEFAULT gen_random_uuid(),
    bucket_time        TIMESTAMPTZ NOT NULL,
    queue_id           UUID NOT NULL REFERENCES queen.queues (id) ON DELETE CASCADE,
    pop_count          BIGINT DEFAULT 0,
    avg_lag_ms         BIGINT DEFAULT 0,
    max_lag_ms         BIGINT DEFAULT 0,
    push_request_count BIGINT DEFAULT 0,
    push_message_count BIGINT DEFAULT 0,
    pop_empty_count    BIGINT DEFAULT 0,
    ack_request_count  BIGINT DEFAULT 0,
    ack_success_count  BIGINT DEFAULT 0,
    ack_failed_count   BIGINT DEFAULT 0,
    transaction_count  BIGINT DEFAULT 0,
    lag_count          BIGINT DEFAULT 0,
    partitions_created INTEGER DEFAULT 0,
    partitions_deleted INTEGER DEFAULT 0,
    parked_count       INTEGER DEFAULT 0,
    partition_count    INTEGER,
    created_at         TIMESTAMPTZ DEFAULT now()
);
DO $$ BEGIN
    IF to_regclass('queen.qlm_bucket_queue_uk') IS NULL THEN
        CREATE UNIQUE INDEX qlm_bucket_queue_uk ON queen.queue_lag_metrics (bucket_time, queue_id);
    END IF;
    IF to_regclass('queen.idx_queue_lag_metrics_bucket') IS NULL THEN
        CREATE INDEX idx_queue_lag_metrics_bucket ON queen.queue_lag_metrics (bucket_time DESC);
    END IF;
    IF to_regclass('queen.idx_queue_lag_metrics_queue') IS NULL THEN
        CREATE INDEX idx_queue_lag_metrics_queue ON queen.queue_lag_metrics (queue_id);
    END IF;
END $$;

-- queen.queue_parked_replica: long polls parked on a queue, per broker and minute (average over the minute).
CREATE TABLE IF NOT EXISTS queen.queue_parked_replica (
    bucket_time  TIMESTAMPTZ NOT NULL,
    queue_name   VARCHAR(512) NOT NULL,
    hostname     VARCHAR(255) NOT NULL,
    worker_id    INTEGER NOT NULL,
    tenant_id    UUID NOT NULL DEFAULT '00000000-0000-0000-0000-000000000001',
    parked_count INTEGER DEFAULT 0,
    PRIMARY KEY (bucket_time, queue_name, hostname, worker_id, tenant_id)
);
DO $$ BEGIN
    IF to_regclass('queen.idx_queue_parked_replica_bucket') IS NULL THEN
        CREATE INDEX idx_queue_parked_replica_bucket ON queen.queue_parked_replica (bucket_time DESC);
    END IF;
    IF to_regclass('queen.idx_queue_parked_replica_queue') IS NULL THEN
        CREATE INDEX idx_queue_parked_replica_queue ON queen.queue_parked_replica (queue_name);
    END IF;
END $$;

-- queen.worker_metrics_summary: one row, the totals of every worker_metrics row ever inserted; purging old rows leaves it alone.
CREATE TABLE IF NOT EXISTS queen.worker_metrics_summary (
    id                  INTEGER PRIMARY KEY DEFAULT 1 CHECK (id = 1),
    total_push_requests BIGINT DEFAULT 0,
    total_pop_requests  BIGINT DEFAULT 0,
    total_ack_requests  BIGINT DEFAULT 0,
    total_transactions  BIGINT DEFAULT 0,
    total_push_messages BIGINT DEFAULT 0,
    total_pop_messages  BIGINT DEFAULT 0,
    total_ack_messages  BIGINT DEFAULT 0,
    total_ack_success   BIGINT DEFAULT 0,
    total_ack_failed    BIGINT DEFAULT 0,
    total_db_errors     BIGINT DEFAULT 0,
    total_dlq           BIGINT DEFAULT 0,
    last_updated_at     TIMESTAMPTZ DEFAULT now()
);
INSERT INTO queen.worker_metrics_summary (id)
SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM queen.worker_metrics_summary)
    ON CONFLICT (id) DO NOTHING;

-- update_worker_metrics_summary_trigger: adds a new worker_metrics row to the totals. Locks: the one summary row.
CREATE OR REPLACE FUNCTION queen.update_worker_metrics_summary_trigger()
RETURNS TRIGGER
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    UPDATE queen.worker_metrics_summary s
       SET total_push_requests = s.total_push_requests + COALESCE(NEW.push_request_count, 0),
           total_pop_requests = s.total_pop_requests + COALESCE(NEW.pop_request_count, 0),
           total_ack_requests = s.total_ack_requests + COALESCE(NEW.ack_request_count, 0),
           total_transactions = s.total_transactions + COALESCE(NEW.transaction_count, 0),
           total_push_messages = s.total_push_messages + COALESCE(NEW.push_message_count, 0),
           total_pop_messages = s.total_pop_messages + COALESCE(NEW.pop_message_count, 0),
           total_ack_messages = s.total_ack_messages + COALESCE(NEW.ack_message_count, 0),
           total_ack_success = s.total_ack_success + COALESCE(NEW.ack_success_count, 0),
           total_ack_failed = s.total_ack_failed + COALESCE(NEW.ack_failed_count, 0),
           total_db_errors = s.total_db_errors + COALESCE(NEW.db_error_count, 0),
           total_dlq = s.total_dlq + COALESCE(NEW.dlq_count, 0),
           last_updated_at = clock_timestamp()
     WHERE s.id = 1;
    RETURN NULL;
END $$;
DO $$ BEGIN
    IF NOT EXISTS (SELECT 1 FROM pg_catalog.pg_trigger t
                    WHERE t.tgrelid = 'queen.worker_metrics'::regclass AND t.tgname = 'trg_update_worker_metrics_summary') THEN
        CREATE TRIGGER trg_update_worker_metrics_summary
            AFTER INSERT ON queen.worker_metrics
            FOR EACH ROW EXECUTE FUNCTION queen.update_worker_metrics_summary_trigger();
    END IF;
END $$;

-- bump_partitions_created_trigger, bump_partitions_deleted_trigger: count created and removed partitions into the current minute
-- of their queues. One statement, ordered by queue id: two pushes that create partitions of the same two queues would
-- otherwise lock the two rows crosswise. Removal skips queues that are going themselves, whose row is gone when this runs.
-- Locks: queue_lag_metrics rows, ascending by queue id. Called by: the triggers of 020.
CREATE OR REPLACE FUNCTION queen.bump_partitions_created_trigger()
RETURNS TRIGGER
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    INSERT INTO queen.queue_lag_metrics (bucket_time, queue_id, partitions_created)
    SELECT date_trunc('minute', clock_timestamp()), n.queue_id, count(*)::int
      FROM new_partitions n
     GROUP BY n.queue_id
     ORDER BY n.queue_id
        ON CONFLICT (bucket_time, queue_id) DO UPDATE
       SET partitions_created = queue_lag_metrics.partitions_created + EXCLUDED.partitions_created;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION queen.bump_partitions_deleted_trigger()
RETURNS TRIGGER
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    INSERT INTO queen.queue_lag_metrics (bucket_time, queue_id, partitions_deleted)
    SELECT date_trunc('minute', clock_timestamp()), o.queue_id, count(*)::int
      FROM old_partitions o
     WHERE EXISTS (SELECT 1 FROM queen.queues q WHERE q.id = o.queue_id)
     GROUP BY o.queue_id
     ORDER BY o.queue_id
        ON CONFLICT (bucket_time, queue_id) DO UPDATE
       SET partitions_deleted = queue_lag_metrics.partitions_deleted + EXCLUDED.partitions_deleted;
    RETURN NULL;
END $$;

-- iso_s_v1: as iso_us_v1, in whole seconds. Locks: none.
CREATE OR REPLACE FUNCTION queen.iso_s_v1(p TIMESTAMPTZ)
RETURNS TEXT
LANGUAGE sql STABLE PARALLEL SAFE
AS $$ SELECT pg_catalog.to_char(p AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') $$;

-- series_bucket_minutes_v1, series_bucket_v1: the one rule of all time series. A range gets buckets of 1, 5, 15, 60 or 360
-- minutes, and a time belongs to the bucket in which its epoch falls: 6-hour buckets start at 00, 06, 12 and 18 UTC.
CREATE OR REPLACE FUNCTION queen.series_bucket_minutes_v1(p_from TIMESTAMPTZ, p_to TIMESTAMPTZ)
RETURNS INTEGER
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE WHEN p_to - p_from <= interval '60 minutes' THEN 1
                WHEN p_to - p_from <= interval '360 minutes' THEN 5
                WHEN p_to - p_from <= interval '1440 minutes' THEN 15
                WHEN p_to - p_from <= interval '10080 minutes' THEN 60
                ELSE 360 END
$$;

CREATE OR REPLACE FUNCTION queen.series_bucket_v1(p_at TIMESTAMPTZ, p_minutes INTEGER)
RETURNS TIMESTAMPTZ
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT pg_catalog.to_timestamp(
        (pg_catalog.floor(EXTRACT(EPOCH FROM p_at) / (GREATEST(p_minutes, 1) * 60)) * (GREATEST(p_minutes, 1) * 60))::double precision)
$$;

-- series_head_v1: what every answer with a series begins with. Locks: none.
CREATE OR REPLACE FUNCTION queen.series_head_v1(p_from TIMESTAMPTZ, p_to TIMESTAMPTZ, p_minutes INTEGER)
RETURNS JSONB
LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT jsonb_build_object('timeRange', jsonb_build_object('from', queen.iso_ms_v1(p_from), 'to', queen.iso_ms_v1(p_to)),
                              'bucketMinutes', p_minutes)
$$;

-- get_worker_throughput_v1: rates over all brokers, newest first: [{timestamp, pushRequestsPerSecond, ..., dlqCount}]. Locks: none.
CREATE OR REPLACE FUNCTION queen.get_worker_throughput_v1(
    p_from TIMESTAMPTZ DEFAULT NULL, p_to TIMESTAMPTZ DEFAULT NULL, p_bucket_minutes INTEGER DEFAULT 1)
RETURNS JSONB
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    v_to      TIMESTAMPTZ := COALESCE(p_to, now());
    v_from    TIMESTAMPTZ := COALESCE(p_from, v_to - interval '1 hour');
    v_minutes INT := GREATEST(COALESCE(p_bucket_minutes, 1), 1);
    v_seconds NUMERIC := v_minutes * 60;
BEGIN
    RETURN COALESCE((
        SELECT jsonb_agg(jsonb_build_object(
                   'timestamp', queen.iso_s_v1(b.bucket),
                   'pushRequestsPerSecond', round(b.push_requests / v_seconds, 2),
                   'popRequestsPerSecond', round(b.pop_requests / v_seconds, 2),
                   'ackRequestsPerSecond', round(b.ack_requests / v_seconds, 2),
                   'jobsPerSecond', round(b.jobs / v_seconds, 2),
                   'pushMessagesPerSecond', round(b.push_messages / v_seconds, 2),
                   'popMessagesPerSecond', round(b.pop_messages / v_seconds, 2),
                   'ackMessagesPerSecond', round(b.ack_messages / v_seconds, 2),
                   'ackSuccessPerSecond', round(b.ack_success / v_seconds, 2),
                   'ackFailedPerSecond', round(b.ack_failed / v_seconds, 2),
                   'avgLagMs', b.avg_lag, 'maxLagMs', b.max_lag, 'dbErrors', b.db_errors, 'dlqCount', b.dlq) ORDER BY b.bucket DESC)
          FROM (SELECT queen.series_bucket_v1(w.bucket_time, v_minutes) AS bucket,
                       sum(w.push_request_count) AS push_requests, sum(w.pop_request_count) AS pop_requests,
                       sum(w.ack_request_count) AS ack_requests, sum(w.jobs_done) AS jobs,
                       sum(w.push_message_count) AS push_messages, sum(w.pop_message_count) AS pop_messages,
                       sum(w.ack_message_count) AS ack_messages, sum(w.ack_success_count) AS ack_success,
                       sum(w.ack_failed_count) AS ack_failed,
                       COALESCE(round(sum(w.avg_lag_ms * w.lag_count) / NULLIF(sum(w.lag_count), 0)), 0) AS avg_lag,
                       max(w.max_lag_ms) AS max_lag, sum(w.db_error_count) AS db_errors, sum(w.dlq_count) AS dlq
                  FROM queen.worker_metrics w
                 WHERE w.bucket_time >= v_from AND w.bucket_time <= v_to
                 GROUP BY 1) b), '[]');
END $$;

-- series_queues_v1: the queues of a tenant that a series over many queues shows: at most 200, those with the most messages popped
-- and pushed in the range; a queue asked for by name is always shown. 5,000 queues times 60 minutes would be 120 MB of JSON. Locks: none.
CREATE OR REPLACE FUNCTION queen.series_queues_v1(p_from TIMESTAMPTZ, p_to TIMESTAMPTZ, p_queue_name TEXT, p_tenant UUID)
RETURNS UUID[]
LANGUAGE sql STABLE
AS $$
    SELECT COALESCE(array_agg(x.queue_id), '{}')
      FROM (SELECT m.queue_id
              FROM queen.queue_lag_metrics m
              JOIN queen.queues q ON q.id = m.queue_id
             WHERE m.bucket_time >= p_from AND m.bucket_time <= p_to AND q.tenant_id = p_tenant
               AND (COALESCE(p_queue_name, '') = '' OR q.name = p_queue_name)
             GROUP BY m.queue_id
             ORDER BY sum(m.pop_count + m.push_message_count) DESC, m.queue_id
             LIMIT 200) x
$$;

-- get_queue_lag_v1: age of messages when they were popped: [{queueName,popCount,avgLagMs|null,maxLagMs|null,bucketMinutes,
-- bucketTime}], newest bucket first, then by name; null = no pop was sampled. Queues: series_queues_v1. Locks: none.
CREATE OR REPLACE FUNCTION queen.get_queue_lag_v1(
    p_from TIMESTAMPTZ DEFAULT NULL, p_to TIMESTAMPTZ DEFAULT NULL, p_queue_name TEXT DEFAULT NULL,
    p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    v_to      TIMESTAMPTZ := COALESCE(p_to, now());
    v_from    TIMESTAMPTZ := COALESCE(p_from, v_to - interval '1 hour');
    v_minutes INT := queen.series_bucket_minutes_v1(v_from, v_to);
BEGIN
    RETURN COALESCE((
        SELECT jsonb_agg(jsonb_build_object(
                   'queueName', b.name, 'popCount', b.pops, 'avgLagMs', b.avg_lag, 'maxLagMs', b.max_lag,
                   'bucketMinutes', v_minutes, 'bucketTime', queen.iso_s_v1(b.bucket)) ORDER BY b.bucket DESC, b.name)
          FROM (SELECT q.name, queen.series_bucket_v1(m.bucket_time, v_minutes) AS bucket, sum(m.pop_count) AS pops,
                       round(sum(m.avg_lag_ms * m.lag_count) / NULLIF(sum(m.lag_count), 0)) AS avg_lag,
                       max(m.max_lag_ms) FILTER (WHERE m.lag_count > 0) AS max_lag
                  FROM queen.queue_lag_metrics m
                  JOIN queen.queues q ON q.id = m.queue_id
                 WHERE m.bucket_time >= v_from AND m.bucket_time <= v_to
                   AND m.queue_id = ANY (queen.series_queues_v1(v_from, v_to, p_queue_name, p_tenant))
                 GROUP BY 1, 2) b), '[]');
END $$;

-- get_worker_health_v1: the newest row of every broker process in the range (default: the last 5 minutes). Locks: none.
CREATE OR REPLACE FUNCTION queen.get_worker_health_v1(p_from TIMESTAMPTZ DEFAULT NULL, p_to TIMESTAMPTZ DEFAULT NULL)
RETURNS JSONB
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    v_to   TIMESTAMPTZ := COALESCE(p_to, now());
    v_from TIMESTAMPTZ := COALESCE(p_from, v_to - interval '5 minutes');
BEGIN
    RETURN COALESCE((
        SELECT jsonb_agg(jsonb_build_object(
                   'hostname', b.hostname, 'workerId', b.worker_id, 'pid', b.pid,
                   'avgEventLoopLagMs', b.avg_event_loop_lag_ms, 'maxEventLoopLagMs', b.max_event_loop_lag_ms,
                   'avgFreeSlots', b.avg_free_slots, 'minFreeSlots', b.min_free_slots, 'dbConnections', b.db_connections,
                   'avgJobQueueSize', NULL, 'maxJobQueueSize', NULL, 'dbErrors', b.db_error_count,
                   'lastSeen', queen.iso_s_v1(b.bucket_time)) ORDER BY b.hostname, b.worker_id, b.pid)
          FROM (SELECT DISTINCT ON (w.hostname, w.worker_id, w.pid) w.*
                  FROM queen.worker_metrics w
                 WHERE w.bucket_time >= v_from AND w.bucket_time <= v_to
                 ORDER BY w.hostname, w.worker_id, w.pid, w.bucket_time DESC) b), '[]');
END $$;

-- get_system_totals_v1: lifetime totals of all brokers: {pushRequests, ..., dlqCount, pendingMessages, lastUpdatedAt}.
-- pendingMessages is pushes less pops and may be negative when several groups read. Locks: none.
CREATE OR REPLACE FUNCTION queen.get_system_totals_v1()
RETURNS JSONB
LANGUAGE sql STABLE
AS $$
    SELECT jsonb_build_object(
               'pushRequests', s.total_push_requests, 'popRequests', s.total_pop_requests, 'ackRequests', s.total_ack_requests,
               'transactions', s.total_transactions, 'pushMessages', s.total_push_messages, 'popMessages', s.total_pop_messages,
               'ackMessages', s.total_ack_messages, 'ackSuccess', s.total_ack_success, 'ackFailed', s.total_ack_failed,
               'dbErrors', s.total_db_errors, 'dlqCount', s.total_dlq,
               'pendingMessages', s.total_push_messages - s.total_pop_messages,
               'lastUpdatedAt', queen.iso_ms_v1(s.last_updated_at))
      FROM queen.worker_metrics_summary s
$$;

-- cleanup_worker_metrics_v1: delete what is older than p_retention_days (less than 1 acts as 1): at most p_max_rows rows of each
-- of the tables of this file, system metrics, retention history and traces; and repair markers that every broker has read, which
-- are those older than an hour. The caller repeats while a count reaches p_max_rows.
-- Returns {"deletedMetrics","deletedLagMetrics","deletedParkedReplica","deletedRetentionHistory","deletedSystemMetrics",
-- "deletedTraces","deletedRepairMarkers"}. Locks: the deleted rows. Called by: retention phase 5.
DROP FUNCTION IF EXISTS queen.cleanup_worker_metrics_v1(INTEGER);
CREATE OR REPLACE FUNCTION queen.cleanup_worker_metrics_v1(p_retention_days INTEGER DEFAULT 7, p_max_rows INTEGER DEFAULT 10000)
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_before    TIMESTAMPTZ := clock_timestamp() - make_interval(days => GREATEST(COALESCE(p_retention_days, 7), 1));
    v_rows      INT := GREATEST(COALESCE(p_max_rows, 10000), 1);
    v_metrics   INT;
    v_lag       INT;
    v_parked    INT;
    v_history   INT;
    v_system    INT;
    v_traces    INT;
    v_repairs   INT;
    v_stale     TIMESTAMPTZ := clock_timestamp() - INTERVAL '1 hour';
BEGIN
    DELETE FROM queen.worker_metrics w
     WHERE w.ctid = ANY (ARRAY(SELECT x.ctid FROM queen.worker_metrics x WHERE x.bucket_time < v_before LIMIT v_rows));
    GET DIAGNOSTICS v_metrics = ROW_COUNT;
    DELETE FROM queen.queue_lag_metrics m
     WHERE m.ctid = ANY (ARRAY(SELECT x.ctid FROM queen.queue_lag_metrics x WHERE x.bucket_time < v_before LIMIT v_rows));
    GET DIAGNOSTICS v_lag = ROW_COUNT;
    DELETE FROM queen.queue_parked_replica r
     WHERE r.ctid = ANY (ARRAY(SELECT x.ctid FROM queen.queue_parked_replica x WHERE x.bucket_time < v_before LIMIT v_rows));
    GET DIAGNOSTICS v_parked = ROW_COUNT;
    DELETE FROM queen.retention_history h
     WHERE h.ctid = ANY (ARRAY(SELECT x.ctid FROM queen.retention_history x WHERE x.executed_at < v_before LIMIT v_rows));
    GET DIAGNOSTICS v_history = ROW_COUNT;
    DELETE FROM queen.system_metrics s
     WHERE s.ctid = ANY (ARRAY(SELECT x.ctid FROM queen.system_metrics x WHERE x.timestamp < v_before LIMIT v_rows));
    GET DIAGNOSTICS v_system = ROW_COUNT;
    DELETE FROM queen.message_traces t
     WHERE t.id = ANY (ARRAY(SELECT x.id FROM queen.message_traces x WHERE x.created_at < v_before LIMIT v_rows));
    GET DIAGNOSTICS v_traces = ROW_COUNT;
    DELETE FROM queen.hotlist_repairs r
     WHERE r.id = ANY (ARRAY(SELECT x.id FROM queen.hotlist_repairs x WHERE x.created_at < v_stale LIMIT v_rows));
    GET DIAGNOSTICS v_repairs = ROW_COUNT;
    RETURN jsonb_build_object(
        'deletedMetrics', v_metrics, 'deletedLagMetrics', v_lag, 'deletedParkedReplica', v_parked,
        'deletedRetentionHistory', v_history, 'deletedSystemMetrics', v_system, 'deletedTraces', v_traces,
        'deletedRepairMarkers', v_repairs);
END $$;

-- get_system_overview_v3: one look at everything a tenant has.
--   p_isolated  a tenancy header is in use: the default tenant is a tenant like others. Without it, the default tenant is
--               shown the lifetime totals of all brokers
-- Returns {queues,partitions,namespaces,tasks,messages:{total,pending,processing,completed,failed,deadLetter},lag:{time:{avg,median,
-- min,max},offset:{avg,median,min,max}},throughput:{ingestedPerSecond,processedPerSecond},timestamp,statsAge}; statsAge is seconds, -1
-- before the first statistics. Locks: none.
CREATE OR REPLACE FUNCTION queen.get_system_overview_v3(
    p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001', p_isolated BOOLEAN DEFAULT FALSE)
RETURNS JSONB
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    v_whole  BOOLEAN := p_tenant = '00000000-0000-0000-0000-000000000001' AND NOT COALESCE(p_isolated, FALSE);
    v_since  TIMESTAMPTZ := now() - interval '5 minutes';
    v_queues RECORD;
    v_total  queen.worker_metrics_summary;
    v_pops   RECORD;
    v_minute RECORD;
BEGIN
    SELECT count(*) AS queues, COALESCE(sum(s.child_count), 0) AS partitions,
           count(DISTINCT NULLIF(q.namespace, '')) AS namespaces, count(DISTINCT NULLIF(q.task, '')) AS tasks,
           COALESCE(sum(s.total_messages), 0) AS total,
           COALESCE(sum(GREATEST(s.pending_messages - s.processing_messages, 0)), 0) AS pending,
           COALESCE(sum(s.processing_messages), 0) AS processing, COALESCE(sum(s.completed_messages), 0) AS completed,
           COALESCE(sum(s.dead_letter_messages), 0) AS dead,
           COALESCE(round(avg(s.avg_lag_seconds)), 0) AS avg_lag, COALESCE(max(s.max_lag_seconds), 0) AS max_lag,
           COALESCE(round(percentile_cont(0.5) WITHIN GROUP (ORDER BY s.max_lag_seconds)), 0) AS median_lag,
           COALESCE(round(avg(s.avg_offset_lag)), 0) AS avg_offset, COALESCE(max(s.max_offset_lag), 0) AS max_offset,
           round(EXTRACT(EPOCH FROM now() - max(s.last_computed_at))) AS age
      INTO v_queues
      FROM queen.queues q
      LEFT JOIN queen.stats s ON s.stat_type = 'queue' AND s.stat_key = q.id::text
     WHERE v_whole OR q.tenant_id = p_tenant;
    SELECT * INTO v_total FROM queen.worker_metrics_summary t;
    -- Lag as pops saw it; before the first pops, as the statistics computed it, in seconds.
    SELECT round(sum(m.avg_lag_ms * m.lag_count) / NULLIF(sum(m.lag_count), 0) / 1000) AS avg_lag,
           round(max(m.max_lag_ms) FILTER (WHERE m.lag_count > 0) / 1000.0) AS max_lag,
           COALESCE(sum(m.push_message_count), 0) AS pushed, COALESCE(sum(m.ack_success_count + m.ack_failed_count), 0) AS acked
      INTO v_pops
      FROM queen.queue_lag_metrics m
      JOIN queen.queues q ON q.id = m.queue_id
     WHERE m.bucket_time >= v_since AND (v_whole OR q.tenant_id = p_tenant);
    SELECT COALESCE(sum(w.push_message_count), 0) AS pushed, COALESCE(sum(w.ack_message_count), 0) AS acked
      INTO v_minute
      FROM queen.worker_metrics w
     WHERE v_whole AND w.bucket_time >= v_since;
    RETURN jsonb_build_object(
        'queues', v_queues.queues, 'partitions', v_queues.partitions, 'namespaces', v_queues.namespaces, 'tasks', v_queues.tasks,
        'messages', jsonb_build_object(
            'total', CASE WHEN v_whole THEN v_total.total_push_messages ELSE v_queues.total END,
            'pending', v_queues.pending, 'processing', v_queues.processing,
            'completed', CASE WHEN v_whole THEN v_total.total_ack_success ELSE v_queues.completed END,
            'failed', CASE WHEN v_whole THEN v_total.total_ack_failed ELSE 0 END,
            'deadLetter', CASE WHEN v_whole THEN v_total.total_dlq ELSE v_queues.dead END),
        'lag', jsonb_build_object(
            'time', jsonb_build_object('avg', COALESCE(v_pops.avg_lag, v_queues.avg_lag), 'median', v_queues.median_lag, 'min', 0,
                                       'max', COALESCE(v_pops.max_lag, v_queues.max_lag)),
            'offset', jsonb_build_object('avg', v_queues.avg_offset, 'median', 0, 'min', 0, 'max', v_queues.max_offset)),
        'throughput', jsonb_build_object(
            'ingestedPerSecond', round(CASE WHEN v_whole THEN v_minute.pushed ELSE v_pops.pushed END / 300.0, 2),
            'processedPerSecond', round(CASE WHEN v_whole THEN v_minute.acked ELSE v_pops.acked END / 300.0, 2)),
        'timestamp', queen.iso_ms_v1(now()), 'statsAge', COALESCE(v_queues.age, -1));
END $$;

-- get_status_v3: the picture behind the status page: throughput per bucket, queues, messages, leases, dead letters, brokers.
--   p_filters  from, to, queue, namespace, task, _tenant, _isolated (as p_isolated of get_system_overview_v3)
-- With a filter, or for one tenant, throughput comes from queue_lag_metrics; what belongs to brokers (pool, CPU, loop lag, database
-- errors, dlqCount) stays system-wide. processed counts acks, also failed ones. topErrors looks at the newest 10,000 dead letters.
-- Locks: none.
CREATE OR REPLACE FUNCTION queen.get_status_v3(p_filters JSONB DEFAULT '{}')
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET timezone = 'UTC'
AS $$
DECLARE
    v_to        TIMESTAMPTZ := COALESCE(NULLIF(p_filters ->> 'to', '')::timestamptz, now());
    v_from      TIMESTAMPTZ := COALESCE(NULLIF(p_filters ->> 'from', '')::timestamptz, v_to - interval '1 hour');
    v_minutes   INT := queen.series_bucket_minutes_v1(v_from, v_to);
    v_seconds   NUMERIC := v_minutes * 60;
    v_tenant    UUID := COALESCE(NULLIF(p_filters ->> '_tenant', '')::uuid, '00000000-0000-0000-0000-000000000001');
    v_whole     BOOLEAN := v_tenant = '00000000-0000-0000-0000-000000000001' AND NOT COALESCE((p_filters ->> '_isolated')::boolean, FALSE);
    v_filtered  BOOLEAN := NOT v_whole OR COALESCE(p_filters ->> 'queue', '') <> '' OR COALESCE(p_filters ->> 'namespace', '') <> ''
                           OR COALESCE(p_filters ->> 'task', '') <> '';
    v_ids       UUID[];
    v_series    JSONB;
    v_queues    JSONB;
    v_sums      RECORD;
    v_total     queen.worker_metrics_summary;
    v_used      RECORD;
    v_leases    RECORD;
    v_dead      RECORD;
    v_errors    JSONB;
    v_workers   JSONB;
BEGIN
    SELECT COALESCE(array_agg(q.id), '{}') INTO v_ids
      FROM queen.queues q
     WHERE (v_whole OR q.tenant_id = v_tenant)
       AND (COALESCE(p_filters ->> 'queue', '') = '' OR q.name = p_filters ->> 'queue')
       AND (COALESCE(p_filters ->> 'namespace', '') = '' OR q.namespace = p_filters ->> 'namespace')
       AND (COALESCE(p_filters ->> 'task', '') = '' OR q.task = p_filters ->> 'task');

    WITH brokers AS (
        SELECT queen.series_bucket_v1(w.bucket_time, v_minutes) AS bucket,
               sum(w.push_message_count) AS pushed, sum(w.pop_message_count) AS popped, sum(w.ack_message_count) AS acked,
               round(sum(w.avg_lag_ms * w.lag_count) / NULLIF(sum(w.lag_count), 0)) AS avg_lag, max(w.max_lag_ms) AS max_lag,
               round(avg(w.avg_event_loop_lag_ms)) AS avg_loop, max(w.max_event_loop_lag_ms) AS max_loop,
               min(w.min_free_slots) AS free, sum(w.db_error_count) AS errors, sum(w.ack_failed_count) AS failed, sum(w.dlq_count) AS dlq
          FROM queen.worker_metrics w
         WHERE w.bucket_time >= v_from AND w.bucket_time <= v_to
         GROUP BY 1
    ), lanes AS (
        SELECT queen.series_bucket_v1(m.bucket_time, v_minutes) AS bucket,
               sum(m.push_message_count) AS pushed, sum(m.pop_count) AS popped,
               sum(m.ack_success_count + m.ack_failed_count) AS acked, sum(m.ack_failed_count) AS failed,
               round(sum(m.avg_lag_ms * m.lag_count) / NULLIF(sum(m.lag_count), 0)) AS avg_lag, max(m.max_lag_ms) AS max_lag
          FROM queen.queue_lag_metrics m
         WHERE v_filtered AND m.bucket_time >= v_from AND m.bucket_time <= v_to AND m.queue_id = ANY (v_ids)
         GROUP BY 1
    ), machines AS (
        SELECT queen.series_bucket_v1(s.timestamp, v_minutes) AS bucket,
               round(avg((s.metrics #>> '{cpu,user_us,avg}')::numeric) / 100, 2) AS cpu_user,
               round(avg((s.metrics #>> '{cpu,system_us,avg}')::numeric) / 100, 2) AS cpu_system,
               round(avg((s.metrics #>> '{memory,rss_bytes,avg}')::numeric) / 1048576, 2) AS rss,
               round(avg((s.metrics #>> '{database,pool_active,avg}')::numeric), 2) AS active,
               round(avg((s.metrics #>> '{database,pool_idle,avg}')::numeric), 2) AS idle,
               round(avg((s.metrics #>> '{database,pool_size,avg}')::numeric), 2) AS size
          FROM queen.system_metrics s
         WHERE s.timestamp >= v_from AND s.timestamp <= v_to
         GROUP BY 1
    ), points AS (
        SELECT b.bucket, b.pushed, b.popped, b.acked, b.failed, b.avg_lag, b.max_lag FROM brokers b WHERE NOT v_filtered
        UNION ALL
        SELECT l.bucket, l.pushed, l.popped, l.acked, l.failed, l.avg_lag, l.max_lag FROM lanes l
    )
    SELECT COALESCE(jsonb_agg(jsonb_build_object(
               'timestamp', queen.iso_s_v1(p.bucket), 'ingested', p.pushed, 'processed', p.acked, 'popMessages', p.popped,
               'ingestedPerSecond', round(p.pushed / v_seconds, 2), 'processedPerSecond', round(p.acked / v_seconds, 2),
               'popPerSecond', round(p.popped / v_seconds, 2),
               'avgLagMs', COALESCE(p.avg_lag, 0), 'maxLagMs', COALESCE(p.max_lag, 0),
               'avgEventLoopLagMs', COALESCE(b.avg_loop, 0), 'maxEventLoopLagMs', COALESCE(b.max_loop, 0),
               'minFreeSlots', COALESCE(b.free, 0), 'dbErrors', COALESCE(b.errors, 0), 'ackFailed', p.failed,
               'dlqCount', COALESCE(b.dlq, 0), 'queenCpuUserPct', m.cpu_user, 'queenCpuSysPct', m.cpu_system, 'queenRssMb', m.rss,
               'dbPoolActive', m.active, 'dbPoolIdle', m.idle, 'dbPoolSize', m.size) ORDER BY p.bucket DESC), '[]')
      INTO v_series
      FROM points p
      LEFT JOIN brokers b ON b.bucket = p.bucket
      LEFT JOIN machines m ON m.bucket = p.bucket;

    SELECT COALESCE(jsonb_agg(jsonb_build_object(
               'id', q.id, 'name', q.name, 'namespace', q.namespace, 'task', q.task, 'partitions', s.child_count,
               'totalConsumed', COALESCE(c.consumed, 0), 'pending', s.pending_messages, 'processing', s.processing_messages,
               'completed', s.completed_messages, 'dlq', s.dead_letter_messages) ORDER BY q.name, q.id), '[]')
      INTO v_queues
      FROM queen.stats s
      JOIN queen.queues q ON q.id = s.queue_id
      LEFT JOIN (SELECT p.queue_id, sum(x.total_consumed) AS consumed
                   FROM queen.log_partitions p
                   JOIN queen.log_consumers x ON x.partition_id = p.id
                  WHERE p.queue_id = ANY (v_ids)
                  GROUP BY 1) c ON c.queue_id = s.queue_id
     WHERE s.stat_type = 'queue' AND s.total_messages > 0 AND s.queue_id = ANY (v_ids);

    SELECT COALESCE(sum(s.total_messages), 0) AS total, COALESCE(sum(s.completed_messages), 0) AS completed,
           COALESCE(sum(GREATEST(s.pending_messages - s.processing_messages, 0)), 0) AS pending,
           COALESCE(sum(s.processing_messages), 0) AS processing, COALESCE(sum(s.dead_letter_messages), 0) AS dead,
           round(EXTRACT(EPOCH FROM now() - max(s.last_computed_at))) AS age
      INTO v_sums
      FROM queen.stats s
     WHERE s.stat_type = 'queue' AND s.queue_id = ANY (v_ids);

    -- What requests did: lifetime totals of the brokers, or what the range holds of the queues asked for.
    SELECT * INTO v_total FROM queen.worker_metrics_summary t;
    IF v_filtered THEN
        SELECT COALESCE(sum(m.push_request_count), 0) AS pushes, COALESCE(sum(m.push_message_count), 0) AS pushed,
               COALESCE(sum(m.pop_count), 0) AS popped, COALESCE(sum(m.ack_request_count), 0) AS acks,
               COALESCE(sum(m.ack_success_count), 0) AS acked, COALESCE(sum(m.ack_failed_count), 0) AS failed
          INTO v_used
          FROM queen.queue_lag_metrics m
         WHERE m.bucket_time >= v_from AND m.bucket_time <= v_to AND m.queue_id = ANY (v_ids);
        v_total.total_push_requests := v_used.pushes;
        v_total.total_push_messages := v_used.pushed;
        v_total.total_pop_requests := 0; -- not known per queue
        v_total.total_pop_messages := v_used.popped;
        v_total.total_ack_requests := v_used.acks;
        v_total.total_ack_messages := v_used.acked + v_used.failed;
        v_total.total_ack_success := v_sums.completed;
        v_total.total_ack_failed := v_used.failed;
        v_total.total_dlq := v_sums.dead;
    END IF;

    SELECT count(*) AS active, count(DISTINCT c.partition_id) AS partitions, COALESCE(sum(GREATEST(c.batch_end - c.committed, 0)), 0) AS size
      INTO v_leases
      FROM queen.log_consumers c
      JOIN queen.log_partitions p ON p.id = c.partition_id
     WHERE c.worker_id <> '__retry__' AND c.lease_expires_at > clock_timestamp() AND p.queue_id = ANY (v_ids);

    SELECT count(*) AS current, count(DISTINCT d.partition_id) AS partitions
      INTO v_dead
      FROM queen.log_dlq d
      JOIN queen.log_partitions p ON p.id = d.partition_id
     WHERE p.queue_id = ANY (v_ids);
    SELECT COALESCE(jsonb_agg(jsonb_build_object('error', x.error, 'count', x.n) ORDER BY x.n DESC, x.error), '[]')
      INTO v_errors
      FROM (SELECT COALESCE(d.error, '') AS error, count(*) AS n
              FROM (SELECT l.error
                      FROM queen.log_dlq l
                      JOIN queen.log_partitions p ON p.id = l.partition_id
                     WHERE p.queue_id = ANY (v_ids)
                     ORDER BY l.failed_at DESC
                     LIMIT 10000) d
             GROUP BY 1
             ORDER BY 2 DESC, 1
             LIMIT 5) x;

    SELECT COALESCE(jsonb_agg(jsonb_build_object(
               'hostname', w.hostname, 'workerId', w.worker_id, 'avgEventLoopLagMs', w.avg_loop, 'maxEventLoopLagMs', w.max_loop,
               'freeSlots', w.free, 'dbConnections', w.connections, 'jobQueueSize', NULL, 'messagesProcessed', w.messages)
               ORDER BY w.hostname, w.worker_id), '[]')
      INTO v_workers
      FROM (SELECT x.hostname, x.worker_id, round(avg(x.avg_event_loop_lag_ms)) AS avg_loop, max(x.max_event_loop_lag_ms) AS max_loop,
                   (array_agg(x.avg_free_slots ORDER BY x.bucket_time DESC))[1] AS free,
                   (array_agg(x.db_connections ORDER BY x.bucket_time DESC))[1] AS connections,
                   sum(x.push_message_count + x.pop_message_count) AS messages
              FROM queen.worker_metrics x
             WHERE x.bucket_time >= now() - interval '2 minutes'
             GROUP BY 1, 2) w;

    RETURN queen.series_head_v1(v_from, v_to, v_minutes) || jsonb_build_object(
        'pointCount', jsonb_array_length(v_series), 'throughput', v_series, 'queues', v_queues,
        'messages', jsonb_build_object(
            'total', CASE WHEN v_filtered THEN v_sums.total ELSE v_total.total_push_messages END,
            'pending', v_sums.pending, 'processing', v_sums.processing, 'completed', v_total.total_ack_success,
            'failed', v_total.total_ack_failed, 'deadLetter', v_total.total_dlq,
            'requests', jsonb_build_object('push', v_total.total_push_requests, 'pop', v_total.total_pop_requests,
                                           'ack', v_total.total_ack_requests),
            'batchEfficiency', jsonb_build_object(
                'push', COALESCE(round(v_total.total_push_messages::numeric / NULLIF(v_total.total_push_requests, 0), 2), 0),
                'pop', COALESCE(round(v_total.total_pop_messages::numeric / NULLIF(v_total.total_pop_requests, 0), 2), 0),
                'ack', COALESCE(round(v_total.total_ack_messages::numeric / NULLIF(v_total.total_ack_requests, 0), 2), 0))),
        'leases', jsonb_build_object('active', v_leases.active, 'partitionsWithLeases', v_leases.partitions,
                                     'totalBatchSize', v_leases.size, 'totalAcked', 0),
        'deadLetterQueue', jsonb_build_object('totalMessages', v_total.total_dlq, 'currentMessages', v_dead.current,
                                              'affectedPartitions', v_dead.partitions, 'topErrors', v_errors),
        'workers', v_workers,
        'errors', jsonb_build_object('dbErrors', COALESCE((SELECT t.total_db_errors FROM queen.worker_metrics_summary t), 0),
                                     'ackFailed', v_total.total_ack_failed, 'dlqMessages', v_total.total_dlq),
        'statsAge', COALESCE(v_sums.age, -1));
END $$;

-- get_worker_metrics_timeseries_v1: the brokers' own figures per bucket, newest first, and who reported in the last 5 minutes.
--   p_filters  from, to, hostname, workerId, _tenant (of the queues listed)
-- summary holds lifetime totals. Locks: none.
CREATE OR REPLACE FUNCTION queen.get_worker_metrics_timeseries_v1(p_filters JSONB DEFAULT '{}')
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET timezone = 'UTC'
AS $$
DECLARE
    v_to      TIMESTAMPTZ := COALESCE(NULLIF(p_filters ->> 'to', '')::timestamptz, now());
    v_from    TIMESTAMPTZ := COALESCE(NULLIF(p_filters ->> 'from', '')::timestamptz, v_to - interval '1 hour');
    v_minutes INT := queen.series_bucket_minutes_v1(v_from, v_to);
    v_seconds NUMERIC := v_minutes * 60;
    v_host    TEXT := COALESCE(p_filters ->> 'hostname', '');
    v_worker  TEXT := COALESCE(p_filters ->> 'workerId', '');
    v_tenant  UUID := COALESCE(NULLIF(p_filters ->> '_tenant', '')::uuid, '00000000-0000-0000-0000-000000000001');
    v_series  JSONB;
BEGIN
    SELECT COALESCE(jsonb_agg(jsonb_build_object(
               'timestamp', queen.iso_s_v1(b.bucket),
               'pushMessages', b.pushed, 'popMessages', b.popped, 'ackMessages', b.acked, 'pushRequests', b.pushes,
               'popRequests', b.pops, 'ackRequests', b.acks, 'jobsDone', b.jobs, 'pushPerSecond', round(b.pushed / v_seconds, 2),
               'popPerSecond', round(b.popped / v_seconds, 2), 'ackPerSecond', round(b.acked / v_seconds, 2),
               'avgEventLoopLagMs', b.avg_loop, 'maxEventLoopLagMs', b.max_loop, 'avgFreeSlots', b.avg_free, 'minFreeSlots', b.min_free,
               'dbConnections', b.connections, 'avgJobQueueSize', NULL, 'maxJobQueueSize', NULL, 'backoffSize', NULL,
               'avgLagMs', COALESCE(b.avg_lag, 0), 'maxLagMs', b.max_lag, 'lagCount', b.lags, 'dbErrors', b.errors,
               'ackSuccess', b.ok, 'ackFailed', b.failed, 'dlqCount', b.dlq) ORDER BY b.bucket DESC), '[]')
      INTO v_series
      FROM (SELECT queen.series_bucket_v1(w.bucket_time, v_minutes) AS bucket,
                   sum(w.push_message_count) AS pushed, sum(w.pop_message_count) AS popped, sum(w.ack_message_count) AS acked,
                   sum(w.push_request_count) AS pushes, sum(w.pop_request_count) AS pops, sum(w.ack_request_count) AS acks,
                   sum(w.jobs_done) AS jobs, round(avg(w.avg_event_loop_lag_ms)) AS avg_loop, max(w.max_event_loop_lag_ms) AS max_loop,
                   round(avg(w.avg_free_slots)) AS avg_free, min(w.min_free_slots) AS min_free, round(avg(w.db_connections)) AS connections,
                   round(sum(w.avg_lag_ms * w.lag_count) / NULLIF(sum(w.lag_count), 0)) AS avg_lag, max(w.max_lag_ms) AS max_lag,
                   sum(w.lag_count) AS lags, sum(w.db_error_count) AS errors, sum(w.ack_success_count) AS ok,
                   sum(w.ack_failed_count) AS failed, sum(w.dlq_count) AS dlq
              FROM queen.worker_metrics w
             WHERE w.bucket_time >= v_from AND w.bucket_time <= v_to
               AND (v_host = '' OR w.hostname = v_host) AND (v_worker = '' OR w.worker_id::text = v_worker)
             GROUP BY 1) b;
    RETURN queen.series_head_v1(v_from, v_to, v_minutes) || jsonb_build_object(
        'pointCount', jsonb_array_length(v_series), 'timeSeries', v_series,
        'workers', COALESCE((
            SELECT jsonb_agg(jsonb_build_object(
                       'hostname', w.hostname, 'workerId', w.worker_id, 'avgEventLoopLagMs', w.avg_loop,
                       'maxEventLoopLagMs', w.max_loop, 'freeSlots', w.free, 'dbConnections', w.connections, 'jobQueueSize', NULL,
                       'backoffSize', NULL, 'messagesProcessed', w.messages, 'lastSeen', queen.iso_s_v1(w.seen))
                       ORDER BY w.hostname, w.worker_id)
              FROM (SELECT x.hostname, x.worker_id, round(avg(x.avg_event_loop_lag_ms)) AS avg_loop,
                           max(x.max_event_loop_lag_ms) AS max_loop,
                           (array_agg(x.avg_free_slots ORDER BY x.bucket_time DESC))[1] AS free,
                           (array_agg(x.db_connections ORDER BY x.bucket_time DESC))[1] AS connections,
                           sum(x.push_message_count + x.pop_message_count) AS messages, max(x.bucket_time) AS seen
                      FROM queen.worker_metrics x
                     WHERE x.bucket_time >= now() - interval '5 minutes'
                       AND (v_host = '' OR x.hostname = v_host) AND (v_worker = '' OR x.worker_id::text = v_worker)
                     GROUP BY 1, 2) w), '[]'),
        'queues', COALESCE((
            SELECT jsonb_agg(jsonb_build_object('queueName', l.name, 'popCount', l.pops, 'avgLagMs', l.avg_lag, 'maxLagMs', l.max_lag)
                       ORDER BY l.pops DESC, l.name)
              FROM (SELECT q.name, sum(m.pop_count) AS pops,
                           round(sum(m.avg_lag_ms * m.lag_count) / NULLIF(sum(m.lag_count), 0)) AS avg_lag,
                           max(m.max_lag_ms) FILTER (WHERE m.lag_count > 0) AS max_lag
                      FROM queen.queue_lag_metrics m
                      JOIN queen.queues q ON q.id = m.queue_id
                     WHERE m.bucket_time >= v_from AND m.bucket_time <= v_to AND q.tenant_id = v_tenant
                     GROUP BY 1
                     ORDER BY 2 DESC, 1
                     LIMIT 200) l), '[]'),
        'summary', (
            SELECT jsonb_build_object(
                       'totalPushMessages', s.total_push_messages, 'totalPopMessages', s.total_pop_messages,
                       'totalAckMessages', s.total_ack_messages, 'totalPushRequests', s.total_push_requests,
                       'totalPopRequests', s.total_pop_requests, 'totalAckRequests', s.total_ack_requests,
                       'totalDbErrors', s.total_db_errors, 'totalAckFailed', s.total_ack_failed, 'totalDlq', s.total_dlq,
                       'pendingMessages', s.total_push_messages - s.total_pop_messages)
              FROM queen.worker_metrics_summary s));
END $$;

-- get_queue_ops_v1: what happened to each queue per bucket, oldest first.
--   p_filters  from, to, queue, _tenant
-- parkedCount is the average over the minutes of a bucket, also those in which nobody was parked. Queues: series_queues_v1.
-- Locks: none.
CREATE OR REPLACE FUNCTION queen.get_queue_ops_v1(p_filters JSONB DEFAULT '{}')
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET timezone = 'UTC'
AS $$
DECLARE
    v_to      TIMESTAMPTZ := COALESCE(NULLIF(p_filters ->> 'to', '')::timestamptz, now());
    v_from    TIMESTAMPTZ := COALESCE(NULLIF(p_filters ->> 'from', '')::timestamptz, v_to - interval '1 hour');
    v_minutes INT := queen.series_bucket_minutes_v1(v_from, v_to);
    v_seconds NUMERIC := v_minutes * 60;
    v_tenant  UUID := COALESCE(NULLIF(p_filters ->> '_tenant', '')::uuid, '00000000-0000-0000-0000-000000000001');
    v_queue   TEXT := COALESCE(p_filters ->> 'queue', '');
    v_ids     UUID[] := queen.series_queues_v1(v_from, v_to, v_queue, v_tenant);
    v_series  JSONB;
    v_names   JSONB;
BEGIN
    SELECT COALESCE(jsonb_agg(jsonb_build_object(
               'bucket', queen.iso_s_v1(b.bucket), 'queueName', b.name, 'pushRequests', b.pushes, 'pushMessages', b.pushed,
               'popMessages', b.popped, 'popEmpty', b.empty, 'ackRequests', b.acks, 'ackSuccess', b.ok, 'ackFailed', b.failed,
               'transactions', b.transactions, 'partitionsCreated', b.created, 'partitionsDeleted', b.deleted,
               'partitionCount', b.partitions, 'avgLagMs', b.avg_lag, 'maxLagMs', b.max_lag,
               'pushPerSecond', round(b.pushed / v_seconds, 2), 'popPerSecond', round(b.popped / v_seconds, 2),
               'ackPerSecond', round((b.ok + b.failed) / v_seconds, 2), 'emptyPerSecond', round(b.empty / v_seconds, 2),
               'parkedCount', b.parked) ORDER BY b.bucket, b.name), '[]'),
           COALESCE(jsonb_agg(DISTINCT b.name), '[]')
      INTO v_series, v_names
      FROM (SELECT q.name, queen.series_bucket_v1(m.bucket_time, v_minutes) AS bucket,
                   sum(m.push_request_count) AS pushes, sum(m.push_message_count) AS pushed, sum(m.pop_count) AS popped,
                   sum(m.pop_empty_count) AS empty, sum(m.ack_request_count) AS acks, sum(m.ack_success_count) AS ok,
                   sum(m.ack_failed_count) AS failed, sum(m.transaction_count) AS transactions,
                   sum(m.partitions_created) AS created, sum(m.partitions_deleted) AS deleted,
                   (array_agg(m.partition_count ORDER BY m.bucket_time DESC) FILTER (WHERE m.partition_count IS NOT NULL))[1] AS partitions,
                   round(sum(m.avg_lag_ms * m.lag_count) / NULLIF(sum(m.lag_count), 0)) AS avg_lag,
                   max(m.max_lag_ms) FILTER (WHERE m.lag_count > 0) AS max_lag,
                   round(sum(m.parked_count)::numeric / v_minutes, 2) AS parked
              FROM queen.queue_lag_metrics m
              JOIN queen.queues q ON q.id = m.queue_id
             WHERE m.bucket_time >= v_from AND m.bucket_time <= v_to AND m.queue_id = ANY (v_ids)
             GROUP BY 1, 2) b;
    RETURN queen.series_head_v1(v_from, v_to, v_minutes) || jsonb_build_object(
        'series', v_series, 'queues', v_names);
END $$;

-- get_queue_parked_per_replica_v1: parked long polls per queue and broker, oldest bucket first.
--   p_filters  from, to, queue, _tenant
-- Locks: none.
CREATE OR REPLACE FUNCTION queen.get_queue_parked_per_replica_v1(p_filters JSONB DEFAULT '{}')
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET timezone = 'UTC'
AS $$
DECLARE
    v_to       TIMESTAMPTZ := COALESCE(NULLIF(p_filters ->> 'to', '')::timestamptz, now());
    v_from     TIMESTAMPTZ := COALESCE(NULLIF(p_filters ->> 'from', '')::timestamptz, v_to - interval '1 hour');
    v_minutes  INT := queen.series_bucket_minutes_v1(v_from, v_to);
    v_tenant   UUID := COALESCE(NULLIF(p_filters ->> '_tenant', '')::uuid, '00000000-0000-0000-0000-000000000001');
    v_queue    TEXT := COALESCE(p_filters ->> 'queue', '');
    v_series   JSONB;
    v_replicas JSONB;
BEGIN
    SELECT COALESCE(jsonb_agg(jsonb_build_object(
               'bucket', queen.iso_s_v1(b.bucket), 'queueName', b.queue_name, 'hostname', b.hostname, 'workerId', b.worker_id,
               'parkedCount', b.parked) ORDER BY b.bucket, b.queue_name, b.hostname, b.worker_id), '[]'),
           COALESCE(jsonb_agg(DISTINCT jsonb_build_object('hostname', b.hostname, 'workerId', b.worker_id)), '[]')
      INTO v_series, v_replicas
      FROM (SELECT queen.series_bucket_v1(r.bucket_time, v_minutes) AS bucket, r.queue_name, r.hostname, r.worker_id,
                   round(sum(r.parked_count)::numeric / v_minutes, 2) AS parked
              FROM queen.queue_parked_replica r
             WHERE r.bucket_time >= v_from AND r.bucket_time <= v_to AND r.tenant_id = v_tenant AND (v_queue = '' OR r.queue_name = v_queue)
             GROUP BY 1, 2, 3, 4) b;
    RETURN queen.series_head_v1(v_from, v_to, v_minutes) || jsonb_build_object(
        'series', v_series, 'replicas', v_replicas);
END $$;

GRANT EXECUTE ON FUNCTION queen.iso_s_v1(TIMESTAMPTZ) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.series_bucket_minutes_v1(TIMESTAMPTZ, TIMESTAMPTZ) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.series_bucket_v1(TIMESTAMPTZ, INTEGER) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.series_head_v1(TIMESTAMPTZ, TIMESTAMPTZ, INTEGER) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.series_queues_v1(TIMESTAMPTZ, TIMESTAMPTZ, TEXT, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.get_worker_throughput_v1(TIMESTAMPTZ, TIMESTAMPTZ, INTEGER) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.get_queue_lag_v1(TIMESTAMPTZ, TIMESTAMPTZ, TEXT, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.get_worker_health_v1(TIMESTAMPTZ, TIMESTAMPTZ) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.get_system_totals_v1() TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.cleanup_worker_metrics_v1(INTEGER, INTEGER) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.get_system_overview_v3(UUID, BOOLEAN) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.get_status_v3(JSONB) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.get_worker_metrics_timeseries_v1(JSONB) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.get_queue_ops_v1(JSONB) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.get_queue_parked_per_replica_v1(JSONB) TO PUBLIC;
