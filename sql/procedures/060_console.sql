-- What people ask before they change something, and lists that only people read.

-- log_seek_preview_v1: what a seek of a group would do, without doing it; see log_seek_core_v1 for what a seek does.
--   p_partition  NULL is every partition of the queue
--   exactly one of p_to_end, p_timestamp, p_offset
-- Returns {"success":true,"dryRun":true,"consumerGroup","queueName","partitionName":null for all,"seekToEnd","targetTimestamp":ISO-ms|null,
-- "partitionsUpdated":partitions the seek would set,"updated":false,"partitionsMoved":those whose cursor would change,"again":stored
-- messages that the group has passed and would get again,"skipped":stored messages that it has not passed and would not get any more,
-- "pending":what it would have before it afterwards,"leases":live leases that would end}. A group without a cursor in a partition counts
-- as one that has passed nothing there. Failures as of the seeks: {"success":false,"error"}.
-- Pushes and acks that come between preview and seek make a difference. Locks: none. Called by: pg.SeekPreview.
CREATE OR REPLACE FUNCTION queen.log_seek_preview_v1(
    p_group TEXT, p_queue TEXT, p_partition TEXT, p_to_end BOOLEAN, p_timestamp TIMESTAMPTZ, p_offset BIGINT,
    p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    v_result JSONB;
BEGIN
    IF NOT COALESCE(p_to_end, FALSE) AND p_timestamp IS NULL AND p_offset IS NULL THEN
        RETURN jsonb_build_object('success', FALSE, 'error', 'Must specify either toEnd=true or a timestamp');
    END IF;
    WITH moved AS (
        -- What lies below the first stored message is passed by everybody.
        SELECT GREATEST(COALESCE(c.committed, -1), p.log_start - 1) AS old, p.log_start, p.last_offset,
               CASE WHEN p_to_end THEN p.last_offset
                    WHEN p_offset IS NOT NULL THEN LEAST(GREATEST(p_offset, p.log_start), p.last_offset + 1) - 1
                    ELSE COALESCE(queen.log_segment_since_v1(p.id, p.log_start, p.last_offset, p_timestamp) - 1, p.last_offset) END AS new,
               c.worker_id IS NOT NULL AND c.worker_id <> '__retry__' AND c.lease_expires_at > clock_timestamp() AS leased
          FROM queen.queues q
          JOIN queen.log_partitions p ON p.queue_id = q.id
          LEFT JOIN queen.log_consumers c ON c.partition_id = p.id AND c.consumer_group = p_group
         WHERE q.tenant_id = p_tenant AND q.name = p_queue AND (p_partition IS NULL OR p.name = p_partition))
    SELECT jsonb_build_object('success', TRUE, 'dryRun', TRUE, 'consumerGroup', p_group, 'queueName', p_queue, 'partitionName', p_partition,
               'seekToEnd', COALESCE(p_to_end, FALSE),
               'targetTimestamp', CASE WHEN NOT COALESCE(p_to_end, FALSE) AND p_offset IS NULL THEN queen.iso_ms_v1(p_timestamp) END,
               'partitionsUpdated', count(*), 'updated', FALSE,
               'partitionsMoved', count(*) FILTER (WHERE GREATEST(m.new, m.log_start - 1) <> m.old),
               'again', COALESCE(sum(GREATEST(m.old - GREATEST(m.new, m.log_start - 1), 0)), 0),
               'skipped', COALESCE(sum(GREATEST(m.new - m.old, 0)), 0),
               'pending', COALESCE(sum(GREATEST(m.last_offset - GREATEST(m.new, m.log_start - 1), 0)), 0),
               'leases', count(*) FILTER (WHERE m.leased))
      INTO v_result
      FROM moved m
    HAVING count(*) > 0;
    RETURN COALESCE(v_result, jsonb_build_object('success', FALSE, 'consumerGroup', p_group, 'queueName', p_queue, 'partitionsUpdated', 0,
        'error', CASE WHEN p_partition IS NULL THEN 'Queue not found or has no partitions' ELSE 'Partition not found' END));
END $$;

-- stream_list_v1: the streaming queries of a tenant by page.
--   p_filters  {"contains"?: somewhere in the name of the query or of one of its queues, in any case,"sort"?: "name" (default), "source",
--              "sink", "created" or "updated" (registered again), a minus in front turns it around,"limit"? = 100,"after"?: "next" of the
--              page before, as list_position_v1 reads it}
-- Returns {"streams":[{"id","name","sourceQueue","sinkQueue","configHash","createdAt","updatedAt":ISO-ms,"stateRows","stateRowsExact",
-- "stateBytes":of the values,"partitions":with state,"oldestState","newestState":ISO-ms|null}],"total":rows that fit on all pages,
-- "next":position|null}. Of a query at most 10,000 rows of state are looked at; stateRowsExact is false when there are more, and the figures
-- are those of the rows looked at: no order goes by them. Locks: none. Called by: pg.ListStreams, streams_page_v1.
CREATE OR REPLACE FUNCTION queen.stream_list_v1(
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
    v_back     BOOLEAN := v_down AND v_sort IN ('name', 'source', 'sink');
    v_after    RECORD;
    v_result   JSONB;
BEGIN
    SELECT * INTO v_after FROM queen.list_position_v1(p_filters ->> 'after');
    WITH wanted AS MATERIALIZED (
        SELECT s.*, CASE v_sort WHEN 'source' THEN s.source_queue WHEN 'sink' THEN COALESCE(s.sink_queue, '') ELSE '' END COLLATE "C" AS a, s.name COLLATE "C" AS b,
               CASE WHEN v_down THEN -1 ELSE 1 END * CASE v_sort WHEN 'created' THEN round(extract(epoch FROM s.created_at) * 1000000)
                    WHEN 'updated' THEN round(extract(epoch FROM s.updated_at) * 1000000) ELSE 0 END AS key
          FROM queen_streams.queries s
         WHERE s.tenant_id = p_tenant
           AND (v_contains = '' OR strpos(lower(s.name), v_contains) > 0 OR strpos(lower(s.source_queue), v_contains) > 0 OR strpos(lower(s.sink_queue), v_contains) > 0)),
    page AS MATERIALIZED (
        SELECT w.*, row_number() OVER (ORDER BY w.key, CASE WHEN NOT v_back THEN w.a END, CASE WHEN NOT v_back THEN w.b END, w.a DESC, w.b DESC) AS ord
          FROM wanted w
         WHERE v_after.r_key IS NULL OR w.key > v_after.r_key
            OR w.key = v_after.r_key AND CASE WHEN v_back THEN (w.a, w.b) < (v_after.r_a COLLATE "C", v_after.r_b COLLATE "C") ELSE (w.a, w.b) > (v_after.r_a COLLATE "C", v_after.r_b COLLATE "C") END
         ORDER BY ord LIMIT v_limit + 1)
    SELECT jsonb_build_object(
               'streams', COALESCE(jsonb_agg(jsonb_build_object('id', g.id, 'name', g.name, 'sourceQueue', g.source_queue, 'sinkQueue', g.sink_queue,
                   'configHash', g.config_hash, 'createdAt', queen.iso_ms_v1(g.created_at), 'updatedAt', queen.iso_ms_v1(g.updated_at),
                   'stateRows', LEAST(x.n, 10000), 'stateRowsExact', x.n <= 10000, 'stateBytes', x.bytes, 'partitions', x.partitions,
                   'oldestState', queen.iso_ms_v1(x.oldest), 'newestState', queen.iso_ms_v1(x.newest)) ORDER BY g.ord), '[]'::JSONB),
               'total', (SELECT count(*) FROM wanted),
               'next', (SELECT queen.list_next_v1(v_order, l.key, l.a, l.b) FROM page l
                         WHERE l.ord = v_limit AND EXISTS (SELECT 1 FROM page m WHERE m.ord > v_limit)))
      INTO v_result
      FROM page g
     CROSS JOIN LATERAL (
        SELECT count(*) AS n, COALESCE(sum(pg_column_size(t.value) + COALESCE(pg_column_size(t.sealed), 0)), 0) AS bytes, count(DISTINCT t.partition_id) AS partitions,
               min(t.updated_at) AS oldest, max(t.updated_at) AS newest
          FROM (SELECT t.partition_id, t.value, t.sealed, t.updated_at FROM queen_streams.state t WHERE t.query_id = g.id LIMIT 10001) t) x
     WHERE g.ord <= v_limit;
    RETURN v_result;
END $$;

-- streams_page_v1: stream_list_v1 by name; "after" and "nextCursor" are plain names. Locks: none. Called by: builds older than that, streams_list_v1.
CREATE OR REPLACE FUNCTION queen.streams_page_v1(
    p_filters JSONB DEFAULT '{}', p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE sql STABLE
AS $$
    SELECT jsonb_build_object('streams', l.page -> 'streams', 'nextCursor', substr(l.page ->> 'next', length('name|0|0|') + 1))
      FROM (SELECT queen.stream_list_v1(p_filters - 'sort' || jsonb_build_object('after', 'name|0|0|' || NULLIF(p_filters ->> 'after', '')), p_tenant) AS page) l
$$;

-- streams_list_v1: streams_page_v1 with everything. Locks: none. Called by: builds older than that.
CREATE OR REPLACE FUNCTION queen.streams_list_v1(
    p_limit INTEGER, p_after TEXT, p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE sql STABLE
AS $$ SELECT queen.streams_page_v1(jsonb_build_object('limit', p_limit, 'after', p_after), p_tenant) $$;

-- streams_partitions_v1: the partitions in which queries have state, a step of the primary key each.
--   p_most  at most so many of each query
-- Returns [{"query","sealed","partitions":[id],"more":there are others}], for the tenant's queries. Locks: none. Called by: pg.StreamPartitions.
CREATE OR REPLACE FUNCTION queen.streams_partitions_v1(
    p_queries UUID[], p_most INTEGER, p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE sql STABLE
AS $$
    SELECT COALESCE(jsonb_agg(jsonb_build_object('query', s.id, 'sealed', s.sealed, 'more', x.n > p_most, 'partitions', x.ids)), '[]'::JSONB)
      FROM queen_streams.queries s
     CROSS JOIN LATERAL (
        WITH RECURSIVE walk AS (
            SELECT (SELECT t.partition_id FROM queen_streams.state t WHERE t.query_id = s.id ORDER BY t.partition_id LIMIT 1) AS id, 1 AS n
            UNION ALL
            SELECT (SELECT t.partition_id FROM queen_streams.state t WHERE t.query_id = s.id AND t.partition_id > w.id ORDER BY t.partition_id LIMIT 1), w.n + 1
              FROM walk w WHERE w.id IS NOT NULL AND w.n <= p_most)
        SELECT count(w.id) AS n, COALESCE(jsonb_agg(w.id ORDER BY w.n) FILTER (WHERE w.id IS NOT NULL AND w.n <= p_most), '[]'::JSONB) AS ids FROM walk w) x
     WHERE s.id = ANY (p_queries) AND s.tenant_id = p_tenant
$$;

-- streams_rows_v1: rows of state by their names.
--   p_queries, p_partitions, p_names  of one length, an element for each row that is looked for
-- Returns [{"query","partition","key","value","sealed":envelope|null}] of the rows that are there. Locks: none. Called by: pg.StreamRows.
CREATE OR REPLACE FUNCTION queen.streams_rows_v1(
    p_queries UUID[], p_partitions UUID[], p_names TEXT[], p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE sql STABLE
AS $$
    SELECT COALESCE(jsonb_agg(jsonb_build_object('query', t.query_id, 'partition', t.partition_id, 'key', t.key, 'value', t.value, 'sealed', t.sealed)), '[]'::JSONB)
      FROM unnest(p_queries, p_partitions, p_names) AS w (query, partition, name)
      JOIN queen_streams.queries s ON s.id = w.query AND s.tenant_id = p_tenant
      JOIN queen_streams.state t ON t.query_id = w.query AND t.partition_id = w.partition AND t.key = w.name
$$;

GRANT EXECUTE ON FUNCTION queen.log_seek_preview_v1(TEXT, TEXT, TEXT, BOOLEAN, TIMESTAMPTZ, BIGINT, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.stream_list_v1(JSONB, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.streams_list_v1(INTEGER, TEXT, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.streams_page_v1(JSONB, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.streams_partitions_v1(UUID[], INTEGER, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.streams_rows_v1(UUID[], UUID[], TEXT[], UUID) TO PUBLIC;
