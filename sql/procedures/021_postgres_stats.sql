-- What PostgreSQL says about itself, as far as it concerns the schema queen of this database.

-- get_postgres_stats_v1: caches, dead rows, slow statements, vacuum, sizes, who holds the oldest snapshot and who waits for whom.
--   duration, ageSeconds and waitSeconds are seconds; statements are cut to 200 characters; sizes come as text and as bytes.
-- bufferUsage needs the extension pg_buffercache and the right to read it, and is [] without. What other roles do is hidden
-- by the server unless the broker's role is a member of pg_read_all_stats: their statement then reads "<insufficient privilege>".
-- Locks: none. Called by: pg.PostgresStats.
CREATE OR REPLACE FUNCTION queen.get_postgres_stats_v1()
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
SET timezone = 'UTC'
AS $$
DECLARE
    v_now     TIMESTAMPTZ := clock_timestamp();
    v_buffers JSONB := '[]'::jsonb;
    -- Looked for when it runs: the extension may be created or dropped at any time.
    v_cache   TEXT := to_regclass('pg_buffercache')::text;
BEGIN
    IF v_cache IS NOT NULL THEN
    BEGIN
        EXECUTE format($sql$
            SELECT COALESCE(jsonb_agg(jsonb_build_object(
                       'object', x.relname, 'bufferedSize', pg_size_pretty(x.bytes), 'bufferedBytes', x.bytes,
                       'percentOfCache', round(x.bytes * 100.0 / x.cache, 2)) ORDER BY x.bytes DESC), '[]')
              FROM (SELECT c.relname, count(*) * current_setting('block_size')::bigint AS bytes,
                           (SELECT setting::bigint FROM pg_settings WHERE name = 'shared_buffers') * current_setting('block_size')::bigint AS cache
                      FROM %s b
                      JOIN pg_class c ON b.relfilenode = pg_relation_filenode(c.oid)
                     WHERE b.reldatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
                       AND c.relnamespace = 'queen'::regnamespace
                     GROUP BY c.relname
                     ORDER BY 2 DESC
                     LIMIT 20) x $sql$, v_cache)
           INTO v_buffers;
    EXCEPTION WHEN undefined_table OR insufficient_privilege THEN
        v_buffers := '[]'::jsonb;
    END;
    END IF;
    RETURN jsonb_build_object(
        'timestamp', queen.iso_ms_v1(v_now),
        'database', current_database(),
        'databaseSize', pg_database_size(current_database()),
        'databaseCache', (
            SELECT jsonb_build_object('database', d.datname, 'diskReads', d.blks_read, 'cacheHits', d.blks_hit,
                       'cacheHitRatio', COALESCE(round(d.blks_hit * 100.0 / NULLIF(d.blks_hit + d.blks_read, 0), 2), 0))
              FROM pg_catalog.pg_stat_database d WHERE d.datname = current_database()),
        'tableCache', COALESCE((
            SELECT jsonb_agg(jsonb_build_object('schema', x.schemaname, 'table', x.relname, 'diskReads', x.reads, 'cacheHits', x.hits,
                       'cacheHitRatio', COALESCE(round(x.hits * 100.0 / NULLIF(x.hits + x.reads, 0), 2), 0)) ORDER BY x.hits + x.reads DESC, x.relname)
              FROM (SELECT t.schemaname, t.relname, COALESCE(t.heap_blks_read, 0) AS reads, COALESCE(t.heap_blks_hit, 0) AS hits
                      FROM pg_catalog.pg_statio_user_tables t WHERE t.schemaname = 'queen'
                     ORDER BY COALESCE(t.heap_blks_read, 0) + COALESCE(t.heap_blks_hit, 0) DESC LIMIT 20) x), '[]'),
        'indexCache', COALESCE((
            SELECT jsonb_agg(jsonb_build_object('schema', x.schemaname, 'table', x.relname, 'index', x.indexrelname, 'diskReads', x.reads,
                       'cacheHits', x.hits, 'cacheHitRatio', COALESCE(round(x.hits * 100.0 / NULLIF(x.hits + x.reads, 0), 2), 0))
                       ORDER BY x.hits + x.reads DESC, x.indexrelname)
              FROM (SELECT i.schemaname, i.relname, i.indexrelname, COALESCE(i.idx_blks_read, 0) AS reads, COALESCE(i.idx_blks_hit, 0) AS hits
                      FROM pg_catalog.pg_statio_user_indexes i WHERE i.schemaname = 'queen'
                     ORDER BY COALESCE(i.idx_blks_read, 0) + COALESCE(i.idx_blks_hit, 0) DESC LIMIT 20) x), '[]'),
        'cacheSummary', jsonb_build_object(
            'tables', (SELECT jsonb_build_object('diskReads', x.reads, 'cacheHits', x.hits,
                                  'hitRatio', COALESCE(round(x.hits * 100.0 / NULLIF(x.hits + x.reads, 0), 2), 0))
                         FROM (SELECT COALESCE(sum(t.heap_blks_read), 0) AS reads, COALESCE(sum(t.heap_blks_hit), 0) AS hits
                                 FROM pg_catalog.pg_statio_user_tables t WHERE t.schemaname = 'queen') x),
            'indexes', (SELECT jsonb_build_object('diskReads', x.reads, 'cacheHits', x.hits,
                                   'hitRatio', COALESCE(round(x.hits * 100.0 / NULLIF(x.hits + x.reads, 0), 2), 0))
                          FROM (SELECT COALESCE(sum(i.idx_blks_read), 0) AS reads, COALESCE(sum(i.idx_blks_hit), 0) AS hits
                                  FROM pg_catalog.pg_statio_user_indexes i WHERE i.schemaname = 'queen') x)),
        'deadTuples', COALESCE((
            SELECT jsonb_agg(jsonb_build_object('schema', x.schemaname, 'table', x.relname, 'deadTuples', x.n_dead_tup, 'liveTuples', x.n_live_tup,
                       'deadPercentage', COALESCE(round(x.n_dead_tup * 100.0 / NULLIF(x.n_live_tup + x.n_dead_tup, 0), 2), 0),
                       'lastVacuum', queen.iso_ms_v1(x.last_vacuum), 'lastAutovacuum', queen.iso_ms_v1(x.last_autovacuum))
                       ORDER BY x.n_dead_tup DESC, x.relname)
              FROM (SELECT t.* FROM pg_catalog.pg_stat_user_tables t WHERE t.schemaname = 'queen' AND t.n_dead_tup > 0
                     ORDER BY t.n_dead_tup DESC LIMIT 15) x), '[]'),
        'hotUpdates', COALESCE((
            SELECT jsonb_agg(jsonb_build_object('schema', x.schemaname, 'table', x.relname, 'totalUpdates', x.n_tup_upd, 'hotUpdates', x.n_tup_hot_upd,
                       'hotUpdatePercentage', round(x.n_tup_hot_upd * 100.0 / x.n_tup_upd, 2)) ORDER BY x.n_tup_upd DESC, x.relname)
              FROM (SELECT t.* FROM pg_catalog.pg_stat_user_tables t WHERE t.schemaname = 'queen' AND t.n_tup_upd > 0
                     ORDER BY t.n_tup_upd DESC LIMIT 15) x), '[]'),
        'activeQueries', COALESCE((
            SELECT jsonb_agg(jsonb_build_object('pid', x.pid, 'duration', x.duration, 'state', x.state, 'query', left(x.query, 200),
                       'waitEventType', x.wait_event_type, 'waitEvent', x.wait_event) ORDER BY x.duration DESC, x.pid)
              FROM (SELECT a.*, round(EXTRACT(EPOCH FROM v_now - a.query_start), 3) AS duration
                      FROM pg_catalog.pg_stat_activity a
                     WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.state <> 'idle'
                       AND a.backend_type = 'client backend' AND a.query_start < v_now - interval '1 second'
                     ORDER BY a.query_start LIMIT 10) x), '[]'),
        'oldestSnapshot', (
            SELECT jsonb_build_object('pid', a.pid, 'applicationName', a.application_name, 'state', a.state,
                       'ageSeconds', round(EXTRACT(EPOCH FROM v_now - a.xact_start), 3), 'xidAge', age(a.backend_xmin), 'query', left(a.query, 200))
              FROM pg_catalog.pg_stat_activity a
             WHERE a.backend_xmin IS NOT NULL AND a.pid <> pg_backend_pid()
             ORDER BY age(a.backend_xmin) DESC, a.xact_start LIMIT 1),
        'lockWaits', COALESCE((
            SELECT jsonb_agg(jsonb_build_object('pid', x.pid, 'blockedBy', to_jsonb(pg_blocking_pids(x.pid)), 'waitEvent', x.wait_event,
                       'waitSeconds', round(EXTRACT(EPOCH FROM v_now - x.query_start), 3), 'query', left(x.query, 200)) ORDER BY x.query_start, x.pid)
              FROM (SELECT a.* FROM pg_catalog.pg_stat_activity a
                     WHERE a.datname = current_database() AND a.wait_event_type = 'Lock'
                     ORDER BY a.query_start LIMIT 20) x), '[]'),
        'vacuumRunning', COALESCE((
            SELECT jsonb_agg(jsonb_build_object('pid', v.pid, 'table', v.relid::regclass::text, 'phase', v.phase,
                       'scannedPercentage', COALESCE(round(v.heap_blks_scanned * 100.0 / NULLIF(v.heap_blks_total, 0), 2), 0)) ORDER BY v.pid)
              FROM pg_catalog.pg_stat_progress_vacuum v WHERE v.datname = current_database()), '[]'),
        'autovacuumStatus', COALESCE((
            SELECT jsonb_agg(jsonb_build_object('table', x.relname, 'lastAutovacuum', queen.iso_ms_v1(x.last_autovacuum), 'deadTuples', x.n_dead_tup,
                       'autovacuumCount', x.autovacuum_count, 'autoanalyzeCount', x.autoanalyze_count) ORDER BY x.n_dead_tup DESC, x.relname)
              FROM (SELECT t.* FROM pg_catalog.pg_stat_user_tables t WHERE t.schemaname = 'queen'
                     ORDER BY t.n_dead_tup DESC, t.relname LIMIT 15) x), '[]'),
        'bufferConfig', (
            SELECT jsonb_build_object('sharedBuffers', s.setting, 'sharedBuffersSize', pg_size_pretty(s.setting::bigint * current_setting('block_size')::bigint))
              FROM pg_catalog.pg_settings s WHERE s.name = 'shared_buffers'),
        'bufferUsage', v_buffers,
        'tableSizes', COALESCE((
            SELECT jsonb_agg(jsonb_build_object('table', x.relname, 'totalSize', pg_size_pretty(x.total), 'totalSizeBytes', x.total,
                       'tableSize', pg_size_pretty(x.heap), 'tableSizeBytes', x.heap, 'indexSize', pg_size_pretty(x.indexes),
                       'indexSizeBytes', x.indexes) ORDER BY x.total DESC, x.relname)
              FROM (SELECT c.relname, pg_total_relation_size(c.oid) AS total, pg_table_size(c.oid) AS heap, pg_indexes_size(c.oid) AS indexes
                      FROM pg_catalog.pg_class c
                     WHERE c.relkind = 'r' AND c.relnamespace = 'queen'::regnamespace
                     ORDER BY 2 DESC LIMIT 20) x), '[]'));
END $$;

GRANT EXECUTE ON FUNCTION queen.get_postgres_stats_v1() TO PUBLIC;
