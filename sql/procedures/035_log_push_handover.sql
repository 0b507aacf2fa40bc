-- log_push_handover_v1: log_push_known_v1 that leases what it stores to pops which wait for it, in the same commit.
--   p_segments  for each lease wanted the segment that it is about, from 1; a segment may be named once for each group
--   p_takes     how many messages of it, from its first one on; more than it has acts as all
--   p_groups, p_workers, p_leases  consumer group, lease id, lease seconds
--   the rest    as in log_push_known_v1
-- Returns what that returns and o_leased, the leases made, as positions from 1; NULL for none. None are made when something had to be decided
-- segment by segment.
-- A lease is made only where the segment is all that the group has before it: its cursor stands right before the segment, on a row that nobody
-- holds, nothing of the partition is being counted towards max_deliveries, and the queue holds nothing back (delayed_processing, window_buffer).
-- Then the batch begins with the segment, which the caller has: nothing is read. Whatever is not leased is for the next pop to claim.
-- Sets of log_consumers what log_pop_ready_v1 does.
-- Locks: as log_push_known_v1, then log_consumers rows, SKIP LOCKED. Nothing is waited for while they are held, so that no deadlock can go
-- through them. Called by: pg.PushMulti. Plan test: TestPlanHandoverLooksRowsUp.
CREATE OR REPLACE FUNCTION queen.log_push_handover_v1(
    p_queues TEXT[], p_partitions TEXT[], p_counts INT[], p_hashes BYTEA[], p_verified INT8[], p_blobs BYTEA[],
    p_tenants UUID[], p_plain BOOLEAN[], p_pids UUID[], p_since TIMESTAMPTZ[],
    p_segments INT[], p_takes INT[], p_groups TEXT[], p_workers TEXT[], p_leases INT[],
    OUT o_ord INT[], OUT o_pids UUID[], OUT o_base INT8[], OUT o_created TIMESTAMPTZ[], OUT o_windows INT[],
    OUT o_status TEXT[], OUT o_detail JSONB[], OUT o_leased INT[])
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    v_now    TIMESTAMPTZ;
    v_stored RECORD;
BEGIN
    v_stored := queen.log_push_known_v1(p_queues, p_partitions, p_counts, p_hashes, p_verified, p_blobs, p_tenants, p_plain, p_pids, p_since);
    o_ord := v_stored.o_ord;
    o_pids := v_stored.o_pids;
    o_base := v_stored.o_base;
    o_created := v_stored.o_created;
    o_windows := v_stored.o_windows;
    o_status := v_stored.o_status;
    o_detail := v_stored.o_detail;
    IF o_base IS NULL OR o_ord IS NOT NULL THEN
        RETURN;
    END IF;
    v_now := clock_timestamp();
    WITH held AS MATERIALIZED (
        SELECT u.ord::INT AS ord, c.partition_id, c.consumer_group, u.worker, u.lease, o_base[u.seg] AS base,
               o_base[u.seg] + LEAST(u.take, p_counts[u.seg]) - 1 AS upto
          FROM unnest(p_segments, p_takes, p_groups, p_workers, p_leases) WITH ORDINALITY AS u(seg, take, grp, worker, lease, ord)
          JOIN queen.queues q ON q.tenant_id = p_tenants[u.seg] AND q.name = p_queues[u.seg]
          JOIN queen.log_consumers c ON c.partition_id = p_pids[u.seg] AND c.consumer_group = u.grp
         WHERE u.take >= 1
           AND COALESCE(q.delayed_processing, 0) <= 0 AND COALESCE(q.window_buffer, 0) <= 0
           AND c.committed = o_base[u.seg] - 1
           AND (c.worker_id IS NULL OR c.lease_expires_at IS NULL OR c.lease_expires_at <= v_now)
           AND COALESCE(GREATEST(c.batch_end, c.isolate_end, c.attempt_offset), c.committed) <= c.committed
           FOR UPDATE OF c SKIP LOCKED
    ), moved AS (
        UPDATE queen.log_consumers c
           SET worker_id = h.worker, lease_expires_at = v_now + make_interval(secs => h.lease), lease_acquired_at = v_now,
               batch_end = h.upto, attempt_count = 1, attempt_offset = h.base
          FROM held h
         WHERE c.partition_id = h.partition_id AND c.consumer_group = h.consumer_group
        RETURNING h.ord
    )
    SELECT array_agg(m.ord) INTO o_leased FROM moved m;
END $$;

GRANT EXECUTE ON FUNCTION queen.log_push_handover_v1(TEXT[], TEXT[], INT[], BYTEA[], INT8[], BYTEA[], UUID[], BOOLEAN[], UUID[], TIMESTAMPTZ[],
    INT[], INT[], TEXT[], TEXT[], INT[]) TO PUBLIC;
