-- The pop of the broker's hot list: named candidates, rows instead of JSON, one statement in the common case.
--
-- It follows the rule of log_pop_v1. What it does not do itself (delayed or windowed queues, cursors to be sealed) it hands to
-- log_pop_claim_v1. TestPopReadyEqualsTheList holds it against log_pop_list_v1 on random states.

-- log_pop_ready_v1: claim from a list of candidate partitions that the caller believes to have messages.
--   p_partitions  different partition names of one queue, in the order in which they may take; NULL acts as empty
--   p_workers, p_budgets, p_leases  for many pops in one call: parallel to p_partitions, the lease id, the most messages and the lease
--                 seconds of the pop that each candidate is for. Candidates of one lease id share its budget, in their order. p_budget is
--                 then the sum over the pops. Such a call leaves deferred queues and cursors to be sealed alone
--   p_max_bytes   stored bytes beyond which no further segment is taken; NULL and more than log_pop_max_bytes_v1: that. A call that has to
--                 leave it to log_pop_claim_v1 goes by the latter alone
--   the others    as log_pop_list_v1
-- Returns the segments taken, partitions in candidate order, then one verdict per other candidate that was tried:
--   r_ord      the candidate, from 1
--   r_verdict  'took'      r_partition is its id, r_last_offset its head as the claim saw it; one row per segment in r_base, r_start,
--                          r_take, r_created_at, r_blob, ascending
--              'poison'    as 'took', with one message that is to be filed, see log_pop_v1
--              'leased'    somebody else holds it, r_wait_ms is how long
--              'raced'     a claim lost a race, since an auto-ack winner shows no lease; worth another look in r_wait_ms
--              'deferred'  nothing can be taken before r_wait_ms have passed (delayed_processing, window_buffer, a redelivery that waits)
--              'empty'     nothing pending, or no such partition
-- Candidates behind the end of their budget, of log_pop_max_bytes_v1 or of the cap have no row: they are to be asked about again. One that is to be sealed is 'raced'
-- when others yielded.
-- An unknown queue: every candidate is empty.
-- The claim is one statement: cursors are locked, segments read and cursors moved under one snapshot. A cursor that another pop moved
-- after that snapshot is re-read by the lock; the segments of the snapshot are a prefix of what there is, because a partition's
-- commits are serialized. So a batch never begins before the cursor and never passes an offset that was not read.
-- Offsets are taken to be dense above log_start: where they are not, a batch is shorter than its budget.
-- Locks: as log_pop_first_contact_v1, then log_consumers rows of the candidates, SKIP LOCKED. Called by: pg.PopReady.
-- Older forms had no arrays and no p_max_bytes; beside this one a call without them would be ambiguous.
DROP FUNCTION IF EXISTS queen.log_pop_ready_v1(TEXT, TEXT, TEXT[], INTEGER, INTEGER, TEXT, BOOLEAN, INTEGER, TEXT, TEXT, BOOLEAN, UUID);
DROP FUNCTION IF EXISTS queen.log_pop_ready_v1(TEXT, TEXT, TEXT[], INTEGER, INTEGER, TEXT, BOOLEAN, INTEGER, TEXT, TEXT, BOOLEAN, UUID, TEXT[], INTEGER[], INTEGER[]);

CREATE OR REPLACE FUNCTION queen.log_pop_ready_v1(
    p_queue TEXT, p_group TEXT, p_partitions TEXT[], p_budget INTEGER, p_lease_seconds INTEGER, p_worker TEXT, p_auto_ack BOOLEAN,
    p_max_partitions INTEGER, p_sub_mode TEXT DEFAULT 'all', p_sub_from TEXT DEFAULT '', p_skip_window BOOLEAN DEFAULT FALSE,
    p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001', p_workers TEXT[] DEFAULT NULL, p_budgets INTEGER[] DEFAULT NULL,
    p_leases INTEGER[] DEFAULT NULL, p_max_bytes BIGINT DEFAULT NULL)
RETURNS TABLE (r_ord INTEGER, r_verdict TEXT, r_partition UUID, r_last_offset BIGINT, r_wait_ms BIGINT, r_base BIGINT, r_start INTEGER,
               r_take INTEGER, r_created_at TIMESTAMPTZ, r_blob BYTEA)
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_material = off
AS $$
DECLARE
    v_now     TIMESTAMPTZ := clock_timestamp();
    v_left    BIGINT := GREATEST(p_budget, 1);
    v_cap     BIGINT := CASE WHEN p_max_partitions > 0 THEN p_max_partitions ELSE 2147483647 END;
    v_room    BIGINT := LEAST(queen.log_pop_max_bytes_v1(), p_max_bytes);
    v_queue   UUID;
    v_delay   INTEGER;
    v_window  INTEGER;
    v_most    INTEGER;  -- max_deliveries, 0 where it does not count
    v_took    INTEGER[] := '{}'::INTEGER[];
    v_spent   TEXT[] := '{}'::TEXT[];  -- workers whose budget is used up
    v_worker  TEXT;
    v_sum     BIGINT := 0;  -- taken for v_worker
    v_tried   INTEGER := COALESCE(array_length(p_partitions, 1), 0);
    -- Queue and group as columns beside the names: as constants they would let a plan made on small tables start from all
    -- partitions of the queue or all cursors of the group, and the plan is kept.
    v_queues  UUID[];
    v_groups  TEXT[] := array_fill(p_group, ARRAY[GREATEST(COALESCE(array_length(p_partitions, 1), 0), 1)]);
    v_new     UUID[];
    v_pids    UUID[];
    v_ords    INTEGER[];
    v_claimed RECORD;
BEGIN
    SELECT q.id, COALESCE(q.delayed_processing, 0), CASE WHEN p_skip_window THEN 0 ELSE COALESCE(q.window_buffer, 0) END,
           CASE WHEN p_auto_ack THEN 0 ELSE q.max_deliveries END,
           (SELECT array_agg(p.id)
              FROM unnest(p_partitions, array_fill(q.id, ARRAY[GREATEST(v_tried, 1)]), v_groups) AS u(name, queue, grp)
              JOIN queen.log_partitions p ON p.queue_id = u.queue AND p.name = u.name
              LEFT JOIN queen.log_consumers c ON c.partition_id = p.id AND c.consumer_group = u.grp
             WHERE c.partition_id IS NULL)
      INTO v_queue, v_delay, v_window, v_most, v_new
      FROM queen.queues q
     WHERE q.tenant_id = p_tenant AND q.name = p_queue;
    v_queues := array_fill(v_queue, ARRAY[GREATEST(v_tried, 1)]);

    IF v_delay = 0 AND v_window = 0 THEN
        -- Creating comes before claiming: an insert may wait for another creator, a claim never waits.
        IF v_new IS NOT NULL THEN
            PERFORM queen.log_pop_first_contact_v1(v_new, p_group, p_sub_mode, p_sub_from);
        END IF;
        FOR r_ord, r_verdict, r_partition, r_last_offset, r_base, r_start, r_take, r_created_at, r_blob IN
            WITH held AS MATERIALIZED (
                SELECT p.ord, p.grp, COALESCE(p.worker, p_worker) AS worker, COALESCE(p.lease, p_lease_seconds, 60) AS lease, p.id, p.last_offset,
                       c.committed + 1 AS wanted, c.attempt_offset, c.attempt_count, p.log_start,
                       CASE WHEN v_most > 0 AND (GREATEST(c.isolate_end, c.batch_end) > c.committed
                                                 OR (c.attempt_count >= v_most AND c.attempt_offset > c.committed))
                            THEN 1 ELSE COALESCE(p.budget, v_left) END AS budget,
                       COALESCE(p.budget, v_left) AS shared
                       -- The partitions come first: a plan made while log_consumers was small would read all cursors of the group for each.
                  FROM (SELECT u.*, x.id, x.last_offset, x.log_start
                          FROM unnest(p_partitions, p_workers, p_budgets, p_leases, v_queues, v_groups)
                               WITH ORDINALITY AS u(name, worker, budget, lease, queue, grp, ord)
                          JOIN queen.log_partitions x ON x.queue_id = u.queue AND x.name = u.name
                         WHERE x.log_start <= x.last_offset
                        OFFSET 0) p
                  JOIN queen.log_consumers c ON c.partition_id = p.id AND c.consumer_group = p.grp
                 WHERE c.committed < p.last_offset
                   AND (c.worker_id IS NULL OR c.lease_expires_at IS NULL OR c.lease_expires_at <= v_now)
                   FOR UPDATE OF c SKIP LOCKED
            ), span AS (
                -- Offsets are dense above log_start, so what the candidates before it leave of the budget is known without their segments.
                SELECT h.*, LEAST(h.budget, h.shared - (sum(h.promised) OVER in_order - h.promised)::BIGINT) AS room,
                       row_number() OVER in_order AS nth
                  FROM (SELECT x.*, LEAST(x.last_offset - GREATEST(x.log_start, x.wanted) + 1, x.budget) AS promised FROM held x) h
                WINDOW in_order AS (PARTITION BY h.worker ORDER BY h.ord)
            ), taken AS MATERIALIZED (
                SELECT x.*
                  FROM (SELECT h.ord::INTEGER AS ord, h.grp, h.worker, h.lease, h.id, h.last_offset, s.base_offset,
                               queen.log_pop_is_poison_v1(CASE WHEN h.attempt_offset = GREATEST(s.base_offset, h.wanted)
                                                               THEN h.attempt_count + 1 ELSE 1 END, v_most) AS poison,
                               GREATEST(h.wanted - s.base_offset, 0)::INTEGER AS start,
                               (LEAST(s.end_offset, GREATEST(f.base_offset, h.wanted) + h.room - 1)
                                - GREATEST(s.base_offset, h.wanted) + 1)::INTEGER AS take,
                               s.created_at, s.blob,
                               sum(octet_length(s.blob)) OVER (ORDER BY h.ord, s.base_offset) - octet_length(s.blob) AS bytes_before
                          FROM span h
                         CROSS JOIN LATERAL (
                               -- The segment that covers the wanted offset, else the first one behind it.
                               SELECT COALESCE((SELECT k.base_offset
                                                  FROM (SELECT g.base_offset, g.end_offset FROM queen.log_segments g
                                                         WHERE g.partition_id = h.id AND g.base_offset <= h.wanted
                                                         ORDER BY g.base_offset DESC LIMIT 1) k
                                                 WHERE k.end_offset >= h.wanted),
                                               (SELECT g.base_offset FROM queen.log_segments g
                                                 WHERE g.partition_id = h.id AND g.base_offset > h.wanted
                                                 ORDER BY g.base_offset LIMIT 1)) AS base_offset
                               OFFSET 0) f  -- or it would be looked up wherever it is named
                         CROSS JOIN LATERAL (
                               SELECT g.base_offset, g.end_offset, g.created_at, g.blob
                                 FROM queen.log_segments g
                                WHERE g.partition_id = h.id AND g.base_offset >= f.base_offset
                                  AND g.base_offset < GREATEST(f.base_offset, h.wanted) + h.room
                                ORDER BY g.base_offset) s
                         WHERE h.room > 0 AND h.nth <= v_cap) x
                 WHERE x.bytes_before < v_room
            ), moved AS (
                UPDATE queen.log_consumers c
                   SET committed = CASE WHEN p_auto_ack THEN b.end_offset ELSE c.committed END,
                       worker_id = CASE WHEN p_auto_ack THEN NULL ELSE b.worker END,
                       lease_expires_at = CASE WHEN p_auto_ack THEN NULL ELSE v_now + make_interval(secs => b.lease) END,
                       lease_acquired_at = CASE WHEN p_auto_ack THEN NULL ELSE v_now END,
                       batch_end = CASE WHEN p_auto_ack THEN NULL ELSE b.end_offset END,
                       total_consumed = c.total_consumed + CASE WHEN p_auto_ack THEN b.taken ELSE 0 END,
                       attempt_count = CASE WHEN p_auto_ack THEN c.attempt_count
                                            WHEN c.attempt_offset = b.first_offset THEN c.attempt_count + 1 ELSE 1 END,
                       attempt_offset = CASE WHEN p_auto_ack THEN c.attempt_offset ELSE b.first_offset END,
                       isolate_end = CASE WHEN v_most > 0 THEN GREATEST(c.isolate_end, c.batch_end) ELSE c.isolate_end END
                  FROM (SELECT t.id, t.grp, min(t.worker) AS worker, min(t.lease) AS lease, min(t.base_offset + t.start) AS first_offset,
                               max(t.base_offset + t.start + t.take - 1) AS end_offset, sum(t.take) AS taken
                          FROM taken t
                         GROUP BY t.id, t.grp) b
                 WHERE c.partition_id = b.id AND c.consumer_group = b.grp
            )
            SELECT t.ord, CASE WHEN t.poison THEN 'poison' ELSE 'took' END, t.id, t.last_offset, t.base_offset, t.start, t.take, t.created_at,
                   t.blob
              FROM taken t
             ORDER BY t.ord, t.base_offset
        LOOP
            RETURN NEXT;
            v_left := v_left - r_take;
            v_room := v_room - octet_length(r_blob);
            IF p_workers IS NOT NULL THEN
                IF v_worker IS DISTINCT FROM p_workers[r_ord] THEN
                    v_worker := p_workers[r_ord];
                    v_sum := 0;
                END IF;
                v_sum := v_sum + r_take;
                IF v_sum >= p_budgets[r_ord] THEN
                    v_spent := v_spent || v_worker;
                END IF;
            END IF;
            IF v_took[array_length(v_took, 1)] IS DISTINCT FROM r_ord THEN
                v_took := v_took || r_ord;
            END IF;
        END LOOP;
        IF v_left <= 0 OR v_room <= 0 OR array_length(v_took, 1) >= v_cap THEN
            v_tried := v_took[array_length(v_took, 1)];
        END IF;
        IF array_length(v_took, 1) = v_tried THEN
            RETURN;
        END IF;
    END IF;

    -- What the statement above cannot do. Nothing is held yet.
    IF array_length(v_took, 1) IS NULL AND p_workers IS NULL THEN
        SELECT array_agg(x.id ORDER BY x.ord), array_agg(x.ord ORDER BY x.ord) INTO v_pids, v_ords
          FROM (SELECT p.id, u.ord::INTEGER AS ord
                  FROM unnest(p_partitions, v_queues, v_groups) WITH ORDINALITY AS u(name, queue, grp, ord)
                  JOIN queen.log_partitions p ON p.queue_id = u.queue AND p.name = u.name
                  LEFT JOIN queen.log_consumers c ON c.partition_id = p.id AND c.consumer_group = u.grp
                 WHERE v_delay > 0 OR v_window > 0
                    OR (p.last_offset > c.committed  -- to be sealed: retention removed all of it
                        AND NOT EXISTS (SELECT 1 FROM queen.log_segments s WHERE s.partition_id = p.id))) x;
        IF v_pids IS NOT NULL THEN
            SELECT c.* INTO v_claimed
              FROM queen.log_pop_claim_v1(v_pids, p_group, p_budget, p_lease_seconds, FALSE, p_worker, p_auto_ack, p_max_partitions,
                                          p_sub_mode, p_sub_from, p_skip_window) c;
            FOR r_ord, r_verdict, r_partition, r_last_offset, r_base, r_start, r_take, r_created_at, r_blob IN
                SELECT v_ords[array_position(v_pids, s.id)], CASE WHEN s.poison THEN 'poison' ELSE 'took' END, s.id, p.last_offset, s.base, s.start, s.take, s.created_at, v_claimed.r_blobs[s.n]
                  FROM (SELECT (part ->> 'partitionId')::UUID AS id, part ? 'poison' AS poison, (seg ->> 'seq')::BIGINT AS base, (seg ->> 'startOff')::INTEGER AS start,
                               (seg ->> 'take')::INTEGER AS take, (seg ->> 'createdAt')::TIMESTAMPTZ AS created_at,
                               row_number() OVER (ORDER BY i, k) AS n
                          FROM jsonb_array_elements(v_claimed.r_meta -> 'partitions') WITH ORDINALITY AS a(part, i)
                         CROSS JOIN LATERAL jsonb_array_elements(part -> 'segments') WITH ORDINALITY AS b(seg, k)) s
                  JOIN queen.log_partitions p ON p.id = s.id
                 ORDER BY s.n
            LOOP
                RETURN NEXT;
                v_left := v_left - r_take;
                v_room := v_room - octet_length(r_blob);
                IF v_took[array_length(v_took, 1)] IS DISTINCT FROM r_ord THEN
                    v_took := v_took || r_ord;
                END IF;
            END LOOP;
            IF v_left <= 0 OR v_room <= 0 OR array_length(v_took, 1) >= v_cap THEN
                v_tried := v_took[array_length(v_took, 1)];
            END IF;
        END IF;
    END IF;

    r_partition := NULL;
    r_base := NULL;
    r_start := NULL;
    r_take := NULL;
    r_created_at := NULL;
    r_blob := NULL;
    FOR r_ord, r_verdict, r_last_offset, r_wait_ms IN
        SELECT x.ord, x.verdict, x.last_offset, ceil(extract(epoch FROM x.until - v_now) * 1000)::BIGINT
          FROM (SELECT u.ord::INTEGER AS ord, p.last_offset,
                       CASE WHEN c.worker_id = '__retry__' AND c.lease_expires_at > v_now THEN 'deferred'  -- nobody gives it back before
                            WHEN c.worker_id IS DISTINCT FROM p_worker AND c.worker_id IS NOT NULL AND c.lease_expires_at > v_now THEN 'leased'
                            WHEN p.last_offset > COALESCE(c.committed, -1) THEN CASE WHEN d.visible_at > v_now THEN 'deferred' ELSE 'raced' END
                            ELSE 'empty' END AS verdict,
                       CASE WHEN c.worker_id IS DISTINCT FROM p_worker AND c.worker_id IS NOT NULL AND c.lease_expires_at > v_now
                            THEN c.lease_expires_at
                            WHEN d.visible_at > v_now THEN d.visible_at
                            WHEN p.last_offset > COALESCE(c.committed, -1) THEN v_now + interval '250 milliseconds' END AS until
                  FROM unnest(p_partitions[:v_tried], v_queues[:v_tried], v_groups[:v_tried]) WITH ORDINALITY AS u(name, queue, grp, ord)
                  LEFT JOIN queen.log_partitions p ON p.queue_id = u.queue AND p.name = u.name
                  LEFT JOIN queen.log_consumers c ON c.partition_id = p.id AND c.consumer_group = u.grp
                  LEFT JOIN LATERAL (
                       SELECT GREATEST(
                              COALESCE((SELECT k.created_at
                                          FROM (SELECT s.end_offset, s.created_at FROM queen.log_segments s
                                                 WHERE s.partition_id = p.id AND s.base_offset <= COALESCE(c.committed, -1) + 1
                                                 ORDER BY s.base_offset DESC LIMIT 1) k
                                         WHERE k.end_offset > COALESCE(c.committed, -1)),
                                       (SELECT s.created_at FROM queen.log_segments s
                                         WHERE s.partition_id = p.id AND s.base_offset > COALESCE(c.committed, -1) + 1
                                         ORDER BY s.base_offset LIMIT 1)) + make_interval(secs => NULLIF(v_delay, 0)),
                              (SELECT s.created_at FROM queen.log_segments s
                                WHERE s.partition_id = p.id
                                ORDER BY s.base_offset DESC LIMIT 1) + make_interval(secs => NULLIF(v_window, 0))) AS visible_at
                        WHERE (v_delay > 0 OR v_window > 0) AND p.last_offset > COALESCE(c.committed, -1)
                       ) d ON TRUE
                 WHERE u.ord <> ALL (v_took) AND (p_workers IS NULL OR p_workers[u.ord] <> ALL (v_spent))) x
         ORDER BY x.ord
    LOOP
        RETURN NEXT;
    END LOOP;
END $$;

-- log_hotlist_page_v1: one page of a walk over the partitions that may have messages for the group, leased ones included.
--   p_window    seconds; the walk covers what was written to within them. NULL: everything but what lies below the floor of the group, which
--               is known to have nothing (log_pop_raise_floor_v1)
--   p_after_at, p_after_id  where the page before ended; NULL for the first page
--   p_limit     how many partitions are looked at; NULL and values below 1 act as 1
-- Returns the pending ones among them, r_messages being how many messages each has (offsets, gaps included), and after a page that was full one
-- more row, without a name: where the next page goes on. The walk goes
-- by the time of the last write, which never decreases: what is written to meanwhile moves to where the walk has yet to come.
-- The page bounds what is read, not what is found: a page of idle partitions costs no more than one of pending ones.
-- A window is sound only while a push is what made a partition pending; after a seek or a group delete the full walk is needed.
-- Locks: none. Called by: pg.Pending. Plan test: TestPlanHotListPageIsBounded.
CREATE OR REPLACE FUNCTION queen.log_hotlist_page_v1(
    p_queue TEXT, p_group TEXT, p_tenant UUID, p_window FLOAT8, p_after_at TIMESTAMPTZ, p_after_id UUID, p_limit INTEGER)
RETURNS TABLE (r_at TIMESTAMPTZ, r_id UUID, r_name TEXT, r_messages BIGINT)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_queue UUID;
    v_from  TIMESTAMPTZ;
    v_limit INTEGER := GREATEST(COALESCE(p_limit, 1), 1);
BEGIN
    SELECT q.id, COALESCE(p_after_at, clock_timestamp() - make_interval(secs => p_window), w.last_empty_scan_at - interval '2 minutes', '-infinity')
      INTO v_queue, v_from
      FROM queen.queues q
      LEFT JOIN queen.consumer_watermarks w ON w.queue_id = q.id AND w.consumer_group = p_group
     WHERE q.tenant_id = p_tenant AND q.name = p_queue;
    RETURN QUERY
    WITH page AS MATERIALIZED (
        SELECT p.last_write_at, p.id, p.name, p.last_offset, p.log_start
          FROM queen.log_partitions p
         WHERE p.queue_id = v_queue AND p.last_write_at >= v_from
           AND (p_after_at IS NULL OR (p.last_write_at, p.id) > (p_after_at, p_after_id))
         ORDER BY p.last_write_at, p.id
         LIMIT v_limit)
    SELECT g.last_write_at, g.id, g.name, g.last_offset - GREATEST(COALESCE(c.committed, -1), g.log_start - 1)
      FROM page g
      LEFT JOIN queen.log_consumers c ON c.partition_id = g.id AND c.consumer_group = p_group
     WHERE g.last_offset > COALESCE(c.committed, -1)
     UNION ALL
    SELECT e.last_write_at, e.id, NULL, NULL
      FROM (SELECT g.last_write_at, g.id FROM page g ORDER BY g.last_write_at DESC, g.id DESC LIMIT 1) e
     WHERE (SELECT count(*) FROM page) >= v_limit;
END $$;

GRANT EXECUTE ON FUNCTION queen.log_pop_ready_v1(TEXT, TEXT, TEXT[], INTEGER, INTEGER, TEXT, BOOLEAN, INTEGER, TEXT, TEXT, BOOLEAN, UUID, TEXT[], INTEGER[], INTEGER[], BIGINT)
    TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_hotlist_page_v1(TEXT, TEXT, UUID, FLOAT8, TIMESTAMPTZ, UUID, INTEGER) TO PUBLIC;
