-- The set-based half of the pops: where a group starts, claiming from many candidates at once, finding candidates in queues.
-- Lock order and planner settings: see the head of 004.

-- log_pop_subscription_v1: what a pop asks for as the start of a group.
--   p_sub_mode  'new' or anything else, which means all
--   p_sub_from  '' (not given), 'now', or an ISO date or timestamp; without a zone it is UTC
-- Returns r_mode: 'all', 'new', 'timestamp' with r_at, or 'invalid' when p_sub_from is no finite timestamp. Words that the
-- timestamp type would accept (tomorrow, infinity) are not timestamps here.
-- Reads and locks nothing. Called by the pops on first contact only: the exception block costs a subtransaction.
CREATE OR REPLACE FUNCTION queen.log_pop_subscription_v1(p_sub_mode TEXT, p_sub_from TEXT, OUT r_mode TEXT, OUT r_at TIMESTAMPTZ)
RETURNS RECORD
LANGUAGE plpgsql STABLE
SET TimeZone = 'UTC'
AS $$
BEGIN
    IF COALESCE(p_sub_from, '') NOT IN ('', 'now') THEN
        r_mode := 'invalid';
        IF p_sub_from ~ '^\s*\d{4,6}-\d{1,2}-\d{1,2}' THEN
            BEGIN
                r_at := p_sub_from::TIMESTAMPTZ;
                r_mode := 'timestamp';
            EXCEPTION WHEN data_exception THEN
                r_at := NULL;
            END;
        END IF;
    ELSIF p_sub_mode = 'new' OR p_sub_from = 'now' THEN
        r_mode := 'new';
    ELSE
        r_mode := 'all';
    END IF;
END $$;

-- log_pop_seed_at_v1: the cursor of a group that starts at a time: just before the first live segment not older than p_at, the
-- end of the partition when there is none. Walks the primary key forward from p_log_start; created_at never decreases there.
-- Reads log_segments, locks nothing.
CREATE OR REPLACE FUNCTION queen.log_pop_seed_at_v1(p_pid UUID, p_log_start BIGINT, p_last_offset BIGINT, p_at TIMESTAMPTZ)
RETURNS BIGINT
LANGUAGE sql STABLE
AS $$
    SELECT COALESCE((SELECT s.base_offset - 1
                       FROM queen.log_segments s
                      WHERE s.partition_id = p_pid AND s.base_offset >= p_log_start AND s.created_at >= p_at
                      ORDER BY s.base_offset
                      LIMIT 1), p_last_offset)
$$;

-- log_pop_first_contact_v1: create the cursors of a group on partitions where it has none. A subscription record decides where they start,
-- else what the pop asks for: p_sub_mode, p_sub_from as log_pop_v1; an unreadable start is ignored.
--   p_pids  partition ids, of any queues
-- The try-lock keeps pops from queueing behind each other's insert of the same row: what another session is creating is passed over.
-- Locks: per row an advisory lock (try), then log_consumers inserts ascending by partition id. A caller holds no cursor yet.
-- Called by: log_pop_claim_v1, log_pop_ready_v1.
CREATE OR REPLACE FUNCTION queen.log_pop_first_contact_v1(p_pids UUID[], p_group TEXT, p_sub_mode TEXT, p_sub_from TEXT)
RETURNS VOID
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_mode  TEXT;
    v_since TIMESTAMPTZ;
BEGIN
    IF p_group <> '__QUEUE_MODE__' THEN
        SELECT s.r_mode, s.r_at INTO v_mode, v_since FROM queen.log_pop_subscription_v1(p_sub_mode, p_sub_from) s;
        IF v_mode = 'invalid' THEN
            v_mode := CASE WHEN p_sub_mode = 'new' THEN 'new' ELSE 'all' END;
        END IF;
    END IF;
    INSERT INTO queen.log_consumers (partition_id, consumer_group, committed)
    SELECT x.id, p_group,
           CASE WHEN x.since IS NOT NULL THEN queen.log_pop_seed_at_v1(x.id, x.log_start, x.last_offset, x.since)
                WHEN v_mode = 'new' THEN x.last_offset
                ELSE -1 END
      FROM (SELECT p.id, p.log_start, p.last_offset,
                   CASE WHEN p_group <> '__QUEUE_MODE__' THEN COALESCE(m.subscription_timestamp, v_since) END AS since
              FROM unnest(p_pids) AS u(pid)
              JOIN queen.log_partitions p ON p.id = u.pid
              JOIN queen.queues q ON q.id = p.queue_id
              LEFT JOIN queen.consumer_groups_metadata m
                ON m.tenant_id = q.tenant_id AND m.consumer_group = p_group AND m.queue_id = p.queue_id
               AND m.partition_name = '' AND m.namespace = '' AND m.task = ''
             WHERE pg_try_advisory_xact_lock(hashtextextended(u.pid::TEXT || '/' || p_group, 42))) x
     ORDER BY x.id
    ON CONFLICT DO NOTHING;
END $$;

-- log_pop_claim_v1: log_pop_v1 for many candidates at once, in candidate order, under one budget.
--   p_pids            partition ids in the order in which they may take; NULLs and repetitions are passed over
--   p_budget          most messages of the whole call; NULL and values below 1 act as 1. It is also spent with the
--                     segment that fills the claim (log_pop_max_bytes_v1)
--   p_lease_seconds   seconds; with p_own_lease NULL or 0 means the lease time of the candidate's own queue
--   p_max_partitions  most partitions that may yield messages; NULL, 0 and negative values: no cap
--   the others        as log_pop_v1
-- Returns one record:
--   r_meta        {"partitions":[{"queue","partition","partitionId","attempt","poison"?,"segments":[{"seq","startOff","take","createdAt"}]}]},
--                 partitions in candidate order, segments ascending. poison: true for one message that is to be filed, see log_pop_v1
--   r_blobs       the blobs of those segments in that order
--   r_msg_counts  parallel to r_blobs: all messages of the segment, taken or not
--   r_took        ids of the partitions that yielded
--   r_reached     how many leading elements of p_pids were tried before the budget or the cap was spent
-- Statements: one reads the candidates; then per round an optional insert of first-contact rows, one claim, one scan of the
-- segments (at most two), one update, an optional seal; one builds r_meta. A round covers as many candidates as the numbers read promise to
-- need, so that rows a small budget cannot use stay unlocked for other consumers. It is normally the only one; after a short
-- one (lost races, delayed messages) the next covers eight times as much.
-- Blobs of segments that are not delivered are not fetched. A claimed row that the budget does not reach is left as it was.
-- Locks: per round new log_consumers rows ascending by partition id, then existing ones ascending, SKIP LOCKED.
-- Called by: log_pop_list_v1, log_pop_scan_v1.
CREATE OR REPLACE FUNCTION queen.log_pop_claim_v1(
    p_pids UUID[], p_group TEXT, p_budget INTEGER, p_lease_seconds INTEGER, p_own_lease BOOLEAN, p_worker TEXT, p_auto_ack BOOLEAN,
    p_max_partitions INTEGER, p_sub_mode TEXT, p_sub_from TEXT, p_skip_window BOOLEAN,
    OUT r_meta JSONB, OUT r_blobs BYTEA[], OUT r_msg_counts INTEGER[], OUT r_took UUID[], OUT r_reached INTEGER)
RETURNS RECORD
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_now      TIMESTAMPTZ := clock_timestamp();
    v_left     BIGINT := GREATEST(p_budget, 1);
    v_room     BIGINT := queen.log_pop_max_bytes_v1();
    v_cap      BIGINT := CASE WHEN p_max_partitions > 0 THEN p_max_partitions ELSE 2147483647 END;
    -- Candidates worth a claim, parallel arrays in candidate order.
    c_ord      INTEGER[];
    c_pid      UUID[];
    c_name     TEXT[];
    c_queue    TEXT[];
    c_last     BIGINT[];
    c_start    BIGINT[];
    c_lease    INTEGER[];
    c_deadline TIMESTAMPTZ[];
    c_new      BOOLEAN[];
    c_most     INTEGER[];  -- max_deliveries, 0 where it does not count
    c_estimate BIGINT[];
    v_groups   TEXT[]; -- the group, once per candidate; see the head of 004
    -- The round: candidates v_from .. v_to, of which the last one reached is v_stop.
    v_count    INTEGER;
    v_from     INTEGER := 1;
    v_to       INTEGER;
    v_stop     INTEGER;
    v_reach    BIGINT := 1;
    v_promised BIGINT;
    v_yielding BIGINT;
    v_delayed  BOOLEAN;
    v_unbound  BOOLEAN;
    v_more     BOOLEAN;
    v_taken    BIGINT;
    v_bytes    BIGINT;
    -- Rows held by this round, parallel arrays in candidate order.
    h_idx      INTEGER[];
    h_pid      UUID[];
    h_wanted   BIGINT[];
    h_pending  BIGINT[];
    h_deadline TIMESTAMPTZ[];
    h_attempt_offset BIGINT[];
    h_attempts INTEGER[];
    h_single   BOOLEAN[];  -- one message at a time, see log_pop_v1
    v_pending  BIGINT;
    -- Segments taken by this round, and the batches they form.
    s_idx      INTEGER[];
    s_base     BIGINT[];
    s_skip     INTEGER[];
    s_take     INTEGER[];
    s_count    INTEGER[];
    s_created  TIMESTAMPTZ[];
    s_attempt  INTEGER[];
    s_blob     BYTEA[];
    b_idx      INTEGER[];
    b_pid      UUID[];
    b_first    BIGINT[];
    b_end      BIGINT[];
    b_taken    BIGINT[];
    b_attempt  INTEGER[];
    -- The same segments of all rounds.
    o_idx      INTEGER[] := '{}'::integer[];
    o_base     BIGINT[] := '{}'::bigint[];
    o_skip     INTEGER[] := '{}'::integer[];
    o_take     INTEGER[] := '{}'::integer[];
    o_created  TIMESTAMPTZ[] := '{}'::timestamptz[];
    o_attempt  INTEGER[] := '{}'::integer[];
BEGIN
    r_meta := '{"partitions": []}';
    r_blobs := '{}';
    r_msg_counts := '{}';
    r_took := '{}';
    r_reached := COALESCE(array_length(p_pids, 1), 0);

    SELECT array_agg(x.ord), array_agg(x.id), array_agg(x.name), array_agg(x.queue), array_agg(x.last_offset),
           array_agg(x.log_start), array_agg(x.lease), array_agg(x.deadline), array_agg(x.is_new), array_agg(x.most), array_agg(x.estimate)
      INTO c_ord, c_pid, c_name, c_queue, c_last, c_start, c_lease, c_deadline, c_new, c_most, c_estimate
      FROM (SELECT u.ord::INTEGER AS ord, p.id, p.name, q.name AS queue, p.last_offset, p.log_start,
                   CASE WHEN p_own_lease THEN COALESCE(NULLIF(p_lease_seconds, 0), q.lease_time, 60)
                        ELSE COALESCE(p_lease_seconds, 60) END AS lease,
                   CASE WHEN q.delayed_processing > 0 THEN v_now - make_interval(secs => q.delayed_processing) END AS deadline,
                   c.partition_id IS NULL AS is_new,
                   CASE WHEN p_auto_ack THEN 0 ELSE q.max_deliveries END AS most,
                   GREATEST(p.last_offset - GREATEST(COALESCE(c.committed, -1) + 1, p.log_start) + 1, 0) AS estimate
              FROM (SELECT n.pid, min(n.ord) AS ord, p_group AS consumer_group
                      FROM unnest(p_pids) WITH ORDINALITY AS n(pid, ord) GROUP BY n.pid) u
              JOIN queen.log_partitions p ON p.id = u.pid
              JOIN queen.queues q ON q.id = p.queue_id
              LEFT JOIN queen.log_consumers c ON c.partition_id = p.id AND c.consumer_group = u.consumer_group
             WHERE (c.partition_id IS NULL
                    OR (c.committed < p.last_offset
                        AND (c.worker_id IS NULL OR c.lease_expires_at IS NULL OR c.lease_expires_at <= v_now)))
               AND CASE WHEN q.window_buffer > 0 AND p_skip_window IS NOT TRUE THEN
                        COALESCE((SELECT s.created_at FROM queen.log_segments s
                                   WHERE s.partition_id = p.id ORDER BY s.base_offset DESC LIMIT 1)
                                 <= v_now - make_interval(secs => q.window_buffer), TRUE)
                        ELSE TRUE END
             ORDER BY u.ord) x;
    v_count := COALESCE(array_length(c_pid, 1), 0);
    v_groups := array_fill(p_group, ARRAY[v_count]);

    WHILE v_from <= v_count LOOP
        v_to := v_from - 1;
        v_promised := 0;
        v_yielding := 0;
        WHILE v_to < v_count AND v_promised < v_left * v_reach AND v_yielding < v_cap * v_reach LOOP
            v_to := v_to + 1;
            v_promised := v_promised + c_estimate[v_to];
            v_yielding := v_yielding + sign(c_estimate[v_to])::BIGINT;
        END LOOP;

        -- First contact. Creating comes before claiming: an insert may wait for another creator, a claim never waits.
        IF TRUE = ANY (c_new[v_from:v_to]) THEN
            PERFORM queen.log_pop_first_contact_v1((SELECT array_agg(u.pid) FROM unnest(c_pid[v_from:v_to], c_new[v_from:v_to]) AS u(pid, is_new)
                                                     WHERE u.is_new), p_group, p_sub_mode, p_sub_from);
        END IF;

        SELECT array_agg(x.idx), array_agg(x.partition_id), array_agg(x.wanted), array_agg(x.pending), array_agg(x.deadline),
               array_agg(x.attempt_offset), array_agg(x.attempt_count), array_agg(x.single),
               COALESCE(sum(x.pending), 0), COALESCE(bool_or(x.deadline IS NOT NULL), FALSE)
          INTO h_idx, h_pid, h_wanted, h_pending, h_deadline, h_attempt_offset, h_attempts, h_single, v_pending, v_delayed
          FROM (SELECT h.*, LEAST(GREATEST(h.last_offset - GREATEST(h.wanted, h.log_start) + 1, 0), CASE WHEN h.single THEN 1 END) AS pending
                  FROM (SELECT (u.n + v_from - 1)::INTEGER AS idx, c.partition_id, c.committed + 1 AS wanted, c.attempt_offset,
                               c.attempt_count, u.last_offset, u.log_start, u.deadline,
                               u.most > 0 AND COALESCE(GREATEST(c.isolate_end, c.batch_end) > c.committed
                                                       OR (c.attempt_count >= u.most AND c.attempt_offset > c.committed), FALSE) AS single
                          FROM unnest(c_pid[v_from:v_to], v_groups[v_from:v_to], c_last[v_from:v_to], c_start[v_from:v_to],
                                      c_deadline[v_from:v_to], c_most[v_from:v_to])
                               WITH ORDINALITY AS u(pid, consumer_group, last_offset, log_start, deadline, most, n)
                          JOIN queen.log_consumers c ON c.partition_id = u.pid AND c.consumer_group = u.consumer_group
                         WHERE c.committed < u.last_offset
                           AND (c.worker_id IS NULL OR c.lease_expires_at IS NULL OR c.lease_expires_at <= v_now)
                         ORDER BY c.partition_id
                           FOR UPDATE OF c SKIP LOCKED) h
                 ORDER BY h.idx) x;

        v_stop := v_to;
        IF h_idx IS NOT NULL THEN
            -- Offsets are dense above log_start, so what a candidate leaves of the budget is known before its segments are read
            -- and candidates behind the end of the budget cost nothing. Where messages may be invisible, every candidate is read
            -- for the whole budget instead. When a gap, or a wrong log_start, left less than was there to take, the scan is
            -- repeated without bounds but the number of segments.
            v_unbound := FALSE;
            LOOP
                WITH span AS (
                    SELECT h.idx, h.pid, h.wanted, h.deadline, h.attempt_offset, h.attempts, h.single,
                           LEAST(CASE WHEN v_delayed OR v_unbound THEN v_left
                                      ELSE v_left - (sum(h.pending) OVER (ORDER BY h.idx) - h.pending)::BIGINT END,
                                 CASE WHEN h.single THEN 1 END) AS budget
                      FROM unnest(h_idx, h_pid, h_wanted, h_pending, h_deadline, h_attempt_offset, h_attempts, h_single)
                           AS h(idx, pid, wanted, pending, deadline, attempt_offset, attempts, single)
                ), seen AS (
                    SELECT p.idx, p.pid, p.budget, s.base_offset, s.end_offset, s.created_at, s.blob,
                           GREATEST(p.wanted - s.base_offset, 0) AS skip,
                           s.end_offset - s.base_offset + 1 AS msg_count,
                           CASE WHEN p.single THEN 1 ELSE s.end_offset - GREATEST(s.base_offset, p.wanted) + 1 END AS frames,
                           -- A batch starts at its first segment and ends before the first one that is still invisible.
                           CASE WHEN p.attempt_offset = first_value(GREATEST(s.base_offset, p.wanted)) OVER in_order
                                THEN p.attempts + 1 ELSE 1 END AS attempt,
                           bool_and(p.deadline IS NULL OR s.created_at <= p.deadline) OVER in_order AS visible
                      FROM span p
                     CROSS JOIN LATERAL (
                           SELECT COALESCE(
                                  (SELECT k.base_offset
                                     FROM (SELECT g.base_offset, g.end_offset FROM queen.log_segments g
                                            WHERE g.partition_id = p.pid AND g.base_offset <= p.wanted
                                            ORDER BY g.base_offset DESC LIMIT 1) k
                                    WHERE k.end_offset >= p.wanted),
                                  (SELECT g.base_offset FROM queen.log_segments g
                                    WHERE g.partition_id = p.pid AND g.base_offset > p.wanted
                                    ORDER BY g.base_offset LIMIT 1)) AS base_offset
                           OFFSET 0) f -- used twice below, probed once
                     CROSS JOIN LATERAL (
                           SELECT g.base_offset, g.end_offset, g.created_at, g.blob
                             FROM queen.log_segments g
                            WHERE g.partition_id = p.pid AND g.base_offset >= f.base_offset
                              AND g.base_offset < CASE WHEN v_unbound AND NOT p.single THEN 9223372036854775807
                                                       ELSE GREATEST(f.base_offset, p.wanted) + p.budget END
                            ORDER BY g.base_offset LIMIT v_left) s
                     WHERE p.budget > 0
                    WINDOW in_order AS (PARTITION BY p.idx ORDER BY s.base_offset)
                ), counted AS (
                    SELECT v.*, (sum(v.frames) OVER (ORDER BY v.idx, v.base_offset))::BIGINT - v.frames AS before,
                           sum(octet_length(v.blob)) OVER (ORDER BY v.idx, v.base_offset) - octet_length(v.blob) AS bytes_before,
                           dense_rank() OVER (ORDER BY v.idx) AS nth
                      FROM seen v
                     WHERE v.visible
                ), taken AS (
                    SELECT t.idx, t.pid, t.base_offset, t.created_at, t.blob, t.skip, t.msg_count, t.attempt,
                           LEAST(t.frames, v_left - t.before) AS take
                      FROM counted t
                     WHERE t.before < v_left AND t.bytes_before < v_room AND t.nth <= v_cap
                )
                SELECT s.*, b.*
                  INTO s_idx, s_base, s_skip, s_take, s_count, s_created, s_attempt, s_blob, v_bytes, b_idx, b_pid, b_first, b_end, b_taken,
                       b_attempt, v_taken, v_more
                  FROM (SELECT array_agg(t.idx), array_agg(t.base_offset), array_agg(t.skip::INTEGER), array_agg(t.take::INTEGER),
                               array_agg(t.msg_count::INTEGER), array_agg(t.created_at), array_agg(t.attempt), array_agg(t.blob),
                               COALESCE(sum(octet_length(t.blob)), 0)
                          FROM (SELECT * FROM taken ORDER BY idx, base_offset) t) s,
                       (SELECT array_agg(b.idx), array_agg(b.pid), array_agg(b.first_offset), array_agg(b.end_offset),
                               array_agg(b.taken), array_agg(b.attempt), COALESCE(sum(b.taken), 0),
                               -- Short although a candidate has visible messages behind what was read of it?
                               COALESCE(sum(b.taken), 0) < v_left AND EXISTS (
                                   SELECT 1 FROM seen v GROUP BY v.idx
                                   HAVING bool_and(v.visible) AND sum(v.frames) < min(v.budget) AND max(v.end_offset) < c_last[v.idx])
                          FROM (SELECT t.idx, t.pid, min(t.base_offset + t.skip) AS first_offset,
                                       max(t.base_offset + t.skip + t.take - 1) AS end_offset, sum(t.take)::BIGINT AS taken,
                                       min(t.attempt) AS attempt
                                  FROM taken t
                                 GROUP BY t.idx, t.pid
                                 ORDER BY t.idx) b) b;
                v_room := v_room - v_bytes;
                IF v_room <= 0 THEN
                    v_left := v_taken; -- full: the budget counts as spent
                END IF;
                EXIT WHEN v_unbound OR v_taken >= v_left OR NOT (v_more OR (NOT v_delayed AND v_pending > v_left));
                v_unbound := TRUE;
                v_room := v_room + v_bytes;
            END LOOP;

            IF b_idx IS NOT NULL THEN
                IF v_taken >= v_left OR array_length(b_idx, 1) >= v_cap THEN
                    v_stop := b_idx[array_length(b_idx, 1)];
                END IF;
                UPDATE queen.log_consumers c
                   SET committed = CASE WHEN p_auto_ack THEN b.end_offset ELSE c.committed END,
                       worker_id = CASE WHEN p_auto_ack THEN NULL ELSE p_worker END,
                       lease_expires_at = CASE WHEN p_auto_ack THEN NULL ELSE v_now + make_interval(secs => c_lease[b.idx]) END,
                       lease_acquired_at = CASE WHEN p_auto_ack THEN NULL ELSE v_now END,
                       batch_end = CASE WHEN p_auto_ack THEN NULL ELSE b.end_offset END,
                       total_consumed = c.total_consumed + CASE WHEN p_auto_ack THEN b.taken ELSE 0 END,
                       attempt_count = CASE WHEN p_auto_ack THEN c.attempt_count ELSE b.attempt END,
                       attempt_offset = CASE WHEN p_auto_ack THEN c.attempt_offset ELSE b.first_offset END,
                       isolate_end = CASE WHEN c_most[b.idx] > 0 THEN GREATEST(c.isolate_end, c.batch_end) ELSE c.isolate_end END
                  FROM unnest(b_idx, b_pid, v_groups[:array_length(b_pid, 1)], b_first, b_end, b_taken, b_attempt)
                       AS b(idx, pid, consumer_group, first_offset, end_offset, taken, attempt)
                 WHERE c.partition_id = b.pid AND c.consumer_group = b.consumer_group;
                o_idx := o_idx || s_idx;
                o_base := o_base || s_base;
                o_skip := o_skip || s_skip;
                o_take := o_take || s_take;
                o_created := o_created || s_created;
                o_attempt := o_attempt || s_attempt;
                r_blobs := r_blobs || s_blob;
                r_msg_counts := r_msg_counts || s_count;
                r_took := r_took || b_pid;
            END IF;

            -- Cursor seal, as in log_pop_v1.
            IF array_length(h_idx, 1) > COALESCE(array_length(b_idx, 1), 0) THEN
                UPDATE queen.log_consumers c
                   SET committed = c_last[h.idx]
                  FROM unnest(h_idx, h_pid, v_groups[:array_length(h_pid, 1)]) AS h(idx, pid, consumer_group)
                 WHERE h.idx <= v_stop AND h.idx <> ALL (COALESCE(b_idx, '{}'))
                   AND c.partition_id = h.pid AND c.consumer_group = h.consumer_group
                   AND NOT EXISTS (SELECT 1 FROM queen.log_segments s WHERE s.partition_id = h.pid);
            END IF;

            v_left := v_left - v_taken;
            v_cap := v_cap - COALESCE(array_length(b_idx, 1), 0);
            IF v_left <= 0 OR v_cap <= 0 THEN
                r_reached := c_ord[v_stop];
                EXIT;
            END IF;
        END IF;
        v_from := v_to + 1;
        v_reach := v_reach * 8;
    END LOOP;

    IF array_length(o_idx, 1) > 0 THEN
        SELECT jsonb_build_object('partitions', jsonb_agg(x.part ORDER BY x.idx)) INTO r_meta
          FROM (SELECT s.idx,
                       jsonb_build_object(
                           'queue', c_queue[s.idx], 'partition', c_name[s.idx], 'partitionId', c_pid[s.idx], 'attempt', min(s.attempt),
                           'segments', jsonb_agg(jsonb_build_object('seq', s.base, 'startOff', s.skip, 'take', s.take,
                                                                    'createdAt', queen.iso_us_v1(s.created)) ORDER BY s.base))
                       || CASE WHEN queen.log_pop_is_poison_v1(min(s.attempt), c_most[s.idx]) THEN '{"poison": true}' ELSE '{}' END::JSONB AS part
                  FROM unnest(o_idx, o_base, o_skip, o_take, o_created, o_attempt) AS s(idx, base, skip, take, created, attempt)
                 GROUP BY s.idx) x;
    END IF;
END $$;

-- log_pop_register_v1: write the subscription records of a group on queues that have none, and set its cursors there.
--   p_queue_ids  queues of one tenant
--   p_sub_mode, p_sub_from  where the group starts; an unreadable start counts as new. Queue mode always starts with all
-- The record is also the election: only the transaction that inserted it creates the cursors of the queue's partitions, of 20,000 at most. The
-- rest is for log_pop_seed_v1; a claim that comes to a partition before makes its cursor, which starts at the same place.
-- Locks: consumer_groups_metadata inserts ascending by queue id, then log_consumers inserts ascending by partition id.
-- Called by: log_pop_scan_v1.
CREATE OR REPLACE FUNCTION queen.log_pop_register_v1(p_queue_ids UUID[], p_group TEXT, p_sub_mode TEXT, p_sub_from TEXT, p_tenant UUID)
RETURNS VOID
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_mode TEXT := 'all';
    v_at   TIMESTAMPTZ;
    v_won  UUID[];
BEGIN
    IF p_group <> '__QUEUE_MODE__' THEN
        SELECT s.r_mode, s.r_at INTO v_mode, v_at FROM queen.log_pop_subscription_v1(p_sub_mode, p_sub_from) s;
    END IF;
    IF v_mode IN ('new', 'invalid') THEN
        v_mode := 'new';
        v_at := clock_timestamp();
    ELSIF v_mode = 'all' THEN
        v_at := '1970-01-01 00:00:00+00';
    END IF;
    WITH won AS (
        INSERT INTO queen.consumer_groups_metadata (tenant_id, consumer_group, queue_id, subscription_mode, subscription_timestamp)
        SELECT p_tenant, p_group, u.id, v_mode, v_at
          FROM unnest(p_queue_ids) AS u(id)
         WHERE NOT EXISTS (SELECT 1 FROM queen.consumer_groups_metadata m
                            WHERE m.tenant_id = p_tenant AND m.consumer_group = p_group AND m.queue_id = u.id
                              AND m.partition_name = '' AND m.namespace = '' AND m.task = '')
         ORDER BY u.id
        ON CONFLICT DO NOTHING
        RETURNING queue_id)
    SELECT array_agg(w.queue_id) INTO v_won FROM won w;
    IF v_won IS NULL THEN
        RETURN;
    END IF;
    INSERT INTO queen.log_consumers (partition_id, consumer_group, committed)
    SELECT p.id, p_group,
           CASE v_mode WHEN 'timestamp' THEN queen.log_pop_seed_at_v1(p.id, p.log_start, p.last_offset, v_at)
                       WHEN 'new' THEN p.last_offset
                       ELSE GREATEST(p.log_start - 1, -1) END
      FROM queen.log_partitions p
     WHERE p.queue_id = ANY (v_won)
     ORDER BY p.id
     LIMIT 20000
    ON CONFLICT DO NOTHING;
END $$;

-- log_pop_seed_v1: create the cursors of a registered group on the next p_limit partitions of a queue where it has none, at the start that its
-- subscription record says.
--   p_after_at, p_after_id  what the step before returned; NULL for the first one. Steps go by the time of the last write, as the pages of
--                           log_hotlist_page_v1 do
-- Returns where the next step begins, NULL when there is none or the group has no record.
-- Locks: log_consumers inserts ascending by partition id. Called by: pg.SeedGroup. Plan test: TestSeedingInSteps.
CREATE OR REPLACE FUNCTION queen.log_pop_seed_v1(
    p_queue TEXT, p_group TEXT, p_tenant UUID, p_after_at TIMESTAMPTZ, p_after_id UUID, p_limit INTEGER, OUT r_at TIMESTAMPTZ, OUT r_id UUID)
RETURNS RECORD
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_custom_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_queue UUID;
    v_since TIMESTAMPTZ;
    v_pids  UUID[];
BEGIN
    SELECT q.id, m.subscription_timestamp INTO v_queue, v_since
      FROM queen.queues q
      JOIN queen.consumer_groups_metadata m
        ON m.tenant_id = q.tenant_id AND m.consumer_group = p_group AND m.queue_id = q.id AND m.partition_name = '' AND m.namespace = '' AND m.task = ''
     WHERE q.tenant_id = p_tenant AND q.name = p_queue;
    SELECT array_agg(g.id), (array_agg(g.last_write_at))[GREATEST(p_limit, 1)], (array_agg(g.id))[GREATEST(p_limit, 1)] INTO v_pids, r_at, r_id
      FROM (SELECT p.id, p.last_write_at
              FROM queen.log_partitions p
             WHERE p.queue_id = v_queue AND p.last_write_at >= COALESCE(p_after_at, '-infinity')
               AND (p_after_at IS NULL OR (p.last_write_at, p.id) > (p_after_at, p_after_id))
             ORDER BY p.last_write_at, p.id
             LIMIT GREATEST(p_limit, 1)) g;
    INSERT INTO queen.log_consumers (partition_id, consumer_group, committed)
    SELECT p.id, p_group, CASE WHEN p_group = '__QUEUE_MODE__' THEN -1 ELSE queen.log_pop_seed_at_v1(p.id, p.log_start, p.last_offset, v_since) END
      FROM unnest(v_pids) AS u(id)
      JOIN queen.log_partitions p ON p.id = u.id
     WHERE NOT EXISTS (SELECT 1 FROM queen.log_consumers c WHERE c.partition_id = u.id AND c.consumer_group = p_group)
     ORDER BY p.id
    ON CONFLICT DO NOTHING;
END $$;

-- log_pop_scan_v1: pop from whatever partitions of some queues have messages. The core of the wildcard and discovery pops.
--   p_queue_ids  queues of one tenant, ascending by id; NULL acts as empty
--   p_discover   discovery: p_lease_seconds 0 or NULL means each queue's own lease time
--   the others   as log_pop_claim_v1
-- Returns r_meta, r_blobs, r_msg_counts as log_pop_claim_v1.
-- Registers the group where it is unknown, scans for candidates above the watermark, claims from them. Candidates are tried in
-- random order, so that many consumers do not meet on the same rows; within the limit of the scan every waiting partition has
-- the same chance, and none is preferred for having waited longest.
-- When nothing was claimed and emptiness was not verified within 30 s: no pending partition at all raises the floor of the next
-- scans (last_empty_scan_at) to log_settled_at_v1 where there is a row, see log_pop_raise_floor_v1; otherwise only the time of the check is noted. The scan starts 2 minutes below the floor,
-- which covers the 1 s step of last_write_at and small steps of the clock.
-- Locks: log_pop_register_v1, log_pop_claim_v1, and when nothing was claimed consumer_watermarks rows ascending by queue id.
-- Called by: the wildcard and discovery pops. Plan test: TestPopPlans.
CREATE OR REPLACE FUNCTION queen.log_pop_scan_v1(
    p_queue_ids UUID[], p_discover BOOLEAN, p_group TEXT, p_budget INTEGER, p_lease_seconds INTEGER, p_worker TEXT, p_auto_ack BOOLEAN,
    p_max_partitions INTEGER, p_sub_mode TEXT, p_sub_from TEXT, p_tenant UUID,
    OUT r_meta JSONB, OUT r_blobs BYTEA[], OUT r_msg_counts INTEGER[])
RETURNS RECORD
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_custom_plan
SET enable_seqscan = off
AS $$
DECLARE
    v_now      TIMESTAMPTZ := clock_timestamp();
    v_floor    TIMESTAMPTZ;
    v_verified TIMESTAMPTZ;
    v_settled  TIMESTAMPTZ;
    v_held     UUID[];  -- queues whose floor this call may raise
    v_pids     UUID[];
    v_limit    INTEGER := CASE WHEN p_max_partitions BETWEEN 1 AND 127 THEN LEAST(GREATEST(4 * p_max_partitions, 64), 512) ELSE 512 END;
BEGIN
    r_meta := '{"partitions": []}';
    r_blobs := '{}';
    r_msg_counts := '{}';
    IF COALESCE(array_length(p_queue_ids, 1), 0) = 0 THEN
        RETURN;
    END IF;

    IF EXISTS (SELECT 1 FROM unnest(p_queue_ids) AS u(id)
                WHERE NOT EXISTS (SELECT 1 FROM queen.consumer_groups_metadata m
                                   WHERE m.tenant_id = p_tenant AND m.consumer_group = p_group AND m.queue_id = u.id
                                     AND m.partition_name = '' AND m.namespace = '' AND m.task = '')) THEN
        PERFORM queen.log_pop_register_v1(p_queue_ids, p_group, p_sub_mode, p_sub_from, p_tenant);
    END IF;

    SELECT min(COALESCE(w.last_empty_scan_at, '1970-01-01 00:00:00+00')), min(w.updated_at) INTO v_floor, v_verified
      FROM unnest(p_queue_ids) AS u(id)
      LEFT JOIN queen.consumer_watermarks w ON w.queue_id = u.id AND w.consumer_group = p_group;

    SELECT array_agg(x.id) INTO v_pids
      FROM (SELECT p.id
              FROM queen.log_partitions p
              LEFT JOIN queen.log_consumers c ON c.partition_id = p.id AND c.consumer_group = p_group
             WHERE p.queue_id = ANY (p_queue_ids) AND p.last_write_at >= v_floor - interval '2 minutes'
               AND (c.partition_id IS NULL OR p.last_offset > c.committed)
               AND (c.worker_id IS NULL OR c.lease_expires_at IS NULL OR c.lease_expires_at <= v_now)
             ORDER BY random() LIMIT v_limit) x;

    IF v_pids IS NOT NULL THEN
        SELECT c.r_meta, c.r_blobs, c.r_msg_counts INTO r_meta, r_blobs, r_msg_counts
          FROM queen.log_pop_claim_v1(v_pids, p_group, p_budget, p_lease_seconds, p_discover, p_worker, p_auto_ack, p_max_partitions,
                                      p_sub_mode, p_sub_from, FALSE) c;
    END IF;

    IF array_length(r_blobs, 1) IS NULL AND (v_verified IS NULL OR v_verified <= v_now - interval '30 seconds') THEN
        v_settled := queen.log_settled_at_v1();  -- before the look: a transaction that commits in between is not seen by it
        -- Also before it: a seek that commits in between takes the row away, and with it what would be written here.
        SELECT array_agg(l.queue_id) INTO v_held
          FROM (SELECT w.queue_id FROM queen.consumer_watermarks w
                 WHERE w.queue_id = ANY (p_queue_ids) AND w.consumer_group = p_group
                 ORDER BY w.queue_id FOR UPDATE) l;
        IF EXISTS (SELECT 1
                     FROM queen.log_partitions p
                     LEFT JOIN queen.log_consumers c ON c.partition_id = p.id AND c.consumer_group = p_group
                    WHERE p.queue_id = ANY (p_queue_ids) AND p.last_write_at >= v_floor - interval '2 minutes'
                      AND (c.partition_id IS NULL OR p.last_offset > c.committed)) THEN
            IF p_discover THEN
                UPDATE queen.consumer_watermarks w SET updated_at = v_now
                 WHERE w.queue_id = ANY (v_held) AND w.consumer_group = p_group;
            ELSE
                INSERT INTO queen.consumer_watermarks (queue_id, consumer_group, updated_at)
                SELECT u.id, p_group, v_now FROM unnest(p_queue_ids) AS u(id)
                ON CONFLICT (queue_id, consumer_group) DO UPDATE SET updated_at = EXCLUDED.updated_at;
            END IF;
        ELSE
            UPDATE queen.consumer_watermarks w SET last_empty_scan_at = LEAST(v_settled, v_now), updated_at = v_now
             WHERE w.queue_id = ANY (v_held) AND w.consumer_group = p_group;
            INSERT INTO queen.consumer_watermarks (queue_id, consumer_group, updated_at)
            SELECT u.id, p_group, v_now FROM unnest(p_queue_ids) AS u(id) WHERE u.id <> ALL (COALESCE(v_held, '{}')) ORDER BY u.id
            ON CONFLICT DO NOTHING;
        END IF;
    END IF;
END $$;

GRANT EXECUTE ON FUNCTION queen.log_pop_subscription_v1(TEXT, TEXT) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_pop_seed_at_v1(UUID, BIGINT, BIGINT, TIMESTAMPTZ) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_pop_first_contact_v1(UUID[], TEXT, TEXT, TEXT) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_pop_claim_v1(UUID[], TEXT, INTEGER, INTEGER, BOOLEAN, TEXT, BOOLEAN, INTEGER, TEXT, TEXT, BOOLEAN) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_pop_register_v1(UUID[], TEXT, TEXT, TEXT, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_pop_seed_v1(TEXT, TEXT, UUID, TIMESTAMPTZ, UUID, INTEGER) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_pop_scan_v1(UUID[], BOOLEAN, TEXT, INTEGER, INTEGER, TEXT, BOOLEAN, INTEGER, TEXT, TEXT, UUID) TO PUBLIC;
