-- Statistics from the log tables by watermark arithmetic (file 010 says how); no message is ever counted.

-- log_partition_progress_v1: how far the groups of every partition of one queue are.
--   r_end         the offset of the newest message; r_total retained messages: last_offset - log_start + 1
--   r_seen        the offset before the first message that the slowest group that counts has not consumed
--   r_leased      leased by groups that count; r_consumed messages ever consumed, all groups together
-- Inlined by the planner, so that a filter or a limit of the caller decides how many partitions are looked at. Cursors are joined
-- and grouped, not looked up partition by partition: a queue of 100,000 partitions is read in a quarter of the time. Locks: none.
-- Called by: log_partition_figures_v1, log_queue_totals_v1.
CREATE OR REPLACE FUNCTION queen.log_partition_progress_v1(p_queue_id UUID)
RETURNS TABLE (r_id UUID, r_name TEXT, r_created_at TIMESTAMPTZ, r_written_at TIMESTAMPTZ, r_end BIGINT, r_total BIGINT,
               r_seen BIGINT, r_leased BIGINT, r_consumed BIGINT, r_active_at TIMESTAMPTZ)
LANGUAGE sql STABLE
AS $$
    SELECT p.id, p.name, p.created_at, p.last_write_at, p.last_offset, GREATEST(p.last_offset - p.log_start + 1, 0),
           GREATEST(COALESCE(min(x.committed) FILTER (WHERE x.consumer_group <> '__QUEUE_MODE__'), min(x.committed), -1),
                    p.log_start - 1),
           COALESCE(CASE WHEN count(*) FILTER (WHERE x.consumer_group <> '__QUEUE_MODE__') > 0
                         THEN sum(GREATEST(x.batch_end - x.committed, 0))
                              FILTER (WHERE x.consumer_group <> '__QUEUE_MODE__' AND x.worker_id IS NOT NULL AND x.lease_expires_at > now())
                         ELSE sum(GREATEST(x.batch_end - x.committed, 0))
                              FILTER (WHERE x.worker_id IS NOT NULL AND x.lease_expires_at > now()) END, 0)::BIGINT,
           COALESCE(sum(x.total_consumed), 0)::BIGINT, max(x.lease_acquired_at)
      FROM queen.log_partitions p
      LEFT JOIN queen.log_consumers x ON x.partition_id = p.id
     WHERE p.queue_id = p_queue_id
     GROUP BY p.id
$$;

-- log_partition_figures_v1: the counters of every partition of one queue.
--   r_total       retained messages: last_offset - log_start + 1
--   r_pending     not yet consumed by the slowest group that counts (named groups when there are any)
--   r_processing  leased by groups that count, at most r_pending
--   r_dlq         dead letters of all groups; r_completed = total - pending - dlq, at least 0
--   r_seen        the offset before the first pending one; r_consumed messages ever consumed, all groups together
-- Inlined by the planner, as log_partition_progress_v1 is. Locks: none. Called by: log_queue_detail_v1, the partition list.
CREATE OR REPLACE FUNCTION queen.log_partition_figures_v1(p_queue_id UUID)
RETURNS TABLE (r_id UUID, r_name TEXT, r_created_at TIMESTAMPTZ, r_written_at TIMESTAMPTZ, r_total BIGINT, r_pending BIGINT,
               r_processing BIGINT, r_completed BIGINT, r_dlq BIGINT, r_seen BIGINT, r_consumed BIGINT, r_active_at TIMESTAMPTZ)
LANGUAGE sql STABLE
AS $$
    SELECT c.r_id, c.r_name, c.r_created_at, c.r_written_at, c.r_total, GREATEST(c.r_end - c.r_seen, 0),
           LEAST(c.r_leased, GREATEST(c.r_end - c.r_seen, 0)),
           GREATEST(c.r_total - GREATEST(c.r_end - c.r_seen, 0) - d.dead, 0), d.dead, c.r_seen, c.r_consumed, c.r_active_at
      FROM queen.log_partition_progress_v1(p_queue_id) c
     CROSS JOIN LATERAL (SELECT count(*) AS dead FROM queen.log_dlq x WHERE x.partition_id = c.r_id) d
$$;

-- log_queue_totals_v1: the sums of log_partition_figures_v1 over a queue, and its number of partitions; always one row. Every table
-- is read once, by one process: workers cost more than they bring, and a page for people must not take all processors. Locks: none. Called by: log_queue_detail_v1.
CREATE OR REPLACE FUNCTION queen.log_queue_totals_v1(p_queue_id UUID)
RETURNS TABLE (r_partitions BIGINT, r_total BIGINT, r_pending BIGINT, r_processing BIGINT, r_completed BIGINT, r_dlq BIGINT)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
SET jit = off
SET max_parallel_workers_per_gather = 0
AS $$
BEGIN
    RETURN QUERY
    WITH dead AS (
        SELECT p.id, count(*) AS n
          FROM queen.log_partitions p
          JOIN queen.log_dlq d ON d.partition_id = p.id
         WHERE p.queue_id = p_queue_id
         GROUP BY p.id)
    SELECT count(*), COALESCE(sum(x.r_total), 0)::BIGINT, COALESCE(sum(GREATEST(x.r_end - x.r_seen, 0)), 0)::BIGINT,
           COALESCE(sum(LEAST(x.r_leased, GREATEST(x.r_end - x.r_seen, 0))), 0)::BIGINT,
           COALESCE(sum(GREATEST(x.r_total - GREATEST(x.r_end - x.r_seen, 0) - COALESCE(d.n, 0), 0)), 0)::BIGINT,
           COALESCE(sum(d.n), 0)::BIGINT
      FROM queen.log_partition_progress_v1(p_queue_id) x
      LEFT JOIN dead d ON d.id = x.r_id;
END $$;

-- log_newest_at_v1: created_at of the newest segment of a partition, NULL when it holds none. One primary key step. Locks: none.
CREATE OR REPLACE FUNCTION queen.log_newest_at_v1(p_pid UUID)
RETURNS TIMESTAMPTZ
LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT s.created_at FROM queen.log_segments s WHERE s.partition_id = p_pid ORDER BY s.base_offset DESC LIMIT 1
$$;

-- queue_options_v1: the options of a queue under the keys that configure_queue_v1 takes. Locks: none.
CREATE OR REPLACE FUNCTION queen.queue_options_v1(p_queue_id UUID)
RETURNS JSONB
LANGUAGE sql STABLE
AS $$
    SELECT jsonb_build_object(
        'priority', q.priority, 'leaseTime', q.lease_time, 'retryLimit', q.retry_limit, 'retryDelay', q.retry_delay,
        'maxSize', q.max_queue_size, 'ttl', q.ttl, 'deadLetterQueue', q.dead_letter_queue,
        'dlqAfterMaxRetries', q.dlq_after_max_retries, 'delayedProcessing', q.delayed_processing, 'windowBuffer', q.window_buffer,
        'retentionSeconds', q.retention_seconds, 'completedRetentionSeconds', q.completed_retention_seconds,
        'retentionEnabled', q.retention_enabled, 'encryptionEnabled', q.encryption_enabled,
        'maxWaitTimeSeconds', q.max_wait_time_seconds, 'minPopWaitTime', q.min_pop_wait_time,
        'dedupWindowSeconds', q.dedup_window_seconds, 'dlqRetentionSeconds', q.dlq_retention_seconds,
        'redeliveryDelayMs', q.redelivery_delay_ms, 'maxDeliveries', q.max_deliveries)
      FROM queen.queues q WHERE q.id = p_queue_id
$$;

-- log_stats_step_v1: the figures of the next p_limit partitions behind p_after, of all queues, ascending by id.
--   p_after  the last id of the step before, the nil UUID at the beginning
-- Returns one row per queue that has some of them:
--   r_partitions, r_total retained messages, r_pending not consumed by the slowest group that counts (named groups when there are any),
--   r_processing leased by groups that count, at most what is pending; r_dead dead letters; r_oldest stored time of the oldest pending
--   message; r_lagging partitions with something pending, r_most the most pending in one of them
--   r_next   where the next step begins, NULL when this was the last one; the same in every row
-- No row: there are no more partitions. A step bounds what one statement reads, so that the figures of a million partitions come in many
-- short statements. A partition created behind p_after meanwhile is counted by the next pass.
-- Locks: none. Called by: pg.RefreshStats, log_refresh_all_stats_v1. Plan test: TestPlanStatisticsStepIsBounded.
CREATE OR REPLACE FUNCTION queen.log_stats_step_v1(p_after UUID, p_limit INTEGER)
RETURNS TABLE (r_queue UUID, r_partitions BIGINT, r_total BIGINT, r_pending BIGINT, r_processing BIGINT, r_dead BIGINT, r_oldest TIMESTAMPTZ,
               r_lagging BIGINT, r_most BIGINT, r_next UUID)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET max_parallel_workers_per_gather = 0
AS $$
DECLARE
    v_now  TIMESTAMPTZ := clock_timestamp();
    v_last UUID;
BEGIN
    SELECT p.id INTO v_last FROM queen.log_partitions p WHERE p.id > p_after ORDER BY p.id OFFSET GREATEST(p_limit, 1) - 1 LIMIT 1;
    RETURN QUERY
    WITH cursors AS (
        SELECT c.partition_id,
               COALESCE(min(c.committed) FILTER (WHERE c.consumer_group <> '__QUEUE_MODE__'), min(c.committed)) AS worst,
               COALESCE(CASE WHEN count(*) FILTER (WHERE c.consumer_group <> '__QUEUE_MODE__') > 0
                             THEN sum(GREATEST(c.batch_end - c.committed, 0))
                                  FILTER (WHERE c.consumer_group <> '__QUEUE_MODE__' AND c.worker_id IS NOT NULL
                                                AND c.lease_expires_at > v_now)
                             ELSE sum(GREATEST(c.batch_end - c.committed, 0))
                                  FILTER (WHERE c.worker_id IS NOT NULL AND c.lease_expires_at > v_now) END, 0) AS leased
          FROM queen.log_consumers c
         WHERE c.partition_id > p_after AND (v_last IS NULL OR c.partition_id <= v_last)
         GROUP BY c.partition_id),
    dead AS (
        SELECT d.partition_id, count(*) AS n
          FROM queen.log_dlq d
         WHERE d.partition_id > p_after AND (v_last IS NULL OR d.partition_id <= v_last)
         GROUP BY d.partition_id),
    parts AS (
        SELECT p.id, p.queue_id, GREATEST(p.last_offset - p.log_start + 1, 0) AS total,
               GREATEST(p.last_offset - GREATEST(COALESCE(c.worst, -1), p.log_start - 1), 0) AS pending,
               GREATEST(COALESCE(c.worst, -1), p.log_start - 1) + 1 AS wanted, COALESCE(c.leased, 0) AS leased, COALESCE(d.n, 0) AS dead
          FROM queen.log_partitions p
          LEFT JOIN cursors c ON c.partition_id = p.id
          LEFT JOIN dead d ON d.partition_id = p.id
         WHERE p.id > p_after AND (v_last IS NULL OR p.id <= v_last)
        OFFSET 0)
    SELECT x.queue_id, count(*), sum(x.total)::BIGINT, sum(x.pending)::BIGINT, sum(LEAST(x.leased, x.pending))::BIGINT, sum(x.dead)::BIGINT,
           min(o.created_at), count(*) FILTER (WHERE x.pending > 0), max(x.pending), v_last
      FROM parts x
      LEFT JOIN LATERAL (
           -- log_oldest_pending_at_v1, written out: a call for each partition takes three times as long.
           SELECT COALESCE(
                  (SELECT h.created_at
                     FROM (SELECT s.end_offset, s.created_at FROM queen.log_segments s
                            WHERE s.partition_id = x.id AND s.base_offset <= x.wanted
                            ORDER BY s.base_offset DESC LIMIT 1) h
                    WHERE h.end_offset >= x.wanted),
                  (SELECT s.created_at FROM queen.log_segments s
                    WHERE s.partition_id = x.id AND s.base_offset > x.wanted
                    ORDER BY s.base_offset LIMIT 1)) AS created_at
            WHERE x.pending > 0) o ON TRUE
     GROUP BY x.queue_id;
END $$;

-- log_stats_store_v1: write the rows of queen.stats from the rows of all steps of a pass, then the roll-ups by namespace, task and system.
--   parallel arrays in the meaning of log_stats_step_v1; a queue may come more than once. Queues that are not named have no partitions
-- A rate is the difference to the totals of the refresh before the last one over the time since then, never below 0; 0 while
-- there is no such refresh or it is less than 3 seconds ago. Values that do not fit their column are clamped, so that one huge
-- queue cannot stop all statistics. retained_bytes and newest_message_at are not touched: they cost a read of every segment.
-- Returns as log_refresh_all_stats_v1. Locks: stats rows ascending by (type, key). One refresher at a time (advisory lock 737002, taken by the
-- caller). Called by: pg.RefreshStats, log_refresh_all_stats_v1.
CREATE OR REPLACE FUNCTION queen.log_stats_store_v1(
    p_queues UUID[], p_partitions BIGINT[], p_totals BIGINT[], p_pending BIGINT[], p_processing BIGINT[], p_dead BIGINT[],
    p_oldest TIMESTAMPTZ[], p_lagging BIGINT[], p_most BIGINT[])
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    v_now        TIMESTAMPTZ := clock_timestamp();
    v_queues     BIGINT;
    v_partitions BIGINT;
BEGIN
    WITH figures AS (
        SELECT s.queue_id, sum(s.partitions) AS partitions, sum(s.total) AS total, sum(s.pending) AS pending, sum(s.processing) AS processing,
               sum(s.dead) AS dead, min(s.oldest) AS oldest, sum(s.pending) / NULLIF(sum(s.lagging), 0) AS lag_avg, max(s.most) AS lag_max
          FROM unnest(p_queues, p_partitions, p_totals, p_pending, p_processing, p_dead, p_oldest, p_lagging, p_most)
               AS s(queue_id, partitions, total, pending, processing, dead, oldest, lagging, most)
         GROUP BY s.queue_id),
    fresh AS (
        SELECT q.id, COALESCE(f.partitions, 0) AS partitions, COALESCE(f.total, 0) AS total, COALESCE(f.pending, 0) AS pending,
               COALESCE(f.processing, 0) AS processing, COALESCE(f.dead, 0) AS dead,
               GREATEST(COALESCE(f.total, 0) - COALESCE(f.pending, 0) - COALESCE(f.dead, 0), 0) AS completed, f.oldest,
               LEAST(GREATEST(COALESCE(extract(epoch FROM v_now - f.oldest), 0), 0), 2147483647)::INT AS age,
               LEAST(COALESCE(f.lag_avg, 0), 2147483647)::INT AS lag_avg, LEAST(COALESCE(f.lag_max, 0), 2147483647)::INT AS lag_max
          FROM queen.queues q
          LEFT JOIN figures f ON f.queue_id = q.id),
    written AS (
        INSERT INTO queen.stats AS s (stat_type, stat_key, queue_id, child_count, total_messages, pending_messages,
            processing_messages, completed_messages, dead_letter_messages, oldest_pending_at, avg_lag_seconds, max_lag_seconds,
            median_lag_seconds, avg_offset_lag, max_offset_lag, last_computed_at)
        SELECT 'queue', f.id::TEXT, f.id, LEAST(f.partitions, 2147483647)::INT, f.total, f.pending, f.processing, f.completed, f.dead,
               f.oldest, f.age, f.age, f.age, f.lag_avg, f.lag_max, v_now
          FROM fresh f
         ORDER BY f.id::TEXT
            ON CONFLICT (stat_type, stat_key) DO UPDATE
           SET queue_id = EXCLUDED.queue_id, child_count = EXCLUDED.child_count, total_messages = EXCLUDED.total_messages,
               pending_messages = EXCLUDED.pending_messages, processing_messages = EXCLUDED.processing_messages,
               completed_messages = EXCLUDED.completed_messages, dead_letter_messages = EXCLUDED.dead_letter_messages,
               oldest_pending_at = EXCLUDED.oldest_pending_at, avg_lag_seconds = EXCLUDED.avg_lag_seconds,
               max_lag_seconds = EXCLUDED.max_lag_seconds, median_lag_seconds = EXCLUDED.median_lag_seconds,
               avg_offset_lag = EXCLUDED.avg_offset_lag, max_offset_lag = EXCLUDED.max_offset_lag,
               last_computed_at = EXCLUDED.last_computed_at,
               ingested_per_second = CASE WHEN v_now - s.prev_snapshot_at >= INTERVAL '3 seconds'
                   THEN LEAST(GREATEST((EXCLUDED.total_messages - s.prev_total_messages)
                        / extract(epoch FROM v_now - s.prev_snapshot_at), 0), 99999999) ELSE 0 END,
               processed_per_second = CASE WHEN v_now - s.prev_snapshot_at >= INTERVAL '3 seconds'
                   THEN LEAST(GREATEST((EXCLUDED.completed_messages - s.prev_completed_messages)
                        / extract(epoch FROM v_now - s.prev_snapshot_at), 0), 99999999) ELSE 0 END,
               prev_total_messages = s.total_messages, prev_completed_messages = s.completed_messages,
               prev_snapshot_at = s.last_computed_at
        RETURNING s.child_count)
    SELECT count(*), COALESCE(sum(w.child_count), 0) INTO v_queues, v_partitions FROM written w;
    RETURN jsonb_build_object('engine', 'segments', 'queuesUpdated', v_queues, 'segPartitions', v_partitions,
        'namespaces', queen.aggregate_namespace_stats_v1(), 'tasks', queen.aggregate_task_stats_v1(),
        'system', queen.aggregate_system_stats_v2(), 'refreshedAt', queen.iso_ms_v1(v_now));
END $$;

-- log_refresh_all_stats_v1: recompute the rows of queen.stats in one statement.
-- Returns {"engine":"segments","queuesUpdated","segPartitions","namespaces":{"namespacesUpdated"},"tasks":{"tasksUpdated"},"system":
-- {"systemUpdated"},"refreshedAt":ISO-ms}.
-- Locks: as log_stats_store_v1. Called by: brokers that do not know log_stats_step_v1, and people.
CREATE OR REPLACE FUNCTION queen.log_refresh_all_stats_v1()
RETURNS JSONB
LANGUAGE sql VOLATILE
AS $$
    SELECT queen.log_stats_store_v1(array_agg(s.r_queue), array_agg(s.r_partitions), array_agg(s.r_total), array_agg(s.r_pending),
                                    array_agg(s.r_processing), array_agg(s.r_dead), array_agg(s.r_oldest), array_agg(s.r_lagging), array_agg(s.r_most))
      FROM queen.log_stats_step_v1('00000000-0000-0000-0000-000000000000', 2147483647) s
$$;

-- log_queue_detail_v1: a queue with its totals and a page of its partitions, live.
--   p_filters  {"limit"? = 1000 partitions, at most 1000,"after"?: "next" of the page before}
-- Returns {"error":"Queue not found"} or {"queue":{"id","name","namespace","task","priority","createdAt","config":{"leaseTime",
-- "retryLimit","retryDelay","ttl","maxQueueSize","deadLetterQueue"}},"partitions":[{"id","name","createdAt","messages":F,"stats":F,
-- "pending","processing","completed","dlq","cursor":{"totalConsumed","batchesConsumed":0},"lastActivity","oldestMessage",
-- "newestMessage"}],"partitionCount","totals":{"messages":F over all partitions},"next":text|null} with
-- F = {"total","pending","processing","completed","failed":null,"deadLetter"}; times ISO-ms or null; partitions in the order of
-- their names, as the database's collation has it.
-- Locks: none. Called by: pg.QueueDetail, get_queue_detail_v2, log_queue_summary_v1.
CREATE OR REPLACE FUNCTION queen.log_queue_detail_v1(
    p_queue TEXT, p_filters JSONB DEFAULT '{}', p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
SET jit = off
SET max_parallel_workers_per_gather = 0
AS $$
DECLARE
    v_limit  INT := LEAST(GREATEST(COALESCE((p_filters ->> 'limit')::INT, 1000), 1), 1000);
    v_after  TEXT := CASE WHEN COALESCE(p_filters ->> 'after', '') <> '' THEN substr(p_filters ->> 'after', strpos(p_filters ->> 'after', '|') + 1) END;
    v_row    queen.queues%ROWTYPE;
    v_totals RECORD;
    v_ids    UUID[];
    v_page   JSONB;
    v_last   TEXT;
BEGIN
    SELECT * INTO v_row FROM queen.queues q WHERE q.tenant_id = p_tenant AND q.name = p_queue;
    IF NOT FOUND THEN
        RETURN jsonb_build_object('error', 'Queue not found');
    END IF;
    SELECT * INTO v_totals FROM queen.log_queue_totals_v1(v_row.id);
    SELECT array_agg(x.id), CASE WHEN count(*) > v_limit THEN (array_agg(x.name))[v_limit] END INTO v_ids, v_last
      FROM (SELECT p.id, p.name FROM queen.log_partitions p
             WHERE p.queue_id = v_row.id AND (v_after IS NULL OR p.name > v_after)
             ORDER BY p.name LIMIT v_limit + 1) x;
    SELECT COALESCE(jsonb_agg(jsonb_build_object('id', f.r_id, 'name', f.r_name,
               'createdAt', queen.iso_ms_v1(f.r_created_at), 'messages', f.figures, 'stats', f.figures,
               'pending', f.r_pending, 'processing', f.figures -> 'processing', 'completed', f.figures -> 'completed',
               'dlq', f.figures -> 'deadLetter', 'cursor', jsonb_build_object('totalConsumed', f.r_consumed, 'batchesConsumed', 0),
               'lastActivity', queen.iso_ms_v1(f.r_active_at), 'oldestMessage', queen.iso_ms_v1(f.oldest),
               'newestMessage', queen.iso_ms_v1(f.newest)) ORDER BY f.r_name), '[]'::JSONB)
      INTO v_page
      FROM (SELECT x.*, CASE WHEN x.r_pending > 0 THEN queen.log_oldest_pending_at_v1(x.r_id, x.r_seen + 1) END AS oldest,
                   CASE WHEN x.r_total > 0 THEN queen.log_newest_at_v1(x.r_id) END AS newest,
                   jsonb_build_object('total', x.r_total, 'pending', x.r_pending, 'processing', x.r_processing,
                       'completed', x.r_completed, 'failed', NULL, 'deadLetter', x.r_dlq) AS figures
              FROM queen.log_partition_figures_v1(v_row.id) x
             WHERE x.r_id = ANY (v_ids[:v_limit])
            OFFSET 0) f;
    RETURN jsonb_build_object(
        'queue', jsonb_build_object('id', v_row.id, 'name', v_row.name, 'namespace', v_row.namespace, 'task', v_row.task,
            'priority', v_row.priority, 'createdAt', queen.iso_ms_v1(v_row.created_at),
            'config', jsonb_build_object('leaseTime', v_row.lease_time, 'retryLimit', v_row.retry_limit,
                'retryDelay', v_row.retry_delay, 'ttl', v_row.ttl, 'maxQueueSize', v_row.max_queue_size,
                'deadLetterQueue', v_row.dead_letter_queue)),
        'partitions', v_page, 'partitionCount', v_totals.r_partitions,
        'totals', jsonb_build_object('messages', jsonb_build_object('total', v_totals.r_total, 'pending', v_totals.r_pending,
            'processing', v_totals.r_processing, 'completed', v_totals.r_completed, 'failed', NULL, 'deadLetter', v_totals.r_dlq)),
        'next', '0|' || v_last);
END $$;

-- log_queue_summary_v1: the same for the resource routes; live but for retainedBytes.
-- Returns {"error":"Queue not found"} or {"id","name","namespace","task","priority","createdAt","partitions":[{"id","name",
-- "createdAt","stats":F,"oldestMessage","newestMessage"}],"partitionCount","totals":F,"retainedBytes","segments":{"segments",
-- "messages"},"options":{all option keys},"config":{as in log_queue_detail_v1},"maxSize","queueDepth","remainingCapacity":null when
-- unlimited,"next"}.
-- Locks: none. Called by: pg.QueueSummary, get_queue_v2.
CREATE OR REPLACE FUNCTION queen.log_queue_summary_v1(
    p_queue TEXT, p_filters JSONB DEFAULT '{}', p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    v_detail JSONB := queen.log_queue_detail_v1(p_queue, p_filters, p_tenant);
    v_queue  JSONB := v_detail -> 'queue';
    v_id     UUID := (v_queue ->> 'id')::UUID;
    v_limit  BIGINT := (v_queue #>> '{config,maxQueueSize}')::BIGINT;
    v_depth  BIGINT := (v_detail #>> '{totals,messages,pending}')::BIGINT;
BEGIN
    IF v_detail ? 'error' THEN
        RETURN v_detail;
    END IF;
    RETURN v_queue || jsonb_build_object(
        'partitions', (SELECT COALESCE(jsonb_agg(p.v - ARRAY['messages', 'cursor', 'lastActivity', 'pending', 'processing', 'completed', 'dlq']
                                          ORDER BY p.ord), '[]'::JSONB)
                         FROM jsonb_array_elements(v_detail -> 'partitions') WITH ORDINALITY AS p (v, ord)),
        'partitionCount', v_detail -> 'partitionCount', 'next', v_detail -> 'next',
        'totals', v_detail #> '{totals,messages}',
        'retainedBytes', COALESCE((SELECT s.retained_bytes FROM queen.stats s WHERE s.stat_type = 'queue' AND s.stat_key = v_id::TEXT), 0),
        'segments', (SELECT jsonb_build_object('segments', m.segments, 'messages', m.messages)
                       FROM queen.log_queue_message_stats_v1(p_queue, p_tenant) m),
        'options', queen.queue_options_v1(v_id), 'maxSize', v_limit, 'queueDepth', v_depth,
        'remainingCapacity', CASE WHEN v_limit > 0 THEN GREATEST(v_limit - v_depth, 0) END);
END $$;

-- get_queue_detail_v2, get_queue_v2: log_queue_detail_v1 and log_queue_summary_v1 with the first page, under their public names.
-- Locks: none. Called by: none of ours.
CREATE OR REPLACE FUNCTION queen.get_queue_detail_v2(
    p_queue_name TEXT, p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE sql STABLE
AS $$ SELECT queen.log_queue_detail_v1(p_queue_name, '{}', p_tenant) $$;

CREATE OR REPLACE FUNCTION queen.get_queue_v2(p_queue_name TEXT, p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE sql STABLE
AS $$ SELECT queen.log_queue_summary_v1(p_queue_name, '{}', p_tenant) $$;

-- get_analytics_v1: message volume over time. A segment counts in the bucket of its creation.
--   p_filters  {"from"? = 24 h ago,"to"? = now,"interval"? = minute|hour|day, anything else is hour,"queue"?,"namespace"?,"task"?,
--               "_tenant"?}; a range of more than 5,000 buckets is answered in the next coarser interval, at most ten years
-- Returns {"dataPoints":[{"timestamp":ISO-ms,"messages"}],"interval","from","to"}: one point per bucket, oldest first.
-- Reads the segments of the range, found by halving in every partition that was written since; segments have no time index.
-- Raises 22007 for an unreadable time. Locks: none. Called by: pg.MessageVolume.
CREATE OR REPLACE FUNCTION queen.get_analytics_v1(p_filters JSONB DEFAULT '{}')
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    v_tenant   UUID := COALESCE(NULLIF(p_filters ->> '_tenant', '')::UUID, '00000000-0000-0000-0000-000000000001');
    v_to       TIMESTAMPTZ := COALESCE(queen.parse_time_v1(p_filters ->> 'to'), now());
    v_from     TIMESTAMPTZ := GREATEST(COALESCE(queen.parse_time_v1(p_filters ->> 'from'), now() - INTERVAL '24 hours'),
                                       v_to - INTERVAL '10 years');
    v_interval TEXT := COALESCE(p_filters ->> 'interval', 'hour');
    v_points   JSONB;
BEGIN
    IF v_interval NOT IN ('minute', 'hour', 'day') THEN
        v_interval := 'hour';
    END IF;
    IF v_interval = 'minute' AND v_to - v_from > INTERVAL '5000 minutes' THEN
        v_interval := 'hour';
    END IF;
    IF v_interval = 'hour' AND v_to - v_from > INTERVAL '5000 hours' THEN
        v_interval := 'day';
    END IF;
    WITH counted AS (
        SELECT date_trunc(v_interval, s.created_at, 'UTC') AS at, sum(s.end_offset - s.base_offset + 1) AS n
          FROM queen.queues q
          JOIN queen.log_partitions p ON p.queue_id = q.id AND p.last_write_at >= v_from - INTERVAL '2 seconds'
         CROSS JOIN LATERAL (
                SELECT x.created_at, x.end_offset, x.base_offset
                  FROM queen.log_segments x
                 WHERE x.partition_id = p.id AND x.created_at >= v_from AND x.created_at <= v_to
                   AND x.base_offset >= CASE WHEN p.last_offset - p.log_start <= 256 THEN p.log_start
                           ELSE queen.log_segment_since_v1(p.id, p.log_start, p.last_offset, v_from) END) s
         WHERE q.tenant_id = v_tenant
           AND (COALESCE(p_filters ->> 'queue', '') = '' OR q.name = p_filters ->> 'queue')
           AND (COALESCE(p_filters ->> 'namespace', '') = '' OR q.namespace = p_filters ->> 'namespace')
           AND (COALESCE(p_filters ->> 'task', '') = '' OR q.task = p_filters ->> 'task')
         GROUP BY 1)
    SELECT COALESCE(jsonb_agg(jsonb_build_object('timestamp', queen.iso_ms_v1(b.at AT TIME ZONE 'UTC'), 'messages', COALESCE(c.n, 0))
               ORDER BY b.at), '[]'::JSONB)
      INTO v_points
      FROM generate_series(date_trunc(v_interval, v_from AT TIME ZONE 'UTC'), v_to AT TIME ZONE 'UTC', ('1 ' || v_interval)::INTERVAL) AS b (at)
      LEFT JOIN counted c ON c.at = b.at AT TIME ZONE 'UTC';
    RETURN jsonb_build_object('dataPoints', v_points, 'interval', v_interval, 'from', queen.iso_ms_v1(v_from),
                              'to', queen.iso_ms_v1(v_to));
END $$;

-- log_queue_message_stats_v1: segments (an index-only count) and retained messages (arithmetic) of one queue. Always one row.
-- Locks: none. Called by: log_queue_summary_v1.
CREATE OR REPLACE FUNCTION queen.log_queue_message_stats_v1(
    p_queue TEXT, p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS TABLE (segments BIGINT, messages BIGINT)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
SET jit = off
SET max_parallel_workers_per_gather = 0
AS $$
DECLARE
    v_queue UUID := (SELECT q.id FROM queen.queues q WHERE q.tenant_id = p_tenant AND q.name = p_queue);
BEGIN
    SELECT count(*) INTO segments
      FROM queen.log_partitions p JOIN queen.log_segments s ON s.partition_id = p.id
     WHERE p.queue_id = v_queue;
    SELECT COALESCE(sum(GREATEST(p.last_offset - p.log_start + 1, 0)), 0) INTO messages
      FROM queen.log_partitions p WHERE p.queue_id = v_queue;
    RETURN NEXT;
END $$;

-- log_queue_stats_all_v1: the same for every queue of a tenant, with its number of partitions. Segments are counted per
-- partition before the join with the queues, and only those of the tenant. Locks: none. Called by: log_queue_list_v1.
CREATE OR REPLACE FUNCTION queen.log_queue_stats_all_v1(p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS TABLE (queue_name TEXT, partitions BIGINT, segments BIGINT, messages BIGINT)
LANGUAGE sql STABLE
AS $$
    SELECT q.name::TEXT, count(p.id), COALESCE(sum(s.n), 0)::BIGINT,
           COALESCE(sum(GREATEST(p.last_offset - p.log_start + 1, 0)), 0)::BIGINT
      FROM queen.queues q
      LEFT JOIN queen.log_partitions p ON p.queue_id = q.id
      LEFT JOIN (SELECT x.partition_id, count(*) AS n
                   FROM queen.log_segments x
                   JOIN queen.log_partitions y ON y.id = x.partition_id
                   JOIN queen.queues z ON z.id = y.queue_id AND z.tenant_id = p_tenant
                  GROUP BY x.partition_id) s ON s.partition_id = p.id
     WHERE q.tenant_id = p_tenant
     GROUP BY q.id, q.name
$$;

GRANT EXECUTE ON FUNCTION queen.log_partition_progress_v1(UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_partition_figures_v1(UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_queue_totals_v1(UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_newest_at_v1(UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.queue_options_v1(UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_stats_step_v1(UUID, INTEGER) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_stats_store_v1(UUID[], BIGINT[], BIGINT[], BIGINT[], BIGINT[], BIGINT[], TIMESTAMPTZ[], BIGINT[], BIGINT[]) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_refresh_all_stats_v1() TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_queue_detail_v1(TEXT, JSONB, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_queue_summary_v1(TEXT, JSONB, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.get_queue_detail_v2(TEXT, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.get_queue_v2(TEXT, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.get_analytics_v1(JSONB) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_queue_message_stats_v1(TEXT, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_queue_stats_all_v1(UUID) TO PUBLIC;
