-- The brokers of this database, for people who ask which there are. Nothing decides by it.
--
-- A row is one run of a broker. It renews its row every few seconds; the database's clock says how long ago. Rows of runs that ended
-- without taking leave stay for a day.
CREATE TABLE IF NOT EXISTS queen.brokers (
    instance   UUID PRIMARY KEY,          -- of one run; two brokers may carry the same id by mistake
    id         TEXT NOT NULL,             -- the name that the operator knows
    version    TEXT NOT NULL,
    address    TEXT NOT NULL,             -- host:port of its HTTP listener, as far as the broker knows
    started_at TIMESTAMPTZ NOT NULL,
    last_seen  TIMESTAMPTZ NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000);

-- broker_seen_v1: note that a broker lives.
--   p_uptime_ms  how long it has been running, by its own monotonic clock
-- Forgets runs not seen for a day, only when there are any. Returns how many other brokers were seen in the last 15 s.
-- Locks: its own row; rows that nobody renews. Called by: pg.BrokerSeen, every 5 s a broker.
CREATE OR REPLACE FUNCTION queen.broker_seen_v1(p_instance UUID, p_id TEXT, p_version TEXT, p_address TEXT, p_uptime_ms BIGINT)
RETURNS INTEGER
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_now TIMESTAMPTZ := clock_timestamp();
BEGIN
    INSERT INTO queen.brokers AS b (instance, id, version, address, started_at, last_seen)
    VALUES (p_instance, p_id, p_version, p_address, v_now - make_interval(secs => GREATEST(p_uptime_ms, 0) / 1000.0), v_now)
    ON CONFLICT (instance) DO UPDATE SET last_seen = EXCLUDED.last_seen, address = EXCLUDED.address;
    DELETE FROM queen.brokers b WHERE b.last_seen < v_now - interval '1 day';
    RETURN (SELECT count(*)::int FROM queen.brokers b WHERE b.instance <> p_instance AND b.last_seen > v_now - interval '15 seconds');
END;
$$;

-- broker_left_v1: forget a broker that stops in good order. Locks: its row. Called by: pg.BrokerLeft.
CREATE OR REPLACE FUNCTION queen.broker_left_v1(p_instance UUID)
RETURNS VOID
LANGUAGE sql VOLATILE
AS $$
    DELETE FROM queen.brokers b WHERE b.instance = p_instance;
$$;

-- list_brokers_v1: every broker known, oldest first.
--   p_instance  the broker that asks, marked "self"; may be null
-- Returns {"brokers":[{id,instance,version,address,startedAt,lastSeen,alive,self}]}; alive = seen in the last 15 s. Locks: none.
-- Called by: builds older than brokers_page_v1.
CREATE OR REPLACE FUNCTION queen.list_brokers_v1(p_instance UUID)
RETURNS JSONB
LANGUAGE sql STABLE
AS $$
    SELECT jsonb_build_object('brokers', COALESCE(jsonb_agg(jsonb_build_object(
               'id', b.id, 'instance', b.instance, 'version', b.version, 'address', b.address,
               'startedAt', queen.iso_us_v1(b.started_at), 'lastSeen', queen.iso_us_v1(b.last_seen),
               'alive', b.last_seen > clock_timestamp() - interval '15 seconds',
               'self', b.instance IS NOT DISTINCT FROM p_instance) ORDER BY b.started_at, b.instance), '[]'::jsonb))
      FROM queen.brokers b;
$$;

-- brokers_page_v1: the brokers known by page, oldest first.
--   p_filters   {"contains"?: somewhere in id, address or version, in any case,"alive"?: true has only those seen in the last 15 s, false
--               only the others,"limit"? = 100,"after"?: "next" of the page before}
--   p_instance  the broker that asks, marked "self"; may be null
-- Returns {"brokers":[members of list_brokers_v1],"total":rows that fit on all pages,"next":position|null}. Locks: none.
-- Called by: pg.Brokers.
CREATE OR REPLACE FUNCTION queen.brokers_page_v1(p_filters JSONB, p_instance UUID)
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    v_limit    INT := GREATEST(COALESCE((p_filters ->> 'limit')::INT, 100), 1);
    v_contains TEXT := lower(COALESCE(p_filters ->> 'contains', ''));
    v_alive    BOOLEAN := (p_filters ->> 'alive')::BOOLEAN;
    v_at       TIMESTAMPTZ := queen.parse_time_v1(split_part(p_filters ->> 'after', '|', 1));
    v_id       UUID := NULLIF(split_part(p_filters ->> 'after', '|', 2), '')::UUID;
    v_seen     TIMESTAMPTZ := clock_timestamp() - INTERVAL '15 seconds';
    v_result   JSONB;
BEGIN
    WITH wanted AS MATERIALIZED (
        SELECT b.* FROM queen.brokers b
         WHERE (v_contains = '' OR strpos(lower(b.id), v_contains) > 0 OR strpos(lower(b.address), v_contains) > 0 OR strpos(lower(b.version), v_contains) > 0)
           AND (v_alive IS NULL OR (b.last_seen > v_seen) = v_alive)),
    page AS MATERIALIZED (
        SELECT w.*, row_number() OVER (ORDER BY w.started_at, w.instance) AS ord
          FROM wanted w WHERE v_at IS NULL OR (w.started_at, w.instance) > (v_at, v_id)
         ORDER BY w.started_at, w.instance LIMIT v_limit + 1)
    SELECT jsonb_build_object(
               'brokers', COALESCE(jsonb_agg(jsonb_build_object(
                   'id', g.id, 'instance', g.instance, 'version', g.version, 'address', g.address,
                   'startedAt', queen.iso_us_v1(g.started_at), 'lastSeen', queen.iso_us_v1(g.last_seen),
                   'alive', g.last_seen > v_seen, 'self', g.instance IS NOT DISTINCT FROM p_instance) ORDER BY g.ord) FILTER (WHERE g.ord <= v_limit), '[]'::JSONB),
               'total', (SELECT count(*) FROM wanted),
               'next', (SELECT queen.iso_us_v1(l.started_at) || '|' || l.instance FROM page l
                         WHERE l.ord = v_limit AND EXISTS (SELECT 1 FROM page x WHERE x.ord > v_limit)))
      INTO v_result
      FROM page g;
    RETURN v_result;
END $$;

GRANT EXECUTE ON FUNCTION queen.brokers_page_v1(JSONB, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.broker_seen_v1(UUID, TEXT, TEXT, TEXT, BIGINT) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.broker_left_v1(UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.list_brokers_v1(UUID) TO PUBLIC;
