-- Acknowledgement: cursor advance by offset and by transaction id, lease renewal, dead letters, and transactions.
--
-- Locks: an ack locks the (partition, group) consumer rows it names and nothing else, ascending (partition_id, consumer_group)
-- when there are several. A lease is checked only when the caller names a worker; it is live while the row's worker_id is that
-- worker and lease_expires_at has not passed. Clocks are read after the lock: a lease may run out while an ack waits for it.
-- Releasing a lease clears worker_id, lease_expires_at and batch_end and keeps lease_acquired_at (the group's last activity).
-- A redelivery that is to wait leaves a lease of worker '__retry__' without a batch (see queen.log_consumers). Whoever names that
-- worker is refused as the holder of a lost lease.

-- queen.log_dlq: one row per dead-lettered message and group, a snapshot that outlives the segment it came from (no foreign key).
--   "offset"     where the message lived; message_id, transaction_id, trace_id are its own
--   payload      the parsed form, NULL where JSONB cannot hold the payload; JSONB rewrites numbers and drops duplicate keys
--   payload_raw  the exact bytes: what readers prefer and what a replay pushes
--   retry_count  retry budget spent when the message was filed
--   encrypted    payload_raw is an envelope (and payload its parsed form), as the flag of the message said; NULL: filed by a build
--                that did not keep it
--   error_sealed the envelope of what the consumer of an encrypted message reported; error then says only that there is one
--   trace_context the span that pushed the message, as frames have it (25 bytes); NULL: there was none, or a build filed it that did not keep it
CREATE TABLE IF NOT EXISTS queen.log_dlq (
    id             UUID PRIMARY KEY DEFAULT gen_random_uuid(),
    partition_id   UUID NOT NULL,
    consumer_group TEXT NOT NULL,
    "offset"       BIGINT NOT NULL,
    message_id     UUID,
    transaction_id TEXT,
    payload        JSONB,
    error          TEXT,
    retry_count    INTEGER DEFAULT 0,
    failed_at      TIMESTAMPTZ NOT NULL DEFAULT now(),
    payload_raw    BYTEA,
    trace_id       UUID
);
DO $$ BEGIN
    IF NOT EXISTS (SELECT 1 FROM pg_catalog.pg_attribute
                    WHERE attrelid = 'queen.log_dlq'::regclass AND attname = 'encrypted' AND NOT attisdropped) THEN
        ALTER TABLE queen.log_dlq ADD COLUMN encrypted BOOLEAN, ADD COLUMN error_sealed BYTEA;
    END IF;
    IF NOT EXISTS (SELECT 1 FROM pg_catalog.pg_attribute
                    WHERE attrelid = 'queen.log_dlq'::regclass AND attname = 'trace_context' AND NOT attisdropped) THEN
        ALTER TABLE queen.log_dlq ADD COLUMN trace_context BYTEA;
    END IF;
    IF to_regclass('queen.idx_log_dlq_partition_failed_at') IS NULL THEN
        CREATE INDEX idx_log_dlq_partition_failed_at ON queen.log_dlq (partition_id, failed_at DESC);
    END IF;
END $$;

-- log_ack_positions_v1: the one positional ack; every other positional form is a call of it.
--   parallel arrays, one element per ack: p_oks false or NULL, or p_uptos NULL, releases the lease and leaves the cursor
--   p_uptos    last completed offset; p_counts messages completed, for the lifetime counter
-- Returns one row per input, r_ord counting from 1. Reaching batch_end resets retry and attempt state; stopping below it also
-- releases the lease, and the tail redelivers. The cursor never moves backwards.
-- Two elements of one (partition, group) act in input order: the first valid one releases the lease, later ones find it gone.
--   p_locked   the caller has locked every row that exists
-- Locks: the consumer rows, ascending (partition_id, consumer_group).
-- The settings leave primary key look-ups as the only plan: one chosen while the table was small would stay cached while it grows.
-- The plan is made once: planning these statements for every call costs three times what they cost for one row.
-- Called by: log_ack_at_v1, log_ack_multi_v1.
DROP FUNCTION IF EXISTS queen.log_ack_positions_v1(UUID[], TEXT[], TEXT[], BIGINT[], BOOLEAN[], INT[]);
CREATE OR REPLACE FUNCTION queen.log_ack_positions_v1(
    p_pids UUID[], p_groups TEXT[], p_workers TEXT[], p_uptos BIGINT[], p_oks BOOLEAN[], p_counts INT[],
    p_locked BOOLEAN DEFAULT FALSE)
RETURNS TABLE (r_ord BIGINT, r_ok BOOLEAN, r_acked BIGINT, r_error TEXT)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_now TIMESTAMPTZ;
BEGIN
    IF p_locked IS NOT TRUE THEN
        PERFORM 1
           FROM queen.log_consumers c
           JOIN (SELECT DISTINCT k.pid, k.grp FROM unnest(p_pids, p_groups) AS k (pid, grp)) k
             ON c.partition_id = k.pid AND c.consumer_group = k.grp
          ORDER BY c.partition_id, c.consumer_group  -- global lock order
            FOR UPDATE OF c;
    END IF;
    v_now := clock_timestamp();

    RETURN QUERY
    WITH judged AS MATERIALIZED (
        SELECT i.ord, i.pid, i.grp, i.worker, i.upto, i.advances, i.cnt,
               CASE WHEN c.partition_id IS NULL THEN 'consumer not found'
                    WHEN i.worker <> '' AND (c.worker_id IS DISTINCT FROM i.worker OR i.worker = '__retry__'
                                             OR c.lease_expires_at IS NULL OR c.lease_expires_at < v_now)
                        THEN 'invalid or expired lease'
                    WHEN i.advances AND c.batch_end IS NULL THEN 'no leased batch'
                    WHEN i.advances AND i.upto > c.batch_end THEN 'position beyond leased batch'
               END AS refusal
          FROM (SELECT a.ord, a.pid, a.grp, COALESCE(a.worker, '') AS worker, a.upto,
                       COALESCE(a.ok, FALSE) AND a.upto IS NOT NULL AS advances, GREATEST(a.cnt, 0)::BIGINT AS cnt
                  FROM unnest(p_pids, p_groups, p_workers, p_uptos, p_oks, p_counts)
                       WITH ORDINALITY AS a (pid, grp, worker, upto, ok, cnt, ord)) i
          LEFT JOIN queen.log_consumers c ON c.partition_id = i.pid AND c.consumer_group = i.grp
    ), ordered AS MATERIALIZED (
        SELECT j.*, min(j.ord) FILTER (WHERE j.refusal IS NULL) OVER (PARTITION BY j.pid, j.grp) AS winner
          FROM judged j
    ), applied AS (
        UPDATE queen.log_consumers c
           SET committed         = CASE WHEN o.advances THEN GREATEST(c.committed, o.upto) ELSE c.committed END,
               worker_id         = NULL,
               lease_expires_at  = NULL,
               batch_end         = NULL,
               total_consumed    = c.total_consumed + CASE WHEN o.advances THEN o.cnt ELSE 0 END,
               batch_retry_count = CASE WHEN o.advances AND GREATEST(c.committed, o.upto) >= c.batch_end THEN 0
                                        ELSE c.batch_retry_count END,
               attempt_count     = CASE WHEN o.advances AND GREATEST(c.committed, o.upto) >= c.batch_end THEN 0
                                        ELSE c.attempt_count END,
               attempt_offset    = CASE WHEN NOT o.advances THEN c.attempt_offset
                                        WHEN GREATEST(c.committed, o.upto) >= c.batch_end THEN NULL
                                        WHEN c.attempt_offset <= o.upto THEN GREATEST(c.committed, o.upto) + 1
                                        ELSE c.attempt_offset END
          FROM ordered o
         WHERE o.ord = o.winner AND c.partition_id = o.pid AND c.consumer_group = o.grp
    )
    SELECT f.ord, f.refusal IS NULL,
           CASE WHEN f.ord = f.winner AND f.advances THEN f.cnt ELSE 0 END,
           f.refusal
      FROM (SELECT o.ord, o.winner, o.advances, o.cnt,
                   CASE WHEN o.ord > o.winner THEN  -- what the same ack finds after the winner released the lease
                            CASE WHEN o.worker <> '' THEN 'invalid or expired lease'
                                 WHEN o.advances THEN 'no leased batch' END
                        ELSE o.refusal END AS refusal
              FROM ordered o) f
     ORDER BY f.ord;
END $$;

-- log_ack_at_v1: positional ack of one (partition, group), addressed by partition id.
--   p_worker   lease holder; empty or NULL skips the lease check
--   p_upto     last completed offset; NULL, or p_ok false, releases the lease: the whole batch redelivers
-- Returns {"ok":true,"acked":n} or {"ok":false,"error":text}; texts: consumer not found, invalid or expired lease,
-- no leased batch, position beyond leased batch. Locks: the consumer row.
-- Called by: log_ack_v1, log_transaction_wire_v1.
CREATE OR REPLACE FUNCTION queen.log_ack_at_v1(
    p_partition_id UUID, p_group TEXT, p_worker TEXT, p_upto BIGINT, p_ok BOOLEAN DEFAULT TRUE, p_acked_count INTEGER DEFAULT 0)
RETURNS JSONB
LANGUAGE sql VOLATILE
AS $$
    SELECT CASE WHEN a.r_ok THEN jsonb_build_object('ok', TRUE, 'acked', a.r_acked)
                ELSE jsonb_build_object('ok', FALSE, 'error', a.r_error) END
      FROM queen.log_ack_positions_v1(ARRAY[p_partition_id], ARRAY[p_group], ARRAY[p_worker], ARRAY[p_upto], ARRAY[p_ok],
                                      ARRAY[p_acked_count]) a
$$;

-- log_ack_v1: log_ack_at_v1 addressed by queue and partition name within a tenant.
-- Returns as log_ack_at_v1; {"ok":false,"error":"partition not found"} for an unknown name or another tenant's.
-- Locks: the consumer row. Called by: clients that know names only.
CREATE OR REPLACE FUNCTION queen.log_ack_v1(
    p_queue TEXT, p_partition TEXT, p_group TEXT, p_worker TEXT, p_upto BIGINT, p_ok BOOLEAN DEFAULT TRUE,
    p_acked_count INTEGER DEFAULT 0, p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_pid UUID;
BEGIN
    SELECT lp.id INTO v_pid
      FROM queen.queues q
      JOIN queen.log_partitions lp ON lp.queue_id = q.id AND lp.name = p_partition
     WHERE q.tenant_id = p_tenant AND q.name = p_queue;
    IF v_pid IS NULL THEN
        RETURN jsonb_build_object('ok', FALSE, 'error', 'partition not found');
    END IF;
    RETURN queen.log_ack_at_v1(v_pid, p_group, p_worker, p_upto, p_ok, p_acked_count);
END $$;

-- log_ack_multi_v1: many positional acks in one transaction, for ack fusion.
--   parallel arrays: p_pids partition ids as text (a malformed one fails the whole call), p_groups, p_ends last completed
--   offset, p_workers lease holder or empty, p_counts messages completed
-- Returns {"ok":true,"results":[{"ok","acked","error"}]} in input order; a refused row does not touch its neighbours.
-- A row that somebody else holds is not waited for but refused with "consumer is busy": acks of many callers travel together, and
-- one long transaction would hold up all of them. The caller acknowledges it by itself.
-- Arrays of different lengths raise QACKM. Locks: the consumer rows, ascending (partition_id, consumer_group), SKIP LOCKED.
-- The settings: as log_ack_positions_v1. Called by: brokers that do not know log_ack_batches_v1.
CREATE OR REPLACE FUNCTION queen.log_ack_multi_v1(p_pids TEXT[], p_groups TEXT[], p_ends BIGINT[], p_workers TEXT[], p_counts INT[])
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_n         INT := COALESCE(cardinality(p_pids), 0);
    v_consumers BIGINT;
    v_held      TEXT[];
    v_free      BOOLEAN[];  -- parallel to the input: nobody else holds the row, or there is none
BEGIN
    IF v_n <> COALESCE(cardinality(p_groups), 0) OR v_n <> COALESCE(cardinality(p_ends), 0)
       OR v_n <> COALESCE(cardinality(p_workers), 0) OR v_n <> COALESCE(cardinality(p_counts), 0) THEN
        RAISE EXCEPTION 'QACKM misaligned arrays: % partitions, % groups, % ends, % workers, % counts', v_n,
            COALESCE(cardinality(p_groups), 0), COALESCE(cardinality(p_ends), 0),
            COALESCE(cardinality(p_workers), 0), COALESCE(cardinality(p_counts), 0)
            USING ERRCODE = 'QU003';
    END IF;
    SELECT count(*), COALESCE(array_agg(h.key), '{}') INTO v_consumers, v_held
      FROM (SELECT c.partition_id::TEXT || c.consumer_group AS key
              FROM queen.log_consumers c
              JOIN (SELECT DISTINCT k.pid::UUID AS pid, k.grp FROM unnest(p_pids, p_groups) AS k (pid, grp)) k
                ON c.partition_id = k.pid AND c.consumer_group = k.grp
             ORDER BY c.partition_id, c.consumer_group  -- global lock order
               FOR UPDATE OF c SKIP LOCKED) h;
    IF v_consumers < v_n THEN  -- several acks of one consumer, unknown consumers, or busy ones
        v_free := ARRAY(
            SELECT a.pid::UUID::TEXT || a.grp = ANY (v_held)
                   OR NOT EXISTS (SELECT 1 FROM queen.log_consumers c WHERE c.partition_id = a.pid::UUID AND c.consumer_group = a.grp)
              FROM unnest(p_pids, p_groups) WITH ORDINALITY AS a (pid, grp, ord)
             ORDER BY a.ord);
    END IF;
    IF FALSE = ANY (v_free) THEN
        RETURN (
            WITH input AS (
                SELECT a.*, row_number() OVER (PARTITION BY a.free ORDER BY a.ord) AS n
                  FROM unnest(p_pids, p_groups, p_workers, p_ends, p_counts, v_free)
                       WITH ORDINALITY AS a (pid, grp, worker, upto, cnt, free, ord)
            ), acked AS (
                SELECT a.*
                  FROM (SELECT array_agg(i.pid::UUID ORDER BY i.n) AS pids, array_agg(i.grp ORDER BY i.n) AS groups,
                               array_agg(i.worker ORDER BY i.n) AS workers, array_agg(i.upto ORDER BY i.n) AS uptos,
                               array_agg(i.cnt ORDER BY i.n) AS counts, array_agg(TRUE) AS oks
                          FROM input i WHERE i.free) f
                 CROSS JOIN LATERAL queen.log_ack_positions_v1(f.pids, f.groups, f.workers, f.uptos, f.oks, f.counts, TRUE) a
            )
            SELECT jsonb_build_object('ok', TRUE, 'results', jsonb_agg(
                       jsonb_build_object('ok', COALESCE(a.r_ok, FALSE), 'acked', COALESCE(a.r_acked, 0),
                                          'error', CASE WHEN i.free THEN a.r_error ELSE 'consumer is busy' END)
                       ORDER BY i.ord))
              FROM input i
              LEFT JOIN acked a ON i.free AND a.r_ord = i.n);
    END IF;
    RETURN (
        SELECT jsonb_build_object('ok', TRUE, 'results', COALESCE(
                   jsonb_agg(jsonb_build_object('ok', a.r_ok, 'acked', a.r_acked, 'error', a.r_error)
                                        ORDER BY a.r_ord), '[]'::jsonb))
          FROM queen.log_ack_positions_v1(p_pids::UUID[], p_groups, p_workers, p_ends,
                                          array_fill(TRUE, ARRAY[v_n]), p_counts, TRUE) a);
END $$;

-- log_ack_batches_v1: log_ack_multi_v1 for acks that all complete something, without JSON and with one statement when none is refused.
--   p_pids, p_groups, p_ends, p_workers, p_counts
--             as there, partition ids as such; p_ends without NULLs
-- Returns one row for each ack that was refused: r_ord counts from 1, r_error is log_ack_multi_v1's. What is not there was accepted.
-- Arrays of different lengths raise QACKM. Locks: the consumer rows, ascending (partition_id, consumer_group), SKIP LOCKED: nothing is
-- waited for, so that the clock may be read before.
-- The settings: as log_ack_positions_v1. Called by: pg.AckMulti. Plan test: TestPlanAckBatchesLooksRowsUp.
CREATE OR REPLACE FUNCTION queen.log_ack_batches_v1(p_pids UUID[], p_groups TEXT[], p_ends BIGINT[], p_workers TEXT[], p_counts INT[])
RETURNS TABLE (r_ord BIGINT, r_error TEXT)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_now  TIMESTAMPTZ := clock_timestamp();
    v_n    INT := COALESCE(cardinality(p_pids), 0);
    v_done BIGINT[];  -- accepted
    v_held BIGINT[];  -- whose row this call has locked
    v_why  TEXT[];    -- parallel to v_held: what is wrong with it, NULL when nothing is
BEGIN
    IF v_n <> COALESCE(cardinality(p_groups), 0) OR v_n <> COALESCE(cardinality(p_ends), 0)
       OR v_n <> COALESCE(cardinality(p_workers), 0) OR v_n <> COALESCE(cardinality(p_counts), 0) THEN
        RAISE EXCEPTION 'QACKM misaligned arrays: % partitions, % groups, % ends, % workers, % counts', v_n,
            COALESCE(cardinality(p_groups), 0), COALESCE(cardinality(p_ends), 0),
            COALESCE(cardinality(p_workers), 0), COALESCE(cardinality(p_counts), 0)
            USING ERRCODE = 'QU003';
    END IF;
    WITH held AS MATERIALIZED (
        SELECT a.ord, a.pid, a.grp, a.worker, a.upto, GREATEST(a.cnt, 0)::BIGINT AS cnt, c.worker_id, c.lease_expires_at, c.batch_end
          FROM unnest(p_pids, p_groups, p_ends, p_workers, p_counts) WITH ORDINALITY AS a (pid, grp, upto, worker, cnt, ord)
          JOIN queen.log_consumers c ON c.partition_id = a.pid AND c.consumer_group = a.grp
         ORDER BY c.partition_id, c.consumer_group, a.ord  -- global lock order
           FOR UPDATE OF c SKIP LOCKED
    ), judged AS MATERIALIZED (
        SELECT h.*,
               CASE WHEN h.worker <> '' AND (h.worker_id IS DISTINCT FROM h.worker OR h.worker = '__retry__'
                                             OR h.lease_expires_at IS NULL OR h.lease_expires_at < v_now)
                        THEN 'invalid or expired lease'
                    WHEN h.batch_end IS NULL THEN 'no leased batch'
                    WHEN h.upto > h.batch_end THEN 'position beyond leased batch'
               END AS refusal
          FROM held h
    ), moved AS (
        UPDATE queen.log_consumers c
           SET committed         = GREATEST(c.committed, o.upto),
               worker_id         = NULL,
               lease_expires_at  = NULL,
               batch_end         = NULL,
               total_consumed    = c.total_consumed + o.cnt,
               batch_retry_count = CASE WHEN GREATEST(c.committed, o.upto) >= c.batch_end THEN 0 ELSE c.batch_retry_count END,
               attempt_count     = CASE WHEN GREATEST(c.committed, o.upto) >= c.batch_end THEN 0 ELSE c.attempt_count END,
               attempt_offset    = CASE WHEN GREATEST(c.committed, o.upto) >= c.batch_end THEN NULL
                                        WHEN c.attempt_offset <= o.upto THEN GREATEST(c.committed, o.upto) + 1
                                        ELSE c.attempt_offset END
          FROM (SELECT DISTINCT ON (j.pid, j.grp) j.ord, j.pid, j.grp, j.upto, j.cnt
                  FROM judged j
                 WHERE j.refusal IS NULL
                 ORDER BY j.pid, j.grp, j.ord) o  -- the first one releases the lease
         WHERE c.partition_id = o.pid AND c.consumer_group = o.grp
        RETURNING o.ord
    )
    SELECT (SELECT array_agg(m.ord) FROM moved m), array_agg(j.ord), array_agg(j.refusal) INTO v_done, v_held, v_why FROM judged j;
    IF cardinality(v_done) = v_n THEN
        RETURN;
    END IF;
    RETURN QUERY
        SELECT a.ord,
               CASE WHEN EXISTS (SELECT FROM unnest(v_done) AS d (ord) WHERE d.ord < a.ord AND p_pids[d.ord] = a.pid AND p_groups[d.ord] = a.grp)
                        THEN CASE WHEN a.worker <> '' THEN 'invalid or expired lease' ELSE 'no leased batch' END  -- an earlier one released it
                    WHEN h.ord IS NOT NULL THEN h.why
                    WHEN EXISTS (SELECT FROM queen.log_consumers c WHERE c.partition_id = a.pid AND c.consumer_group = a.grp)
                        THEN 'consumer is busy'
                    ELSE 'consumer not found' END
          FROM unnest(p_pids, p_groups, p_workers) WITH ORDINALITY AS a (pid, grp, worker, ord)
          LEFT JOIN unnest(v_held, v_why) AS h (ord, why) ON h.ord = a.ord
         WHERE a.ord <> ALL (COALESCE(v_done, '{}'))
         ORDER BY a.ord;
END $$;

-- log_find_hashes_v1: where the given hashes occur in the sidecar rows whose base_offset lies in [p_from, p_to].
--   p_hashes   distinct 16-byte hashes
-- Returns one row per occurrence, unordered. A row is split into strides only when it may hold a wanted hash: with few hashes a
-- byte search over the whole row (which can only err on the yes side) costs a hundredth of splitting it.
-- Takes no lock. Called by: log_ack_by_hash_v1, log_ack_completed_v1.
CREATE OR REPLACE FUNCTION queen.log_find_hashes_v1(p_partition_id UUID, p_hashes BYTEA[], p_from BIGINT, p_to BIGINT)
RETURNS TABLE (r_hash BYTEA, r_off BIGINT)
LANGUAGE sql STABLE
AS $$
    SELECT o.h, o.off
      FROM (SELECT u.h, d.base_offset + u.idx AS off
              FROM (SELECT t.base_offset, t.hashes || ''::BYTEA AS hashes  -- fetched once; OFFSET 0 keeps it so
                      FROM queen.log_txns t
                     WHERE t.partition_id = p_partition_id AND t.base_offset BETWEEN p_from AND p_to
                    OFFSET 0) d
             CROSS JOIN LATERAL queen.log_unnest_hashes(d.hashes) u
             WHERE cardinality(p_hashes) > 8
                OR EXISTS (SELECT 1 FROM unnest(p_hashes) AS m (h) WHERE position(m.h IN d.hashes) > 0)
            OFFSET 0) o  -- so that the join carries strides, not a copy of the whole row for each of them
      JOIN unnest(p_hashes) AS w (h) ON w.h = o.h
$$;

-- log_ack_by_hash_v1: acknowledge messages of one (partition, group) by transaction-id hash. The authoritative ack.
--   p_worker    lease holder; empty or NULL skips the lease check
--   p_hashes    16 bytes each; p_statuses parallel to it, NULL = all completed. completed, success, acked, ok and '' complete;
--               failed, retry and dlq are signals; any other word has no effect
-- Each item is mapped to an offset: the k-th item of a hash to its k-th occurrence after the cursor (inside the leased batch when
-- there is one), items beyond the last occurrence to the last one. The lowest signal is the head; at one offset dlq > failed >
-- retry. The cursor moves to the greatest completed offset below the head: lower messages that nobody mentioned are completed
-- with it, and a signal is never skipped.
--   p_delays    parallel too, NULL = none: milliseconds before redelivery, at most a day; NULL or below 0 says nothing
-- A head that releases the batch (a failed within the retry limit, a retry) keeps it away for the delay of its item; a failed one
-- that says nothing for the queue's redelivery_delay_ms. Of several items that are the head the longest delay counts.
-- Returns {"ok":false,"error"} (consumer not found, invalid or expired lease) or {"ok":true,"acked":offsets passed,
-- "leaseReleased","signalIgnored","noopHashes","staleHashes","unresolvedHashes"} with
--   "delayMs"   the redelivery waits that long; absent when it does not wait
--   "off"       the cursor, or the poison offset for dlq
--   "dlq"       file the message at "off" with log_dlq_head_v1 as "worker"; the lease is kept until then
--   "dropped"   the retry budget is spent and dead-lettering is off: the message at "off" was skipped
--   noopHashes  completed items at or below the cursor; staleHashes signals there; unresolvedHashes items found nowhere
-- Raises QACK when the arrays differ in length.
-- Reads of the sidecar start at the row that covers the cursor and end at the row that holds batch_end. Without a leased batch
-- they go on upwards, for hashes not found they go on downwards, in windows, until nothing is missing.
-- Locks: the consumer row. Called by: pg.AckByHash, log_transaction_wire_v1.
-- Plan test: TestPlanAckByHashReadsOnlyTheLeasedSpan.
DROP FUNCTION IF EXISTS queen.log_ack_by_hash_v1(UUID, TEXT, TEXT, BYTEA[], TEXT[]);
CREATE OR REPLACE FUNCTION queen.log_ack_by_hash_v1(
    p_partition_id UUID, p_group TEXT, p_worker TEXT, p_hashes BYTEA[], p_statuses TEXT[], p_delays INTEGER[] DEFAULT NULL)
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off  -- as above
AS $$
DECLARE
    c_ok     CONSTANT TEXT[] := ARRAY['completed', 'success', 'acked', 'ok'];
    c_signal CONSTANT TEXT[] := ARRAY['dlq', 'failed', 'retry'];  -- strongest first
    v_row          queen.log_consumers%ROWTYPE;
    v_has_lease    BOOLEAN;
    v_retry_limit  INT;
    v_dlq_on       BOOLEAN;
    v_lo           BIGINT;    -- first offset an item may act on
    v_from         BIGINT;    -- window of sidecar rows, by base_offset
    v_to           BIGINT;
    v_window       INT := 16;
    v_wanted       BYTEA[];   -- distinct hashes still looked for
    v_distinct     INT;       -- how many there were at first
    v_seen         BYTEA[];
    v_found_hash   BYTEA[] := '{}'::BYTEA[];
    v_found_off    BIGINT[] := '{}'::BIGINT[];
    v_offs         BIGINT[];  -- offset of each item, NULL where there is none
    v_poison       BIGINT;    -- offset of the head signal
    v_signal       TEXT;
    v_max_ok       BIGINT;
    v_missing      BYTEA[];   -- items without an offset, input order
    v_missing_word TEXT[];
    v_below        BYTEA[] := '{}'::BYTEA[];
    v_cursor       BIGINT;    -- the new cursor
    v_acked        BIGINT;
    v_retry        INT;
    v_reset        BOOLEAN := FALSE;  -- the head of the batch is done: retry and attempt state start anew
    v_released     BOOLEAN := FALSE;
    v_delay        INT := 0;  -- ms that the released batch stays away
    v_queue_delay  INT;
    v_said_delay   INT;       -- by the head
    v_lists        JSONB := '{"noopHashes":[],"staleHashes":[],"unresolvedHashes":[]}'::JSONB;
    v_result       JSONB;
BEGIN
    IF p_statuses IS NOT NULL AND cardinality(p_statuses) <> COALESCE(cardinality(p_hashes), 0) THEN
        RAISE EXCEPTION 'QACK misaligned arrays: % hashes, % statuses',
            COALESCE(cardinality(p_hashes), 0), cardinality(p_statuses) USING ERRCODE = 'QU003';
    END IF;
    IF p_delays IS NOT NULL AND cardinality(p_delays) <> COALESCE(cardinality(p_hashes), 0) THEN
        RAISE EXCEPTION 'QACK misaligned arrays: % hashes, % delays',
            COALESCE(cardinality(p_hashes), 0), cardinality(p_delays) USING ERRCODE = 'QU003';
    END IF;

    SELECT * INTO v_row FROM queen.log_consumers c
     WHERE c.partition_id = p_partition_id AND c.consumer_group = p_group
       FOR UPDATE;
    IF NOT FOUND THEN
        RETURN jsonb_build_object('ok', FALSE, 'error', 'consumer not found');
    END IF;
    IF p_worker <> '' AND (v_row.worker_id IS DISTINCT FROM p_worker OR p_worker = '__retry__' OR v_row.lease_expires_at IS NULL
                           OR v_row.lease_expires_at < clock_timestamp()) THEN
        RETURN jsonb_build_object('ok', FALSE, 'error', 'invalid or expired lease');
    END IF;
    v_has_lease := v_row.batch_end IS NOT NULL;

    SELECT GREATEST(v_row.committed + 1, lp.txns_start), COALESCE(q.retry_limit, 3),
           COALESCE(q.dead_letter_queue, TRUE) OR COALESCE(q.dlq_after_max_retries, TRUE), q.redelivery_delay_ms
      INTO v_lo, v_retry_limit, v_dlq_on, v_queue_delay
      FROM queen.log_partitions lp
      JOIN queen.queues q ON q.id = lp.queue_id
     WHERE lp.id = p_partition_id;

    -- Occurrences at or above v_lo. Ranges ascend with base_offset, so the row that covers v_lo is the last one that starts at
    -- or below it.
    v_wanted := ARRAY(SELECT DISTINCT w.h FROM unnest(p_hashes) AS w (h) WHERE w.h IS NOT NULL);
    v_distinct := cardinality(v_wanted);
    v_from := COALESCE((SELECT t.base_offset FROM queen.log_txns t
                         WHERE t.partition_id = p_partition_id AND t.base_offset <= v_lo
                         ORDER BY t.base_offset DESC LIMIT 1), v_lo);
    WHILE cardinality(v_wanted) > 0 LOOP
        IF v_has_lease THEN
            v_to := v_row.batch_end;
        ELSE
            SELECT max(w.base_offset) INTO v_to
              FROM (SELECT t.base_offset FROM queen.log_txns t
                     WHERE t.partition_id = p_partition_id AND t.base_offset >= v_from
                     ORDER BY t.base_offset LIMIT v_window) w;
            EXIT WHEN v_to IS NULL;
        END IF;
        SELECT v_found_hash || COALESCE(array_agg(f.r_hash), '{}'),
               v_found_off || COALESCE(array_agg(f.r_off), '{}')
          INTO v_found_hash, v_found_off
          FROM queen.log_find_hashes_v1(p_partition_id, v_wanted, v_from, v_to) f
         WHERE f.r_off >= v_lo AND (NOT v_has_lease OR f.r_off <= v_row.batch_end);
        EXIT WHEN v_has_lease;
        -- Without a leased batch the tail is open: stop as soon as every item has an occurrence of its own.
        v_wanted := ARRAY(
            SELECT i.h
              FROM (SELECT w.h, count(*) AS n FROM unnest(p_hashes) AS w (h) WHERE w.h IS NOT NULL
                     GROUP BY w.h) i
              LEFT JOIN (SELECT f.h, count(*) AS n FROM unnest(v_found_hash) AS f (h) GROUP BY f.h) o
                ON o.h = i.h
             WHERE COALESCE(o.n, 0) < i.n);
        v_from := v_to + 1;
        v_window := LEAST(v_window * 2, 1024);
    END LOOP;

    -- The offset of every item. Mostly each id occurs once on both sides, which one join settles; it has more rows than there are
    -- items when an id has several occurrences.
    IF v_distinct = cardinality(p_hashes) THEN
        v_offs := ARRAY(SELECT f.off
                          FROM unnest(p_hashes) WITH ORDINALITY AS a (h, ord)
                          LEFT JOIN unnest(v_found_hash, v_found_off) AS f (h, off) ON f.h = a.h
                         ORDER BY a.ord);
    END IF;
    IF cardinality(v_offs) IS DISTINCT FROM cardinality(p_hashes) THEN
        WITH found AS MATERIALIZED (
            SELECT f.h, f.off, row_number() OVER (PARTITION BY f.h ORDER BY f.off) AS k
              FROM unnest(v_found_hash, v_found_off) AS f (h, off)
        )
        SELECT array_agg(o.off ORDER BY r.ord) INTO v_offs
          FROM (SELECT a.ord, a.h, row_number() OVER (PARTITION BY a.h ORDER BY a.ord) AS k
                  FROM unnest(p_hashes) WITH ORDINALITY AS a (h, ord)) r
          LEFT JOIN (SELECT f.h, count(*) AS n FROM found f GROUP BY f.h) t ON t.h = r.h
          LEFT JOIN found o ON o.h = r.h AND o.k = LEAST(r.k, t.n);
    END IF;

    WITH item AS MATERIALIZED (
        SELECT a.ord, a.h, a.off, COALESCE(NULLIF(a.s, ''), 'completed') AS word, CASE WHEN a.delay >= 0 THEN a.delay END AS delay
          FROM unnest(p_hashes, p_statuses, v_offs, p_delays) WITH ORDINALITY AS a (h, s, off, delay, ord)
    ), head AS MATERIALIZED (
        SELECT i.off, i.word, i.delay FROM item i
         WHERE i.off IS NOT NULL AND i.word = ANY (c_signal)
         ORDER BY i.off, array_position(c_signal, i.word), i.delay DESC NULLS LAST LIMIT 1
    )
    SELECT (SELECT h.off FROM head h), (SELECT h.word FROM head h), (SELECT h.delay FROM head h),
           max(i.off) FILTER (WHERE i.word = ANY (c_ok)
                                           AND i.off < COALESCE((SELECT h.off FROM head h), 9223372036854775807)),
           COALESCE(array_agg(i.h ORDER BY i.ord) FILTER (WHERE i.off IS NULL), '{}'),
           COALESCE(array_agg(i.word ORDER BY i.ord) FILTER (WHERE i.off IS NULL), '{}')
      INTO v_poison, v_signal, v_said_delay, v_max_ok, v_missing, v_missing_word
      FROM item i;

    IF cardinality(v_missing) > 0 THEN
        -- Completed long ago, or never pushed? Walk down from the cursor until every missing hash is found or the sidecar ends.
        v_wanted := ARRAY(SELECT DISTINCT m.h FROM unnest(v_missing) AS m (h) WHERE m.h IS NOT NULL);
        v_to := v_row.committed;
        v_window := 16;
        WHILE cardinality(v_wanted) > 0 LOOP
            SELECT min(w.base_offset) INTO v_from
              FROM (SELECT t.base_offset FROM queen.log_txns t
                     WHERE t.partition_id = p_partition_id AND t.base_offset <= v_to
                     ORDER BY t.base_offset DESC LIMIT v_window) w;
            EXIT WHEN v_from IS NULL;
            v_seen := ARRAY(SELECT DISTINCT f.r_hash FROM queen.log_find_hashes_v1(p_partition_id, v_wanted, v_from, v_to) f
                             WHERE f.r_off <= v_row.committed);
            IF cardinality(v_seen) > 0 THEN
                v_below := v_below || v_seen;
                v_wanted := ARRAY(SELECT w.h FROM unnest(v_wanted) AS w (h)
                                   EXCEPT SELECT s.h FROM unnest(v_seen) AS s (h));
            END IF;
            v_to := v_from - 1;
            v_window := LEAST(v_window * 2, 1024);
        END LOOP;
        SELECT jsonb_build_object(
                   'noopHashes', COALESCE(jsonb_agg(m.hex ORDER BY m.ord)
                                          FILTER (WHERE m.below AND m.word = ANY (c_ok)), '[]'::jsonb),
                   'staleHashes', COALESCE(jsonb_agg(m.hex ORDER BY m.ord)
                                           FILTER (WHERE m.below AND m.word = ANY (c_signal)), '[]'::jsonb),
                   'unresolvedHashes', COALESCE(jsonb_agg(m.hex ORDER BY m.ord)
                                                FILTER (WHERE NOT m.below), '[]'::jsonb))
          INTO v_lists
          FROM (SELECT x.ord, x.word, COALESCE(encode(x.h, 'hex'), '') AS hex, b.h IS NOT NULL AS below
                  FROM unnest(v_missing, v_missing_word) WITH ORDINALITY AS x (h, word, ord)
                  LEFT JOIN unnest(v_below) AS b (h) ON b.h = x.h) m;
    END IF;

    v_cursor := COALESCE(v_max_ok, v_row.committed);
    v_acked := v_cursor - v_row.committed;
    v_retry := v_row.batch_retry_count;
    v_result := jsonb_build_object('ok', TRUE, 'acked', v_acked, 'off', v_cursor);

    IF v_poison IS NOT NULL AND v_has_lease THEN
        IF v_signal = 'retry' THEN
            v_released := TRUE;
            v_delay := COALESCE(v_said_delay, 0);
        ELSIF v_signal = 'failed' AND v_row.batch_retry_count < v_retry_limit THEN
            v_released := TRUE;
            v_retry := v_retry + 1;
            v_delay := COALESCE(v_said_delay, v_queue_delay);
        ELSIF v_signal = 'dlq' OR v_dlq_on THEN
            -- The lease stays: only its holder may file the message, and if nobody does it expires and the batch redelivers.
            v_result := v_result || jsonb_build_object('dlq', TRUE, 'partitionId', p_partition_id,
                'group', p_group, 'worker', v_row.worker_id, 'off', v_poison);
        ELSE
            v_cursor := v_poison;
            v_released := TRUE;
            v_reset := TRUE;
            v_result := v_result || jsonb_build_object('dropped', TRUE, 'off', v_poison);
        END IF;
    ELSIF v_poison IS NULL AND v_has_lease AND v_cursor >= v_row.batch_end THEN
        v_released := TRUE;
        v_reset := TRUE;
    END IF;

    IF v_delay > 0 THEN
        v_delay := LEAST(v_delay, 86400000);
        v_result := v_result || jsonb_build_object('delayMs', v_delay);
    END IF;
    IF v_released OR v_cursor > v_row.committed THEN
        UPDATE queen.log_consumers c
           SET committed         = v_cursor,
               worker_id         = CASE WHEN v_delay > 0 THEN '__retry__' WHEN NOT v_released THEN c.worker_id END,
               lease_expires_at  = CASE WHEN v_delay > 0 THEN clock_timestamp() + make_interval(secs => v_delay / 1000.0)
                                        WHEN NOT v_released THEN c.lease_expires_at END,
               batch_end         = CASE WHEN v_released THEN NULL ELSE c.batch_end END,
               batch_retry_count = CASE WHEN v_reset THEN 0 ELSE v_retry END,
               attempt_count     = CASE WHEN v_reset THEN 0 ELSE c.attempt_count END,
               -- the first offset that is still to be done inherits the count of its deliveries
               attempt_offset    = CASE WHEN v_reset THEN NULL
                                        WHEN v_cursor > c.committed AND c.attempt_offset <= v_cursor THEN v_cursor + 1
                                        ELSE c.attempt_offset END,
               total_consumed    = c.total_consumed + v_acked + CASE WHEN v_result ? 'dropped' THEN 1 ELSE 0 END
         WHERE c.partition_id = p_partition_id AND c.consumer_group = p_group;
    END IF;

    RETURN v_result || v_lists || jsonb_build_object('leaseReleased', v_released,
        'signalIgnored', v_poison IS NOT NULL AND NOT v_has_lease);
END $$;

-- log_ack_completed_v1: which of these messages lie at or below the cursor of (partition, group).
--   p_hashes   16 bytes each, any order, repetitions allowed
-- An ack whose answer got lost is sent again when its lease is over. It is a repetition, not a late ack, when its messages are
-- completed. Returns the distinct hashes found, NULL for none. Looks at the newest 2,032 segments only: a repetition comes soon, and
-- a message that is older is reported as one whose lease is lost, which is true as well.
-- Takes no lock: a cursor that moves on meanwhile only completes more. Called by: pg.CompletedBefore.
CREATE OR REPLACE FUNCTION queen.log_ack_completed_v1(p_partition_id UUID, p_group TEXT, p_hashes BYTEA[])
RETURNS BYTEA[]
LANGUAGE plpgsql STABLE
SET enable_seqscan = off
AS $$
DECLARE
    v_committed BIGINT;
    v_from      BIGINT;
    v_to        BIGINT;
    v_window    INT := 16;
    v_wanted    BYTEA[];
    v_seen      BYTEA[];
    v_found     BYTEA[];
BEGIN
    SELECT c.committed INTO v_committed FROM queen.log_consumers c
     WHERE c.partition_id = p_partition_id AND c.consumer_group = p_group;
    v_to := v_committed;
    v_wanted := ARRAY(SELECT DISTINCT w.h FROM unnest(p_hashes) AS w (h) WHERE w.h IS NOT NULL);
    WHILE cardinality(v_wanted) > 0 AND v_window <= 1024 LOOP
        SELECT min(w.base_offset) INTO v_from
          FROM (SELECT t.base_offset FROM queen.log_txns t
                 WHERE t.partition_id = p_partition_id AND t.base_offset <= v_to
                 ORDER BY t.base_offset DESC LIMIT v_window) w;
        EXIT WHEN v_from IS NULL;
        v_seen := ARRAY(SELECT DISTINCT f.r_hash FROM queen.log_find_hashes_v1(p_partition_id, v_wanted, v_from, v_to) f
                         WHERE f.r_off <= v_committed);
        v_found := v_found || v_seen;
        v_wanted := ARRAY(SELECT w.h FROM unnest(v_wanted) AS w (h) EXCEPT SELECT s.h FROM unnest(v_seen) AS s (h));
        v_to := v_from - 1;
        v_window := v_window * 2;
    END LOOP;
    RETURN NULLIF(v_found, '{}');
END $$;

-- log_renew_lease_v1: lengthen every live lease of one worker.
--   p_worker   lease holder, as given at pop; empty or NULL renews nothing
--   p_seconds  at least 1 (less counts as 1); the new expiry is now + p_seconds, never earlier than the old one
-- Returns {"renewed":n,"expiresAt":smallest new expiry | null}; n = 0 when nothing was live: the batch is gone.
-- Locks: the worker's log_consumers rows, ascending (partition_id, consumer_group).
-- Called by: pg.RenewLease. Plan test: TestPlanRenewLeaseUsesWorkerIndex.
CREATE OR REPLACE FUNCTION queen.log_renew_lease_v1(p_worker TEXT, p_seconds INTEGER)
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_custom_plan  -- a plan that walks the primary key of a small table must not stay when it grows
AS $$
DECLARE
    v_now    TIMESTAMPTZ := clock_timestamp();
    v_result JSONB;
BEGIN
    IF COALESCE(p_worker, '') IN ('', '__retry__') THEN  -- a delay is nobody's to lengthen
        RETURN jsonb_build_object('renewed', 0, 'expiresAt', NULL);
    END IF;
    PERFORM 1 FROM queen.log_consumers c
      WHERE c.worker_id = p_worker AND c.lease_expires_at >= v_now
      ORDER BY c.partition_id, c.consumer_group  -- global lock order
        FOR UPDATE;
    v_now := clock_timestamp();  -- a lease that ran out while this waited is not revived
    WITH renewed AS (
        UPDATE queen.log_consumers c
           SET lease_expires_at = GREATEST(c.lease_expires_at, v_now + make_interval(secs => GREATEST(p_seconds, 1)))
         WHERE c.worker_id = p_worker AND c.lease_expires_at >= v_now
        RETURNING c.lease_expires_at
    )
    SELECT jsonb_build_object('renewed', count(*),
                                         'expiresAt', queen.iso_us_v1(min(r.lease_expires_at)))
      INTO v_result FROM renewed r;
    RETURN v_result;
END $$;

-- log_dlq_head_v1: file one message as a dead letter and move the cursor past it, in one transaction.
--   p_worker   the holder named by log_ack_by_hash_v1; an empty one is refused, because the live lease is what makes a
--              second call harmless
--   p_off      the message's offset, at most batch_end; p_message_id .. p_txn, p_trace, p_context describe it, NULL where unknown
--   p_payload  its parsed form; p_raw the exact bytes; p_encrypted says that they are an envelope
--   p_error    the reason; NULL says that the message was delivered too often (see log_pop_v1). p_error_sealed is the envelope of a
--              consumer's words, where p_error must not quote them
-- Returns {"ok":true,"id":uuid} or {"ok":false,"error"}: worker is required, consumer not found, invalid or expired lease,
-- position beyond leased batch. On success the lease is released and retry and attempt state are reset: the tail redelivers.
-- Locks: the consumer row. Called by: pg.FileDeadLetter.
-- The older forms had no p_encrypted and p_error_sealed, and no p_context; beside this one a call without them would be ambiguous.
DROP FUNCTION IF EXISTS queen.log_dlq_head_v1(UUID, TEXT, TEXT, BIGINT, UUID, TEXT, JSONB, TEXT, BYTEA, UUID);
DROP FUNCTION IF EXISTS queen.log_dlq_head_v1(UUID, TEXT, TEXT, BIGINT, UUID, TEXT, JSONB, TEXT, BYTEA, UUID, BOOLEAN, BYTEA);
CREATE OR REPLACE FUNCTION queen.log_dlq_head_v1(
    p_partition_id UUID, p_group TEXT, p_worker TEXT, p_off BIGINT, p_message_id UUID, p_txn TEXT, p_payload JSONB, p_error TEXT,
    p_raw BYTEA DEFAULT NULL, p_trace UUID DEFAULT NULL, p_encrypted BOOLEAN DEFAULT NULL, p_error_sealed BYTEA DEFAULT NULL,
    p_context BYTEA DEFAULT NULL)
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_row queen.log_consumers%ROWTYPE;
    v_id  UUID;
BEGIN
    IF COALESCE(p_worker, '') = '' THEN
        RETURN jsonb_build_object('ok', FALSE, 'error', 'worker is required');
    END IF;
    SELECT * INTO v_row FROM queen.log_consumers c
     WHERE c.partition_id = p_partition_id AND c.consumer_group = p_group
       FOR UPDATE;
    IF NOT FOUND THEN
        RETURN jsonb_build_object('ok', FALSE, 'error', 'consumer not found');
    END IF;
    IF v_row.worker_id IS DISTINCT FROM p_worker OR p_worker = '__retry__' OR v_row.lease_expires_at IS NULL
       OR v_row.lease_expires_at < clock_timestamp() THEN
        RETURN jsonb_build_object('ok', FALSE, 'error', 'invalid or expired lease');
    END IF;
    IF p_off IS NULL OR v_row.batch_end IS NULL OR p_off > v_row.batch_end THEN
        RETURN jsonb_build_object('ok', FALSE, 'error', 'position beyond leased batch');
    END IF;

    INSERT INTO queen.log_dlq (partition_id, consumer_group, "offset", message_id, transaction_id, payload, error, retry_count,
                               failed_at, payload_raw, trace_id, encrypted, error_sealed, trace_context)
    VALUES (p_partition_id, p_group, p_off, p_message_id, p_txn, p_payload,
            COALESCE(p_error, (SELECT format('delivered %s times without an acknowledgment, the most that maxDeliveries of the queue allows',
                                             q.max_deliveries)
                                 FROM queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id
                                WHERE p.id = p_partition_id)),
            v_row.batch_retry_count, clock_timestamp(), p_raw, p_trace, p_encrypted, p_error_sealed, p_context)
    RETURNING id INTO v_id;
    UPDATE queen.log_consumers c
       SET committed = GREATEST(c.committed, p_off), worker_id = NULL, lease_expires_at = NULL, batch_end = NULL,
           batch_retry_count = 0, attempt_offset = NULL, attempt_count = 0, total_consumed = c.total_consumed + 1
     WHERE c.partition_id = p_partition_id AND c.consumer_group = p_group;
    RETURN jsonb_build_object('ok', TRUE, 'id', v_id);
END $$;

-- log_push_elements_v1: log_push_multi_v1 for segments that come as JSON, as transactions and streams carry them.
--   p_elements  [{"queue","partition","count","hashesHex" | "hashesB64","blobB64","verified"?,"plain"?,"traces"?:[{"i","t"}]}]
-- Returns the verdicts in input order. Locks and errors: those of log_push_multi_v1, which it calls once.
-- Called by: log_transaction_wire_v1, log_streams_push_v1.
CREATE OR REPLACE FUNCTION queen.log_push_elements_v1(p_tenant UUID, p_elements JSONB)
RETURNS JSONB
LANGUAGE sql VOLATILE
AS $$
    SELECT queen.log_push_multi_v1(
               array_agg(e.v ->> 'queue' ORDER BY e.ord),
               array_agg(e.v ->> 'partition' ORDER BY e.ord),
               array_agg((e.v ->> 'count')::INT ORDER BY e.ord),
               array_agg(COALESCE(decode(e.v ->> 'hashesHex', 'hex'),
                                             decode(e.v ->> 'hashesB64', 'base64')) ORDER BY e.ord),
               array_agg(COALESCE((e.v ->> 'verified')::BIGINT, -1) ORDER BY e.ord),
               array_agg(decode(e.v ->> 'blobB64', 'base64') ORDER BY e.ord),
               array_agg(p_tenant ORDER BY e.ord),
               array_agg((e.v ->> 'plain')::BOOLEAN ORDER BY e.ord),
               FALSE,
               (SELECT jsonb_agg(t.v || jsonb_build_object('s', s.ord - 1) ORDER BY s.ord)
                  FROM jsonb_array_elements(p_elements) WITH ORDINALITY AS s (v, ord)
                 CROSS JOIN LATERAL jsonb_array_elements(
                           CASE WHEN jsonb_typeof(s.v -> 'traces') = 'array' THEN s.v -> 'traces' ELSE '[]' END) AS t (v)))
      FROM jsonb_array_elements(p_elements) WITH ORDINALITY AS e (v, ord)
$$;

-- log_transaction_wire_v1: pushes and acks that commit together or not at all.
--   p  {"_tenant"?, "pushes":[{"queue","partition","count","hashesHex","blobB64","verified"?,"plain"?,"traces"?:[{"i","t"}]}],
--       "acks":[{"partitionId","group","worker","acks":[{"h":hex32,"status","delayMs"?} | {"h","ok"}]}
--             | {"partitionId","group","worker","uptoOff","ok","count"}]}
-- Returns {"ok":true,"pushes":[verdicts in input order],"acks":[results ascending (partition, group), each with "partitionId" and
-- "group"]}. A result with dlq:true is completed by the caller after the commit.
-- Every failure raises, so nothing of the call remains. Texts: QTXN (foreign or unknown partition, unresolvable push, ack that
-- failed or did nothing), QDUP (duplicate push, unique_violation), QUEUE_FULL (53400), QPUSH (malformed segment).
-- Two elements for one (partition, group) are refused by the second finding the lease released: callers merge them.
-- Locks, in this order: what log_push_multi_v1 takes (provisioning inserts, bounded queues, partitions ascending by id), then
-- consumer rows ascending (partition_id, consumer_group). Called by: pg.Transact.
CREATE OR REPLACE FUNCTION queen.log_transaction_wire_v1(p JSONB)
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_tenant   UUID := COALESCE(NULLIF(p ->> '_tenant', '')::UUID, '00000000-0000-0000-0000-000000000001');
    v_pushes   JSONB := CASE WHEN jsonb_typeof(p -> 'pushes') = 'array' THEN p -> 'pushes' ELSE '[]' END;
    v_acks     JSONB := CASE WHEN jsonb_typeof(p -> 'acks') = 'array' THEN p -> 'acks' ELSE '[]' END;
    v_foreign  TEXT;
    v_named    INT;
    v_verdicts JSONB := '[]'::JSONB;
    v_bad      RECORD;
    v_ack      RECORD;
    v_hashes   BYTEA[];
    v_words    TEXT[];
    v_delays   INTEGER[];
    v_result   JSONB;
    v_refusal  TEXT;
    v_results  JSONB := '[]'::JSONB;
BEGIN
    SELECT a.v ->> 'partitionId' INTO v_foreign
      FROM jsonb_array_elements(v_acks) WITH ORDINALITY AS a (v, ord)
     WHERE NOT EXISTS (SELECT 1 FROM queen.log_partitions lp JOIN queen.queues q ON q.id = lp.queue_id
                        WHERE lp.id = (a.v ->> 'partitionId')::UUID AND q.tenant_id = v_tenant)
     ORDER BY a.ord LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'QTXN ack references partition % not owned by this tenant', v_foreign USING ERRCODE = 'QU004';
    END IF;

    IF jsonb_array_length(v_pushes) > 0 THEN
        SELECT count(*) INTO v_named
          FROM jsonb_array_elements(v_pushes) AS e (v)
         WHERE e.v ->> 'queue' <> '' AND e.v ->> 'partition' <> '';
        IF v_named <> jsonb_array_length(v_pushes) THEN
            RAISE EXCEPTION 'QTXN resolved % of % pushes (empty or unknown queue/partition)',
                v_named, jsonb_array_length(v_pushes) USING ERRCODE = 'QU004';
        END IF;
        v_verdicts := queen.log_push_elements_v1(v_tenant, v_pushes);
        -- A duplicate first: it is the reason when other segments of its queue are only held back.
        SELECT v.value ->> 'status' AS status, v_pushes -> (v.ord - 1)::INT ->> 'queue' AS queue,
               v_pushes -> (v.ord - 1)::INT ->> 'partition' AS partition
          INTO v_bad
          FROM jsonb_array_elements(v_verdicts) WITH ORDINALITY AS v (value, ord)
         WHERE v.value ->> 'status' <> 'queued'
         ORDER BY v.value ->> 'status' <> 'duplicate', v.value ->> 'status' <> 'full', v.ord LIMIT 1;
        IF FOUND THEN
            CASE v_bad.status
                WHEN 'duplicate' THEN
                    RAISE EXCEPTION 'QDUP duplicate messages in queue "%" partition "%"; transaction rolled back',
                        v_bad.queue, v_bad.partition USING ERRCODE = 'unique_violation';
                WHEN 'full' THEN
                    RAISE EXCEPTION 'QUEUE_FULL queue "%" is full; transaction rolled back', v_bad.queue USING ERRCODE = '53400';
                ELSE
                    RAISE EXCEPTION 'QTXN push to queue "%" partition "%" refused (%); transaction rolled back',
                        v_bad.queue, v_bad.partition, v_bad.status USING ERRCODE = 'QU004';
            END CASE;
        END IF;
    END IF;

    FOR v_ack IN
        SELECT e.v, e.pid, e.grp, COALESCE(e.v ->> 'worker', '') AS worker
          FROM (SELECT a.v, (a.v ->> 'partitionId')::UUID AS pid, COALESCE(NULLIF(a.v ->> 'group', ''), '__QUEUE_MODE__') AS grp,
                       a.ord
                  FROM jsonb_array_elements(v_acks) WITH ORDINALITY AS a (v, ord)) e
         ORDER BY e.pid, e.grp, e.ord  -- global lock order
    LOOP
        v_refusal := NULL;
        IF jsonb_typeof(v_ack.v -> 'acks') = 'array' THEN
            SELECT array_agg(decode(i.v ->> 'h', 'hex') ORDER BY i.ord),
                   array_agg(COALESCE(i.v ->> 'status', CASE WHEN (i.v ->> 'ok')::BOOLEAN THEN 'completed'
                       WHEN NOT (i.v ->> 'ok')::BOOLEAN THEN 'failed' ELSE 'completed' END) ORDER BY i.ord),
                   array_agg((i.v ->> 'delayMs')::INTEGER ORDER BY i.ord)
              INTO v_hashes, v_words, v_delays
              FROM jsonb_array_elements(v_ack.v -> 'acks') WITH ORDINALITY AS i (v, ord);
            v_result := queen.log_ack_by_hash_v1(v_ack.pid, v_ack.grp, v_ack.worker, COALESCE(v_hashes, '{}'),
                                                 COALESCE(v_words, '{}'), v_delays);
            -- An item that did nothing must not commit its neighbours.
            IF jsonb_array_length(v_result -> 'unresolvedHashes') > 0 THEN
                RAISE EXCEPTION 'QTXN ack references unknown transactionId; transaction rolled back' USING ERRCODE = 'QU004';
            ELSIF jsonb_array_length(v_result -> 'staleHashes') > 0 THEN
                v_refusal := 'already committed: the cursor moved past this message before this ack';
            ELSIF (v_result ->> 'signalIgnored')::BOOLEAN THEN
                v_refusal := 'no leased batch';
            END IF;
        ELSE
            v_result := queen.log_ack_at_v1(v_ack.pid, v_ack.grp, v_ack.worker, (v_ack.v ->> 'uptoOff')::BIGINT,
                COALESCE((v_ack.v ->> 'ok')::BOOLEAN, TRUE), COALESCE((v_ack.v ->> 'count')::INT, 0));
        END IF;
        IF NOT COALESCE((v_result ->> 'ok')::BOOLEAN, FALSE) THEN
            v_refusal := COALESCE(v_result ->> 'error', 'ack rejected');
        END IF;
        IF v_refusal IS NOT NULL THEN
            RAISE EXCEPTION 'QTXN ack failed for partition % group "%": %; transaction rolled back', v_ack.pid, v_ack.grp, v_refusal
                USING ERRCODE = 'QU004';
        END IF;
        v_results := v_results || jsonb_build_array(
            v_result || jsonb_build_object('partitionId', v_ack.pid, 'group', v_ack.grp));
    END LOOP;

    RETURN jsonb_build_object('ok', TRUE, 'pushes', v_verdicts, 'acks', v_results);
END $$;

GRANT EXECUTE ON FUNCTION queen.log_ack_positions_v1(UUID[], TEXT[], TEXT[], BIGINT[], BOOLEAN[], INT[], BOOLEAN) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_ack_at_v1(UUID, TEXT, TEXT, BIGINT, BOOLEAN, INTEGER) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_ack_v1(TEXT, TEXT, TEXT, TEXT, BIGINT, BOOLEAN, INTEGER, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_ack_multi_v1(TEXT[], TEXT[], BIGINT[], TEXT[], INT[]) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_find_hashes_v1(UUID, BYTEA[], BIGINT, BIGINT) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_ack_by_hash_v1(UUID, TEXT, TEXT, BYTEA[], TEXT[], INTEGER[]) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_ack_completed_v1(UUID, TEXT, BYTEA[]) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_renew_lease_v1(TEXT, INTEGER) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_dlq_head_v1(UUID, TEXT, TEXT, BIGINT, UUID, TEXT, JSONB, TEXT, BYTEA, UUID, BOOLEAN, BYTEA, BYTEA) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_push_elements_v1(UUID, JSONB) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_transaction_wire_v1(JSONB) TO PUBLIC;
