-- What retention has to do: the lists of due partitions, the walk that keeps the lists honest, and the slow figures.

-- log_retention_due_v1: partitions whose oldest segment or sidecar row is past a cutoff, oldest first.
--   p_phase     rules: oldest_live_at past the later of the two retention cutoffs; txns: oldest_txn_at past the sidecar cutoff;
--               maxwait: oldest_live_at past the queue's maxWaitTimeSeconds
--   p_now       the one clock reading of the cycle, from which every cutoff is computed
--   p_limit     rows; less than 1 acts as 1
--   p_after_at, p_after_id
--               continue behind this (r_oldest, r_partition) of an earlier list; NULL starts at the oldest
-- Returns r_partition, r_oldest, and the cutoffs for its step: r_cutoff (rule 1, sidecar or maxwait; NULL when off) and r_completed
-- (rule 2, phase rules only; NULL when off).
-- One row of rules per queue that has a cutoff, then one bounded look per such queue into the partial index of the watermark:
-- the cost follows the due rows, not the partitions. A plain join is planned as a hash join over all partitions, and a generic
-- plan, which does not know the LIMIT, falls back to it: hence the lateral sub-select and the custom plans. Locks: none.
-- Called by: pg.RetentionDue.
CREATE OR REPLACE FUNCTION queen.log_retention_due_v1(
    p_phase TEXT, p_now TIMESTAMPTZ, p_limit INTEGER, p_after_at TIMESTAMPTZ DEFAULT NULL, p_after_id UUID DEFAULT NULL)
RETURNS TABLE (r_partition UUID, r_oldest TIMESTAMPTZ, r_cutoff TIMESTAMPTZ, r_completed TIMESTAMPTZ)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
DECLARE
    v_limit INT := GREATEST(COALESCE(p_limit, 1), 1);
BEGIN
    CASE p_phase
    WHEN 'rules', 'maxwait' THEN
        RETURN QUERY
        WITH rules AS MATERIALIZED (
            SELECT q.id, CASE WHEN p_phase = 'maxwait' THEN p_now - make_interval(secs => q.max_wait_time_seconds)
                              WHEN q.retention_seconds > 0 THEN p_now - make_interval(secs => q.retention_seconds) END AS cutoff,
                   CASE WHEN p_phase = 'rules' AND q.completed_retention_seconds > 0
                        THEN p_now - make_interval(secs => q.completed_retention_seconds) END AS completed
              FROM queen.queues q
             WHERE CASE p_phase WHEN 'maxwait' THEN q.max_wait_time_seconds > 0
                                ELSE q.retention_enabled AND (q.retention_seconds > 0 OR q.completed_retention_seconds > 0) END
        )
        SELECT d.id, d.oldest, r.cutoff, r.completed
          FROM rules r
         CROSS JOIN LATERAL (
               SELECT p.id, p.oldest_live_at AS oldest
                 FROM queen.log_partitions p
                WHERE p.queue_id = r.id AND p.oldest_live_at < GREATEST(r.cutoff, r.completed)
                  AND (p_after_at IS NULL OR (p.oldest_live_at, p.id) > (p_after_at, p_after_id))
                ORDER BY p.oldest_live_at, p.id
                LIMIT v_limit) d
         ORDER BY d.oldest, d.id
         LIMIT v_limit;
    WHEN 'txns' THEN
        RETURN QUERY
        WITH rules AS MATERIALIZED (
            SELECT q.id, p_now - make_interval(secs => GREATEST(q.dedup_window_seconds, q.completed_retention_seconds, 900)) AS cutoff,
                   NULL::timestamptz AS completed
              FROM queen.queues q
        )
        SELECT d.id, d.oldest, r.cutoff, r.completed
          FROM rules r
         CROSS JOIN LATERAL (
               SELECT p.id, p.oldest_txn_at AS oldest
                 FROM queen.log_partitions p
                WHERE p.queue_id = r.id AND p.oldest_txn_at < GREATEST(r.cutoff, r.completed)
                  AND (p_after_at IS NULL OR (p.oldest_txn_at, p.id) > (p_after_at, p_after_id))
                ORDER BY p.oldest_txn_at, p.id
                LIMIT v_limit) d
         ORDER BY d.oldest, d.id
         LIMIT v_limit;
    ELSE
        RAISE EXCEPTION 'QRETENTION unknown phase %', p_phase USING ERRCODE = 'QU003';
    END CASE;
END $$;

-- log_retention_repair_step_v1: compare the two watermarks of up to p_max_rows partitions, in the order of their ids behind
-- p_after_id (NULL: from the first), with the first segment and the first sidecar row, and correct those that differ.
-- Writers keep the watermarks early, never late; a writer that does not know them (an older broker, a restore by hand) leaves
-- them NULL, and retention would never see the partition.
-- Returns {"last": uuid | null, "seen": n, "repaired": n, "done": bool}; continue with last until done.
-- Locks: rows that seem to differ, FOR NO KEY UPDATE ascending by id, SKIP LOCKED; looked at again in a new statement under the
-- lock, because a first push may have committed since. Called by: the safety walk of retention.
CREATE OR REPLACE FUNCTION queen.log_retention_repair_step_v1(p_after_id UUID, p_max_rows INTEGER)
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_rows     INT := GREATEST(COALESCE(p_max_rows, 5000), 1);
    v_seen     INT;
    v_last     UUID;
    v_suspects UUID[];
    v_ids      UUID[];
    v_repaired INT := 0;
BEGIN
    SELECT count(*), (array_agg(x.id ORDER BY x.id DESC))[1],
           array_agg(x.id ORDER BY x.id) FILTER (WHERE x.live IS DISTINCT FROM x.oldest_live_at OR x.txn IS DISTINCT FROM x.oldest_txn_at)
      INTO v_seen, v_last, v_suspects
      FROM (SELECT p.id, p.oldest_live_at, p.oldest_txn_at,
                   (SELECT s.created_at FROM queen.log_segments s
                     WHERE s.partition_id = p.id AND s.base_offset >= p.log_start ORDER BY s.base_offset LIMIT 1) AS live,
                   (SELECT t.created_at FROM queen.log_txns t
                     WHERE t.partition_id = p.id AND t.base_offset >= p.txns_start ORDER BY t.base_offset LIMIT 1) AS txn
              FROM queen.log_partitions p
             WHERE p.id > COALESCE(p_after_id, '00000000-0000-0000-0000-000000000000')
             ORDER BY p.id
             LIMIT v_rows) x;
    IF v_suspects IS NOT NULL THEN
        SELECT array_agg(x.id) INTO v_ids
          FROM (SELECT p.id FROM queen.log_partitions p WHERE p.id = ANY (v_suspects) ORDER BY p.id FOR NO KEY UPDATE SKIP LOCKED) x;
        UPDATE queen.log_partitions p
           SET oldest_live_at = w.live, oldest_txn_at = w.txn
          FROM (SELECT o.id, (SELECT s.created_at FROM queen.log_segments s
                               WHERE s.partition_id = o.id AND s.base_offset >= o.log_start ORDER BY s.base_offset LIMIT 1) AS live,
                       (SELECT t.created_at FROM queen.log_txns t
                         WHERE t.partition_id = o.id AND t.base_offset >= o.txns_start ORDER BY t.base_offset LIMIT 1) AS txn
                  FROM queen.log_partitions o
                 WHERE o.id = ANY (v_ids)) w
         WHERE p.id = w.id AND (w.live IS DISTINCT FROM p.oldest_live_at OR w.txn IS DISTINCT FROM p.oldest_txn_at);
        GET DIAGNOSTICS v_repaired = ROW_COUNT;
    END IF;
    RETURN jsonb_build_object('last', v_last, 'seen', v_seen, 'repaired', v_repaired, 'done', v_seen < v_rows);
END $$;

-- log_dlq_purge_step_v1: delete up to p_max_rows dead letters older than their queue's dlq_retention_seconds; 0 keeps them for ever.
-- Returns {"deleted": n, "done": bool}. Steps from one partition that has dead letters to the next, so that its cost does not follow
-- the number of partitions or of dead letters that are kept. A row that is being replayed is skipped.
-- Locks: log_dlq rows, SKIP LOCKED. Called by: retention.
CREATE OR REPLACE FUNCTION queen.log_dlq_purge_step_v1(p_max_rows INTEGER)
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_rows    INT := GREATEST(COALESCE(p_max_rows, 1000), 1);
    v_now     TIMESTAMPTZ := clock_timestamp();
    v_deleted INT;
BEGIN
    IF NOT EXISTS (SELECT 1 FROM queen.queues q WHERE q.dlq_retention_seconds > 0) THEN
        RETURN jsonb_build_object('deleted', 0, 'done', TRUE);
    END IF;
    WITH RECURSIVE holders AS (
        (SELECT d.partition_id FROM queen.log_dlq d ORDER BY d.partition_id LIMIT 1)
        UNION ALL
        SELECT (SELECT d.partition_id FROM queen.log_dlq d WHERE d.partition_id > h.partition_id ORDER BY d.partition_id LIMIT 1)
          FROM holders h
         WHERE h.partition_id IS NOT NULL
    ), old AS MATERIALIZED (
        SELECT x.id
          FROM holders h
          JOIN queen.log_partitions p ON p.id = h.partition_id
          JOIN queen.queues q ON q.id = p.queue_id AND q.dlq_retention_seconds > 0
         CROSS JOIN LATERAL (
               SELECT d.id
                 FROM queen.log_dlq d
                WHERE d.partition_id = p.id AND d.failed_at < v_now - make_interval(secs => q.dlq_retention_seconds)
                LIMIT v_rows
                  FOR UPDATE SKIP LOCKED) x
         LIMIT v_rows
    )
    DELETE FROM queen.log_dlq d USING old o WHERE d.id = o.id;
    GET DIAGNOSTICS v_deleted = ROW_COUNT;
    RETURN jsonb_build_object('deleted', v_deleted, 'done', v_deleted < v_rows);
END $$;

-- log_refresh_retained_bytes_v1: stored bytes per queue into queen.stats. One heap row per segment is read (the blobs are not), so
-- it runs rarely and by itself. Only the queue rows of the last statistics are written, and only those that changed.
-- Returns {"queuesUpdated": n}. Locks: the stats rows. The caller holds transaction advisory lock 737003. Called by:
-- pg.RefreshRetainedBytes.
CREATE OR REPLACE FUNCTION queen.log_refresh_retained_bytes_v1()
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_updated INT;
BEGIN
    UPDATE queen.stats t
       SET retained_bytes = x.bytes
      FROM (SELECT s.stat_key, COALESCE(sum(g.bytes), 0) AS bytes
              FROM queen.stats s
              LEFT JOIN queen.log_partitions p ON p.queue_id = s.queue_id
              LEFT JOIN (SELECT l.partition_id, sum(octet_length(l.blob)) AS bytes FROM queen.log_segments l GROUP BY 1) g
                ON g.partition_id = p.id
             WHERE s.stat_type = 'queue'
             GROUP BY s.stat_key
             ORDER BY s.stat_key) x
     WHERE t.stat_type = 'queue' AND t.stat_key = x.stat_key AND t.retained_bytes <> x.bytes;
    GET DIAGNOSTICS v_updated = ROW_COUNT;
    RETURN jsonb_build_object('queuesUpdated', v_updated);
END $$;

GRANT EXECUTE ON FUNCTION queen.log_retention_due_v1(TEXT, TIMESTAMPTZ, INTEGER, TIMESTAMPTZ, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_retention_repair_step_v1(UUID, INTEGER) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_dlq_purge_step_v1(INTEGER) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_refresh_retained_bytes_v1() TO PUBLIC;
