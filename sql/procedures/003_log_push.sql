-- Push: the only file that assigns an offset.
--
-- All pushes run through log_push_core_v1, or through log_push_known_v1, which is a short cut of it. Both store N segments with a constant
-- number of statements: at many partitions it is the statements per segment that bound a commit, not the bytes.

-- log_txns_window_start_v1: where the deduplication window begins in the sidecar of one partition.
--   p_lo, p_hi  offsets; p_lo is the base of a row older than p_cutoff
-- Returns a base offset at or below the first row with created_at >= p_cutoff, less than 256 offsets away from it in the
-- row order. Halves the range by primary key steps; sound because created_at is non-decreasing in base_offset, give or take
-- the one-second quantum of last_write_at, which the margin of two seconds covers.
-- Locks: none. Called by: log_push_core_v1, only when a partition keeps rows older than the window.
CREATE OR REPLACE FUNCTION queen.log_txns_window_start_v1(p_pid UUID, p_lo BIGINT, p_hi BIGINT, p_cutoff TIMESTAMPTZ)
RETURNS BIGINT
LANGUAGE plpgsql STABLE PARALLEL SAFE
AS $$
DECLARE
    v_lo   BIGINT := p_lo;
    v_hi   BIGINT := p_hi;
    v_mid  BIGINT;
    v_base BIGINT;
    v_at   TIMESTAMPTZ;
BEGIN
    WHILE v_hi - v_lo > 256 LOOP
        v_mid := v_lo + (v_hi - v_lo) / 2;
        SELECT t.base_offset, t.created_at INTO v_base, v_at
          FROM queen.log_txns t
         WHERE t.partition_id = p_pid AND t.base_offset <= v_mid
         ORDER BY t.base_offset DESC
         LIMIT 1;
        IF v_at < p_cutoff - INTERVAL '2 seconds' THEN
            -- Everything up to this row is outside the window. The row may reach beyond v_mid, so continue from v_mid.
            p_lo := v_base;
            v_lo := v_mid;
        ELSE
            v_hi := v_mid;
        END IF;
    END LOOP;
    RETURN p_lo;
END $$;

-- log_push_core_v1: store N segments in one transaction.
--   p_queues, p_partitions, p_counts, p_hashes, p_blobs, p_tenants
--                     parallel arrays of N >= 1, checked by the callers
--   p_verified        highest offset up to which the caller knows that no hash occurs in the window; NULL element is -1
--   p_plain           which segments hold plain payloads; NULL says none
--   p_skip_capacity   store into full queues: acceptance was promised earlier
--   p_traces          [{"s": segment from 0, "i": frame from 0, "t": uuid}] or NULL
--   p_pids, p_windows what log_push_one_v1 was given, one element or NULL; a NULL element or array means resolve
--   p_known, p_since  what p_verified is about, or NULL arrays: it holds for partition p_known[i] and for what was stored at or
--                     after p_since[i]. It counts for nothing when the name stands for another partition now, or when the
--                     window reaches further back: a deleted queue or a longer window cannot make a stale cache a liar
-- Returns one row of arrays with one element per segment, ordered by partition id:
--   o_ord      position of the segment in the input, from 1
--   o_pids     its partition
--   o_base     offset of its first message when it was stored
--   o_created  its time when it was stored
--   o_windows  deduplication window of its queue in seconds
--   o_status, o_detail
--              NULL arrays when every segment was stored and no queue is bounded; else the verdict and the rest of it:
--     queued     {}                 bounded queues: depth (after the call), limit, remaining
--     duplicate  {"dups":[{"i":frame,"off":offset}]}     smallest matching offset per frame; nothing written
--     full       {"depth":D,"limit":M,"remaining":R}     nothing of the bounded queue was written
--     held       {}                 nothing written: another segment of the same bounded queue was duplicate or config; repeat as is
--     config     {}                 nothing written: the queue demands encryption and the segment is plain
-- Several segments of one partition take effect in input order, as if each had its own call; only capacity is decided once.
-- Raises: QPUSH bad segment, QPUSH bad trace (SQLSTATE QU003: repeating cannot help); QPUSH unknown queue/partition, QMULTI
--   resolved k of n, QPUSH partition vanished mid-push (QU002: something was deleted meanwhile, repeating creates it).
-- Locks, in this order: provisioning inserts sorted by key, only for names not seen yet; queues rows of bounded queues FOR NO
--   KEY UPDATE by id; log_partitions rows FOR NO KEY UPDATE by id. NO KEY, because the foreign key check of a new consumer row
--   must not wait for a push while its own transaction holds consumer rows that the push's transaction acks next.
-- READ COMMITTED only: the probe and the depth are statements of their own, so that they see what was committed before the
--   lock was obtained.
-- The settings and OFFSET 0 pin the plans: the arrays hide every row count from the planner, and a scan of a whole table or
--   index, chosen while the tables were small, would stay cached while they grow. Behind OFFSET 0 a look-up is planned by
--   itself, so that an index without a matching condition is never an option.
-- Plan test: TestPushPlans.
-- Called by: log_push_multi_v1, log_push_one_v1, log_push_known_v1, and pg.PushMulti, for which JSON would cost more than the rest of the
-- answer.
-- Brokers of several versions share a database: another signature or row needs another name.
DROP FUNCTION IF EXISTS queen.log_push_core_v1(TEXT[], TEXT[], INT[], BYTEA[], INT8[], BYTEA[], UUID[], BOOLEAN[], BOOLEAN, JSONB, UUID[], INT[]);
CREATE OR REPLACE FUNCTION queen.log_push_core_v1(
    p_queues TEXT[], p_partitions TEXT[], p_counts INT[], p_hashes BYTEA[], p_verified INT8[], p_blobs BYTEA[],
    p_tenants UUID[], p_plain BOOLEAN[], p_skip_capacity BOOLEAN, p_traces JSONB, p_pids UUID[], p_windows INT[],
    p_known UUID[], p_since TIMESTAMPTZ[],
    OUT o_ord INT[], OUT o_pids UUID[], OUT o_base INT8[], OUT o_created TIMESTAMPTZ[], OUT o_windows INT[],
    OUT o_status TEXT[], OUT o_detail JSONB[])
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_mergejoin = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    v_n       INT := cardinality(p_queues);
    -- Per segment, in ascending (partition id, input position); v_ord is the input position.
    v_ord     INT[];
    v_pids    UUID[];
    v_qids    UUID[];
    v_wins    INT[];
    v_enc     BOOLEAN[];
    v_slot    INT[];
    v_round   INT[];
    v_base    INT8[];
    v_status  TEXT[];
    v_dups    JSONB[];
    -- Per slot, that is per distinct partition, ascending by id.
    v_ids     UUID[];
    v_next    INT8[];
    v_first   INT8[];
    v_txns    INT8[];
    v_written TIMESTAMPTZ[];
    -- Per bounded queue, ascending by id.
    v_bounded UUID[];
    v_limits  INT8[];
    v_depths  INT8[];
    v_refused BOOLEAN := FALSE;
    v_bad     INT;
    v_missing INT;
    v_slots   INT;
    v_rounds  INT;
    v_limited BOOLEAN;
    v_probe   BOOLEAN;
    v_demands BOOLEAN;
    v_now     TIMESTAMPTZ;
    v_hit_k   INT[];
    v_hit     JSONB[];
BEGIN
    -- 1. Check the segments and find queues and partitions; create what is missing and look again.
    FOR v_attempt IN 1..2 LOOP
        IF v_n > 1 THEN
            SELECT array_agg(x.i), array_agg(x.pid), array_agg(x.qid), array_agg(x.win), array_agg(x.enc),
                   array_agg(x.slot), array_agg(x.round),
                   min(x.i) FILTER (WHERE x.bad), count(*) FILTER (WHERE x.pid IS NULL), max(x.slot), max(x.round),
                   bool_or(x.size > 0), bool_or(x.enc)
              INTO v_ord, v_pids, v_qids, v_wins, v_enc, v_slot, v_round,
                   v_bad, v_missing, v_slots, v_rounds, v_limited, v_demands
              FROM (SELECT g.i, r.pid, r.qid, r.win, r.enc, r.size,
                           (dense_rank() OVER (ORDER BY r.pid))::int AS slot,
                           (row_number() OVER (PARTITION BY r.pid ORDER BY g.i))::int AS round,
                           p_counts[g.i] IS NULL OR p_counts[g.i] < 1
                           OR octet_length(p_hashes[g.i]) IS DISTINCT FROM 16 * p_counts[g.i]
                           OR COALESCE(octet_length(p_blobs[g.i]), 0) = 0 AS bad
                      FROM generate_series(1, v_n) AS g(i)
                      LEFT JOIN LATERAL (
                            SELECT l.id AS pid, k.id AS qid, k.dedup_window_seconds AS win, k.encryption_enabled AS enc,
                                   k.max_queue_size AS size
                              FROM (SELECT q.id, q.dedup_window_seconds, q.encryption_enabled, q.max_queue_size
                                      FROM queen.queues q
                                     WHERE q.tenant_id = p_tenants[g.i] AND q.name = p_queues[g.i]
                                    OFFSET 0) k
                              LEFT JOIN LATERAL (
                                    SELECT p.id
                                      FROM queen.log_partitions p
                                     WHERE p.queue_id = k.id AND p.name = p_partitions[g.i]
                                    OFFSET 0) l ON TRUE) r ON TRUE
                     ORDER BY r.pid, g.i) x;
        ELSE
            -- The same for one segment without the machinery for many.
            v_pids := p_pids;
            IF v_pids IS NULL THEN
                SELECT ARRAY[l.id], ARRAY[k.id], ARRAY[COALESCE(p_windows[1], k.dedup_window_seconds)],
                       ARRAY[k.encryption_enabled], k.max_queue_size > 0
                  INTO v_pids, v_qids, v_wins, v_enc, v_limited
                  FROM (SELECT q.id, q.dedup_window_seconds, q.encryption_enabled, q.max_queue_size
                          FROM queen.queues q
                         WHERE q.tenant_id = p_tenants[1] AND q.name = p_queues[1]
                        OFFSET 0) k
                  LEFT JOIN LATERAL (
                        SELECT p.id FROM queen.log_partitions p WHERE p.queue_id = k.id AND p.name = p_partitions[1] OFFSET 0) l ON TRUE;
            ELSE
                SELECT ARRAY[q.id], ARRAY[COALESCE(p_windows[1], q.dedup_window_seconds)], ARRAY[q.encryption_enabled],
                       q.max_queue_size > 0
                  INTO v_qids, v_wins, v_enc, v_limited
                  FROM (SELECT p.queue_id FROM queen.log_partitions p WHERE p.id = v_pids[1] OFFSET 0) l
                 CROSS JOIN LATERAL (
                       SELECT x.id, x.dedup_window_seconds, x.encryption_enabled, x.max_queue_size
                         FROM queen.queues x WHERE x.id = l.queue_id OFFSET 0) q;
                IF NOT FOUND THEN
                    RAISE EXCEPTION 'QPUSH partition % vanished mid-push', v_pids[1] USING ERRCODE = 'QU002';
                END IF;
            END IF;
            v_ord := ARRAY[1];
            v_slot := v_ord;
            v_round := v_ord;
            v_slots := 1;
            v_rounds := 1;
            v_missing := CASE WHEN v_pids[1] IS NULL THEN 1 ELSE 0 END;
            v_demands := v_enc[1];
            v_bad := CASE WHEN p_counts[1] IS NULL OR p_counts[1] < 1
                            OR octet_length(p_hashes[1]) IS DISTINCT FROM 16 * p_counts[1]
                            OR COALESCE(octet_length(p_blobs[1]), 0) = 0 THEN 1 END;
        END IF;
        IF v_bad IS NOT NULL THEN
            RAISE EXCEPTION 'QPUSH bad segment: % of queue "%" partition "%": count %, % hash bytes, % blob bytes',
                v_bad - 1, p_queues[v_bad], p_partitions[v_bad], p_counts[v_bad], octet_length(p_hashes[v_bad]),
                octet_length(p_blobs[v_bad]) USING ERRCODE = 'QU003';
        END IF;
        EXIT WHEN v_missing = 0;
        IF v_attempt = 2 THEN
            IF p_windows IS NOT NULL THEN
                RAISE EXCEPTION 'QPUSH unknown queue/partition %/%', p_queues[1], p_partitions[1] USING ERRCODE = 'QU002';
            END IF;
            RAISE EXCEPTION 'QMULTI resolved % of % segments (empty/unknown queue or partition)', v_n - v_missing, v_n
                USING ERRCODE = 'QU002';
        END IF;
        -- Only here: an unconditional ON CONFLICT per push would convoy on the queue row. An empty queue name is refused, the empty
        -- partition name is a real one.
        INSERT INTO queen.queues (tenant_id, name, namespace, task)
        SELECT DISTINCT s.tenant, s.queue, split_part(s.queue, '.', 1), split_part(s.queue, '.', 2)
          FROM unnest(p_tenants, p_queues, p_partitions) AS s(tenant, queue, part)
         WHERE COALESCE(s.queue, '') <> '' AND s.part IS NOT NULL
           AND NOT EXISTS (SELECT 1 FROM queen.queues q WHERE q.tenant_id = s.tenant AND q.name = s.queue OFFSET 0)
         ORDER BY s.tenant, s.queue
            ON CONFLICT (tenant_id, name) DO NOTHING;
        INSERT INTO queen.log_partitions (queue_id, name)
        SELECT DISTINCT q.id, s.part
          FROM unnest(p_tenants, p_queues, p_partitions) AS s(tenant, queue, part)
         CROSS JOIN LATERAL (SELECT x.id FROM queen.queues x WHERE x.tenant_id = s.tenant AND x.name = s.queue OFFSET 0) q
         WHERE s.part IS NOT NULL
           AND NOT EXISTS (SELECT 1 FROM queen.log_partitions p WHERE p.queue_id = q.id AND p.name = s.part OFFSET 0)
         ORDER BY q.id, s.part
            ON CONFLICT (queue_id, name) DO NOTHING;
    END LOOP;

    v_status := array_fill(NULL::text, ARRAY[v_n]);
    v_base := array_fill(NULL::int8, ARRAY[v_n]);
    IF COALESCE(v_demands, FALSE) AND p_plain IS NOT NULL THEN
        FOR k IN 1..v_n LOOP
            IF v_enc[k] AND p_plain[v_ord[k]] THEN
                v_status[k] := 'config';
                v_refused := TRUE;
            END IF;
        END LOOP;
    END IF;

    -- 2. Lock: bounded queues, then partitions, both ascending.
    v_limited := COALESCE(v_limited AND NOT COALESCE(p_skip_capacity, FALSE), FALSE);
    IF v_limited THEN
        SELECT array_agg(b.id), array_agg(b.max_queue_size)
          INTO v_bounded, v_limits
          FROM (SELECT q.id, q.max_queue_size
                  FROM queen.queues q
                 WHERE q.id = ANY (v_qids) AND q.max_queue_size > 0
                 ORDER BY q.id
                   FOR NO KEY UPDATE) b;
        v_limited := v_bounded IS NOT NULL;
    END IF;
    SELECT array_agg(l.id), array_agg(l.last_offset + 1), array_agg(l.txns_start), array_agg(l.last_write_at)
      INTO v_ids, v_next, v_txns, v_written
      FROM (SELECT p.id, p.last_offset, p.txns_start, p.last_write_at
              FROM queen.log_partitions p
             WHERE p.id = ANY (v_pids)
             ORDER BY p.id
               FOR NO KEY UPDATE) l;
    IF COALESCE(cardinality(v_next), 0) <> v_slots THEN
        SELECT k INTO v_bad
          FROM generate_series(1, v_n) AS k
         WHERE NOT EXISTS (SELECT 1 FROM queen.log_partitions p WHERE p.id = v_pids[k])
         LIMIT 1;
        RAISE EXCEPTION 'QPUSH partition % vanished mid-push', v_pids[COALESCE(v_bad, 1)] USING ERRCODE = 'QU002';
    END IF;
    v_now := clock_timestamp();
    v_first := v_next;
    IF p_known IS NOT NULL THEN
        FOR k IN 1..v_n LOOP
            IF p_verified[v_ord[k]] >= 0
               AND (p_known[v_ord[k]] IS DISTINCT FROM v_pids[k]
                    OR p_since[v_ord[k]] > v_now - make_interval(secs => v_wins[k])) THEN
                p_verified[v_ord[k]] := -1;
            END IF;
        END LOOP;
    END IF;

    -- One round, unless a partition occurs more than once: then its k-th segment is written in round k.
    FOR v_r IN 1..v_rounds LOOP
        -- 3. Probe. The first round compares every segment with what was stored before this call, later rounds compare theirs
        -- with what this call wrote. A verified offset beyond the head vouches for another incarnation of the partition.
        v_probe := v_r > 1;
        FOR k IN 1..v_n LOOP
            EXIT WHEN v_probe;
            v_probe := v_wins[k] > 0
                AND v_next[v_slot[k]] > 0 AND p_verified[v_ord[k]] IS DISTINCT FROM v_next[v_slot[k]] - 1;
        END LOOP;
        IF v_probe THEN
            WITH w AS MATERIALIZED (
                SELECT s.k, s.pid, s.frm, s.cutoff, CASE WHEN p_counts[v_ord[s.k]] = 1 THEN p_hashes[v_ord[s.k]] END AS one,
                       CASE WHEN f.base_offset IS NULL THEN s.frm + 1
                            WHEN f.created_at >= s.cutoff OR s.head - s.frm <= 256 THEN f.base_offset
                            ELSE queen.log_txns_window_start_v1(s.pid, f.base_offset, s.head, s.cutoff) END AS lo
                  FROM (SELECT g.k, v_pids[g.k] AS pid, v_next[v_slot[g.k]] - 1 AS head,
                               v_now - make_interval(secs => v_wins[g.k]) AS cutoff,
                               CASE WHEN v_r > 1 THEN v_first[v_slot[g.k]] - 1
                                    WHEN p_verified[v_ord[g.k]] < v_next[v_slot[g.k]]
                                    THEN GREATEST(p_verified[v_ord[g.k]], v_txns[v_slot[g.k]] - 1)
                                    ELSE v_txns[v_slot[g.k]] - 1 END AS frm
                          FROM generate_series(1, v_n) AS g(k)
                         WHERE v_status[g.k] IS NULL AND v_wins[g.k] > 0 AND (v_r = 1 OR v_round[g.k] = v_r)
                        OFFSET 0) s
                  LEFT JOIN LATERAL (
                        SELECT t.base_offset, t.created_at
                          FROM queen.log_txns t
                         WHERE t.partition_id = s.pid AND t.base_offset <= s.frm + 1
                         ORDER BY t.base_offset DESC
                         LIMIT 1) f ON TRUE
                 WHERE s.head > s.frm),
            incoming AS (
                SELECT w.k, n.idx, n.h
                  FROM w CROSS JOIN LATERAL queen.log_unnest_hashes(p_hashes[v_ord[w.k]]) n),
            stored AS (
                SELECT w.k, t.base_offset + o.idx AS off, o.h
                  FROM w
                 CROSS JOIN LATERAL (
                        SELECT x.base_offset, x.hashes || ''::bytea AS hashes
                          FROM queen.log_txns x
                         WHERE x.partition_id = w.pid AND x.base_offset >= w.lo
                           AND x.end_offset > w.frm AND x.created_at >= w.cutoff
                           -- One message: a byte search is far cheaper than taking every stored row apart.
                           AND (w.one IS NULL OR position(w.one IN x.hashes) > 0)
                        OFFSET 0) t
                 CROSS JOIN LATERAL queen.log_unnest_hashes(t.hashes) o)
            SELECT array_agg(d.k), array_agg(d.dups)
              INTO v_hit_k, v_hit
              FROM (SELECT m.k, jsonb_agg(jsonb_build_object('i', m.idx, 'off', m.off) ORDER BY m.idx) AS dups
                      FROM (SELECT i.k, i.idx, min(s.off) AS off
                              FROM incoming i JOIN stored s ON s.k = i.k AND s.h = i.h
                             GROUP BY i.k, i.idx) m
                     GROUP BY m.k) d;
            IF v_hit_k IS NOT NULL THEN
                v_refused := TRUE;
                v_dups := COALESCE(v_dups, array_fill(NULL::jsonb, ARRAY[v_n]));
                FOR j IN 1..cardinality(v_hit_k) LOOP
                    v_status[v_hit_k[j]] := 'duplicate';
                    v_dups[v_hit_k[j]] := v_hit[j];
                END LOOP;
            END IF;
        END IF;

        -- 4. Capacity: all segments of one bounded queue together, after the probe and before anything is written.
        IF v_limited AND v_r = 1 THEN
            SELECT array_agg(d.depth)
              INTO v_depths
              FROM (SELECT (SELECT COALESCE(sum(GREATEST(p.last_offset - GREATEST(c.worst, p.log_start - 1), 0)), 0)::int8
                              FROM queen.log_partitions p
                             CROSS JOIN LATERAL (
                                    -- Named groups win: a stray pop without a group must not free or fill a queue.
                                    SELECT COALESCE(min(lc.committed) FILTER (WHERE lc.consumer_group <> '__QUEUE_MODE__'),
                                                    min(lc.committed), -1) AS worst
                                      FROM queen.log_consumers lc
                                     WHERE lc.partition_id = p.id) c
                             WHERE p.queue_id = v_bounded[b.i]) AS depth
                      FROM generate_series(1, cardinality(v_bounded)) AS b(i)
                     ORDER BY b.i) d;
            FOR b IN 1..cardinality(v_bounded) LOOP
                IF EXISTS (SELECT 1 FROM generate_series(1, v_n) AS k
                            WHERE v_qids[k] = v_bounded[b] AND v_status[k] IS NOT NULL) THEN
                    FOR k IN 1..v_n LOOP
                        IF v_qids[k] = v_bounded[b] AND v_status[k] IS NULL THEN
                            v_status[k] := 'held';
                        END IF;
                    END LOOP;
                ELSIF v_depths[b] + (SELECT sum(p_counts[v_ord[k]]) FROM generate_series(1, v_n) AS k
                                      WHERE v_qids[k] = v_bounded[b]) > v_limits[b] THEN
                    v_refused := TRUE;
                    FOR k IN 1..v_n LOOP
                        IF v_qids[k] = v_bounded[b] THEN
                            v_status[k] := 'full';
                        END IF;
                    END LOOP;
                END IF;
            END LOOP;
        END IF;

        -- 5. Allocate and write.
        FOR k IN 1..v_n LOOP
            IF v_status[k] IS NULL AND v_round[k] = v_r THEN
                v_base[k] := v_next[v_slot[k]];
                v_next[v_slot[k]] := v_base[k] + p_counts[v_ord[k]];
            END IF;
        END LOOP;
        INSERT INTO queen.log_segments (partition_id, base_offset, end_offset, created_at, blob)
        SELECT v_pids[k], v_base[k], v_base[k] + p_counts[v_ord[k]] - 1, GREATEST(v_now, v_written[v_slot[k]]), p_blobs[v_ord[k]]
          FROM generate_series(1, v_n) AS k
         WHERE v_status[k] IS NULL AND v_round[k] = v_r;
        -- Always, whether duplicates are looked for or not: acks by transaction id resolve through these rows.
        INSERT INTO queen.log_txns (partition_id, base_offset, end_offset, created_at, hashes)
        SELECT v_pids[k], v_base[k], v_base[k] + p_counts[v_ord[k]] - 1, GREATEST(v_now, v_written[v_slot[k]]), p_hashes[v_ord[k]]
          FROM generate_series(1, v_n) AS k
         WHERE v_status[k] IS NULL AND v_round[k] = v_r;
    END LOOP;
    -- The slot of a row is found by halving, because a join with the arrays could be planned as a scan of the whole table.
    UPDATE queen.log_partitions p
       SET last_offset    = v_next[width_bucket(p.id, v_ids)] - 1,
           last_write_at  = CASE WHEN v_now > p.last_write_at + INTERVAL '1 second' THEN v_now ELSE p.last_write_at END,
           oldest_live_at = COALESCE(p.oldest_live_at, GREATEST(v_now, p.last_write_at)),
           oldest_txn_at  = COALESCE(p.oldest_txn_at, GREATEST(v_now, p.last_write_at))
     WHERE p.id = ANY (v_ids) AND v_next[width_bucket(p.id, v_ids)] > v_first[width_bucket(p.id, v_ids)];

    IF p_traces IS NOT NULL AND jsonb_typeof(p_traces) = 'array' AND jsonb_array_length(p_traces) > 0 THEN
        IF EXISTS (SELECT 1 FROM jsonb_to_recordset(p_traces) AS t(s INT, i INT, t UUID)
                    WHERE t.s IS NULL OR t.i IS NULL OR t.t IS NULL OR t.s NOT BETWEEN 0 AND v_n - 1
                       OR t.i NOT BETWEEN 0 AND p_counts[t.s + 1] - 1) THEN
            RAISE EXCEPTION 'QPUSH bad trace: %', p_traces USING ERRCODE = 'QU003';
        END IF;
        INSERT INTO queen.log_traced (trace_id, partition_id, "offset", created_at)
        SELECT t.t, v_pids[k], v_base[k] + t.i, GREATEST(v_now, v_written[v_slot[k]])
          FROM jsonb_to_recordset(p_traces) AS t(s INT, i INT, t UUID)
          JOIN generate_series(1, v_n) AS k ON v_ord[k] = t.s + 1
         WHERE v_status[k] IS NULL
         ORDER BY 1, 2, 3
            ON CONFLICT DO NOTHING;
    END IF;

    -- 6. Verdicts.
    o_ord := v_ord;
    o_pids := v_pids;
    o_base := v_base;
    o_windows := v_wins;
    SELECT array_agg(GREATEST(v_now, v_written[v_slot[k]])) INTO o_created FROM generate_series(1, v_n) AS k;
    IF NOT v_refused AND NOT v_limited THEN
        RETURN;
    END IF;
    SELECT array_agg(COALESCE(v_status[x.k], 'queued')),
           array_agg(CASE v_status[x.k] WHEN 'duplicate' THEN jsonb_build_object('dups', v_dups[x.k]) ELSE '{}'::jsonb END
               || CASE WHEN x.b IS NOT NULL AND COALESCE(v_status[x.k], 'full') = 'full'
                  THEN jsonb_build_object('depth', x.depth, 'limit', v_limits[x.b],
                                          'remaining', GREATEST(v_limits[x.b] - x.depth, 0))
                  ELSE '{}'::jsonb END)
      INTO o_status, o_detail
      FROM (SELECT k, array_position(v_bounded, v_qids[k]) AS b,
                   v_depths[array_position(v_bounded, v_qids[k])]
                   + COALESCE(sum(p_counts[v_ord[k]]) FILTER (WHERE v_status[k] IS NULL)
                              OVER (PARTITION BY v_qids[k]), 0) AS depth
              FROM generate_series(1, v_n) AS k
             ORDER BY k) x;
END $$;

-- log_push_known_v1: log_push_core_v1 for partitions whose ids the caller remembers, which most pushes are. Without the look-ups by name,
-- and with three statements when nothing is to be decided segment by segment.
--   p_pids    ids that the names stood for when the caller heard of them, ascending, every one once; parallel to the other arrays
--   p_since   as in log_push_core_v1; what p_verified says is about p_pids
--   the rest  as in log_push_core_v1
-- Returns one of three:
--   o_base NULL   undecided, nothing was written: an id stands for something else by now, or a queue is bounded, whose lock comes before
--                 those of its partitions. The caller calls log_push_core_v1
--   o_ord NULL    every segment was stored: o_base, o_created and o_windows are parallel to the input
--   else          what log_push_core_v1 returned, which was asked because a segment needs its probe or its queue demands encryption
-- Ids, names, queues and tenants are compared by position with what the locked rows say: ids in another order, or one that occurs twice,
-- are undecided.
-- Raises: not_null_violation for a segment that log_push_core_v1 calls bad; what that raises.
-- Locks: log_partitions rows FOR NO KEY UPDATE by id. Nothing is created, and a bounded queue is not locked, unless it became one between
-- two statements.
-- READ COMMITTED only, settings: as log_push_core_v1. Plan test: TestPushPlans. Called by: pg.PushMulti.
CREATE OR REPLACE FUNCTION queen.log_push_known_v1(
    p_queues TEXT[], p_partitions TEXT[], p_counts INT[], p_hashes BYTEA[], p_verified INT8[], p_blobs BYTEA[],
    p_tenants UUID[], p_plain BOOLEAN[], p_pids UUID[], p_since TIMESTAMPTZ[],
    OUT o_ord INT[], OUT o_pids UUID[], OUT o_base INT8[], OUT o_created TIMESTAMPTZ[], OUT o_windows INT[],
    OUT o_status TEXT[], OUT o_detail JSONB[])
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    v_n       INT := cardinality(p_pids);
    v_ids     UUID[];
    v_names   TEXT[];
    v_qids    UUID[];
    v_last    INT8[];
    v_base    INT8[];
    v_written TIMESTAMPTZ[];
    v_windows INT[];
    v_window  INT;  -- the longest
    v_demands BOOLEAN;
    v_bounded BOOLEAN;
    v_now     TIMESTAMPTZ;
    c         RECORD;
BEGIN
    SELECT array_agg(l.id), array_agg(l.name), array_agg(l.queue_id), array_agg(l.last_offset), array_agg(l.last_offset + 1),
           array_agg(l.last_write_at)
      INTO v_ids, v_names, v_qids, v_last, v_base, v_written
      FROM (SELECT p.id, p.name, p.queue_id, p.last_offset, p.last_write_at
              FROM queen.log_partitions p
             WHERE p.id = ANY (p_pids)
             ORDER BY p.id
               FOR NO KEY UPDATE) l;
    v_now := clock_timestamp();
    IF v_ids IS DISTINCT FROM p_pids OR v_names IS DISTINCT FROM p_partitions THEN
        RETURN;
    END IF;
    IF v_qids[1] = ALL (v_qids) THEN
        SELECT q.dedup_window_seconds, q.encryption_enabled AND TRUE = ANY (p_plain), COALESCE(q.max_queue_size, 0) > 0
          INTO v_window, v_demands, v_bounded
          FROM queen.queues q
         WHERE q.id = v_qids[1] AND q.tenant_id = ALL (p_tenants) AND q.name = ALL (p_queues);
        v_windows := array_fill(v_window, ARRAY[v_n]);
    ELSE
        SELECT array_agg(x.win), max(x.win), bool_or(x.demands), bool_or(x.bounded)
          INTO v_windows, v_window, v_demands, v_bounded
          FROM (SELECT q.win, q.enc AND u.plain AS demands, q.bounded
                  FROM unnest(v_qids, p_tenants, p_queues, p_plain) WITH ORDINALITY AS u(qid, tenant, queue, plain, ord)
                 CROSS JOIN LATERAL (
                       SELECT k.dedup_window_seconds AS win, k.encryption_enabled AS enc, COALESCE(k.max_queue_size, 0) > 0 AS bounded
                         FROM queen.queues k
                        WHERE k.id = u.qid AND k.tenant_id = u.tenant AND k.name = u.queue
                       OFFSET 0) q
                 ORDER BY u.ord) x;
    END IF;
    IF v_bounded IS NOT FALSE OR cardinality(v_windows) <> v_n THEN
        RETURN;
    END IF;
    IF v_demands OR v_window > 0 AND (v_last = p_verified
            -- An unknown element says that the claim holds for everything.
            AND (v_now - make_interval(secs => v_window) >= ALL (p_since)) IS NOT FALSE) IS NOT TRUE THEN
        c := queen.log_push_core_v1(p_queues, p_partitions, p_counts, p_hashes, p_verified, p_blobs, p_tenants, p_plain, FALSE, NULL,
            NULL, NULL, p_pids, p_since);
        o_ord := c.o_ord;
        o_pids := c.o_pids;
        o_base := c.o_base;
        o_created := c.o_created;
        o_windows := c.o_windows;
        o_status := c.o_status;
        o_detail := c.o_detail;
        RETURN;
    END IF;
    o_base := v_base;
    o_windows := v_windows;
    IF v_now >= ALL (v_written) THEN
        o_created := array_fill(v_now, ARRAY[v_n]);
    ELSE
        o_created := ARRAY(SELECT GREATEST(v_now, w.at) FROM unnest(v_written) WITH ORDINALITY AS w(at, ord) ORDER BY w.ord);
    END IF;
    WITH s AS MATERIALIZED (
        SELECT u.pid, u.base,
               CASE WHEN u.n >= 1 AND octet_length(u.hashes) = 16 * u.n AND octet_length(u.blob) > 0 THEN u.base + u.n - 1 END AS upto,
               u.at, u.hashes, u.blob
          FROM unnest(p_pids, v_base, p_counts, o_created, p_hashes, p_blobs) AS u(pid, base, n, at, hashes, blob)
    ), segments AS (
        INSERT INTO queen.log_segments (partition_id, base_offset, end_offset, created_at, blob)
        SELECT s.pid, s.base, s.upto, s.at, s.blob FROM s
    ), sidecar AS (
        INSERT INTO queen.log_txns (partition_id, base_offset, end_offset, created_at, hashes)
        SELECT s.pid, s.base, s.upto, s.at, s.hashes FROM s
    )
    UPDATE queen.log_partitions p
       SET last_offset    = s.upto,
           last_write_at  = CASE WHEN v_now > p.last_write_at + INTERVAL '1 second' THEN v_now ELSE p.last_write_at END,
           oldest_live_at = COALESCE(p.oldest_live_at, s.at),
           oldest_txn_at  = COALESCE(p.oldest_txn_at, s.at)
      FROM s
     WHERE p.id = s.pid;
END $$;

-- log_push_verdicts_v1: the row of log_push_core_v1 as a JSON array of verdicts in input order:
--   {"status":S,"partitionId":uuid, …}, when it was stored with "baseOffset" and "createdAt" (ISO-us), and what o_detail says.
-- Locks: none. Called by: log_push_multi_v1, log_push_one_v1.
CREATE OR REPLACE FUNCTION queen.log_push_verdicts_v1(
    p_ord INT[], p_pids UUID[], p_base INT8[], p_created TIMESTAMPTZ[], p_status TEXT[], p_detail JSONB[])
RETURNS JSONB
LANGUAGE sql STABLE
AS $$
    SELECT jsonb_agg(
               jsonb_build_object('status', COALESCE(v.status, 'queued'), 'partitionId', v.pid)
               || CASE COALESCE(v.status, 'queued')
                  WHEN 'queued' THEN jsonb_build_object('baseOffset', v.base, 'createdAt', queen.iso_us_v1(v.created))
                  ELSE '{}'::jsonb END
               || COALESCE(v.detail, '{}'::jsonb)
               ORDER BY v.ord)
      FROM unnest(p_ord, p_pids, p_base, p_created, p_status, p_detail) AS v(ord, pid, base, created, status, detail)
$$;

-- log_push_multi_v1: store one segment per element of the arrays in one transaction; see log_push_core_v1 for the rest.
--   p_tenants        NULL puts every segment under the default tenant
--   p_plain, p_skip_capacity, p_traces
--                    as in log_push_core_v1
-- Returns the array of log_push_verdicts_v1; [] for no segments. An exception fails the whole bundle. Locks: those of log_push_core_v1.
-- Raises: QMULTI misaligned arrays, QMULTI misaligned tenants (QU003), and what the core raises.
-- Called by: the transaction wire, streams, brokers that do not know log_push_core_v1.
DROP FUNCTION IF EXISTS queen.log_push_multi_v1(TEXT[], TEXT[], INT[], BYTEA[], INT8[], BYTEA[], UUID[]);
CREATE OR REPLACE FUNCTION queen.log_push_multi_v1(
    p_queues TEXT[], p_partitions TEXT[], p_msg_counts INT[], p_hashes BYTEA[], p_verified INT8[], p_blobs BYTEA[],
    p_tenants UUID[] DEFAULT NULL, p_plain BOOLEAN[] DEFAULT NULL, p_skip_capacity BOOLEAN DEFAULT FALSE,
    p_traces JSONB DEFAULT NULL)
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_n INT := COALESCE(cardinality(p_queues), 0);
    c   RECORD;
BEGIN
    IF COALESCE(cardinality(p_partitions), 0) <> v_n OR COALESCE(cardinality(p_msg_counts), 0) <> v_n
       OR COALESCE(cardinality(p_hashes), 0) <> v_n OR COALESCE(cardinality(p_verified), 0) <> v_n
       OR COALESCE(cardinality(p_blobs), 0) <> v_n OR cardinality(p_plain) <> v_n THEN
        RAISE EXCEPTION 'QMULTI misaligned arrays (% queues)', v_n USING ERRCODE = 'QU003';
    END IF;
    IF cardinality(p_tenants) <> v_n THEN
        RAISE EXCEPTION 'QMULTI misaligned tenants (% vs % queues)', cardinality(p_tenants), v_n USING ERRCODE = 'QU003';
    END IF;
    IF v_n = 0 THEN
        RETURN '[]'::jsonb;
    END IF;
    c := queen.log_push_core_v1(p_queues, p_partitions, p_msg_counts, p_hashes, p_verified, p_blobs,
        COALESCE(p_tenants, array_fill('00000000-0000-0000-0000-000000000001'::uuid, ARRAY[v_n])),
        p_plain, p_skip_capacity, p_traces, NULL, NULL, NULL, NULL);
    RETURN queen.log_push_verdicts_v1(c.o_ord, c.o_pids, c.o_base, c.o_created, c.o_status, c.o_detail);
END $$;

-- log_push_one_v1: store one segment; the one-element call of log_push_core_v1.
--   p_pid     known partition id; NULL resolves by names and creates what is missing
--   p_window  deduplication window in seconds, 0 or less turns the probe off; NULL takes the queue's
-- Returns the verdict object. Raises QPUSH bad segment, QPUSH unknown queue/partition, QPUSH partition vanished mid-push.
-- Locks: those of log_push_core_v1.
DROP FUNCTION IF EXISTS queen.log_push_one_v1(TEXT, TEXT, INT, BYTEA, BIGINT, BYTEA, UUID, INT);
DROP FUNCTION IF EXISTS queen.log_push_one_v1(TEXT, TEXT, INT, BYTEA, BIGINT, BYTEA, UUID, INT, UUID);
CREATE OR REPLACE FUNCTION queen.log_push_one_v1(
    p_queue TEXT, p_partition TEXT, p_msg_count INT, p_hashes BYTEA, p_verified BIGINT, p_blob BYTEA,
    p_pid UUID DEFAULT NULL, p_window INT DEFAULT NULL, p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001',
    p_plain BOOLEAN DEFAULT NULL, p_skip_capacity BOOLEAN DEFAULT FALSE, p_traces JSONB DEFAULT NULL)
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    c RECORD;
BEGIN
    c := queen.log_push_core_v1(ARRAY[p_queue], ARRAY[p_partition], ARRAY[p_msg_count], ARRAY[p_hashes], ARRAY[p_verified],
        ARRAY[p_blob], ARRAY[p_tenant], ARRAY[p_plain], p_skip_capacity, p_traces,
        CASE WHEN p_pid IS NOT NULL THEN ARRAY[p_pid] END, ARRAY[p_window], NULL, NULL);
    RETURN queen.log_push_verdicts_v1(c.o_ord, c.o_pids, c.o_base, c.o_created, c.o_status, c.o_detail) -> 0;
END $$;

-- log_txns_window_v1: the sidecar rows of one partition behind an offset that lie inside a deduplication window, oldest first.
--   p_after    rows with a base offset above it; -1 takes all
--   p_seconds  length of the window, counted from now
-- Every row carries the same r_since: no row stored at or after it, and behind p_after, is missing from what is committed.
-- Locks: none. Called by: pg.WindowHashes.
CREATE OR REPLACE FUNCTION queen.log_txns_window_v1(p_pid UUID, p_after INT8, p_seconds INT)
RETURNS TABLE (r_base INT8, r_end INT8, r_created TIMESTAMPTZ, r_since TIMESTAMPTZ, r_hashes BYTEA)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
DECLARE
    v_since TIMESTAMPTZ := clock_timestamp() - make_interval(secs => p_seconds);
    v_first INT8;
    v_at    TIMESTAMPTZ;
    v_last  INT8;
    v_lo    INT8;
BEGIN
    SELECT t.base_offset, t.created_at INTO v_first, v_at
      FROM queen.log_txns t
     WHERE t.partition_id = p_pid AND t.base_offset > p_after
     ORDER BY t.base_offset
     LIMIT 1;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    v_lo := v_first;
    IF v_at < v_since THEN
        SELECT t.base_offset INTO v_last
          FROM queen.log_txns t
         WHERE t.partition_id = p_pid
         ORDER BY t.base_offset DESC
         LIMIT 1;
        v_lo := queen.log_txns_window_start_v1(p_pid, v_first, v_last, v_since);
    END IF;
    RETURN QUERY
    SELECT t.base_offset, t.end_offset, t.created_at, v_since, t.hashes
      FROM queen.log_txns t
     WHERE t.partition_id = p_pid AND t.base_offset >= v_lo AND t.created_at >= v_since
     ORDER BY t.base_offset;
END $$;

-- log_segment_at_v1: the segment that covers an offset; no row in a retention gap, past the head, or after retention.
-- The covering test stands outside the LIMIT: inside, a miss would walk to the head of the partition.
-- Locks: none. Called by: pg.SegmentAt.
CREATE OR REPLACE FUNCTION queen.log_segment_at_v1(p_pid UUID, p_off BIGINT)
RETURNS TABLE (r_base BIGINT, r_end BIGINT, r_created TIMESTAMPTZ, r_blob BYTEA)
LANGUAGE sql STABLE
AS $$
    SELECT s.base_offset, s.end_offset, s.created_at, s.blob
      FROM (SELECT x.base_offset, x.end_offset, x.created_at, x.blob
              FROM queen.log_segments x
             WHERE x.partition_id = p_pid AND x.base_offset <= p_off
             ORDER BY x.base_offset DESC
             LIMIT 1) s
     WHERE s.end_offset >= p_off
$$;

GRANT EXECUTE ON FUNCTION queen.log_push_multi_v1(TEXT[], TEXT[], INT[], BYTEA[], INT8[], BYTEA[], UUID[], BOOLEAN[], BOOLEAN, JSONB) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_push_one_v1(TEXT, TEXT, INT, BYTEA, BIGINT, BYTEA, UUID, INT, UUID, BOOLEAN, BOOLEAN, JSONB) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_segment_at_v1(UUID, BIGINT) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_push_core_v1(TEXT[], TEXT[], INT[], BYTEA[], INT8[], BYTEA[], UUID[], BOOLEAN[], BOOLEAN, JSONB, UUID[], INT[], UUID[], TIMESTAMPTZ[]) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_push_known_v1(TEXT[], TEXT[], INT[], BYTEA[], INT8[], BYTEA[], UUID[], BOOLEAN[], UUID[], TIMESTAMPTZ[]) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_push_verdicts_v1(INT[], UUID[], INT8[], TIMESTAMPTZ[], TEXT[], JSONB[]) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_txns_window_v1(UUID, INT8, INT) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_txns_window_start_v1(UUID, BIGINT, BIGINT, TIMESTAMPTZ) TO PUBLIC;
