-- Streaming queries and their state.
CREATE SCHEMA IF NOT EXISTS queen_streams;

-- queen_streams.queries: registered queries, named per tenant. config_hash tells whether a running query still has the shape
-- that its stored state was built with.
CREATE TABLE IF NOT EXISTS queen_streams.queries (
    id           UUID PRIMARY KEY DEFAULT gen_random_uuid(),
    name         TEXT NOT NULL,
    source_queue TEXT NOT NULL,
    sink_queue   TEXT,
    config_hash  TEXT NOT NULL,
    created_at   TIMESTAMPTZ NOT NULL DEFAULT now(),
    updated_at   TIMESTAMPTZ NOT NULL DEFAULT now(),
    tenant_id    UUID NOT NULL DEFAULT '00000000-0000-0000-0000-000000000001',
    UNIQUE (tenant_id, name)
);

-- queen_streams.state: one value per (query, partition, key). partition_id has no foreign key on purpose: a partition cleanup
-- must not delete state that still matters, so a partition with state rows is never reclaimed.
CREATE TABLE IF NOT EXISTS queen_streams.state (
    query_id     UUID NOT NULL REFERENCES queen_streams.queries (id) ON DELETE CASCADE,
    partition_id UUID NOT NULL,
    key          TEXT NOT NULL,
    value        JSONB NOT NULL,
    updated_at   TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (query_id, partition_id, key)
);
DO $$ BEGIN
    IF to_regclass('queen_streams.idx_streams_state_updated_at') IS NULL THEN
        CREATE INDEX idx_streams_state_updated_at ON queen_streams.state (updated_at);
    END IF;
END $$;

GRANT USAGE ON SCHEMA queen_streams TO PUBLIC;
GRANT SELECT, INSERT, UPDATE, DELETE ON queen_streams.queries TO PUBLIC;
GRANT SELECT, INSERT, UPDATE, DELETE ON queen_streams.state TO PUBLIC;
