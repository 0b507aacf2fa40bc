-- Retention, sidecar purge, eviction by age and removal of dead partitions, one bounded transaction a step.
--
-- Policy lives in the broker, which computes every cutoff from one database clock reading; NULL means off. Retention deletes
-- whole segments and only a contiguous prefix, so that retained messages = last_offset - log_start + 1 stays exact.
-- The steps forbid sequential scans: a plan made while a table was tiny would stay cached while it grows.
DO $$ BEGIN
    IF to_regclass('queen.idx_retention_history_executed_at') IS NULL THEN
        CREATE INDEX idx_retention_history_executed_at ON queen.retention_history (executed_at DESC);
    END IF;
END $$;

-- log_retention_boundary_v1: smallest base_offset >= p_from of a segment that is fresh (created_at >= p_cutoff).
--   Nothing fresh: one past the newest message at or above p_from; no segments: p_from.
-- One forward walk of the primary key, because created_at is non-decreasing in base_offset. Locks: none.
CREATE OR REPLACE FUNCTION queen.log_retention_boundary_v1(p_partition_id UUID, p_from BIGINT, p_cutoff TIMESTAMPTZ)
RETURNS BIGINT
LANGUAGE sql STABLE
AS $$
    SELECT COALESCE(
        (SELECT s.base_offset
           FROM queen.log_segments s
          WHERE s.partition_id = p_partition_id AND s.base_offset >= p_from AND s.created_at >= p_cutoff
          ORDER BY s.base_offset
          LIMIT 1),
        (SELECT s.end_offset + 1
           FROM queen.log_segments s
          WHERE s.partition_id = p_partition_id AND s.base_offset >= p_from
          ORDER BY s.base_offset DESC
          LIMIT 1),
        p_from)
$$;

-- log_retention_boundary_windowed_v1: the same, searching [p_from, p_horizon) only; nothing fresh there gives p_horizon.
-- The unbounded walk re-reads the whole stale prefix in every step, which is quadratic on a long backlog. A NULL horizon means
-- that the caller knows fewer segments than one step handles, so the unbounded form is bounded already.
-- Locks: none.
CREATE OR REPLACE FUNCTION queen.log_retention_boundary_windowed_v1(
    p_partition_id UUID, p_from BIGINT, p_cutoff TIMESTAMPTZ, p_horizon BIGINT)
RETURNS BIGINT
LANGUAGE sql STABLE
AS $$
    SELECT CASE WHEN p_horizon IS NULL THEN queen.log_retention_boundary_v1(p_partition_id, p_from, p_cutoff)
    ELSE COALESCE(
        (SELECT s.base_offset
           FROM queen.log_segments s
          WHERE s.partition_id = p_partition_id AND s.base_offset >= p_from AND s.base_offset < p_horizon
            AND s.created_at >= p_cutoff
          ORDER BY s.base_offset
          LIMIT 1),
        p_horizon) END
$$;

-- log_retention_step_v1: delete up to p_max_rows stale segments from the head of one partition.
--   p_all_cutoff        rule 1: delete what is older, consumed or not; NULL is off
--   p_completed_cutoff  rule 2: delete what is older and has been passed by every cursor of the partition; NULL is off.
--                       Without cursors rule 2 does nothing: data that nobody has read is not "completed"
--   p_max_rows          segments; below 1 and NULL act as 1
--   p_history_type      what retention_history says; NULL lets the rule that moved the boundary decide
-- Returns {"deleted": segments, "messages": n, "unread": n, "new_log_start": offset | null, "done": bool}; done = false when the
-- batch was full and more may be deletable. unread counts the deleted messages that lay above the slowest cursor, or all of
-- them without a cursor; messages and unread are left out when nothing was deleted. Unknown partition: {"deleted":0,"new_log_start":null,"done":true}.
-- Leases are not consulted: rule 1 may delete under a lease, and the cursor resumes at the next existing offset.
-- Locks: the log_partitions row FOR NO KEY UPDATE, nothing else. oldest_live_at is corrected also when nothing is deleted, so
-- that a value that was too early costs one fruitless step and not one per cycle.
-- Called by: retention phase 1 (and 3 through log_evict_max_wait_step_v1).
CREATE OR REPLACE FUNCTION queen.log_retention_step_v1(
    p_pid UUID, p_all_cutoff TIMESTAMPTZ, p_completed_cutoff TIMESTAMPTZ, p_max_rows INT, p_history_type TEXT DEFAULT NULL)
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
DECLARE
    v_rows     INT := GREATEST(COALESCE(p_max_rows, 1), 1);
    v_start    BIGINT;
    v_oldest   TIMESTAMPTZ;
    v_horizon  BIGINT;
    v_boundary BIGINT;
    v_rule1    BIGINT;
    v_min_next BIGINT;
    v_max_base BIGINT;
    v_max_end  BIGINT;
    v_first_at TIMESTAMPTZ;
    v_deleted  INT;
    v_unread   BIGINT;
BEGIN
    SELECT p.log_start, p.oldest_live_at INTO v_start, v_oldest
      FROM queen.log_partitions p
     WHERE p.id = p_pid
       FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN jsonb_build_object('deleted', 0, 'new_log_start', NULL, 'done', TRUE);
    END IF;
    SELECT s.base_offset INTO v_horizon
      FROM queen.log_segments s
     WHERE s.partition_id = p_pid AND s.base_offset >= v_start
     ORDER BY s.base_offset
    OFFSET v_rows LIMIT 1;

    v_boundary := v_start;
    IF p_all_cutoff IS NOT NULL THEN
        v_boundary := GREATEST(v_boundary,
            queen.log_retention_boundary_windowed_v1(p_pid, v_start, p_all_cutoff, v_horizon));
    END IF;
    v_rule1 := v_boundary;
    IF p_completed_cutoff IS NOT NULL THEN
        SELECT min(c.committed) + 1 INTO v_min_next FROM queen.log_consumers c WHERE c.partition_id = p_pid;
        IF v_min_next > v_start THEN
            v_boundary := GREATEST(v_boundary, LEAST(v_min_next,
                queen.log_retention_boundary_windowed_v1(p_pid, v_start, p_completed_cutoff, v_horizon)));
        END IF;
    END IF;

    IF v_boundary > v_start THEN
        SELECT max(x.base_offset), max(x.end_offset) INTO v_max_base, v_max_end
          FROM (SELECT s.base_offset, s.end_offset
                  FROM queen.log_segments s
                 WHERE s.partition_id = p_pid AND s.base_offset >= v_start AND s.base_offset < v_boundary
                   AND s.end_offset < v_boundary
                 ORDER BY s.base_offset
                 LIMIT v_rows) x;
    END IF;
    IF v_max_base IS NULL THEN
        SELECT s.created_at INTO v_first_at
          FROM queen.log_segments s
         WHERE s.partition_id = p_pid AND s.base_offset >= v_start
         ORDER BY s.base_offset
         LIMIT 1;
        IF v_first_at IS DISTINCT FROM v_oldest THEN
            UPDATE queen.log_partitions p SET oldest_live_at = v_first_at WHERE p.id = p_pid;
        END IF;
        RETURN jsonb_build_object('deleted', 0, 'new_log_start', v_start, 'done', TRUE);
    END IF;

    SELECT v_max_end + 1 - LEAST(GREATEST(COALESCE(min(c.committed) + 1, v_start), v_start), v_max_end + 1) INTO v_unread
      FROM queen.log_consumers c
     WHERE c.partition_id = p_pid;
    DELETE FROM queen.log_segments s
     WHERE s.partition_id = p_pid AND s.base_offset >= v_start AND s.base_offset <= v_max_base;
    GET DIAGNOSTICS v_deleted = ROW_COUNT;
    DELETE FROM queen.log_traced t WHERE t.partition_id = p_pid AND t."offset" <= v_max_end;
    -- The end of the last segment deleted, not the boundary, which may lie inside the next segment.
    UPDATE queen.log_partitions p
       SET log_start = GREATEST(p.log_start, v_max_end + 1),
           oldest_live_at = (SELECT s.created_at
                               FROM queen.log_segments s
                              WHERE s.partition_id = p_pid AND s.base_offset > v_max_end
                              ORDER BY s.base_offset
                              LIMIT 1)
     WHERE p.id = p_pid;
    INSERT INTO queen.retention_history (partition_id, messages_deleted, retention_type)
    VALUES (p_pid, LEAST(v_max_end + 1 - v_start, 2147483647)::int,
            COALESCE(p_history_type, CASE WHEN v_boundary > v_rule1 THEN 'completed_retention' ELSE 'retention' END));
    RETURN jsonb_build_object('deleted', v_deleted, 'messages', v_max_end + 1 - v_start, 'unread', v_unread, 'new_log_start', v_max_end + 1,
                              'done', v_horizon IS NULL OR v_boundary < v_horizon);
END $$;

-- log_txns_purge_step_v1: delete up to p_max_rows sidecar rows older than p_cutoff from the head of one partition.
-- Never a row that an existing group still has to acknowledge: the boundary is clamped to GREATEST(log_start, min(committed) + 1),
-- or to log_start when the partition has no cursor. Without that floor a group that lags more than the window could never ack
-- by transaction id, and its batch would come back for ever. The price is 16 bytes per message not yet consumed.
-- Returns {"deleted": rows, "new_txns_start": offset | null, "done": bool}. NULL cutoff deletes nothing.
-- Locks: the log_partitions row FOR NO KEY UPDATE. Corrects oldest_txn_at as log_retention_step_v1 does oldest_live_at.
-- Called by: retention phase 2.
CREATE OR REPLACE FUNCTION queen.log_txns_purge_step_v1(p_pid UUID, p_cutoff TIMESTAMPTZ, p_max_rows INT)
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
DECLARE
    v_rows     INT := GREATEST(COALESCE(p_max_rows, 1), 1);
    v_start    BIGINT;
    v_floor    BIGINT;
    v_oldest   TIMESTAMPTZ;
    v_horizon  BIGINT;
    v_boundary BIGINT;
    v_max_base BIGINT;
    v_max_end  BIGINT;
    v_first_at TIMESTAMPTZ;
    v_deleted  INT;
BEGIN
    SELECT p.txns_start, p.log_start, p.oldest_txn_at INTO v_start, v_floor, v_oldest
      FROM queen.log_partitions p
     WHERE p.id = p_pid
       FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN jsonb_build_object('deleted', 0, 'new_txns_start', NULL, 'done', TRUE);
    END IF;
    SELECT GREATEST(v_floor, min(c.committed) + 1) INTO v_floor FROM queen.log_consumers c WHERE c.partition_id = p_pid;
    SELECT t.base_offset INTO v_horizon
      FROM queen.log_txns t
     WHERE t.partition_id = p_pid AND t.base_offset >= v_start
     ORDER BY t.base_offset
    OFFSET v_rows LIMIT 1;

    IF p_cutoff IS NOT NULL AND v_floor > v_start THEN
        v_boundary := LEAST(v_floor, COALESCE(
            (SELECT t.base_offset
               FROM queen.log_txns t
              WHERE t.partition_id = p_pid AND t.base_offset >= v_start
                AND t.base_offset < COALESCE(v_horizon, 9223372036854775807) AND t.created_at >= p_cutoff
              ORDER BY t.base_offset
              LIMIT 1),
            v_horizon, v_floor));
        SELECT max(x.base_offset), max(x.end_offset) INTO v_max_base, v_max_end
          FROM (SELECT t.base_offset, t.end_offset
                  FROM queen.log_txns t
                 WHERE t.partition_id = p_pid AND t.base_offset >= v_start AND t.base_offset < v_boundary
                   AND t.end_offset < v_boundary
                 ORDER BY t.base_offset
                 LIMIT v_rows) x;
    END IF;
    IF v_max_base IS NULL THEN
        SELECT t.created_at INTO v_first_at
          FROM queen.log_txns t
         WHERE t.partition_id = p_pid AND t.base_offset >= v_start
         ORDER BY t.base_offset
         LIMIT 1;
        IF v_first_at IS DISTINCT FROM v_oldest THEN
            UPDATE queen.log_partitions p SET oldest_txn_at = v_first_at WHERE p.id = p_pid;
        END IF;
        RETURN jsonb_build_object('deleted', 0, 'new_txns_start', v_start, 'done', TRUE);
    END IF;

    DELETE FROM queen.log_txns t
     WHERE t.partition_id = p_pid AND t.base_offset >= v_start AND t.base_offset <= v_max_base;
    GET DIAGNOSTICS v_deleted = ROW_COUNT;
    UPDATE queen.log_partitions p
       SET txns_start = GREATEST(p.txns_start, v_max_end + 1),
           oldest_txn_at = (SELECT t.created_at
                              FROM queen.log_txns t
                             WHERE t.partition_id = p_pid AND t.base_offset > v_max_end
                             ORDER BY t.base_offset
                             LIMIT 1)
     WHERE p.id = p_pid;
    RETURN jsonb_build_object('deleted', v_deleted, 'new_txns_start', v_max_end + 1,
                              'done', v_horizon IS NULL OR v_boundary < v_horizon);
END $$;

-- log_evict_max_wait_step_v1: delete what waited longer than the queue's maxWaitTimeSeconds, for every group, leased or not.
-- NULL cutoff deletes nothing. Nothing is dead-lettered. Result and locks: log_retention_step_v1. Called by: retention phase 3.
CREATE OR REPLACE FUNCTION queen.log_evict_max_wait_step_v1(p_pid UUID, p_cutoff TIMESTAMPTZ, p_max_rows INT)
RETURNS JSONB
LANGUAGE sql VOLATILE
AS $$ SELECT queen.log_retention_step_v1(p_pid, p_cutoff, NULL, p_max_rows, 'max_wait_time_eviction') $$;

-- log_partition_dead_v1: may this partition be removed? The one place that says so, for the scan and the check under the lock.
--   True when it was created and last written before p_cutoff, holds no segment, no dead letter and no stream state, and no
--   cursor is mid-batch or was active since p_cutoff. An expired lease and recorded traces are no veto. Unknown id: NULL.
-- Stream state is looked up query by query: its primary key starts with the query. Locks: none.
CREATE OR REPLACE FUNCTION queen.log_partition_dead_v1(p_pid UUID, p_cutoff TIMESTAMPTZ)
RETURNS BOOLEAN
LANGUAGE sql STABLE
AS $$
    SELECT p.created_at < p_cutoff AND p.last_write_at < p_cutoff
           AND NOT EXISTS (SELECT 1 FROM queen.log_segments s WHERE s.partition_id = p.id)
           AND NOT EXISTS (SELECT 1 FROM queen.log_dlq d WHERE d.partition_id = p.id)
           AND NOT EXISTS (SELECT 1 FROM queen_streams.queries q
                             JOIN queen_streams.state st ON st.query_id = q.id AND st.partition_id = p.id)
           AND NOT EXISTS (SELECT 1 FROM queen.log_consumers c
                            WHERE c.partition_id = p.id
                              AND ((c.batch_end IS NOT NULL
                                    AND (c.lease_expires_at IS NULL OR c.lease_expires_at > clock_timestamp()))
                                   OR c.lease_expires_at >= p_cutoff OR c.lease_acquired_at >= p_cutoff
                                   OR c.created_at >= p_cutoff))
      FROM queen.log_partitions p
     WHERE p.id = p_pid
$$;

-- log_partition_cleanup_step_v1: remove up to p_max_rows dead partitions; NULL acts as 1000, less than 1 as 1.
-- Returns {"deleted": n, "done": bool}; done = fewer candidates than asked for, or none survived the second look.
-- A partition whose oldest_live_at is set holds segments (or is about to be corrected by retention), so it is not even looked at.
-- Locks: log_partitions rows FOR UPDATE, ascending by id, SKIP LOCKED; the predicate is checked again in a new statement, which
-- sees what was committed before the lock. A push that found the partition just before fails loudly and creates it anew.
-- The caller treats a deadlock (40P01) as "next time". Called by: retention phase 4.
CREATE OR REPLACE FUNCTION queen.log_partition_cleanup_step_v1(p_cutoff TIMESTAMPTZ, p_max_rows INT)
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
DECLARE
    v_rows       INT := GREATEST(COALESCE(p_max_rows, 1000), 1);
    v_candidates UUID[];
    v_ids        UUID[];
BEGIN
    IF p_cutoff IS NULL THEN
        RETURN jsonb_build_object('deleted', 0, 'done', TRUE);
    END IF;
    SELECT array_agg(x.id) INTO v_candidates
      FROM (SELECT p.id
              FROM queen.log_partitions p
             WHERE p.created_at < p_cutoff AND p.last_write_at < p_cutoff AND p.oldest_live_at IS NULL
               AND queen.log_partition_dead_v1(p.id, p_cutoff)
             ORDER BY p.id
             LIMIT v_rows
               FOR UPDATE OF p SKIP LOCKED) x;
    SELECT array_agg(c.id ORDER BY c.id) INTO v_ids
      FROM unnest(v_candidates) AS c(id)
     WHERE queen.log_partition_dead_v1(c.id, p_cutoff);
    IF v_ids IS NULL THEN
        RETURN jsonb_build_object('deleted', 0, 'done', TRUE);
    END IF;
    DELETE FROM queen.log_txns t WHERE t.partition_id = ANY (v_ids);
    DELETE FROM queen.log_traced t WHERE t.partition_id = ANY (v_ids);
    INSERT INTO queen.retention_history (partition_id, messages_deleted, retention_type)
    SELECT c.id, 0, '__partition_deleted__' FROM unnest(v_ids) AS c(id);
    DELETE FROM queen.log_partitions p WHERE p.id = ANY (v_ids);
    RETURN jsonb_build_object('deleted', cardinality(v_ids), 'done', cardinality(v_candidates) < v_rows);
END $$;

GRANT EXECUTE ON FUNCTION queen.log_retention_boundary_v1(UUID, BIGINT, TIMESTAMPTZ) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_retention_boundary_windowed_v1(UUID, BIGINT, TIMESTAMPTZ, BIGINT) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_retention_step_v1(UUID, TIMESTAMPTZ, TIMESTAMPTZ, INT, TEXT) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_txns_purge_step_v1(UUID, TIMESTAMPTZ, INT) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_evict_max_wait_step_v1(UUID, TIMESTAMPTZ, INT) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_partition_dead_v1(UUID, TIMESTAMPTZ) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_partition_cleanup_step_v1(TIMESTAMPTZ, INT) TO PUBLIC;
