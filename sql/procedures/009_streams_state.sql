-- Reads of the state of streaming queries.

-- streams_state_get_v1: state values of (query, partition).
--   p_requests  [{"idx"?,"query_id","partition_id","keys"?:[],"key_prefix"?,"ripe_at_or_before"?,"ring"?:[]}]. Filters are ANDed:
--               keys that is not an array, or empty, filters nothing; key_prefix is literal; ripe_at_or_before (epoch ms) keeps the rows
--               whose value.windowEnd is a number at or before it. ring are the ids of the encryption keys that the caller has
--   p_tenant    a query of another tenant reads as empty
-- Returns [{"idx","result":{"success":true,"rows":[{"key","value","updated_at"}]}}], rows ordered by key (byte order); without both
-- ids {"success":false,"error":"query_id and partition_id are required","rows":[]}. updated_at is ISO-us with offset +00:00.
-- Of a query with encrypted state the result has "sealed":true, and encrypted rows have their envelope in "sealed" and a name in "key";
-- key_prefix does not filter them. When others encrypt with a key that is not in the ring it has "key_missing":true and no rows.
-- Locks: none. Called by: pg.StreamState.
CREATE OR REPLACE FUNCTION queen.streams_state_get_v1(
    p_requests JSONB, p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    v_el      RECORD;
    v_keys    TEXT[];
    v_prefix  TEXT;
    v_ripe    NUMERIC;
    v_rows    JSONB;
    v_result  JSONB;
    v_results JSONB := '[]'::JSONB;
BEGIN
    IF p_requests IS NULL OR jsonb_typeof(p_requests) <> 'array' THEN
        RETURN '[]'::JSONB;
    END IF;
    FOR v_el IN SELECT r.v, r.ord FROM jsonb_array_elements(p_requests) WITH ORDINALITY AS r (v, ord) ORDER BY r.ord LOOP
        IF COALESCE(v_el.v ->> 'query_id', '') = '' OR COALESCE(v_el.v ->> 'partition_id', '') = '' THEN
            v_result := jsonb_build_object('success', FALSE, 'error', 'query_id and partition_id are required', 'rows', '[]'::JSONB);
        ELSE
            v_keys := NULL;
            IF jsonb_typeof(v_el.v -> 'keys') = 'array' AND jsonb_array_length(v_el.v -> 'keys') > 0 THEN
                v_keys := ARRAY(SELECT k.v FROM jsonb_array_elements_text(v_el.v -> 'keys') AS k (v));
            END IF;
            v_prefix := NULLIF(v_el.v ->> 'key_prefix', '');
            v_ripe := CASE WHEN jsonb_typeof(v_el.v -> 'ripe_at_or_before') = 'number'
                           THEN (v_el.v ->> 'ripe_at_or_before')::NUMERIC END;
            SELECT COALESCE(jsonb_agg(jsonb_build_object('key', t.key, 'value', t.value,
                       'updated_at', to_char(t.updated_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"'))
                       || CASE WHEN t.sealed IS NULL THEN '{}' ELSE jsonb_build_object('sealed', t.sealed) END
                       ORDER BY t.key COLLATE "C"), '[]'::JSONB)
              INTO v_rows
              FROM queen_streams.queries s
              JOIN queen_streams.state t ON t.query_id = s.id
             WHERE s.id = (v_el.v ->> 'query_id')::UUID AND s.tenant_id = p_tenant
               AND t.partition_id = (v_el.v ->> 'partition_id')::UUID
               AND (v_keys IS NULL OR t.key = ANY (v_keys))
               AND (v_prefix IS NULL OR starts_with(t.key, v_prefix) OR t.sealed IS NOT NULL)
               AND (v_ripe IS NULL OR CASE WHEN jsonb_typeof(t.value -> 'windowEnd') = 'number'
                                           THEN (t.value ->> 'windowEnd')::NUMERIC <= v_ripe END);
            v_result := jsonb_build_object('success', TRUE, 'rows', v_rows);
            -- The query's mark, not the rows: rows under names that the caller cannot make are not found.
            IF EXISTS (SELECT 1 FROM queen_streams.queries s
                        WHERE s.id = (v_el.v ->> 'query_id')::UUID AND s.tenant_id = p_tenant AND s.sealed) THEN
                v_result := v_result || '{"sealed":true}';
                IF EXISTS (SELECT 1 FROM queen.encryption_keys k
                            WHERE NOT COALESCE(v_el.v -> 'ring', '[]') ? k.id) THEN
                    v_result := v_result || '{"key_missing":true,"rows":[]}';
                END IF;
            END IF;
        END IF;
        v_results := v_results || jsonb_build_array(jsonb_build_object(
            'idx', COALESCE((v_el.v ->> 'idx')::INT, v_el.ord::INT - 1), 'result', v_result));
    END LOOP;
    RETURN v_results;
END $$;

GRANT EXECUTE ON FUNCTION queen.streams_state_get_v1(JSONB, UUID) TO PUBLIC;

-- streams_ripe_v1: the partitions of a query whose open windows nobody is going to close, because nothing arrives any more.
--   p_request  {"query_id","consumer_group"?,"grace_ms"?=0,"idle_ms"?=0,"limit"?=100 (1..1000)}; an empty group is __QUEUE_MODE__
--   p_tenant   a query of another tenant has none
-- A partition is listed when one of its rows has a numeric value.windowEnd (epoch ms) that lies grace_ms or more before now, nothing
-- was written to it for idle_ms, no live lease of the group is on it and the group has read all of it.
-- Returns {"success":true,"partitions":[{"partition_id","partition","windowEnd"}]}, each with the latest end that has passed. The
-- cost follows the number of state rows of the query.
-- Locks: none. Called by: pg.StreamRipe.
CREATE OR REPLACE FUNCTION queen.streams_ripe_v1(
    p_request JSONB, p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    v_query UUID := (p_request ->> 'query_id')::UUID;
    v_group TEXT := COALESCE(NULLIF(p_request ->> 'consumer_group', ''), '__QUEUE_MODE__');
    v_now   TIMESTAMPTZ := clock_timestamp();
    v_idle  TIMESTAMPTZ := v_now - GREATEST(COALESCE((p_request ->> 'idle_ms')::FLOAT8, 0), 0) * INTERVAL '1 millisecond';
    v_ms    BIGINT := floor(extract(epoch FROM v_now) * 1000)::BIGINT;
    v_ripe  NUMERIC := v_ms - GREATEST(COALESCE((p_request ->> 'grace_ms')::NUMERIC, 0), 0);
    v_limit INT := LEAST(GREATEST(COALESCE((p_request ->> 'limit')::INT, 100), 1), 1000);
    v_rows  JSONB;
BEGIN
    SELECT COALESCE(jsonb_agg(jsonb_build_object('partition_id', r.partition_id, 'partition', r.name, 'windowEnd', r.window_end)
                              ORDER BY r.window_end, r.partition_id), '[]'::JSONB)
      INTO v_rows
      FROM (SELECT w.partition_id, lp.name, w.window_end
              FROM (SELECT e.partition_id, max(e.window_end) AS window_end
                      FROM (SELECT t.partition_id,
                                   CASE WHEN jsonb_typeof(t.value -> 'windowEnd') = 'number'
                                        THEN (t.value ->> 'windowEnd')::NUMERIC END AS window_end
                              FROM queen_streams.queries s
                              JOIN queen_streams.state t ON t.query_id = s.id
                             WHERE s.id = v_query AND s.tenant_id = p_tenant) e
                     WHERE e.window_end <= v_ripe
                     GROUP BY e.partition_id) w
              JOIN queen.log_partitions lp ON lp.id = w.partition_id
              LEFT JOIN queen.log_consumers c ON c.partition_id = w.partition_id AND c.consumer_group = v_group
             WHERE (lp.last_write_at IS NULL OR lp.last_write_at <= v_idle)
               AND COALESCE(c.committed, -1) >= lp.last_offset
               AND (c.worker_id IS NULL OR c.lease_expires_at IS NULL OR c.lease_expires_at < v_now)
             ORDER BY w.window_end, w.partition_id
             LIMIT v_limit) r;
    RETURN jsonb_build_object('success', TRUE, 'partitions', v_rows);
END $$;

GRANT EXECUTE ON FUNCTION queen.streams_ripe_v1(JSONB, UUID) TO PUBLIC;
