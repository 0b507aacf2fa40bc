-- Pop: claiming messages of one partition, of a list of candidates, of a queue, of a namespace or task.
--
-- log_pop_v1 is the rule written down plainly, for one partition. log_pop_claim_v1 (file 031) is the same rule for any number of
-- candidates in a constant number of statements; the pops over many partitions are built on it. TestPopListEqualsALoopOfPops
-- holds the two together on random states.
--
-- Lock order of every pop: provisioning inserts sorted by their unique keys (queue, subscription records), then log_consumers
-- rows. Consumer rows are created ascending by partition id before any existing row is claimed, and claims never wait (SKIP
-- LOCKED), so a pop waits only for a concurrent creation of the same row, holding nothing such a creator could want.
--
-- The planner settings on the functions are for young databases. A session keeps a plan it made when the tables were empty until
-- the first ANALYZE, while the tables grow; without the settings that plan reads them whole. For the same reason sets join
-- log_consumers by a column that holds the group: with a constant the planner may start from all cursors of the group. Set-based
-- statements are planned once per session (force_generic_plan): planning them costs more than running them.
-- TestPopPlansMadeOnEmptyTablesStayGood.

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
             'TABLE(r_id uuid, r_name text)'),
            ('queen.log_hotlist_page_v1(text,text,uuid,double precision,timestamp with time zone,uuid,integer)',
             'TABLE(r_at timestamp with time zone, r_id uuid, r_name text, r_messages bigint)')
          ) AS f(signature, result)
         WHERE to_regprocedure(f.signature) IS NOT NULL
           AND pg_catalog.pg_get_function_result(to_regprocedure(f.signature)) <> f.result
    LOOP
        EXECUTE 'DROP FUNCTION ' || v_old.signature;
    END LOOP;
END $$;

-- log_pop_max_bytes_v1: a claim takes no further segment once it holds this many bytes. A segment has at most 16 MiB, or one
-- larger message, so that a claim stays far below the 1 GiB that PostgreSQL can return: one that it cannot would fail for ever.
-- Called by: log_pop_v1, log_pop_claim_v1.
CREATE OR REPLACE FUNCTION queen.log_pop_max_bytes_v1()
RETURNS BIGINT
LANGUAGE sql IMMUTABLE
AS $$ SELECT 67108864::BIGINT $$;

-- log_pop_is_poison_v1: is the p_attempt-th delivery of a message one more than p_most (max_deliveries; 0 is any number) allows?
-- Inlined. Called by: the pops.
CREATE OR REPLACE FUNCTION queen.log_pop_is_poison_v1(p_attempt INTEGER, p_most INTEGER)
RETURNS BOOLEAN
LANGUAGE sql IMMUTABLE
AS $$ SELECT p_most > 0 AND p_attempt > p_most $$;

-- log_pop_v1: claim the next messages of one partition for one group. The rule that every pop follows.
--   p_budget         most messages; NULL and values below 1 act as 1
--   p_lease_seconds  how long the batch is held; NULL acts as 60
--   p_worker         the lease id
--   p_auto_ack       commit the cursor at once instead of leasing
--   p_sub_mode, p_sub_from   where a named group starts when it has neither a cursor nor a subscription record
--   p_skip_window_debounce   the caller applied the queue's window_buffer itself
-- Returns the segments of the batch, ascending; a segment contributes r_take of its r_msg_count messages from index r_start_idx.
-- No rows when there is nothing to take: unknown partition, debounced, leased or locked by somebody, delayed, drained.
-- A batch ends before the first segment younger than the queue's delay, so the cursor never passes an invisible message, and
-- after the segment that fills it (log_pop_max_bytes_v1).
-- In a queue with max_deliveries, messages of a batch whose lease ran out come one by one (isolate_end). A message whose delivery would
-- be one too many is claimed alone, and attempt_count says so (log_pop_is_poison_v1): the caller files it instead of delivering it.
-- Pops that acknowledge at once deliver everything: their messages cannot come twice.
-- Locks: its log_consumers row, SKIP LOCKED; on first contact an advisory lock (try) and the insert of that row.
-- Called by: log_pop_partition_v1.
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
    v_most      INTEGER;
    v_run_out   BIGINT;  -- end of a batch whose lease ran out
    v_isolate   BIGINT;
    v_wanted    BIGINT;
    v_seed      BIGINT;
    v_since     TIMESTAMPTZ;
    v_mode      TEXT;
    v_seg       RECORD;
    v_first     BIGINT;
    v_end       BIGINT;
    v_taken     BIGINT := 0;
    v_room      BIGINT := queen.log_pop_max_bytes_v1();
BEGIN
    SELECT p.id, p.queue_id, p.last_offset, p.log_start, COALESCE(q.delayed_processing, 0), COALESCE(q.window_buffer, 0),
           CASE WHEN p_auto_ack THEN 0 ELSE q.max_deliveries END
      INTO v_pid, v_queue_id, v_last, v_log_start, v_delay, v_window, v_most
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
        SELECT c.committed, c.attempt_offset, c.attempt_count, c.batch_end, c.isolate_end
          INTO v_committed, v_attempt_offset, v_attempts, v_run_out, v_isolate
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
    IF v_most > 0 THEN
        v_isolate := GREATEST(v_isolate, v_run_out);
        IF v_isolate >= v_wanted OR (v_attempts >= v_most AND v_attempt_offset >= v_wanted) THEN
            v_left := 1;
        END IF;
    END IF;
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
        v_room := v_room - octet_length(v_seg.blob);
    END IF;

    -- Forward scan: every segment holds at least one message, so v_left rows are always enough. It sees more than the probe did: when that
    -- found nothing, the wanted message may have been stored since, and the ones behind it, so that it must not be left out.
    IF v_left > 0 AND v_room > 0 THEN
        FOR v_seg IN
            SELECT s.base_offset, s.end_offset, s.created_at, s.blob
              FROM queen.log_segments s
             WHERE s.partition_id = v_pid AND s.base_offset >= v_wanted + v_taken
             ORDER BY s.base_offset LIMIT v_left
        LOOP
            EXIT WHEN v_left <= 0 OR v_room <= 0 OR v_seg.created_at > v_deadline;
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
            v_room := v_room - octet_length(v_seg.blob);
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
               attempt_count = CASE WHEN v_attempt_offset = v_first THEN v_attempts + 1 ELSE 1 END, attempt_offset = v_first,
               isolate_end = v_isolate
         WHERE c.partition_id = v_pid AND c.consumer_group = p_group;
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
    v_reached INTEGER := 0;
    v_left    BIGINT := GREATEST(p_budget, 1);
    v_cap     BIGINT := CASE WHEN p_max_partitions > 0 THEN p_max_partitions ELSE 2147483647 END;
    v_one     RECORD;
BEGIN
    SELECT COALESCE(q.delayed_processing, 0), CASE WHEN p_skip_window THEN 0 ELSE COALESCE(q.window_buffer, 0) END,
           (SELECT array_agg((SELECT p.id FROM queen.log_partitions p WHERE p.queue_id = q.id AND p.name = u.name) ORDER BY u.ord)
              FROM unnest(p_partitions) WITH ORDINALITY AS u(name, ord))
      INTO v_delay, v_window, v_pids
      FROM queen.queues q
     WHERE q.tenant_id = p_tenant AND q.name = p_queue;

    -- The usual pop wants one partition and names two candidates. One by one they cost half of what the set does (0.14 against
    -- 0.25 ms for one partition); from four on the set is cheaper.
    IF array_length(v_pids, 1) <= 2 THEN
        meta := '[]';
        blobs := '{}';
        FOR i IN 1 .. array_length(v_pids, 1) LOOP
            SELECT * INTO v_one
              FROM queen.log_pop_partition_v1(p_queue, p_partitions[i], p_group, v_left::INTEGER, p_lease_seconds, p_worker, p_auto_ack,
                                              p_sub_mode, p_sub_from, p_skip_window, p_tenant);
            v_reached := i;
            IF v_one.r_taken > 0 THEN
                meta := meta || (v_one.r_meta -> 'partitions');
                blobs := blobs || v_one.r_blobs;
                v_took := v_took || v_pids[i];
                v_left := v_left - v_one.r_taken;
                v_cap := v_cap - 1;
                EXIT WHEN v_left <= 0 OR v_cap <= 0;
            END IF;
        END LOOP;
        meta := jsonb_build_object('partitions', meta);
    ELSE
        SELECT c.r_meta, c.r_blobs, c.r_took, c.r_reached INTO meta, blobs, v_took, v_reached
          FROM queen.log_pop_claim_v1(v_pids, p_group, p_budget, p_lease_seconds, FALSE, p_worker, p_auto_ack, p_max_partitions,
                                      p_sub_mode, p_sub_from, p_skip_window) c;
    END IF;

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
      FROM unnest(p_partitions[:v_reached], v_pids[:v_reached], array_fill(p_group, ARRAY[v_reached]))
           WITH ORDINALITY AS u(name, pid, consumer_group, ord)
      LEFT JOIN queen.log_partitions p ON p.id = u.pid
      LEFT JOIN queen.log_consumers c ON c.partition_id = u.pid AND c.consumer_group = u.consumer_group
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
-- Locks: none. Called by: the discovery pops.
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
-- PostgreSQL breaks into lines of 76 characters. Locks: none. Called by: the pops that answer in JSON.
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

-- log_pop_partition_v1: one log_pop_v1 claim in binary form. The core of the specific pops and of short lists.
-- Returns r_meta (no or one partition), r_blobs, r_msg_counts as log_pop_claim_v1, and r_taken, the number of messages.
-- The partition id is resolved by a command after the claim. Resolved before it, a pop that races the push which creates the
-- partition could deliver messages of a partition that its snapshot does not know, and they could never be acknowledged.
-- Locks: as log_pop_v1. Called by: log_pop_list_v1, log_pop_specific_v1, log_pop_specific_bin_v1.
CREATE OR REPLACE FUNCTION queen.log_pop_partition_v1(
    p_queue TEXT, p_partition TEXT, p_group TEXT, p_budget INTEGER, p_lease_seconds INTEGER, p_worker TEXT, p_auto_ack BOOLEAN,
    p_sub_mode TEXT, p_sub_from TEXT, p_skip_window BOOLEAN, p_tenant UUID,
    OUT r_meta JSONB, OUT r_blobs BYTEA[], OUT r_msg_counts INTEGER[], OUT r_taken BIGINT)
RETURNS RECORD
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
DECLARE
    v_segments JSONB;
    v_first    BIGINT;
    v_pid      UUID;
    v_attempt  INTEGER;
    v_most     INTEGER;
BEGIN
    SELECT jsonb_agg(jsonb_build_object('seq', s.r_base, 'startOff', s.r_start_idx, 'take', s.r_take,
                                        'createdAt', queen.iso_us_v1(s.r_created_at)) ORDER BY s.r_base),
           array_agg(s.r_blob ORDER BY s.r_base), array_agg(s.r_msg_count ORDER BY s.r_base), min(s.r_base + s.r_start_idx),
           COALESCE(sum(s.r_take), 0)
      INTO v_segments, r_blobs, r_msg_counts, v_first, r_taken
      FROM queen.log_pop_v1(p_queue, p_partition, p_group, p_budget, p_lease_seconds, p_worker, p_auto_ack, p_sub_mode, p_sub_from,
                            p_skip_window, p_tenant) s;
    IF v_segments IS NULL THEN
        r_meta := '{"partitions": []}';
        r_blobs := '{}';
        r_msg_counts := '{}';
        RETURN;
    END IF;
    SELECT p.id, CASE WHEN c.attempt_offset = v_first THEN c.attempt_count + CASE WHEN p_auto_ack THEN 1 ELSE 0 END ELSE 1 END,
           CASE WHEN p_auto_ack THEN 0 ELSE q.max_deliveries END
      INTO v_pid, v_attempt, v_most
      FROM queen.queues q
      JOIN queen.log_partitions p ON p.queue_id = q.id AND p.name = p_partition
      LEFT JOIN queen.log_consumers c ON c.partition_id = p.id AND c.consumer_group = p_group
     WHERE q.tenant_id = p_tenant AND q.name = p_queue;
    IF v_pid IS NULL THEN
        RAISE EXCEPTION 'QPOP claimed messages of queue "%" partition "%" have no partition id', p_queue, p_partition;
    END IF;
    r_meta := jsonb_build_object('partitions', jsonb_build_array(jsonb_build_object(
        'queue', p_queue, 'partition', p_partition, 'partitionId', v_pid, 'attempt', v_attempt, 'segments', v_segments)
        || CASE WHEN queen.log_pop_is_poison_v1(v_attempt, v_most) THEN '{"poison": true}' ELSE '{}' END::JSONB));
END $$;

-- log_pop_specific_v1: pop from one partition, answer in JSON.
-- Returns {"segments":[{"seq","startOff","take","msgCount","createdAt","blob"}],"partitionId":uuid or "","attempt":0,"poison"?:true}; the id is given
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
                                      p_sub_from, FALSE, p_tenant) c;
    IF v_part IS NULL THEN
        SELECT p.id INTO v_pid
          FROM queen.queues q
          JOIN queen.log_partitions p ON p.queue_id = q.id AND p.name = p_partition
         WHERE q.tenant_id = p_tenant AND q.name = p_queue;
        RETURN jsonb_build_object('segments', '[]'::JSONB, 'partitionId', COALESCE(v_pid::TEXT, ''), 'attempt', 0);
    END IF;
    RETURN jsonb_build_object('segments', v_part -> 'segments', 'partitionId', v_part -> 'partitionId', 'attempt', 0)
           || CASE WHEN v_part ? 'poison' THEN '{"poison": true}' ELSE '{}' END::JSONB;
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
-- what was pending; the pop finds out under the row lock. False for an unknown queue. Partitions that were last written to 2 minutes below the
-- floor of the group are known to have none (log_pop_raise_floor_v1).
-- Reads only. Called by: pg.HasPending. Plan test: TestPopPlans.
CREATE OR REPLACE FUNCTION queen.log_has_pending_v1(p_queue TEXT, p_group TEXT, p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS BOOLEAN
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
SET enable_seqscan = off
AS $$
DECLARE
    v_queue UUID;
    v_floor TIMESTAMPTZ;
BEGIN
    SELECT q.id, COALESCE(w.last_empty_scan_at, '-infinity') INTO v_queue, v_floor
      FROM queen.queues q
      LEFT JOIN queen.consumer_watermarks w ON w.queue_id = q.id AND w.consumer_group = p_group
     WHERE q.tenant_id = p_tenant AND q.name = p_queue;
    RETURN EXISTS (SELECT 1
                     FROM queen.log_partitions p
                     LEFT JOIN queen.log_consumers c ON c.partition_id = p.id AND c.consumer_group = p_group
                    WHERE p.queue_id = v_queue AND p.last_write_at >= v_floor - interval '2 minutes'
                      AND p.last_offset > COALESCE(c.committed, -1));
END $$;

-- log_settled_at_v1: a time before which no transaction that is still under way had begun to write. What such a transaction pushed, however long
-- ago, is not seen before it commits: a look at what is pending proves something about writes before this time only. Ask before the look.
-- It is mostly as old as the call before the last one, and older while a transaction that writes goes on for long.
-- Returns '-infinity' while nothing is known. Transaction ids are handed out in order, so one that is taken after the clock was read bounds
-- all that came before; where the caller's transaction has one already, nothing new is noted.
-- Locks: the row of queen.settled, SKIP LOCKED. Called by: log_pop_raise_floor_v1, log_pop_scan_v1.
CREATE OR REPLACE FUNCTION queen.log_settled_at_v1()
RETURNS TIMESTAMPTZ
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_now TIMESTAMPTZ;
    v_xid XID8;
    v_at  TIMESTAMPTZ;
BEGIN
    IF pg_current_xact_id_if_assigned() IS NULL THEN
        v_now := clock_timestamp();
        v_xid := pg_current_xact_id();
        -- Ids above the newest are of the server that this database was copied from.
        UPDATE queen.settled s
           SET at = CASE WHEN s.next_xid <= v_xid THEN s.next_at ELSE s.at END, next_at = v_now, next_xid = v_xid
         WHERE s.one = (SELECT k.one FROM queen.settled k FOR UPDATE SKIP LOCKED)
           AND (pg_snapshot_xmin(pg_current_snapshot()) >= s.next_xid OR s.next_xid > v_xid);
    END IF;
    SELECT s.at INTO v_at FROM queen.settled s;
    RETURN COALESCE(v_at, '-infinity');
END $$;

-- log_pop_raise_floor_v1: note which partitions are known to have nothing for the group, by the time of their last write, so that has_pending, full
-- walks and scans need not look at them again. The floor is the last write of the pending partition that was not written to for the longest
-- time, or log_settled_at_v1. What makes a partition pending besides a push - a seek, a deleted group - deletes the row of the floor in its transaction; the row
-- is locked before anything is read, so that such a transaction is either seen here or deletes what is written here. That needs a row that
-- was there before: the first call only makes it. A call looks at 20,000 partitions at most, those that were not written to for the longest
-- time first.
--   p_before  what the call just before returned, to go on from there: when it is still the floor, what lies below is known. No transaction
--             that was under way then had written below it
-- Returns r_floor, NULL while there is none, and r_more: another call would come further.
-- Locks: the consumer_watermarks row. Called by: pg.RaiseScanFloor. Plan test: TestPopPlans.
DROP FUNCTION IF EXISTS queen.log_pop_raise_floor_v1(TEXT, TEXT, UUID);  -- it returned the floor alone
CREATE OR REPLACE FUNCTION queen.log_pop_raise_floor_v1(
    p_queue TEXT, p_group TEXT, p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001', p_before TIMESTAMPTZ DEFAULT NULL,
    OUT r_floor TIMESTAMPTZ, OUT r_more BOOLEAN)
RETURNS RECORD
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_custom_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_now    TIMESTAMPTZ;
    v_queue  UUID;
    v_floor  TIMESTAMPTZ;
    v_oldest TIMESTAMPTZ;
BEGIN
    v_now := queen.log_settled_at_v1();
    SELECT q.id INTO v_queue FROM queen.queues q WHERE q.tenant_id = p_tenant AND q.name = p_queue;
    SELECT w.last_empty_scan_at INTO v_floor
      FROM queen.consumer_watermarks w
     WHERE w.queue_id = v_queue AND w.consumer_group = p_group
       FOR UPDATE;
    IF NOT FOUND THEN
        INSERT INTO queen.consumer_watermarks (queue_id, consumer_group, updated_at)
        SELECT q.id, p_group, clock_timestamp() FROM queen.queues q WHERE q.id = v_queue
        ON CONFLICT DO NOTHING;
        r_more := v_queue IS NOT NULL;
        RETURN;
    END IF;
    -- The first pending one in the order of the last write, else the last one looked at, else, when that was all, v_now.
    WITH page AS MATERIALIZED (
        SELECT p.id, p.last_write_at, p.last_offset
          FROM queen.log_partitions p
         WHERE p.queue_id = v_queue AND p.last_write_at >= CASE WHEN v_floor = p_before THEN v_floor ELSE COALESCE(v_floor, '-infinity') - interval '2 minutes' END
         ORDER BY p.last_write_at
         LIMIT 20000)
    SELECT COALESCE(min(g.last_write_at) FILTER (WHERE g.last_offset > COALESCE(c.committed, -1)),
                    CASE WHEN count(*) >= 20000 THEN max(g.last_write_at) END),
           count(*) >= 20000 AND NOT bool_or(g.last_offset > COALESCE(c.committed, -1))
      INTO v_oldest, r_more
      FROM page g
      LEFT JOIN queen.log_consumers c ON c.partition_id = g.id AND c.consumer_group = p_group;
    r_floor := GREATEST(v_floor, LEAST(v_oldest, v_now));
    UPDATE queen.consumer_watermarks w SET last_empty_scan_at = r_floor
     WHERE w.queue_id = v_queue AND w.consumer_group = p_group;
END $$;

-- log_hotlist_reseed_v1: one page of the partitions that probably have messages for the group, leased ones included.
--   p_after_id  the last id of the page before, the nil UUID for the first page
--   p_limit     most rows; NULL and values below 1 act as 1
-- Returns id and name, ascending by id. What lies below the floor of the group is not looked at: then its cost follows what was written
-- since, unless that is more than two pages. Locks: none. Called by: brokers that do not know log_hotlist_page_v1. Plan test: TestPopPlans.
CREATE OR REPLACE FUNCTION queen.log_hotlist_reseed_v1(
    p_queue TEXT, p_group TEXT, p_after_id UUID, p_limit INTEGER, p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS TABLE (r_id UUID, r_name TEXT)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
SET enable_seqscan = off
AS $$
DECLARE
    v_floor TIMESTAMPTZ;
BEGIN
    SELECT COALESCE(w.last_empty_scan_at, '-infinity') INTO v_floor
      FROM queen.queues q
      LEFT JOIN queen.consumer_watermarks w ON w.queue_id = q.id AND w.consumer_group = p_group
     WHERE q.tenant_id = p_tenant AND q.name = p_queue;
    -- Each page of the other form reads everything that was written since: many pages of it would cost more than the walk by id.
    IF (SELECT count(*) FROM (SELECT 1
                                FROM queen.queues q
                                JOIN queen.log_partitions p ON p.queue_id = q.id
                               WHERE q.tenant_id = p_tenant AND q.name = p_queue AND p.last_write_at >= v_floor - interval '2 minutes'
                               LIMIT 20001) recent) <= 20000 THEN
        RETURN QUERY
        SELECT w.r_id, w.r_name
          FROM queen.log_hotlist_reseed_window_v1(p_queue, p_group, p_after_id, p_limit, p_tenant, v_floor - interval '2 minutes') w;
        RETURN;
    END IF;
    RETURN QUERY
    SELECT p.id, p.name
      FROM queen.queues q
      JOIN queen.log_partitions p ON p.queue_id = q.id
      LEFT JOIN queen.log_consumers c ON c.partition_id = p.id AND c.consumer_group = p_group
     WHERE q.tenant_id = p_tenant AND q.name = p_queue AND p.id > p_after_id AND p.last_write_at >= v_floor - interval '2 minutes'
       AND p.last_offset > COALESCE(c.committed, -1)
     ORDER BY p.id
     LIMIT GREATEST(p_limit, 1);
END $$;

-- log_hotlist_reseed_window_v1: log_hotlist_reseed_v1 over partitions written to since p_cutoff, through the (queue_id, last_write_at)
-- index: its cost follows what was written lately, not the number of partitions. Sound only while a push is what made a partition
-- pending; after a seek or a group delete the full walk is needed. Locks: none. Called by: as log_hotlist_reseed_v1. Plan test: TestPopPlans.
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

GRANT EXECUTE ON FUNCTION queen.log_pop_is_poison_v1(INTEGER, INTEGER) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_pop_v1(TEXT, TEXT, TEXT, INTEGER, INTEGER, TEXT, BOOLEAN, TEXT, TEXT, BOOLEAN, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_pop_list_v1(TEXT, TEXT, TEXT[], INTEGER, INTEGER, TEXT, BOOLEAN, INTEGER, TEXT, TEXT, BOOLEAN, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_pop_queue_id_v1(TEXT, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_pop_discover_ids_v1(TEXT, TEXT, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_pop_wire_v1(JSONB, BYTEA[], INTEGER[]) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_pop_partition_v1(TEXT, TEXT, TEXT, INTEGER, INTEGER, TEXT, BOOLEAN, TEXT, TEXT, BOOLEAN, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_pop_specific_v1(TEXT, TEXT, TEXT, INTEGER, INTEGER, TEXT, BOOLEAN, TEXT, TEXT, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_pop_wildcard_wire_v1(TEXT, TEXT, INTEGER, INTEGER, TEXT, BOOLEAN, INTEGER, TEXT, TEXT, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_pop_wildcard_bin_v1(TEXT, TEXT, INTEGER, INTEGER, TEXT, BOOLEAN, INTEGER, TEXT, TEXT, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_pop_discover_wire_v1(TEXT, TEXT, TEXT, INTEGER, INTEGER, TEXT, BOOLEAN, INTEGER, TEXT, TEXT, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_has_pending_v1(TEXT, TEXT, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_settled_at_v1() TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_pop_raise_floor_v1(TEXT, TEXT, UUID, TIMESTAMPTZ) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_hotlist_reseed_v1(TEXT, TEXT, UUID, INTEGER, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_hotlist_reseed_window_v1(TEXT, TEXT, UUID, INTEGER, UUID, TIMESTAMPTZ) TO PUBLIC;
