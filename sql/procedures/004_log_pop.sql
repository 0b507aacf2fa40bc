-- Pop: claiming messages of one partition, of a list of candidates, of a queue, of a namespace or task.
--
-- Two implementations of one rule live here. log_pop_v1 is the rule written down plainly, for one partition.
-- log_pop_claim_v1 is the same rule for any number of candidates in a constant number of statements; every other pop is built
-- on it. TestPopListEqualsALoopOfPops holds the two together on random states.
--
-- Lock order of every function here: provisioning inserts sorted by their unique keys (queue, subscription records), then
-- log_consumers rows. Consumer rows are created ascending by partition id before any existing row is claimed, and claims never
-- wait (SKIP LOCKED), so a pop waits only for a concurrent creation of the same row, holding nothing such a creator could want.

-- The planner settings on the functions are for young databases. A session keeps a plan it made when the tables were empty until
-- the first ANALYZE, while the tables grow; without the settings that plan reads them whole. The set-based statements are planned
-- once per session (force_generic_plan): planning them costs more than running them. TestPopPlansMadeOnEmptyTablesStayGood.

-- A changed row type of a function cannot be replaced in place. The old form is dropped only when it really differs, so that a
-- repeated apply leaves no moment without the function.
DO $$
DECLARE
    v_old RECORD;
BEGIN
    FOR v_old IN
        SELECT f.signature
          FROM (VALUES
            ('queen.log_pop_v1(text,text,text,integer,integer,text,boolean,text,text,boolean,uuid)',
             'TABLE(r_base bigint, r_start_idx integer, r_take integer, r_msg_count integer, r_created_at timestamp with time zone, r_blob bytea)'),
            ('queen.log_pop_wildcard_bin_v1(text,text,integer,integer,text,boolean,integer,text,text,uuid)',
             'TABLE(meta jsonb, blobs bytea[])'),
            ('queen.log_pop_list_v1(text,text,text[],integer,integer,text,boolean,integer,text,text,boolean,uuid)',
             'TABLE(meta jsonb, blobs bytea[], states jsonb)'),
            ('queen.log_hotlist_reseed_v1(text,text,uuid,integer,uuid)', 'TABLE(r_id uuid, r_name text)'),
            ('queen.log_hotlist_reseed_window_v1(text,text,uuid,integer,uuid,timestamp with time zone)',
             'TABLE(r_id uuid, r_name text)')
          ) AS f(signature, result)
         WHERE to_regprocedure(f.signature) IS NOT NULL
           AND pg_catalog.pg_get_function_result(to_regprocedure(f.signature)) <> f.result
    LOOP
        EXECUTE 'DROP FUNCTION ' || v_old.signature;
    END LOOP;
END $$;

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

-- log_pop_v1: claim the next messages of one partition for one group. The rule that every pop follows.
--   p_budget         most messages; NULL and values below 1 act as 1
--   p_lease_seconds  how long the batch is held; NULL acts as 60
--   p_worker         the lease id
--   p_auto_ack       commit the cursor at once instead of leasing
--   p_sub_mode, p_sub_from   where a named group starts when it has neither a cursor nor a subscription record
--   p_skip_window_debounce   the caller applied the queue's window_buffer itself
-- Returns the segments of the batch, ascending; a segment contributes r_take of its r_msg_count messages from index r_start_idx.
-- No rows when there is nothing to take: unknown partition, debounced, leased or locked by somebody, delayed, drained.
-- A batch ends before the first segment younger than the queue's delay, so the cursor never passes an invisible message.
-- Locks: its log_consumers row, SKIP LOCKED; on first contact an advisory lock (try) and the insert of that row.
-- Called by: log_pop_partition_v1 (the specific pops).
CREATE OR REPLACE FUNCTION queen.log_pop_v1(
    p_queue TEXT, p_partition TEXT, p_group TEXT, p_budget INTEGER, p_lease_seconds INTEGER, p_worker TEXT,
    p_auto_ack BOOLEAN DEFAULT FALSE, p_sub_mode TEXT DEFAULT 'all', p_sub_from TEXT DEFAULT '',
    p_skip_window_debounce BOOLEAN DEFAULT FALSE, p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS TABLE (r_base BIGINT, r_start_idx INTEGER, r_take INTEGER, r_msg_count INTEGER, r_created_at TIMESTAMPTZ, r_blob BYTEA)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
DECLARE
    v_now       TIMESTAMPTZ := clock_timestamp();
    v_left      BIGINT := GREATEST(p_budget, 1);
    v_pid       UUID;
    v_queue_id  UUID;
    v_last      BIGINT;
    v_log_start BIGINT;
    v_delay     INTEGER;
    v_window    INTEGER;
    v_deadline  TIMESTAMPTZ := 'infinity'::timestamptz;
    v_committed BIGINT;
    v_attempt_offset BIGINT;
    v_attempts  INTEGER;
    v_wanted    BIGINT;
    v_seed      BIGINT;
    v_since     TIMESTAMPTZ;
    v_mode      TEXT;
    v_seg       RECORD;
    v_first     BIGINT;
    v_end       BIGINT;
    v_taken     BIGINT := 0;
BEGIN
    SELECT p.id, p.queue_id, p.last_offset, p.log_start, COALESCE(q.delayed_processing, 0), COALESCE(q.window_buffer, 0)
      INTO v_pid, v_queue_id, v_last, v_log_start, v_delay, v_window
      FROM queen.queues q
      JOIN queen.log_partitions p ON p.queue_id = q.id AND p.name = p_partition
     WHERE q.tenant_id = p_tenant AND q.name = p_queue;
    IF NOT FOUND THEN
        RETURN;
    END IF;

    IF v_window > 0 AND p_skip_window_debounce IS NOT TRUE THEN
        IF (SELECT s.created_at FROM queen.log_segments s WHERE s.partition_id = v_pid ORDER BY s.base_offset DESC LIMIT 1)
           > v_now - make_interval(secs => v_window) THEN
            RETURN;
        END IF;
    END IF;

    -- Claim first. Twice at most: the second time after creating the row.
    FOR v_try IN 1 .. 2 LOOP
        SELECT c.committed, c.attempt_offset, c.attempt_count
          INTO v_committed, v_attempt_offset, v_attempts
          FROM queen.log_consumers c
         WHERE c.partition_id = v_pid AND c.consumer_group = p_group
           AND (c.worker_id IS NULL OR c.lease_expires_at IS NULL OR c.lease_expires_at <= v_now)
           FOR UPDATE SKIP LOCKED;
        EXIT WHEN FOUND;
        IF v_try = 2 OR EXISTS (SELECT 1 FROM queen.log_consumers c WHERE c.partition_id = v_pid AND c.consumer_group = p_group) THEN
            RETURN;
        END IF;
        -- The try-lock keeps pops from queueing behind each other's insert of the same row: chains of waits end in deadlocks.
        IF NOT pg_try_advisory_xact_lock(hashtextextended(v_pid::TEXT || '/' || p_group, 42)) THEN
            RETURN;
        END IF;
        v_seed := -1;
        IF p_group <> '__QUEUE_MODE__' THEN
            SELECT m.subscription_timestamp INTO v_since
              FROM queen.consumer_groups_metadata m
             WHERE m.tenant_id = p_tenant AND m.consumer_group = p_group AND m.queue_id = v_queue_id
               AND m.partition_name = '' AND m.namespace = '' AND m.task = '';
            IF NOT FOUND THEN
                SELECT s.r_mode, s.r_at INTO v_mode, v_since FROM queen.log_pop_subscription_v1(p_sub_mode, p_sub_from) s;
                -- A start that is not a timestamp is ignored: the mode decides.
                IF v_mode = 'new' OR (v_mode = 'invalid' AND p_sub_mode = 'new') THEN
                    v_seed := v_last;
                END IF;
            END IF;
            IF v_since IS NOT NULL THEN
                v_seed := queen.log_pop_seed_at_v1(v_pid, v_log_start, v_last, v_since);
            END IF;
        END IF;
        INSERT INTO queen.log_consumers (partition_id, consumer_group, committed) VALUES (v_pid, p_group, v_seed)
        ON CONFLICT DO NOTHING;
    END LOOP;

    v_wanted := v_committed + 1;
    IF v_delay > 0 THEN
        v_deadline := v_now - make_interval(secs => v_delay);
    END IF;

    -- Head probe: the segment that covers the wanted offset, one backward step of the primary key.
    SELECT s.base_offset, s.end_offset, s.created_at, s.blob INTO v_seg
      FROM queen.log_segments s
     WHERE s.partition_id = v_pid AND s.base_offset <= v_wanted
     ORDER BY s.base_offset DESC LIMIT 1;
    IF FOUND AND v_seg.end_offset >= v_wanted THEN
        IF v_seg.created_at > v_deadline THEN
            RETURN;
        END IF;
        r_base := v_seg.base_offset;
        r_start_idx := v_wanted - v_seg.base_offset;
        r_msg_count := v_seg.end_offset - v_seg.base_offset + 1;
        r_take := LEAST(r_msg_count - r_start_idx, v_left);
        r_created_at := v_seg.created_at;
        r_blob := v_seg.blob;
        RETURN NEXT;
        v_first := v_wanted;
        v_end := v_wanted + r_take - 1;
        v_taken := r_take;
        v_left := v_left - r_take;
    END IF;

    -- Forward scan: every segment holds at least one message, so v_left rows are always enough.
    IF v_left > 0 THEN
        FOR v_seg IN
            SELECT s.base_offset, s.end_offset, s.created_at, s.blob
              FROM queen.log_segments s
             WHERE s.partition_id = v_pid AND s.base_offset > v_wanted
             ORDER BY s.base_offset LIMIT v_left
        LOOP
            EXIT WHEN v_left <= 0 OR v_seg.created_at > v_deadline;
            r_base := v_seg.base_offset;
            r_start_idx := 0;
            r_msg_count := v_seg.end_offset - v_seg.base_offset + 1;
            r_take := LEAST(r_msg_count, v_left);
            r_created_at := v_seg.created_at;
            r_blob := v_seg.blob;
            RETURN NEXT;
            v_first := COALESCE(v_first, v_seg.base_offset);
            v_end := v_seg.base_offset + r_take - 1;
            v_taken := v_taken + r_take;
            v_left := v_left - r_take;
        END LOOP;
    END IF;

    IF v_taken = 0 THEN
        -- Cursor seal: everything was removed by retention. v_last was read before the segments, so nothing newer is skipped.
        IF v_last > v_committed AND NOT EXISTS (SELECT 1 FROM queen.log_segments s WHERE s.partition_id = v_pid) THEN
            UPDATE queen.log_consumers c SET committed = v_last
             WHERE c.partition_id = v_pid AND c.consumer_group = p_group;
        END IF;
    ELSIF p_auto_ack THEN
        UPDATE queen.log_consumers c
           SET committed = v_end, worker_id = NULL, lease_expires_at = NULL, lease_acquired_at = NULL, batch_end = NULL,
               total_consumed = c.total_consumed + v_taken
         WHERE c.partition_id = v_pid AND c.consumer_group = p_group;
    ELSE
        UPDATE queen.log_consumers c
           SET worker_id = p_worker, lease_expires_at = v_now + make_interval(secs => COALESCE(p_lease_seconds, 60)),
               lease_acquired_at = v_now, batch_end = v_end,
               attempt_count = CASE WHEN v_attempt_offset = v_first THEN v_attempts + 1 ELSE 1 END, attempt_offset = v_first
         WHERE c.partition_id = v_pid AND c.consumer_group = p_group;
    END IF;
END $$;

-- log_pop_claim_v1: log_pop_v1 for many candidates at once, in candidate order, under one budget.
--   p_pids            partition ids in the order in which they may take; NULLs and repetitions are passed over
--   p_budget          most messages of the whole call; NULL and values below 1 act as 1
--   p_lease_seconds   seconds; with p_own_lease NULL or 0 means the lease time of the candidate's own queue
--   p_max_partitions  most partitions that may yield messages; NULL, 0 and negative values: no cap
--   the others        as log_pop_v1
-- Returns one record:
--   r_meta        {"partitions":[{"queue","partition","partitionId","attempt","segments":[{"seq","startOff","take","createdAt"}]}]},
--                 partitions in candidate order, segments ascending
--   r_blobs       the blobs of those segments in that order
--   r_msg_counts  parallel to r_blobs: all messages of the segment, taken or not
--   r_took        ids of the partitions that yielded
--   r_reached     how many leading elements of p_pids were tried before the budget or the cap was spent
-- Statements: one reads the candidates; then per round an optional insert of first-contact rows, one claim, one scan of the
-- segments, one update, an optional seal; one builds r_meta. A round covers as many candidates as the numbers read promise to
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
    v_cap      BIGINT := CASE WHEN p_max_partitions > 0 THEN p_max_partitions ELSE 2147483647 END;
    -- Candidates worth a claim, parallel arrays in candidate order.
    c_ord      INTEGER[];
    c_pid      UUID[];
    c_name     TEXT[];
    c_queue_id UUID[];
    c_queue    TEXT[];
    c_last     BIGINT[];
    c_start    BIGINT[];
    c_lease    INTEGER[];
    c_deadline TIMESTAMPTZ[];
    c_new      BOOLEAN[];
    c_estimate BIGINT[];
    -- The group once per candidate. As a column it leaves the planner no way to log_consumers but the whole primary key: with a
    -- constant group it may start from all cursors of the group.
    v_groups   TEXT[];
    -- The round: candidates v_from .. v_to, of which the last one reached is v_stop.
    v_count    INTEGER;
    v_from     INTEGER := 1;
    v_to       INTEGER;
    v_stop     INTEGER;
    v_reach    BIGINT := 1;
    v_promised BIGINT;
    v_yielding BIGINT;
    v_exact    BOOLEAN;
    v_taken    BIGINT;
    v_mode     TEXT;
    v_since    TIMESTAMPTZ;
    -- Rows held by this round, parallel arrays in candidate order.
    h_idx      INTEGER[];
    h_pid      UUID[];
    h_wanted   BIGINT[];
    h_pending  BIGINT[];
    h_deadline TIMESTAMPTZ[];
    h_attempt_offset BIGINT[];
    h_attempts INTEGER[];
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

    SELECT array_agg(x.ord), array_agg(x.id), array_agg(x.name), array_agg(x.queue_id), array_agg(x.queue), array_agg(x.last_offset),
           array_agg(x.log_start), array_agg(x.lease), array_agg(x.deadline), array_agg(x.is_new), array_agg(x.estimate)
      INTO c_ord, c_pid, c_name, c_queue_id, c_queue, c_last, c_start, c_lease, c_deadline, c_new, c_estimate
      FROM (SELECT u.ord::INTEGER AS ord, p.id, p.name, p.queue_id, q.name AS queue, p.last_offset, p.log_start,
                   CASE WHEN p_own_lease THEN COALESCE(NULLIF(p_lease_seconds, 0), q.lease_time, 60)
                        ELSE COALESCE(p_lease_seconds, 60) END AS lease,
                   CASE WHEN q.delayed_processing > 0 THEN v_now - make_interval(secs => q.delayed_processing) END AS deadline,
                   c.partition_id IS NULL AS is_new,
                   GREATEST(p.last_offset - GREATEST(COALESCE(c.committed, -1) + 1, p.log_start) + 1, 0) AS estimate
              FROM (SELECT n.pid, min(n.ord) AS ord FROM unnest(p_pids) WITH ORDINALITY AS n(pid, ord) GROUP BY n.pid) u
              JOIN queen.log_partitions p ON p.id = u.pid
              JOIN queen.queues q ON q.id = p.queue_id
              LEFT JOIN queen.log_consumers c ON c.partition_id = p.id AND c.consumer_group = p_group
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
            IF v_mode IS NULL AND p_group <> '__QUEUE_MODE__' THEN
                SELECT s.r_mode, s.r_at INTO v_mode, v_since FROM queen.log_pop_subscription_v1(p_sub_mode, p_sub_from) s;
                IF v_mode = 'invalid' THEN
                    v_mode := CASE WHEN p_sub_mode = 'new' THEN 'new' ELSE 'all' END;
                END IF;
            END IF;
            INSERT INTO queen.log_consumers (partition_id, consumer_group, committed)
            SELECT x.pid, p_group,
                   CASE WHEN x.since IS NOT NULL THEN queen.log_pop_seed_at_v1(x.pid, x.log_start, x.last_offset, x.since)
                        WHEN v_mode = 'new' AND NOT x.recorded THEN x.last_offset
                        ELSE -1 END
              FROM (SELECT u.pid, u.log_start, u.last_offset, m.id IS NOT NULL AS recorded,
                           CASE WHEN p_group <> '__QUEUE_MODE__' THEN COALESCE(m.subscription_timestamp, v_since) END AS since
                      FROM unnest(c_pid[v_from:v_to], c_queue_id[v_from:v_to], c_start[v_from:v_to], c_last[v_from:v_to],
                                  c_new[v_from:v_to]) AS u(pid, queue_id, log_start, last_offset, is_new)
                      JOIN queen.queues q ON q.id = u.queue_id
                      LEFT JOIN queen.consumer_groups_metadata m
                        ON m.tenant_id = q.tenant_id AND m.consumer_group = p_group AND m.queue_id = u.queue_id
                       AND m.partition_name = '' AND m.namespace = '' AND m.task = ''
                     WHERE u.is_new AND pg_try_advisory_xact_lock(hashtextextended(u.pid::TEXT || '/' || p_group, 42))) x
             ORDER BY x.pid
            ON CONFLICT DO NOTHING;
        END IF;

        SELECT array_agg(x.idx), array_agg(x.partition_id), array_agg(x.wanted), array_agg(x.pending), array_agg(x.deadline),
               array_agg(x.attempt_offset), array_agg(x.attempt_count), COALESCE(sum(x.pending), 0), COALESCE(bool_or(x.deadline IS NOT NULL), FALSE)
          INTO h_idx, h_pid, h_wanted, h_pending, h_deadline, h_attempt_offset, h_attempts, v_pending, v_exact
          FROM (SELECT h.*, GREATEST(h.last_offset - GREATEST(h.wanted, h.log_start) + 1, 0) AS pending
                  FROM (SELECT (u.n + v_from - 1)::INTEGER AS idx, c.partition_id, c.committed + 1 AS wanted, c.attempt_offset,
                               c.attempt_count, u.last_offset, u.log_start, u.deadline
                          FROM unnest(c_pid[v_from:v_to], v_groups[v_from:v_to], c_last[v_from:v_to], c_start[v_from:v_to],
                                      c_deadline[v_from:v_to])
                               WITH ORDINALITY AS u(pid, consumer_group, last_offset, log_start, deadline, n)
                          JOIN queen.log_consumers c ON c.partition_id = u.pid AND c.consumer_group = u.consumer_group
                         WHERE c.committed < u.last_offset
                           AND (c.worker_id IS NULL OR c.lease_expires_at IS NULL OR c.lease_expires_at <= v_now)
                         ORDER BY c.partition_id
                           FOR UPDATE OF c SKIP LOCKED) h
                 ORDER BY h.idx) x;

        v_stop := v_to;
        IF h_idx IS NOT NULL THEN
            -- Offsets are dense above log_start, so what a candidate leaves of the budget is known before its segments are read
            -- and candidates behind the end of the budget cost nothing. Where messages may be invisible, or when the numbers
            -- promised more than there was, every candidate is read up to the whole budget instead (v_exact).
            LOOP
                WITH span AS (
                    SELECT h.idx, h.pid, h.wanted, h.deadline, h.attempt_offset, h.attempts,
                           CASE WHEN v_exact THEN v_left
                                ELSE v_left - (sum(h.pending) OVER (ORDER BY h.idx) - h.pending)::BIGINT END AS budget
                      FROM unnest(h_idx, h_pid, h_wanted, h_pending, h_deadline, h_attempt_offset, h_attempts)
                           AS h(idx, pid, wanted, pending, deadline, attempt_offset, attempts)
                ), seen AS (
                    SELECT p.idx, p.pid, s.base_offset, s.created_at, s.blob,
                           GREATEST(p.wanted - s.base_offset, 0) AS skip,
                           s.end_offset - s.base_offset + 1 AS msg_count,
                           s.end_offset - GREATEST(s.base_offset, p.wanted) + 1 AS frames,
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
                                    ORDER BY g.base_offset LIMIT 1)) AS base_offset) f
                     CROSS JOIN LATERAL (
                           SELECT g.base_offset, g.end_offset, g.created_at, g.blob
                             FROM queen.log_segments g
                            WHERE g.partition_id = p.pid AND g.base_offset >= f.base_offset
                              AND g.base_offset < GREATEST(f.base_offset, p.wanted) + p.budget
                            ORDER BY g.base_offset LIMIT v_left) s
                     WHERE p.budget > 0
                    WINDOW in_order AS (PARTITION BY p.idx ORDER BY s.base_offset)
                ), counted AS (
                    SELECT v.*, (sum(v.frames) OVER (ORDER BY v.idx, v.base_offset))::BIGINT - v.frames AS before,
                           dense_rank() OVER (ORDER BY v.idx) AS nth
                      FROM seen v
                     WHERE v.visible
                ), taken AS (
                    SELECT t.idx, t.pid, t.base_offset, t.created_at, t.blob, t.skip, t.msg_count, t.attempt,
                           LEAST(t.frames, v_left - t.before) AS take
                      FROM counted t
                     WHERE t.before < v_left AND t.nth <= v_cap
                )
                SELECT s.*, b.*
                  INTO s_idx, s_base, s_skip, s_take, s_count, s_created, s_attempt, s_blob, b_idx, b_pid, b_first, b_end, b_taken,
                       b_attempt, v_taken
                  FROM (SELECT array_agg(t.idx), array_agg(t.base_offset), array_agg(t.skip::INTEGER), array_agg(t.take::INTEGER),
                               array_agg(t.msg_count::INTEGER), array_agg(t.created_at), array_agg(t.attempt), array_agg(t.blob)
                          FROM (SELECT * FROM taken ORDER BY idx, base_offset) t) s,
                       (SELECT array_agg(b.idx), array_agg(b.pid), array_agg(b.first_offset), array_agg(b.end_offset),
                               array_agg(b.taken), array_agg(b.attempt), COALESCE(sum(b.taken), 0)
                          FROM (SELECT t.idx, t.pid, min(t.base_offset + t.skip) AS first_offset,
                                       max(t.base_offset + t.skip + t.take - 1) AS end_offset, sum(t.take)::BIGINT AS taken,
                                       min(t.attempt) AS attempt
                                  FROM taken t
                                 GROUP BY t.idx, t.pid
                                 ORDER BY t.idx) b) b;
                EXIT WHEN v_exact OR v_taken >= v_left OR v_pending <= v_left;
                v_exact := TRUE;
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
                       attempt_offset = CASE WHEN p_auto_ack THEN c.attempt_offset ELSE b.first_offset END
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
                                                                    'createdAt', queen.iso_us_v1(s.created)) ORDER BY s.base)) AS part
                  FROM unnest(o_idx, o_base, o_skip, o_take, o_created, o_attempt) AS s(idx, base, skip, take, created, attempt)
                 GROUP BY s.idx) x;
    END IF;
END $$;

-- log_pop_list_v1: claim from a list of candidate partitions that the caller believes to have messages.
--   p_partitions  partition names of one queue, in the order in which they may take; NULL acts as empty
--   p_skip_window the caller applied the queue's window_buffer itself
--   the others    as log_pop_claim_v1
-- Returns one row always: meta and blobs (binary form), and states, one verdict per candidate tried, in order:
--   {"p":name,"s":"took","lastOff":n}  n is the head of the partition, read after the claim
--   {"p":name,"s":"leased","until":t}  t is when to look again: the expiry of a foreign lease; the moment the first pending
--                                      message becomes visible (delayed_processing, window_buffer); 250 ms from now when a
--                                      claim lost a race, since an auto-ack winner shows no lease
--   {"p":name,"s":"empty"}             nothing pending, or no such partition
-- Candidates behind the end of the budget or the cap have no verdict. An unknown queue gives empty results; nothing is created
-- but first-contact cursors.
-- Locks: as log_pop_claim_v1. Called by: pg.PopList.
CREATE OR REPLACE FUNCTION queen.log_pop_list_v1(
    p_queue TEXT, p_group TEXT, p_partitions TEXT[], p_budget INTEGER, p_lease_seconds INTEGER, p_worker TEXT, p_auto_ack BOOLEAN,
    p_max_partitions INTEGER, p_sub_mode TEXT DEFAULT 'all', p_sub_from TEXT DEFAULT '', p_skip_window BOOLEAN DEFAULT FALSE,
    p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS TABLE (meta JSONB, blobs BYTEA[], states JSONB)
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_now     TIMESTAMPTZ := clock_timestamp();
    v_delay   INTEGER;
    v_window  INTEGER;
    v_pids    UUID[];
    v_took    UUID[];
    v_reached INTEGER;
BEGIN
    SELECT COALESCE(q.delayed_processing, 0), CASE WHEN p_skip_window THEN 0 ELSE COALESCE(q.window_buffer, 0) END,
           (SELECT array_agg(p.id ORDER BY u.ord)
              FROM unnest(p_partitions) WITH ORDINALITY AS u(name, ord)
              LEFT JOIN queen.log_partitions p ON p.queue_id = q.id AND p.name = u.name)
      INTO v_delay, v_window, v_pids
      FROM queen.queues q
     WHERE q.tenant_id = p_tenant AND q.name = p_queue;

    SELECT c.r_meta, c.r_blobs, c.r_took, c.r_reached INTO meta, blobs, v_took, v_reached
      FROM queen.log_pop_claim_v1(v_pids, p_group, p_budget, p_lease_seconds, FALSE, p_worker, p_auto_ack, p_max_partitions,
                                  p_sub_mode, p_sub_from, p_skip_window) c;

    -- The verdicts are read by a command of their own: after the claim, so that a push that the claim missed shows as pending.
    SELECT COALESCE(jsonb_agg(
             CASE WHEN p.id = ANY (v_took) AND array_position(v_pids, p.id) = u.ord THEN
                       jsonb_build_object('p', u.name, 's', 'took', 'lastOff', p.last_offset)
                  WHEN c.worker_id IS DISTINCT FROM p_worker AND c.worker_id IS NOT NULL AND c.lease_expires_at > v_now THEN
                       jsonb_build_object('p', u.name, 's', 'leased', 'until', queen.iso_us_v1(c.lease_expires_at))
                  WHEN p.last_offset > COALESCE(c.committed, -1) THEN
                       jsonb_build_object('p', u.name, 's', 'leased', 'until', queen.iso_us_v1(
                           CASE WHEN d.visible_at > v_now THEN d.visible_at ELSE v_now + interval '250 milliseconds' END))
                  ELSE jsonb_build_object('p', u.name, 's', 'empty') END
             ORDER BY u.ord), '[]')
      INTO states
      FROM unnest(p_partitions[:v_reached], v_pids[:v_reached]) WITH ORDINALITY AS u(name, pid, ord)
      LEFT JOIN queen.log_partitions p ON p.id = u.pid
      LEFT JOIN queen.log_consumers c ON c.partition_id = u.pid AND c.consumer_group = p_group
      LEFT JOIN LATERAL (
           SELECT GREATEST(
                  COALESCE((SELECT k.created_at
                              FROM (SELECT s.end_offset, s.created_at FROM queen.log_segments s
                                     WHERE s.partition_id = u.pid AND s.base_offset <= COALESCE(c.committed, -1) + 1
                                     ORDER BY s.base_offset DESC LIMIT 1) k
                             WHERE k.end_offset > COALESCE(c.committed, -1)),
                           (SELECT s.created_at FROM queen.log_segments s
                             WHERE s.partition_id = u.pid AND s.base_offset > COALESCE(c.committed, -1) + 1
                             ORDER BY s.base_offset LIMIT 1)) + make_interval(secs => NULLIF(v_delay, 0)),
                  (SELECT s.created_at FROM queen.log_segments s
                    WHERE s.partition_id = u.pid
                    ORDER BY s.base_offset DESC LIMIT 1) + make_interval(secs => NULLIF(v_window, 0))) AS visible_at
            WHERE (v_delay > 0 OR v_window > 0) AND p.last_offset > COALESCE(c.committed, -1)
           ) d ON TRUE;
    RETURN NEXT;
END $$;

-- log_pop_register_v1: write the subscription records of a group on queues that have none, and set its cursors there.
--   p_queue_ids  queues of one tenant
--   p_sub_mode, p_sub_from  where the group starts; an unreadable start counts as new. Queue mode always starts with all
-- The record is also the election: only the transaction that inserted it creates the cursors of the queue's partitions.
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
-- scans (last_empty_scan_at), otherwise only the time of the check is noted. The scan starts 2 minutes below the floor, which
-- covers pushes in flight and the 1 s step of last_write_at.
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
        IF EXISTS (SELECT 1
                     FROM queen.log_partitions p
                     LEFT JOIN queen.log_consumers c ON c.partition_id = p.id AND c.consumer_group = p_group
                    WHERE p.queue_id = ANY (p_queue_ids) AND p.last_write_at >= v_floor - interval '2 minutes'
                      AND (c.partition_id IS NULL OR p.last_offset > c.committed)) THEN
            IF p_discover THEN
                WITH held AS (
                    SELECT w.queue_id FROM queen.consumer_watermarks w
                     WHERE w.queue_id = ANY (p_queue_ids) AND w.consumer_group = p_group
                     ORDER BY w.queue_id FOR UPDATE)
                UPDATE queen.consumer_watermarks w SET updated_at = v_now
                  FROM held h
                 WHERE w.queue_id = h.queue_id AND w.consumer_group = p_group;
            ELSE
                INSERT INTO queen.consumer_watermarks (queue_id, consumer_group, updated_at)
                SELECT u.id, p_group, v_now FROM unnest(p_queue_ids) AS u(id)
                ON CONFLICT (queue_id, consumer_group) DO UPDATE SET updated_at = EXCLUDED.updated_at;
            END IF;
        ELSE
            INSERT INTO queen.consumer_watermarks (queue_id, consumer_group, last_empty_scan_at, updated_at)
            SELECT u.id, p_group, v_now, v_now FROM unnest(p_queue_ids) AS u(id) ORDER BY u.id
            ON CONFLICT (queue_id, consumer_group)
            DO UPDATE SET last_empty_scan_at = EXCLUDED.last_empty_scan_at, updated_at = EXCLUDED.updated_at;
        END IF;
    END IF;
END $$;

-- log_pop_queue_id_v1: the id of a queue a wildcard pop names, creating the queue when it is missing: a group may subscribe before
-- the first push, and its record needs the row. Namespace and task come from the dotted name, as on a first push.
-- NULL for an empty name. Locks: at most the insert of one queues row. Called by: the wildcard pops.
CREATE OR REPLACE FUNCTION queen.log_pop_queue_id_v1(p_queue TEXT, p_tenant UUID)
RETURNS UUID
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
DECLARE
    v_id UUID;
BEGIN
    SELECT q.id INTO v_id FROM queen.queues q WHERE q.tenant_id = p_tenant AND q.name = p_queue;
    IF v_id IS NULL AND COALESCE(p_queue, '') <> '' THEN
        INSERT INTO queen.queues (tenant_id, name, namespace, task)
        VALUES (p_tenant, p_queue, split_part(p_queue, '.', 1), split_part(p_queue, '.', 2))
        ON CONFLICT (tenant_id, name) DO NOTHING;
        SELECT q.id INTO v_id FROM queen.queues q WHERE q.tenant_id = p_tenant AND q.name = p_queue;
    END IF;
    RETURN v_id;
END $$;

-- log_pop_discover_ids_v1: the queues of a tenant in a namespace and with a task, ascending by id; '' and NULL mean any.
-- Reads only. Called by: the discovery pops.
CREATE OR REPLACE FUNCTION queen.log_pop_discover_ids_v1(p_namespace TEXT, p_task TEXT, p_tenant UUID)
RETURNS UUID[]
LANGUAGE sql STABLE
AS $$
    SELECT array_agg(q.id ORDER BY q.id)
      FROM queen.queues q
     WHERE q.tenant_id = p_tenant
       AND (COALESCE(p_namespace, '') = '' OR q.namespace = p_namespace)
       AND (COALESCE(p_task, '') = '' OR q.task = p_task)
$$;

-- log_pop_wire_v1: the JSON form of a claim: r_meta with every segment completed by msgCount and the blob in base64, which
-- PostgreSQL breaks into lines of 76 characters. Pure. Called by: the pops that answer in JSON.
CREATE OR REPLACE FUNCTION queen.log_pop_wire_v1(p_meta JSONB, p_blobs BYTEA[], p_msg_counts INTEGER[])
RETURNS JSONB
LANGUAGE sql STABLE
AS $$
    SELECT jsonb_build_object('partitions', COALESCE(jsonb_agg(x.part ORDER BY x.ord), '[]'))
      FROM (SELECT f.ord, (f.part - 'segments') || jsonb_build_object('segments', jsonb_agg(
                       f.segment || jsonb_build_object('msgCount', b.msg_count, 'blob', encode(b.blob, 'base64')) ORDER BY f.n)) AS part
              FROM (SELECT p.ord, p.part, s.segment, row_number() OVER (ORDER BY p.ord, s.ord) AS n
                      FROM jsonb_array_elements(p_meta -> 'partitions') WITH ORDINALITY AS p(part, ord)
                     CROSS JOIN LATERAL jsonb_array_elements(p.part -> 'segments') WITH ORDINALITY AS s(segment, ord)) f
              JOIN unnest(p_blobs, p_msg_counts) WITH ORDINALITY AS b(blob, msg_count, n) ON b.n = f.n
             GROUP BY f.ord, f.part) x
$$;

-- log_pop_partition_v1: one log_pop_v1 claim in binary form. The core of the specific pops.
-- Returns r_meta (no or one partition), r_blobs, r_msg_counts as log_pop_claim_v1.
-- The partition id is resolved by a command after the claim. Resolved before it, a pop that races the push which creates the
-- partition could deliver messages of a partition that its snapshot does not know, and they could never be acknowledged.
-- Locks: as log_pop_v1. Called by: log_pop_specific_v1, log_pop_specific_bin_v1.
CREATE OR REPLACE FUNCTION queen.log_pop_partition_v1(
    p_queue TEXT, p_partition TEXT, p_group TEXT, p_budget INTEGER, p_lease_seconds INTEGER, p_worker TEXT, p_auto_ack BOOLEAN,
    p_sub_mode TEXT, p_sub_from TEXT, p_tenant UUID,
    OUT r_meta JSONB, OUT r_blobs BYTEA[], OUT r_msg_counts INTEGER[])
RETURNS RECORD
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
DECLARE
    v_segments JSONB;
    v_first    BIGINT;
    v_pid      UUID;
    v_attempt  INTEGER;
BEGIN
    SELECT jsonb_agg(jsonb_build_object('seq', s.r_base, 'startOff', s.r_start_idx, 'take', s.r_take,
                                        'createdAt', queen.iso_us_v1(s.r_created_at)) ORDER BY s.r_base),
           array_agg(s.r_blob ORDER BY s.r_base), array_agg(s.r_msg_count ORDER BY s.r_base), min(s.r_base + s.r_start_idx)
      INTO v_segments, r_blobs, r_msg_counts, v_first
      FROM queen.log_pop_v1(p_queue, p_partition, p_group, p_budget, p_lease_seconds, p_worker, p_auto_ack, p_sub_mode, p_sub_from,
                            FALSE, p_tenant) s;
    IF v_segments IS NULL THEN
        r_meta := '{"partitions": []}';
        r_blobs := '{}';
        r_msg_counts := '{}';
        RETURN;
    END IF;
    SELECT p.id, CASE WHEN c.attempt_offset = v_first THEN c.attempt_count + CASE WHEN p_auto_ack THEN 1 ELSE 0 END ELSE 1 END
      INTO v_pid, v_attempt
      FROM queen.queues q
      JOIN queen.log_partitions p ON p.queue_id = q.id AND p.name = p_partition
      LEFT JOIN queen.log_consumers c ON c.partition_id = p.id AND c.consumer_group = p_group
     WHERE q.tenant_id = p_tenant AND q.name = p_queue;
    IF v_pid IS NULL THEN
        RAISE EXCEPTION 'QPOP claimed messages of queue "%" partition "%" have no partition id', p_queue, p_partition;
    END IF;
    r_meta := jsonb_build_object('partitions', jsonb_build_array(jsonb_build_object(
        'queue', p_queue, 'partition', p_partition, 'partitionId', v_pid, 'attempt', v_attempt, 'segments', v_segments)));
END $$;

-- log_pop_specific_v1: pop from one partition, answer in JSON.
-- Returns {"segments":[{"seq","startOff","take","msgCount","createdAt","blob"}],"partitionId":uuid or "","attempt":0}; the id is given
-- for an existing partition even when nothing was taken. attempt is always 0 in this form; the binary form carries the count.
-- Locks: as log_pop_v1. Called by: clients of the JSON form; the broker uses log_pop_specific_bin_v1.
CREATE OR REPLACE FUNCTION queen.log_pop_specific_v1(
    p_queue TEXT, p_partition TEXT, p_group TEXT, p_budget INTEGER, p_lease_seconds INTEGER, p_worker TEXT, p_auto_ack BOOLEAN,
    p_sub_mode TEXT, p_sub_from TEXT, p_tenant UUID)
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_part JSONB;
    v_pid  UUID;
BEGIN
    SELECT queen.log_pop_wire_v1(c.r_meta, c.r_blobs, c.r_msg_counts) #> '{partitions,0}' INTO v_part
      FROM queen.log_pop_partition_v1(p_queue, p_partition, p_group, p_budget, p_lease_seconds, p_worker, p_auto_ack, p_sub_mode,
                                      p_sub_from, p_tenant) c;
    IF v_part IS NULL THEN
        SELECT p.id INTO v_pid
          FROM queen.queues q
          JOIN queen.log_partitions p ON p.queue_id = q.id AND p.name = p_partition
         WHERE q.tenant_id = p_tenant AND q.name = p_queue;
        RETURN jsonb_build_object('segments', '[]'::JSONB, 'partitionId', COALESCE(v_pid::TEXT, ''), 'attempt', 0);
    END IF;
    RETURN jsonb_build_object('segments', v_part -> 'segments', 'partitionId', v_part -> 'partitionId', 'attempt', 0);
END $$;

-- log_pop_wildcard_wire_v1, log_pop_wildcard_bin_v1: pop from any partitions of one queue; an unknown queue with a name is created.
--   p_max_partitions  most partitions of one call; NULL, 0 and negative values: no cap. All share the lease id p_worker
--   the others        as log_pop_v1
-- The wire form returns {"partitions":[{"queue","partition","partitionId","attempt","segments":[{"seq","startOff","take","msgCount",
-- "createdAt","blob"}]}]}, the binary form one row: meta without msgCount and blob, and the blobs in the same order.
-- Locks: log_pop_queue_id_v1, then log_pop_scan_v1. Called by: pg.PopWildcard (binary).
CREATE OR REPLACE FUNCTION queen.log_pop_wildcard_wire_v1(
    p_queue TEXT, p_group TEXT, p_budget INTEGER, p_lease_seconds INTEGER, p_worker TEXT, p_auto_ack BOOLEAN, p_max_partitions INTEGER,
    p_sub_mode TEXT DEFAULT 'all', p_sub_from TEXT DEFAULT '', p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    RETURN (SELECT queen.log_pop_wire_v1(s.r_meta, s.r_blobs, s.r_msg_counts)
              FROM queen.log_pop_scan_v1(array_remove(ARRAY[queen.log_pop_queue_id_v1(p_queue, p_tenant)], NULL), FALSE, p_group, p_budget,
                                         p_lease_seconds, p_worker, p_auto_ack, p_max_partitions, p_sub_mode, p_sub_from, p_tenant) s);
END $$;

CREATE OR REPLACE FUNCTION queen.log_pop_wildcard_bin_v1(
    p_queue TEXT, p_group TEXT, p_budget INTEGER, p_lease_seconds INTEGER, p_worker TEXT, p_auto_ack BOOLEAN, p_max_partitions INTEGER,
    p_sub_mode TEXT DEFAULT 'all', p_sub_from TEXT DEFAULT '', p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS TABLE (meta JSONB, blobs BYTEA[])
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    SELECT s.r_meta, s.r_blobs INTO meta, blobs
      FROM queen.log_pop_scan_v1(array_remove(ARRAY[queen.log_pop_queue_id_v1(p_queue, p_tenant)], NULL), FALSE, p_group, p_budget,
                                 p_lease_seconds, p_worker, p_auto_ack, p_max_partitions, p_sub_mode, p_sub_from, p_tenant) s;
    RETURN NEXT;
END $$;

-- log_pop_discover_wire_v1: pop from any partitions of the queues in a namespace and with a task; '' means any.
--   p_lease_seconds  0 or NULL: every partition is leased with the lease time of its own queue
--   the others       as log_pop_wildcard_wire_v1
-- Returns the wire form of log_pop_wildcard_wire_v1; "queue" tells where a partition belongs. Never creates a queue.
-- Locks: as log_pop_scan_v1. Called by: clients of the JSON form; the broker uses log_pop_discover_bin_v1.
CREATE OR REPLACE FUNCTION queen.log_pop_discover_wire_v1(
    p_namespace TEXT, p_task TEXT, p_group TEXT, p_budget INTEGER, p_lease_seconds INTEGER, p_worker TEXT, p_auto_ack BOOLEAN,
    p_max_partitions INTEGER, p_sub_mode TEXT DEFAULT 'all', p_sub_from TEXT DEFAULT '',
    p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    RETURN (SELECT queen.log_pop_wire_v1(s.r_meta, s.r_blobs, s.r_msg_counts)
              FROM queen.log_pop_scan_v1(queen.log_pop_discover_ids_v1(p_namespace, p_task, p_tenant), TRUE, p_group, p_budget,
                                         p_lease_seconds, p_worker, p_auto_ack, p_max_partitions, p_sub_mode, p_sub_from, p_tenant) s);
END $$;

-- log_has_pending_v1: may any partition of the queue have messages for the group? A superset: true also when retention removed
-- what was pending; the pop finds out under the row lock. False for an unknown queue.
-- Reads only. Called by: pg.HasPending.
CREATE OR REPLACE FUNCTION queen.log_has_pending_v1(p_queue TEXT, p_group TEXT, p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS BOOLEAN
LANGUAGE sql STABLE
AS $$
    SELECT EXISTS (SELECT 1
                     FROM queen.queues q
                     JOIN queen.log_partitions p ON p.queue_id = q.id
                     LEFT JOIN queen.log_consumers c ON c.partition_id = p.id AND c.consumer_group = p_group
                    WHERE q.tenant_id = p_tenant AND q.name = p_queue AND p.last_offset > COALESCE(c.committed, -1))
$$;

-- log_hotlist_reseed_v1: one page of the partitions that probably have messages for the group, leased ones included.
--   p_after_id  the last id of the page before, the nil UUID for the first page
--   p_limit     most rows; NULL and values below 1 act as 1
-- Returns id and name, ascending by id. Reads only. Called by: the hot list's full walk.
CREATE OR REPLACE FUNCTION queen.log_hotlist_reseed_v1(
    p_queue TEXT, p_group TEXT, p_after_id UUID, p_limit INTEGER, p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS TABLE (r_id UUID, r_name TEXT)
LANGUAGE sql STABLE
AS $$
    SELECT p.id, p.name
      FROM queen.queues q
      JOIN queen.log_partitions p ON p.queue_id = q.id
      LEFT JOIN queen.log_consumers c ON c.partition_id = p.id AND c.consumer_group = p_group
     WHERE q.tenant_id = p_tenant AND q.name = p_queue AND p.id > p_after_id AND p.last_offset > COALESCE(c.committed, -1)
     ORDER BY p.id
     LIMIT GREATEST(p_limit, 1)
$$;

-- log_hotlist_reseed_window_v1: log_hotlist_reseed_v1 over partitions written to since p_cutoff, through the (queue_id, last_write_at)
-- index: its cost follows what was written lately, not the number of partitions. Sound only while a push is what made a partition
-- pending; after a seek or a group delete the full walk is needed. Called by: the hot list's reseed. Plan test: TestPopPlans.
CREATE OR REPLACE FUNCTION queen.log_hotlist_reseed_window_v1(
    p_queue TEXT, p_group TEXT, p_after_id UUID, p_limit INTEGER, p_tenant UUID, p_cutoff TIMESTAMPTZ)
RETURNS TABLE (r_id UUID, r_name TEXT)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
AS $$
BEGIN
    -- Two things would turn this into a walk over all partitions: a plan that does not know how recent the cutoff is, and one that
    -- reads the primary key because of the order and the limit.
    RETURN QUERY
    WITH recent AS MATERIALIZED (
        SELECT p.id, p.name, p.last_offset
          FROM queen.queues q
          JOIN queen.log_partitions p ON p.queue_id = q.id
         WHERE q.tenant_id = p_tenant AND q.name = p_queue AND p.last_write_at >= p_cutoff)
    SELECT p.id, p.name
      FROM recent p
      LEFT JOIN queen.log_consumers c ON c.partition_id = p.id AND c.consumer_group = p_group
     WHERE p.id > p_after_id AND p.last_offset > COALESCE(c.committed, -1)
     ORDER BY p.id
     LIMIT GREATEST(p_limit, 1);
END $$;

GRANT EXECUTE ON FUNCTION queen.log_pop_subscription_v1(TEXT, TEXT) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_pop_seed_at_v1(UUID, BIGINT, BIGINT, TIMESTAMPTZ) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_pop_v1(TEXT, TEXT, TEXT, INTEGER, INTEGER, TEXT, BOOLEAN, TEXT, TEXT, BOOLEAN, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_pop_claim_v1(UUID[], TEXT, INTEGER, INTEGER, BOOLEAN, TEXT, BOOLEAN, INTEGER, TEXT, TEXT, BOOLEAN) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_pop_list_v1(TEXT, TEXT, TEXT[], INTEGER, INTEGER, TEXT, BOOLEAN, INTEGER, TEXT, TEXT, BOOLEAN, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_pop_register_v1(UUID[], TEXT, TEXT, TEXT, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_pop_scan_v1(UUID[], BOOLEAN, TEXT, INTEGER, INTEGER, TEXT, BOOLEAN, INTEGER, TEXT, TEXT, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_pop_queue_id_v1(TEXT, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_pop_discover_ids_v1(TEXT, TEXT, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_pop_wire_v1(JSONB, BYTEA[], INTEGER[]) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_pop_partition_v1(TEXT, TEXT, TEXT, INTEGER, INTEGER, TEXT, BOOLEAN, TEXT, TEXT, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_pop_specific_v1(TEXT, TEXT, TEXT, INTEGER, INTEGER, TEXT, BOOLEAN, TEXT, TEXT, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_pop_wildcard_wire_v1(TEXT, TEXT, INTEGER, INTEGER, TEXT, BOOLEAN, INTEGER, TEXT, TEXT, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_pop_wildcard_bin_v1(TEXT, TEXT, INTEGER, INTEGER, TEXT, BOOLEAN, INTEGER, TEXT, TEXT, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_pop_discover_wire_v1(TEXT, TEXT, TEXT, INTEGER, INTEGER, TEXT, BOOLEAN, INTEGER, TEXT, TEXT, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_has_pending_v1(TEXT, TEXT, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_hotlist_reseed_v1(TEXT, TEXT, UUID, INTEGER, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_hotlist_reseed_window_v1(TEXT, TEXT, UUID, INTEGER, UUID, TIMESTAMPTZ) TO PUBLIC;
