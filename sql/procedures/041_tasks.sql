-- Long administrative work over dead letters: redrive (push them again) and purge, in steps that survive a crash.
--
-- A task is a row; a broker that holds its lease works through the dead letters that its filter selects and that were filed before
-- the task was made (a message that fails again is not driven round in a circle), ordered by (partition, offset, id), so that messages
-- of one partition keep their order. Each step is one transaction that pushes, deletes the rows it pushed and moves the position:
-- after a crash another broker continues behind the last commit, and no message is pushed twice.

-- queen.tasks: one row per task.
--   kind      redrive | purge
--   state     pending | running | done | cancelled
--   filter    see file 040, without _tenant; cutoff is when the task was made
--   target_queue, target_partition  destination of a redrive, NULL is where each message came from
--   rate      most messages per second, 0 is no limit
--   total     dead letters that matched when the task was made; moved those pushed, deleted those purged; duplicate those left because
--             their replay is stored already; skipped those left because they cannot be pushed
--   after_*   position: rows up to and including it are dealt with; known_duplicates those behind it that are, too
--   holder, lease_until  the broker that works on it; next_run_at not before then (rate, full queues)
CREATE TABLE IF NOT EXISTS queen.tasks (
    id               UUID PRIMARY KEY DEFAULT gen_random_uuid(),
    tenant_id        UUID NOT NULL DEFAULT '00000000-0000-0000-0000-000000000001',
    kind             TEXT NOT NULL,
    state            TEXT NOT NULL DEFAULT 'pending',
    filter           JSONB NOT NULL DEFAULT '{}',
    target_queue     TEXT,
    target_partition TEXT,
    rate             INTEGER NOT NULL DEFAULT 0,
    total            BIGINT NOT NULL DEFAULT 0,
    moved            BIGINT NOT NULL DEFAULT 0,
    deleted          BIGINT NOT NULL DEFAULT 0,
    duplicate        BIGINT NOT NULL DEFAULT 0,
    skipped          BIGINT NOT NULL DEFAULT 0,
    after_partition  UUID,
    after_offset     BIGINT,
    after_id         UUID,
    known_duplicates UUID[] NOT NULL DEFAULT '{}',
    holder           TEXT,
    lease_until      TIMESTAMPTZ,
    next_run_at      TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    last_error       TEXT,
    created_by       TEXT,
    created_at       TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    started_at       TIMESTAMPTZ,
    finished_at      TIMESTAMPTZ,
    updated_at       TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
);
DO $$ BEGIN
    IF to_regclass('queen.idx_tasks_tenant_created') IS NULL THEN
        CREATE INDEX idx_tasks_tenant_created ON queen.tasks (tenant_id, created_at DESC, id DESC);
    END IF;
    IF to_regclass('queen.idx_tasks_runnable') IS NULL THEN
        CREATE INDEX idx_tasks_runnable ON queen.tasks (next_run_at) WHERE state IN ('pending', 'running');
    END IF;
END $$;

-- task_json_v1: a task as the routes show it. Times are ISO-us. Locks: none.
CREATE OR REPLACE FUNCTION queen.task_json_v1(p queen.tasks)
RETURNS JSONB
LANGUAGE sql STABLE
AS $$
    SELECT jsonb_build_object('id', p.id, 'tenant', p.tenant_id, 'kind', p.kind, 'state', p.state, 'filter', p.filter,
        'queue', p.target_queue, 'partition', p.target_partition, 'rate', p.rate, 'total', p.total, 'moved', p.moved,
        'deleted', p.deleted, 'duplicate', p.duplicate, 'skipped', p.skipped, 'lastError', p.last_error, 'createdBy', p.created_by,
        'createdAt', queen.iso_us_v1(p.created_at), 'startedAt', queen.iso_us_v1(p.started_at),
        'finishedAt', queen.iso_us_v1(p.finished_at), 'updatedAt', queen.iso_us_v1(p.updated_at))
$$;

-- task_create_v1: record a task. The caller checked kind, filter and destination. Finished tasks older than 30 days go.
-- Returns the task. Raises 22007 and 22P02 for an unreadable filter. Locks: none beyond its own rows. Called by: pg.CreateTask.
CREATE OR REPLACE FUNCTION queen.task_create_v1(
    p_kind TEXT, p_filter JSONB, p_queue TEXT, p_partition TEXT, p_rate INTEGER, p_created_by TEXT,
    p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_task queen.tasks%ROWTYPE;
BEGIN
    IF p_kind NOT IN ('redrive', 'purge') THEN
        RAISE EXCEPTION 'QTASK unknown kind "%"', p_kind USING ERRCODE = 'QU003';
    END IF;
    DELETE FROM queen.tasks t WHERE t.tenant_id = p_tenant AND t.finished_at < clock_timestamp() - INTERVAL '30 days';
    INSERT INTO queen.tasks (tenant_id, kind, filter, target_queue, target_partition, rate, created_by, total)
    VALUES (p_tenant, p_kind, COALESCE(p_filter, '{}'::JSONB) - '_tenant', p_queue, p_partition, GREATEST(COALESCE(p_rate, 0), 0),
            p_created_by, queen.dlq_count_v1(COALESCE(p_filter, '{}'::JSONB) || jsonb_build_object('_tenant', p_tenant)))
    RETURNING * INTO v_task;
    RETURN queen.task_json_v1(v_task);
END $$;

-- task_get_v1: one task of a tenant; NULL when there is none. Locks: none. Called by: pg.Task.
CREATE OR REPLACE FUNCTION queen.task_get_v1(p_id UUID, p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE sql STABLE
AS $$ SELECT queen.task_json_v1(t) FROM queen.tasks t WHERE t.id = p_id AND t.tenant_id = p_tenant $$;

-- task_page_v1: the tasks of a tenant, newest first.
--   p_filters  {"kind"?: redrive|purge,"state"?: exact, or "active" for those that have not ended,"queue"?: the queue whose dead letters
--              it is about or where they go,"limit"? = 50,"after"?: "next" of the page before}
-- Returns {"tasks":[…],"next":text|null}. Walks the tenant's tasks, which stay for 30 days, from the newest on until the page is full.
-- Locks: none. Called by: pg.ListTasks, task_list_v1.
CREATE OR REPLACE FUNCTION queen.task_page_v1(p_filters JSONB, p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    v_limit  INT := GREATEST(COALESCE((p_filters ->> 'limit')::INT, 50), 1);
    v_kind   TEXT := NULLIF(p_filters ->> 'kind', '');
    v_state  TEXT := NULLIF(p_filters ->> 'state', '');
    v_queue  TEXT := NULLIF(p_filters ->> 'queue', '');
    v_at     TIMESTAMPTZ := queen.parse_time_v1(split_part(p_filters ->> 'after', '|', 1));
    v_id     UUID := NULLIF(split_part(p_filters ->> 'after', '|', 2), '')::UUID;
    v_result JSONB;
BEGIN
    WITH page AS MATERIALIZED (
        SELECT t, row_number() OVER (ORDER BY t.created_at DESC, t.id DESC) AS ord
          FROM queen.tasks t
         WHERE t.tenant_id = p_tenant AND (v_at IS NULL OR (t.created_at, t.id) < (v_at, v_id))
           AND (v_kind IS NULL OR t.kind = v_kind)
           AND (v_state IS NULL OR CASE v_state WHEN 'active' THEN t.finished_at IS NULL ELSE t.state = v_state END)
           AND (v_queue IS NULL OR t.filter ->> 'queue' = v_queue OR t.target_queue = v_queue)
         ORDER BY t.created_at DESC, t.id DESC
         LIMIT v_limit + 1)
    SELECT jsonb_build_object(
               'tasks', COALESCE(jsonb_agg(queen.task_json_v1(g.t) ORDER BY g.ord) FILTER (WHERE g.ord <= v_limit), '[]'::JSONB),
               'next', (SELECT queen.iso_us_v1((l.t).created_at) || '|' || (l.t).id FROM page l
                         WHERE l.ord = v_limit AND EXISTS (SELECT 1 FROM page x WHERE x.ord > v_limit)))
      INTO v_result
      FROM page g;
    RETURN v_result;
END $$;

-- task_list_v1: task_page_v1 without filters. Locks: none. Called by: builds older than that.
CREATE OR REPLACE FUNCTION queen.task_list_v1(p_limit INTEGER, p_after TEXT, p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE sql STABLE
AS $$ SELECT queen.task_page_v1(jsonb_build_object('limit', p_limit, 'after', p_after), p_tenant) $$;

-- task_cancel_v1: stop a task that has not ended. A step under way ends first; what it did stays done. Returns the task as it is
-- then, NULL when there is none. Locks: the row. Called by: pg.CancelTask.
CREATE OR REPLACE FUNCTION queen.task_cancel_v1(p_id UUID, p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    UPDATE queen.tasks t
       SET state = 'cancelled', holder = NULL, lease_until = NULL, finished_at = clock_timestamp(), updated_at = clock_timestamp()
     WHERE t.id = p_id AND t.tenant_id = p_tenant AND t.state IN ('pending', 'running');
    RETURN queen.task_get_v1(p_id, p_tenant);
END $$;

-- task_claim_v1: take the runnable task that waits longest, or renew a lease of one's own.
--   p_holder  names the broker process; p_lease_seconds how long it may be silent
-- Returns the task or NULL. Locks: its row, SKIP LOCKED. Called by: pg.ClaimTask.
CREATE OR REPLACE FUNCTION queen.task_claim_v1(p_holder TEXT, p_lease_seconds INTEGER)
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_task queen.tasks%ROWTYPE;
BEGIN
    UPDATE queen.tasks t
       SET state = 'running', holder = p_holder, lease_until = clock_timestamp() + make_interval(secs => p_lease_seconds),
           started_at = COALESCE(t.started_at, clock_timestamp()), updated_at = clock_timestamp()
     WHERE t.id = (SELECT x.id FROM queen.tasks x
                    WHERE x.state IN ('pending', 'running') AND x.next_run_at <= clock_timestamp()
                      AND (x.holder IS NULL OR x.holder = p_holder OR x.lease_until < clock_timestamp())
                    ORDER BY x.next_run_at LIMIT 1
                      FOR UPDATE SKIP LOCKED)
    RETURNING * INTO v_task;
    RETURN CASE WHEN v_task.id IS NOT NULL THEN queen.task_json_v1(v_task) END;
END $$;

-- task_held_v1: lock a task for a step of its holder. No row when the holder lost it or the task ended. A step that commits leaves
-- the holder at least 30 s more.
CREATE OR REPLACE FUNCTION queen.task_held_v1(p_id UUID, p_holder TEXT)
RETURNS SETOF queen.tasks
LANGUAGE sql VOLATILE
AS $$
    SELECT * FROM queen.tasks t
     WHERE t.id = p_id AND t.holder = p_holder AND t.state = 'running' AND t.lease_until > clock_timestamp()
       FOR UPDATE
$$;

-- task_rows_v1: the next dead letters of a task, in its order. Locks: none.
CREATE OR REPLACE FUNCTION queen.task_rows_v1(p_task queen.tasks, p_limit INTEGER)
RETURNS TABLE (id UUID, partition_id UUID, off BIGINT, queue TEXT, partition TEXT)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    v_filter JSONB := p_task.filter;
    v_tenant UUID := p_task.tenant_id;
    v_from   TIMESTAMPTZ := queen.parse_time_v1(p_task.filter ->> 'from');
    v_to     TIMESTAMPTZ := LEAST(COALESCE(queen.parse_time_v1(p_task.filter ->> 'to'), p_task.created_at), p_task.created_at);
    v_pid    UUID := COALESCE(p_task.after_partition, '00000000-0000-0000-0000-000000000000');
    v_off    BIGINT := COALESCE(p_task.after_offset, -1);
    v_id     UUID := COALESCE(p_task.after_id, '00000000-0000-0000-0000-000000000000');
    v_known  UUID[] := p_task.known_duplicates;
BEGIN
    RETURN QUERY
    SELECT f.id, f.partition_id, f.off, f.queue, f.partition
      FROM queen.dlq_filtered_v1(v_filter, v_tenant, v_from, v_to) f
     WHERE (f.partition_id, f.off, f.id) > (v_pid, v_off, v_id) AND f.id <> ALL (v_known)
     ORDER BY f.partition_id, f.off, f.id
     LIMIT p_limit;
END $$;

-- task_batch_v1: the rows that a redrive pushes next, as dlq_row_v1. When none is left the task is done.
-- Returns {"state":of the task, or "lost","rows":[…]}. Locks: the task row. Called by: pg.TaskBatch.
CREATE OR REPLACE FUNCTION queen.task_batch_v1(p_id UUID, p_holder TEXT, p_limit INTEGER)
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_task queen.tasks%ROWTYPE;
    v_rows JSONB;
BEGIN
    SELECT * INTO v_task FROM queen.task_held_v1(p_id, p_holder);
    IF NOT FOUND THEN
        RETURN jsonb_build_object('state', 'lost', 'rows', '[]'::JSONB);
    END IF;
    SELECT jsonb_agg(queen.dlq_row_v1(r.id, r.queue, r.partition) ORDER BY r.partition_id, r.off, r.id) INTO v_rows
      FROM queen.task_rows_v1(v_task, p_limit) r;
    IF v_rows IS NULL THEN
        UPDATE queen.tasks t SET state = 'done', holder = NULL, lease_until = NULL, finished_at = clock_timestamp(),
               updated_at = clock_timestamp()
         WHERE t.id = p_id;
        RETURN jsonb_build_object('state', 'done', 'rows', '[]'::JSONB);
    END IF;
    RETURN jsonb_build_object('state', 'running', 'rows', v_rows);
END $$;

-- task_redrive_step_v1: push a batch of dead letters, delete their rows and move the task on, in one transaction.
--   p_ids       rows as task_batch_v1 gave them, from the first on; p_segments[i] says in which segment (from 0) row i lies, or -1: it
--               cannot be pushed and is skipped. Rows of one segment are its frames, in this order
--   p_queues .. p_traces   the segments, as log_push_multi_v1, one per destination partition
-- Returns {"state":"running"|"lost","moved","duplicate","skipped":rows,"full":wait before the next step,"status":of a
-- segment that was refused, or null}.
-- Of a segment with duplicates nothing is written: the duplicate rows count and stay, the others come with the next batch. A full
-- queue, or one that demands encryption, is tried again a second later. The position moves to the last row when every segment was
-- stored.
-- Raises QU002 when a row to be pushed is gone: read the batch again.
-- Locks, in this order: the task row, what log_push_multi_v1 takes, log_dlq rows ascending (partition_id, "offset", id).
-- Called by: pg.RedriveStep.
CREATE OR REPLACE FUNCTION queen.task_redrive_step_v1(
    p_id UUID, p_holder TEXT, p_ids UUID[], p_segments INT[], p_queues TEXT[], p_partitions TEXT[], p_counts INT[],
    p_hashes BYTEA[], p_blobs BYTEA[], p_plain BOOLEAN[], p_traces JSONB)
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_task       queen.tasks%ROWTYPE;
    v_n          INT := COALESCE(cardinality(p_queues), 0);
    v_verdicts   JSONB := '[]'::JSONB;
    v_moved      UUID[];
    v_duplicates UUID[];
    v_refused    TEXT;
    v_skipped    BIGINT;
    v_rows       BIGINT;
    v_last       RECORD;
BEGIN
    IF COALESCE(cardinality(p_ids), 0) = 0 OR cardinality(p_ids) <> COALESCE(cardinality(p_segments), 0) THEN
        RAISE EXCEPTION 'QTASK misaligned arrays (% ids)', cardinality(p_ids) USING ERRCODE = 'QU003';
    END IF;
    SELECT * INTO v_task FROM queen.task_held_v1(p_id, p_holder);
    IF NOT FOUND THEN
        RETURN jsonb_build_object('state', 'lost', 'moved', 0, 'duplicate', 0, 'skipped', 0, 'full', FALSE, 'status', NULL);
    END IF;
    IF v_n > 0 THEN
        v_verdicts := queen.log_push_multi_v1(p_queues, p_partitions, p_counts, p_hashes, array_fill(-1::INT8, ARRAY[v_n]), p_blobs,
            array_fill(v_task.tenant_id, ARRAY[v_n]), p_plain, FALSE, p_traces);
    END IF;
    SELECT array_agg(u.id) FILTER (WHERE v.value ->> 'status' = 'queued'),
           array_agg(u.id) FILTER (WHERE v.value -> 'dups' @> jsonb_build_array(jsonb_build_object('i', u.frame))),
           -- The reason to wait, before the one that a repetition removes.
           COALESCE(max(v.value ->> 'status') FILTER (WHERE v.value ->> 'status' IN ('full', 'config')),
                    max(v.value ->> 'status') FILTER (WHERE v.value ->> 'status' <> 'queued')),
           count(*) FILTER (WHERE u.seg < 0)
      INTO v_moved, v_duplicates, v_refused, v_skipped
      FROM (SELECT x.id, x.seg, row_number() OVER (PARTITION BY x.seg ORDER BY x.ord) - 1 AS frame
              FROM unnest(p_ids, p_segments) WITH ORDINALITY AS x (id, seg, ord)) u
      LEFT JOIN jsonb_array_elements(v_verdicts) WITH ORDINALITY AS v (value, ord) ON v.ord = u.seg + 1;
    SELECT d.partition_id, d."offset" AS off, d.id INTO v_last FROM queen.log_dlq d WHERE d.id = p_ids[cardinality(p_ids)];
    PERFORM 1 FROM queen.log_dlq d WHERE d.id = ANY (v_moved) ORDER BY d.partition_id, d."offset", d.id FOR UPDATE;
    DELETE FROM queen.log_dlq d WHERE d.id = ANY (v_moved);
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    IF v_rows <> COALESCE(cardinality(v_moved), 0) OR v_last.id IS NULL THEN
        RAISE EXCEPTION 'QTASK a dead letter of the batch vanished' USING ERRCODE = 'QU002';
    END IF;
    UPDATE queen.tasks t
       SET moved = t.moved + v_rows, duplicate = t.duplicate + COALESCE(cardinality(v_duplicates), 0),
           skipped = t.skipped + CASE WHEN v_refused IS NULL THEN v_skipped ELSE 0 END,
           known_duplicates = CASE WHEN v_refused IS NULL THEN '{}' ELSE t.known_duplicates || COALESCE(v_duplicates, '{}') END,
           after_partition = CASE WHEN v_refused IS NULL THEN v_last.partition_id ELSE t.after_partition END,
           after_offset = CASE WHEN v_refused IS NULL THEN v_last.off ELSE t.after_offset END,
           after_id = CASE WHEN v_refused IS NULL THEN v_last.id ELSE t.after_id END,
           last_error = CASE v_refused WHEN 'full' THEN 'a destination queue is full'
                                       WHEN 'config' THEN 'a destination queue demands encryption' END,
           next_run_at = clock_timestamp() + CASE WHEN v_refused IN ('full', 'config') THEN INTERVAL '1 second'
                WHEN t.rate > 0 THEN make_interval(secs => v_rows::FLOAT8 / t.rate) ELSE INTERVAL '0' END,
           lease_until = GREATEST(t.lease_until, clock_timestamp() + INTERVAL '30 seconds'), updated_at = clock_timestamp()
     WHERE t.id = p_id;
    RETURN jsonb_build_object('state', 'running', 'moved', v_rows, 'duplicate', COALESCE(cardinality(v_duplicates), 0),
        'skipped', CASE WHEN v_refused IS NULL THEN v_skipped ELSE 0 END, 'full', COALESCE(v_refused IN ('full', 'config'), FALSE),
        'status', v_refused);
END $$;

-- task_purge_step_v1: delete the next p_limit dead letters of a purge and move the task on; it is done when none was left.
-- Returns {"state":"running"|"done"|"lost","deleted":rows}. Locks: the task row, then log_dlq rows ascending
-- (partition_id, "offset", id). Called by: pg.PurgeStep.
CREATE OR REPLACE FUNCTION queen.task_purge_step_v1(p_id UUID, p_holder TEXT, p_limit INTEGER)
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_task queen.tasks%ROWTYPE;
    v_ids  UUID[];
    v_last RECORD;
    v_rows BIGINT;
BEGIN
    SELECT * INTO v_task FROM queen.task_held_v1(p_id, p_holder);
    IF NOT FOUND THEN
        RETURN jsonb_build_object('state', 'lost', 'deleted', 0);
    END IF;
    SELECT array_agg(r.id) INTO v_ids FROM queen.task_rows_v1(v_task, p_limit) r;
    IF v_ids IS NULL THEN
        UPDATE queen.tasks t SET state = 'done', holder = NULL, lease_until = NULL, finished_at = clock_timestamp(),
               updated_at = clock_timestamp()
         WHERE t.id = p_id;
        RETURN jsonb_build_object('state', 'done', 'deleted', 0);
    END IF;
    SELECT d.partition_id, d."offset" AS off, d.id INTO v_last
      FROM queen.log_dlq d WHERE d.id = ANY (v_ids) ORDER BY d.partition_id DESC, d."offset" DESC, d.id DESC LIMIT 1;
    PERFORM 1 FROM queen.log_dlq d WHERE d.id = ANY (v_ids) ORDER BY d.partition_id, d."offset", d.id FOR UPDATE;
    DELETE FROM queen.log_dlq d WHERE d.id = ANY (v_ids);
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    UPDATE queen.tasks t
       SET deleted = t.deleted + v_rows, after_partition = COALESCE(v_last.partition_id, t.after_partition),
           after_offset = COALESCE(v_last.off, t.after_offset), after_id = COALESCE(v_last.id, t.after_id),
           next_run_at = clock_timestamp() + CASE WHEN t.rate > 0 THEN make_interval(secs => v_rows::FLOAT8 / t.rate) ELSE INTERVAL '0' END,
           lease_until = GREATEST(t.lease_until, clock_timestamp() + INTERVAL '30 seconds'), updated_at = clock_timestamp()
     WHERE t.id = p_id;
    RETURN jsonb_build_object('state', 'running', 'deleted', v_rows);
END $$;

GRANT EXECUTE ON FUNCTION queen.task_json_v1(queen.tasks) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.task_create_v1(TEXT, JSONB, TEXT, TEXT, INTEGER, TEXT, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.task_get_v1(UUID, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.task_page_v1(JSONB, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.task_list_v1(INTEGER, TEXT, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.task_cancel_v1(UUID, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.task_claim_v1(TEXT, INTEGER) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.task_held_v1(UUID, TEXT) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.task_rows_v1(queen.tasks, INTEGER) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.task_batch_v1(UUID, TEXT, INTEGER) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.task_redrive_step_v1(UUID, TEXT, UUID[], INT[], TEXT[], TEXT[], INT[], BYTEA[], BYTEA[], BOOLEAN[], JSONB) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.task_purge_step_v1(UUID, TEXT, INTEGER) TO PUBLIC;
