-- Lists that people page through in any order: groups, the partitions of a group, queues.
--
-- A page ends at a position "sort|key|n|text": the order, the figure that it goes by (0 in an order by names), then the two names that
-- make a row unique, the first of them n characters long. Rows behind it follow. What moves between two pages moves: a row whose figure
-- changes may be seen twice or not at all. "sort" is a column, with a minus in front for the other direction; rows with equal figures
-- stand by name. "contains" minds no case of the letters that the database's locale knows.

-- list_next_v1: write a position.
CREATE OR REPLACE FUNCTION queen.list_next_v1(p_order TEXT, p_key NUMERIC, p_a TEXT, p_b TEXT)
RETURNS TEXT
LANGUAGE sql IMMUTABLE
AS $$ SELECT p_order || '|' || p_key || '|' || length(p_a) || '|' || p_a || p_b $$;

-- list_position_v1: read a position. Returns key and names; all NULL for none.
CREATE OR REPLACE FUNCTION queen.list_position_v1(p_after TEXT, OUT r_key NUMERIC, OUT r_a TEXT, OUT r_b TEXT)
LANGUAGE sql IMMUTABLE
AS $$
    SELECT split_part(x.after, '|', 2)::NUMERIC, left(x.names, x.n), substr(x.names, x.n + 1)
      FROM (SELECT p.after, split_part(p.after, '|', 3)::INT AS n,
                   substr(p.after, length(split_part(p.after, '|', 1)) + length(split_part(p.after, '|', 2)) + length(split_part(p.after, '|', 3)) + 4) AS names
              FROM (SELECT NULLIF(p_after, '') AS after) p) x
$$;

-- group_list_v1: the groups of a tenant by page, one row per (group, queue) that has a cursor.
--   p_filters  {"queue"?,"group"?: exact,"contains"?: somewhere in the group's or the queue's name, in any case,"behind"?: true has only
--              those with something before them,"neverConsumed"?: true those that never consumed anything,"minLagSeconds"?: those whose
--              oldest pending message is at least that old,"sort"?: "name" (default), "queue", "lag", "partitions" (behind) or "age",
--              "limit"? = 100,"after"?: "next" of the page before}
-- Returns {"groups":[members of get_consumer_groups_v4],"total":rows that fit on all pages,"next":position|null}.
-- Every cursor of what fits by name is looked at once; ages, two index steps a cursor that lags, only for the page, unless they choose
-- or order. Locks: none. Called by: pg.ListGroups.
CREATE OR REPLACE FUNCTION queen.group_list_v1(
    p_filters JSONB DEFAULT '{}', p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    v_limit    INT := GREATEST(COALESCE((p_filters ->> 'limit')::INT, 100), 1);
    v_order    TEXT := COALESCE(NULLIF(p_filters ->> 'sort', ''), 'name');
    v_sort     TEXT := ltrim(v_order, '-');
    v_down     BOOLEAN := starts_with(v_order, '-');
    v_queue    TEXT := NULLIF(p_filters ->> 'queue', '');
    v_group    TEXT := NULLIF(p_filters ->> 'group', '');
    v_contains TEXT := lower(COALESCE(p_filters ->> 'contains', ''));
    v_behind   BOOLEAN := COALESCE((p_filters ->> 'behind')::BOOLEAN, FALSE);
    v_never    BOOLEAN := COALESCE((p_filters ->> 'neverConsumed')::BOOLEAN, FALSE);
    v_least    INT := COALESCE((p_filters ->> 'minLagSeconds')::INT, 0);
    v_ages     BOOLEAN := v_sort = 'age' OR v_least > 0;
    v_named    BOOLEAN := v_sort IN ('name', 'queue');
    v_after    RECORD;
    v_result   JSONB;
BEGIN
    SELECT * INTO v_after FROM queen.list_position_v1(p_filters ->> 'after');
    WITH cursors AS MATERIALIZED (
        SELECT q.id AS queue_id, q.name::TEXT AS queue, c.consumer_group AS grp, p.id AS pid, c.total_consumed AS consumed,
               GREATEST(p.last_offset - GREATEST(c.committed, p.log_start - 1), 0) AS lag, GREATEST(c.committed, p.log_start - 1) AS seen
          FROM queen.queues q
          JOIN queen.log_partitions p ON p.queue_id = q.id
          JOIN queen.log_consumers c ON c.partition_id = p.id
         WHERE q.tenant_id = p_tenant AND (v_queue IS NULL OR q.name = v_queue) AND (v_group IS NULL OR c.consumer_group = v_group)
           AND (v_contains = '' OR strpos(lower(q.name), v_contains) > 0 OR strpos(lower(c.consumer_group), v_contains) > 0)),
    sums AS MATERIALIZED (
        SELECT c.queue_id, c.queue, c.grp, count(*) AS cursors, count(*) FILTER (WHERE c.lag > 0) AS lagging, sum(c.lag) AS lag,
               sum(c.consumed) AS consumed,
               min(CASE WHEN v_ages AND c.lag > 0 THEN queen.log_oldest_pending_at_v1(c.pid, c.seen + 1) END) AS oldest
          FROM cursors c
         GROUP BY c.queue_id, c.queue, c.grp),
    wanted AS MATERIALIZED (
        SELECT s.*, CASE v_sort WHEN 'queue' THEN s.queue ELSE s.grp END COLLATE "C" AS a, CASE v_sort WHEN 'queue' THEN s.grp ELSE s.queue END COLLATE "C" AS b,
               CASE WHEN v_down THEN -1 ELSE 1 END * CASE v_sort WHEN 'lag' THEN s.lag WHEN 'partitions' THEN s.lagging
                    WHEN 'age' THEN round(COALESCE(-extract(epoch FROM s.oldest) * 1000000, -1e18)) ELSE 0 END AS key
          FROM sums s
         WHERE (NOT v_behind OR s.lag > 0) AND (NOT v_never OR s.consumed = 0)
           AND (v_least <= 0 OR s.oldest <= now() - make_interval(secs => v_least))),
    page AS MATERIALIZED (
        SELECT w.*, row_number() OVER (ORDER BY w.key, CASE WHEN NOT (v_named AND v_down) THEN w.a END, CASE WHEN NOT (v_named AND v_down) THEN w.b END,
                   w.a DESC, w.b DESC) AS ord
          FROM wanted w
         WHERE v_after.r_key IS NULL OR w.key > v_after.r_key
            OR w.key = v_after.r_key AND CASE WHEN v_named AND v_down THEN (w.a, w.b) < (v_after.r_a COLLATE "C", v_after.r_b COLLATE "C") ELSE (w.a, w.b) > (v_after.r_a COLLATE "C", v_after.r_b COLLATE "C") END
         ORDER BY ord LIMIT v_limit + 1),
    aged AS (
        SELECT c.queue_id, c.grp, min(queen.log_oldest_pending_at_v1(c.pid, c.seen + 1)) AS oldest
          FROM page g
          JOIN cursors c ON c.queue_id = g.queue_id AND c.grp = g.grp
         WHERE NOT v_ages AND c.lag > 0 AND g.ord <= v_limit
         GROUP BY c.queue_id, c.grp),
    shown AS (
        SELECT g.*, COALESCE(GREATEST(floor(extract(epoch FROM now() - CASE WHEN v_ages THEN g.oldest ELSE o.oldest END)), 0), 0)::BIGINT AS age
          FROM page g
          LEFT JOIN aged o ON o.queue_id = g.queue_id AND o.grp = g.grp
         WHERE g.ord <= v_limit)
    SELECT jsonb_build_object(
               'groups', COALESCE(jsonb_agg(jsonb_build_object(
                   'name', g.grp, 'topics', jsonb_build_array(g.queue), 'queueName', g.queue, 'members', g.cursors, 'partitionCursors', g.cursors,
                   'partitionsWithLag', g.lagging, 'totalLag', g.lag, 'maxTimeLag', g.age, 'queue', g.queue, 'lagMessages', g.lag, 'lagSeconds', g.age,
                   'state', CASE WHEN g.age > 300 THEN 'Lagging' WHEN g.consumed > 0 THEN 'Stable' ELSE 'Dead' END, 'storage', 'segments',
                   'subscriptionMode', m.subscription_mode, 'subscriptionTimestamp', queen.iso_ms_v1(m.subscription_timestamp),
                   'subscriptionCreatedAt', queen.iso_ms_v1(m.created_at)) ORDER BY g.ord), '[]'::JSONB),
               'total', (SELECT count(*) FROM wanted),
               'next', (SELECT queen.list_next_v1(v_order, l.key, l.a, l.b) FROM page l
                         WHERE l.ord = v_limit AND EXISTS (SELECT 1 FROM page x WHERE x.ord > v_limit)))
      INTO v_result
      FROM shown g
      LEFT JOIN queen.consumer_groups_metadata m
        ON m.tenant_id = p_tenant AND m.consumer_group = g.grp AND m.queue_id = g.queue_id AND m.partition_name = '' AND m.namespace = '' AND m.task = '';
    RETURN v_result;
END $$;

-- group_partition_list_v1: the cursors of a group by page, with who holds each.
--   p_filters  {"queue"?: exact,"contains"?: somewhere in the partition's name, in any case,"behind"?: true has only those with something
--              before them,"leased"?: true those that are leased now,"abandoned"?: true those whose lease ran out and that nobody took
--              since,"sort"?: "name" (default), "lag", "age", "attempts" or "consumed","limit"? = 100,"after"?: "next" of the page before}
-- Returns {"partitions":[{"queue","partition","partitionId","offsetLag","timeLagSeconds":of the oldest pending message,"totalConsumed",
-- "lastConsumedAt":ISO-ms of the last lease|null where none is recorded,"leaseActive","leaseId","leaseExpiresAt":ISO-ms|null,
-- "attemptCount":deliveries of the next message, 0 before the first,"batchRetryCount","abandoned":the lease ran out and nobody took the batch since,
-- "redeliveryAt":ISO-ms|null}],"totals":{"partitions","behind","lag","leased","abandoned","holders":different leases} of the
-- group (in the queue) whatever the other filters,"total":rows that fit on all pages,"next":position|null}.
-- Locks: none. Called by: pg.ListGroupPartitions.
CREATE OR REPLACE FUNCTION queen.group_partition_list_v1(
    p_group TEXT, p_filters JSONB DEFAULT '{}', p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    v_limit    INT := GREATEST(COALESCE((p_filters ->> 'limit')::INT, 100), 1);
    v_order    TEXT := COALESCE(NULLIF(p_filters ->> 'sort', ''), 'name');
    v_sort     TEXT := ltrim(v_order, '-');
    v_down     BOOLEAN := starts_with(v_order, '-');
    v_queue    TEXT := NULLIF(p_filters ->> 'queue', '');
    v_contains TEXT := lower(COALESCE(p_filters ->> 'contains', ''));
    v_behind   BOOLEAN := COALESCE((p_filters ->> 'behind')::BOOLEAN, FALSE);
    v_leased   BOOLEAN := COALESCE((p_filters ->> 'leased')::BOOLEAN, FALSE);
    v_back     BOOLEAN := v_sort = 'name' AND v_down;
    v_now      TIMESTAMPTZ := clock_timestamp();
    v_after    RECORD;
    v_result   JSONB;
BEGIN
    SELECT * INTO v_after FROM queen.list_position_v1(p_filters ->> 'after');
    WITH cursors AS MATERIALIZED (
        SELECT q.name::TEXT AS queue, p.name AS partition, p.id AS pid, c.total_consumed AS consumed, c.lease_acquired_at, c.lease_expires_at,
               CASE WHEN c.attempt_offset > c.committed THEN c.attempt_count ELSE 0 END AS attempts, c.batch_retry_count, NULLIF(c.worker_id, '__retry__') AS worker,
               COALESCE(c.worker_id <> '__retry__' AND c.lease_expires_at > v_now, FALSE) AS leased,
               COALESCE(c.worker_id <> '__retry__' AND c.lease_expires_at <= v_now AND c.batch_end > c.committed, FALSE) AS abandoned,
               CASE WHEN c.worker_id = '__retry__' AND c.lease_expires_at > v_now THEN c.lease_expires_at END AS redelivery,
               GREATEST(p.last_offset - GREATEST(c.committed, p.log_start - 1), 0) AS lag, GREATEST(c.committed, p.log_start - 1) AS seen
          FROM queen.queues q
          JOIN queen.log_partitions p ON p.queue_id = q.id
          JOIN queen.log_consumers c ON c.partition_id = p.id AND c.consumer_group = p_group
         WHERE q.tenant_id = p_tenant AND (v_queue IS NULL OR q.name = v_queue)),
    keyed AS MATERIALIZED (
        SELECT c.*, CASE WHEN v_sort = 'age' AND c.lag > 0 THEN queen.log_oldest_pending_at_v1(c.pid, c.seen + 1) END AS ordered_oldest
          FROM cursors c
         WHERE (v_contains = '' OR strpos(lower(c.partition), v_contains) > 0) AND (NOT v_behind OR c.lag > 0) AND (NOT v_leased OR c.leased)
           AND (NOT COALESCE((p_filters ->> 'abandoned')::BOOLEAN, FALSE) OR c.abandoned)),
    wanted AS MATERIALIZED (
        SELECT k.*, k.partition COLLATE "C" AS a, k.queue COLLATE "C" AS b, CASE WHEN v_down THEN -1 ELSE 1 END * CASE v_sort WHEN 'lag' THEN k.lag WHEN 'attempts' THEN k.attempts WHEN 'consumed' THEN k.consumed
                    WHEN 'age' THEN round(COALESCE(-extract(epoch FROM k.ordered_oldest) * 1000000, -1e18)) ELSE 0 END AS key
          FROM keyed k),
    page AS MATERIALIZED (
        SELECT w.*, row_number() OVER (ORDER BY w.key, CASE WHEN NOT v_back THEN w.a END, CASE WHEN NOT v_back THEN w.b END,
                   w.a DESC, w.b DESC) AS ord
          FROM wanted w
         WHERE v_after.r_key IS NULL OR w.key > v_after.r_key
            OR w.key = v_after.r_key AND CASE WHEN v_back THEN (w.a, w.b) < (v_after.r_a COLLATE "C", v_after.r_b COLLATE "C") ELSE (w.a, w.b) > (v_after.r_a COLLATE "C", v_after.r_b COLLATE "C") END
         ORDER BY ord LIMIT v_limit + 1)
    SELECT jsonb_build_object(
               'partitions', COALESCE((SELECT jsonb_agg(jsonb_build_object(
                   'queue', g.queue, 'partition', g.partition, 'partitionId', g.pid, 'offsetLag', g.lag,
                   'timeLagSeconds', COALESCE(GREATEST(floor(extract(epoch FROM v_now - o.oldest)), 0), 0)::BIGINT, 'totalConsumed', g.consumed,
                   'lastConsumedAt', queen.iso_ms_v1(g.lease_acquired_at), 'leaseActive', g.leased, 'leaseId', CASE WHEN g.leased OR g.abandoned THEN g.worker END,
                   'leaseExpiresAt', CASE WHEN g.leased OR g.abandoned THEN queen.iso_ms_v1(g.lease_expires_at) END, 'attemptCount', g.attempts,
                   'batchRetryCount', g.batch_retry_count, 'abandoned', g.abandoned, 'redeliveryAt', queen.iso_ms_v1(g.redelivery)) ORDER BY g.ord)
                   FROM page g
                  CROSS JOIN LATERAL (SELECT CASE WHEN g.lag > 0 THEN COALESCE(g.ordered_oldest, queen.log_oldest_pending_at_v1(g.pid, g.seen + 1)) END AS oldest) o
                  WHERE g.ord <= v_limit), '[]'::JSONB),
               'totals', (SELECT jsonb_build_object('partitions', count(*), 'behind', count(*) FILTER (WHERE c.lag > 0), 'lag', COALESCE(sum(c.lag), 0),
                   'leased', count(*) FILTER (WHERE c.leased), 'abandoned', count(*) FILTER (WHERE c.abandoned),
                   'holders', count(DISTINCT c.worker) FILTER (WHERE c.leased)) FROM cursors c),
               'total', (SELECT count(*) FROM wanted),
               'next', (SELECT queen.list_next_v1(v_order, l.key, l.a, l.b) FROM page l
                         WHERE l.ord = v_limit AND EXISTS (SELECT 1 FROM page x WHERE x.ord > v_limit)))
      INTO v_result;
    RETURN v_result;
END $$;

-- queue_page_v1: the queues of a tenant by page, every figure as of the last refresh, null before the first one.
--   p_filters  {"namespace"?,"task"?: exact,"contains"?: somewhere in the name, in any case,"pending"?, "dead"?, "bounded"?: true has only those
--              with pending messages, with dead letters, with a maximum size,"sort"?: "name" (default), "pending", "processing", "dead",
--              "stored", "in", "partitions", "size", "namespace" or "created","limit"? = 100,"after"?: "next" of the page before}
-- Returns {"queues":[{"id","name","namespace","task","createdAt","partitions","partitionCount","priority","leaseTime","retryLimit","maxSize",
-- "encryptionEnabled","retainedBytes","ingestedPerSecond","messages":{"total","pending":without what is leased,"processing","deadLetter"}}],
-- "total":queues that fit on all pages,"all":queues there are,"next":position|null}. Locks: none. Called by: pg.QueuePage.
CREATE OR REPLACE FUNCTION queen.queue_page_v1(
    p_filters JSONB DEFAULT '{}', p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    v_limit    INT := GREATEST(COALESCE((p_filters ->> 'limit')::INT, 100), 1);
    v_order    TEXT := COALESCE(NULLIF(p_filters ->> 'sort', ''), 'name');
    v_sort     TEXT := ltrim(v_order, '-');
    v_down     BOOLEAN := starts_with(v_order, '-');
    v_contains TEXT := lower(COALESCE(p_filters ->> 'contains', ''));
    v_pending  BOOLEAN := COALESCE((p_filters ->> 'pending')::BOOLEAN, FALSE);
    v_dead     BOOLEAN := COALESCE((p_filters ->> 'dead')::BOOLEAN, FALSE);
    v_bounded  BOOLEAN := COALESCE((p_filters ->> 'bounded')::BOOLEAN, FALSE);
    v_back     BOOLEAN := v_sort IN ('name', 'namespace') AND v_down;
    v_after    RECORD;
    v_result   JSONB;
BEGIN
    SELECT * INTO v_after FROM queen.list_position_v1(p_filters ->> 'after');
    WITH rows AS MATERIALIZED (
        SELECT q.id, q.name::TEXT AS name, q.namespace, q.task, q.created_at, q.priority, q.lease_time, q.retry_limit, q.max_queue_size,
               q.encryption_enabled, s.child_count AS partitions, s.total_messages AS total, CASE WHEN s.stat_key IS NOT NULL THEN GREATEST(s.pending_messages - s.processing_messages, 0) END AS pending,
               s.processing_messages AS processing, s.dead_letter_messages AS dead, s.retained_bytes AS bytes, s.ingested_per_second AS ingested
          FROM queen.queues q
          LEFT JOIN queen.stats s ON s.stat_type = 'queue' AND s.stat_key = q.id::TEXT
         WHERE q.tenant_id = p_tenant AND (v_contains = '' OR strpos(lower(q.name), v_contains) > 0)
           AND (COALESCE(p_filters ->> 'namespace', '') = '' OR q.namespace = p_filters ->> 'namespace')
           AND (COALESCE(p_filters ->> 'task', '') = '' OR q.task = p_filters ->> 'task')),
    wanted AS MATERIALIZED (
        SELECT r.*, CASE v_sort WHEN 'namespace' THEN COALESCE(r.namespace, '')::TEXT ELSE '' END COLLATE "C" AS a, r.name COLLATE "C" AS b,
               CASE WHEN v_down THEN -1 ELSE 1 END * CASE v_sort WHEN 'pending' THEN COALESCE(r.pending, -1) WHEN 'processing' THEN COALESCE(r.processing, -1)
                    WHEN 'dead' THEN COALESCE(r.dead, -1) WHEN 'stored' THEN COALESCE(r.total, -1) WHEN 'in' THEN COALESCE(round(r.ingested * 100), -1)
                    WHEN 'partitions' THEN COALESCE(r.partitions, -1) WHEN 'size' THEN COALESCE(r.bytes, -1)
                    WHEN 'created' THEN round(extract(epoch FROM r.created_at) * 1000000) ELSE 0 END AS key
          FROM rows r
         WHERE (NOT v_pending OR r.pending > 0) AND (NOT v_dead OR r.dead > 0) AND (NOT v_bounded OR r.max_queue_size > 0)),
    page AS MATERIALIZED (
        SELECT w.*, row_number() OVER (ORDER BY w.key, CASE WHEN NOT v_back THEN w.a END, CASE WHEN NOT v_back THEN w.b END, w.a DESC, w.b DESC) AS ord
          FROM wanted w
         WHERE v_after.r_key IS NULL OR w.key > v_after.r_key
            OR w.key = v_after.r_key AND CASE WHEN v_back THEN (w.a, w.b) < (v_after.r_a COLLATE "C", v_after.r_b COLLATE "C") ELSE (w.a, w.b) > (v_after.r_a COLLATE "C", v_after.r_b COLLATE "C") END
         ORDER BY ord LIMIT v_limit + 1)
    SELECT jsonb_build_object(
               'queues', COALESCE(jsonb_agg(jsonb_build_object(
                   'id', g.id, 'name', g.name, 'namespace', g.namespace, 'task', g.task, 'createdAt', queen.iso_ms_v1(g.created_at), 'partitions', g.partitions,
                   'partitionCount', g.partitions, 'priority', COALESCE(g.priority, 0), 'leaseTime', COALESCE(g.lease_time, 60),
                   'retryLimit', COALESCE(g.retry_limit, 3), 'maxSize', COALESCE(g.max_queue_size, 0), 'encryptionEnabled', COALESCE(g.encryption_enabled, FALSE),
                   'retainedBytes', g.bytes, 'ingestedPerSecond', g.ingested,
                   'messages', jsonb_build_object('total', g.total, 'pending', g.pending, 'processing', g.processing, 'deadLetter', g.dead))
                   ORDER BY g.ord) FILTER (WHERE g.ord <= v_limit), '[]'::JSONB),
               'total', (SELECT count(*) FROM wanted), 'all', (SELECT count(*) FROM queen.queues q WHERE q.tenant_id = p_tenant),
               'next', (SELECT queen.list_next_v1(v_order, l.key, l.a, l.b) FROM page l
                         WHERE l.ord = v_limit AND EXISTS (SELECT 1 FROM page x WHERE x.ord > v_limit)))
      INTO v_result
      FROM page g;
    RETURN v_result;
END $$;

GRANT EXECUTE ON FUNCTION queen.list_next_v1(TEXT, NUMERIC, TEXT, TEXT) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.list_position_v1(TEXT) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.group_list_v1(JSONB, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.group_partition_list_v1(TEXT, JSONB, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.queue_page_v1(JSONB, UUID) TO PUBLIC;
