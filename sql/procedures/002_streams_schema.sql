-- Streaming queries and their state.
CREATE SCHEMA IF NOT EXISTS queen_streams;

-- queen_streams.queries: registered queries, named per tenant. config_hash tells whether a running query still has the shape
-- that its stored state was built with. sealed says that rows of its state may be encrypted: then all that are written are.
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
--   sealed  the envelope of key and value, of a row that is encrypted: key is then a name that says nothing, made from both ids and
--           the key, and value has at most windowEnd, which the procedures compare
CREATE TABLE IF NOT EXISTS queen_streams.state (
    query_id     UUID NOT NULL REFERENCES queen_streams.queries (id) ON DELETE CASCADE,
    partition_id UUID NOT NULL,
    key          TEXT NOT NULL,
    value        JSONB NOT NULL,
    updated_at   TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (query_id, partition_id, key)
);
DO $$ BEGIN
    IF NOT EXISTS (SELECT 1 FROM pg_catalog.pg_attribute
                    WHERE attrelid = 'queen_streams.queries'::regclass AND attname = 'sealed' AND NOT attisdropped) THEN
        ALTER TABLE queen_streams.queries ADD COLUMN sealed BOOLEAN NOT NULL DEFAULT FALSE;
    END IF;
    IF NOT EXISTS (SELECT 1 FROM pg_catalog.pg_attribute
                    WHERE attrelid = 'queen_streams.state'::regclass AND attname = 'sealed' AND NOT attisdropped) THEN
        ALTER TABLE queen_streams.state ADD COLUMN sealed TEXT;
    END IF;
    IF to_regclass('queen_streams.idx_streams_state_updated_at') IS NULL THEN
        CREATE INDEX idx_streams_state_updated_at ON queen_streams.state (updated_at);
    END IF;
    -- For re-encryption, which goes through the encrypted rows in the order of their names.
    IF to_regclass('queen_streams.idx_streams_state_sealed') IS NULL THEN
        CREATE INDEX idx_streams_state_sealed ON queen_streams.state (key COLLATE "C") WHERE sealed IS NOT NULL;
    END IF;
END $$;

GRANT USAGE ON SCHEMA queen_streams TO PUBLIC;
GRANT SELECT, INSERT, UPDATE, DELETE ON queen_streams.queries TO PUBLIC;
GRANT SELECT, INSERT, UPDATE, DELETE ON queen_streams.state TO PUBLIC;
