-- Registration of streaming queries.

-- streams_register_query_v1: register queries by name, or find them again.
--   p_requests  [{"idx"?,"tenant"?,"name","source_queue","sink_queue"?,"config_hash","reset"?=false}]; sink_queue "" is none
-- Returns [{"idx","result"}], result being {"success":true,"query_id","name","config_hash","fresh","reset"}: fresh says that the
-- query is new, reset that its state was wiped. Failures: {"success":false,"error":"<field> is required"}, and for another
-- config_hash without reset {"success":false,"query_id","name","error":"config_hash mismatch: …"}; the stored hash stays then.
-- Names are per tenant. Two first registrations at once: one inserts, the other waits for it and is judged by its hash.
-- Locks: queen_streams.queries rows in input order, so pass one element per call when several callers share names; with reset the
-- query's state rows. Called by: pg.RegisterStreamQuery.
CREATE OR REPLACE FUNCTION queen.streams_register_query_v1(p_requests JSONB)
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_el      RECORD;
    v_missing TEXT;
    v_tenant  UUID;
    v_id      UUID;
    v_hash    TEXT;
    v_reset   BOOLEAN;
    v_result  JSONB;
    v_results JSONB := '[]'::JSONB;
BEGIN
    IF p_requests IS NULL OR jsonb_typeof(p_requests) <> 'array' THEN
        RETURN '[]'::JSONB;
    END IF;
    FOR v_el IN SELECT r.v, r.ord FROM jsonb_array_elements(p_requests) WITH ORDINALITY AS r (v, ord) ORDER BY r.ord LOOP
        v_missing := NULL;
        SELECT f.name INTO v_missing
          FROM unnest(ARRAY['name', 'source_queue', 'config_hash']) WITH ORDINALITY AS f (name, ord)
         WHERE COALESCE(v_el.v ->> f.name, '') = ''
         ORDER BY f.ord LIMIT 1;
        IF v_missing IS NOT NULL THEN
            v_result := jsonb_build_object('success', FALSE, 'error', v_missing || ' is required');
        ELSE
            v_tenant := COALESCE(NULLIF(v_el.v ->> 'tenant', '')::UUID, '00000000-0000-0000-0000-000000000001');
            v_reset := FALSE;
            INSERT INTO queen_streams.queries (tenant_id, name, source_queue, sink_queue, config_hash)
            VALUES (v_tenant, v_el.v ->> 'name', v_el.v ->> 'source_queue', NULLIF(v_el.v ->> 'sink_queue', ''),
                    v_el.v ->> 'config_hash')
                ON CONFLICT (tenant_id, name) DO NOTHING
            RETURNING id INTO v_id;
            IF FOUND THEN
                v_result := jsonb_build_object('success', TRUE, 'query_id', v_id, 'name', v_el.v ->> 'name',
                    'config_hash', v_el.v ->> 'config_hash', 'fresh', TRUE, 'reset', FALSE);
            ELSE
                SELECT s.id, s.config_hash INTO v_id, v_hash
                  FROM queen_streams.queries s
                 WHERE s.tenant_id = v_tenant AND s.name = v_el.v ->> 'name'
                   FOR UPDATE;
                IF v_hash <> v_el.v ->> 'config_hash' AND NOT COALESCE((v_el.v ->> 'reset')::BOOLEAN, FALSE) THEN
                    v_result := jsonb_build_object('success', FALSE, 'query_id', v_id, 'name', v_el.v ->> 'name', 'error',
                        format('config_hash mismatch: operator chain changed for queryId ''%s''. Pass reset:true to wipe existing '
                               'state, or use a new queryId.', v_el.v ->> 'name'));
                ELSE
                    v_reset := v_hash <> v_el.v ->> 'config_hash';
                    IF v_reset THEN
                        DELETE FROM queen_streams.state t WHERE t.query_id = v_id;
                    END IF;
                    UPDATE queen_streams.queries s
                       SET source_queue = v_el.v ->> 'source_queue', sink_queue = NULLIF(v_el.v ->> 'sink_queue', ''),
                           config_hash = v_el.v ->> 'config_hash', sealed = s.sealed AND NOT v_reset, updated_at = clock_timestamp()
                     WHERE s.id = v_id;
                    v_result := jsonb_build_object('success', TRUE, 'query_id', v_id, 'name', v_el.v ->> 'name',
                        'config_hash', v_el.v ->> 'config_hash', 'fresh', FALSE, 'reset', v_reset);
                END IF;
            END IF;
        END IF;
        v_results := v_results || jsonb_build_array(jsonb_build_object(
            'idx', COALESCE((v_el.v ->> 'idx')::INT, v_el.ord::INT - 1), 'result', v_result));
    END LOOP;
    RETURN v_results;
END $$;

GRANT EXECUTE ON FUNCTION queen.streams_register_query_v1(JSONB) TO PUBLIC;
