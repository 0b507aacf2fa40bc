-- The log: partitions, segments, hash sidecar, consumer cursors and leases, trace index; and the small functions that every
-- later file uses. Storage parameters stand in CREATE TABLE so that a repeated apply has nothing to alter.

-- queen.log_partitions: one row per partition. Its row lock is the write serializer of the partition.
--   last_offset   the allocator: offset of the newest message, -1 when none was ever written
--   log_start     retention watermark: base of the first live segment, last_offset + 1 when empty
--   txns_start    purge watermark of log_txns; moves independently of log_start
--   last_write_at changes at most once per second, so that the allocator update touches no index (HOT)
--   oldest_live_at, oldest_txn_at
--                 never later than created_at of the first live segment / sidecar row; NULL only when there is none. Too early
--                 costs one fruitless retention step, too late or wrongly NULL leaks data: writers err on the early side
-- vacuum_truncate is off because truncation takes ACCESS EXCLUSIVE and freezes every push and pop.
CREATE TABLE IF NOT EXISTS queen.log_partitions (
    id             UUID PRIMARY KEY DEFAULT gen_random_uuid(),
    queue_id       UUID NOT NULL REFERENCES queen.queues (id) ON DELETE CASCADE,
    name           TEXT NOT NULL DEFAULT 'Default',
    last_offset    BIGINT NOT NULL DEFAULT -1,
    log_start      BIGINT NOT NULL DEFAULT 0,
    txns_start     BIGINT NOT NULL DEFAULT 0,
    last_write_at  TIMESTAMPTZ NOT NULL DEFAULT now(),
    created_at     TIMESTAMPTZ NOT NULL DEFAULT now(),
    oldest_live_at TIMESTAMPTZ,
    oldest_txn_at  TIMESTAMPTZ,
    UNIQUE (queue_id, name)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500,
        autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
DO $$ BEGIN
    IF to_regclass('queen.idx_log_partitions_queue_write') IS NULL THEN
        CREATE INDEX idx_log_partitions_queue_write ON queen.log_partitions (queue_id, last_write_at);
    END IF;
    IF to_regclass('queen.idx_log_partitions_oldest_live') IS NULL THEN
        CREATE INDEX idx_log_partitions_oldest_live ON queen.log_partitions (queue_id, oldest_live_at) WHERE oldest_live_at IS NOT NULL;
    END IF;
    IF to_regclass('queen.idx_log_partitions_oldest_txn') IS NULL THEN
        CREATE INDEX idx_log_partitions_oldest_txn ON queen.log_partitions (queue_id, oldest_txn_at) WHERE oldest_txn_at IS NOT NULL;
    END IF;
END $$;

-- queen.log_segments: the messages, end_offset - base_offset + 1 of them per row, packed and compressed by the broker.
--   created_at is non-decreasing in base_offset: it is stamped while the partition row is locked.
-- The primary key is the pop path; there is no other index. blob is EXTERNAL: it is compressed already.
-- No foreign key: a push, which alone inserts here, has the partition's row locked, so that it cannot be deleted meanwhile, and the check
-- took a quarter of the database's time for a small message. A trigger of log_partitions deletes the segments of what is deleted.
CREATE TABLE IF NOT EXISTS queen.log_segments (
    partition_id UUID NOT NULL,
    base_offset  BIGINT NOT NULL,
    end_offset   BIGINT NOT NULL,
    created_at   TIMESTAMPTZ NOT NULL,
    blob         BYTEA NOT NULL,
    PRIMARY KEY (partition_id, base_offset)
) WITH (autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_insert_scale_factor = 0.3,
        autovacuum_vacuum_cost_limit = 4000, autovacuum_vacuum_cost_delay = 0,
        toast.autovacuum_vacuum_scale_factor = 0.1, toast.autovacuum_vacuum_insert_scale_factor = 0.3,
        toast.autovacuum_vacuum_cost_limit = 4000, toast.autovacuum_vacuum_cost_delay = 0);
DO $$ BEGIN
    IF (SELECT attstorage <> 'e' FROM pg_catalog.pg_attribute
         WHERE attrelid = 'queen.log_segments'::regclass AND attname = 'blob') THEN
        ALTER TABLE queen.log_segments ALTER COLUMN blob SET STORAGE EXTERNAL;
    END IF;
END $$;

-- log_segments_follow_v1: a deleted partition takes its segments along. Trigger function of log_partitions. It sees the segments of a
-- push whose lock the deletion waited for: it runs after the row is gone, with a snapshot of its own under READ COMMITTED.
-- Locks: nothing but the rows deleted, which are reached under their partition's lock only.
CREATE OR REPLACE FUNCTION queen.log_segments_follow_v1()
RETURNS TRIGGER
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
BEGIN
    DELETE FROM queen.log_segments s WHERE s.partition_id = OLD.id;
    RETURN NULL;
END $$;
-- The trigger comes before the constraint that it replaces is dropped: segments of a deleted partition never stay.
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_trigger WHERE tgrelid = 'queen.log_partitions'::regclass AND tgname = 'log_segments_follow') THEN
        CREATE TRIGGER log_segments_follow AFTER DELETE ON queen.log_partitions FOR EACH ROW EXECUTE FUNCTION queen.log_segments_follow_v1();
    END IF;
    IF EXISTS (SELECT FROM pg_catalog.pg_constraint WHERE conrelid = 'queen.log_segments'::regclass AND contype = 'f') THEN
        ALTER TABLE queen.log_segments DROP CONSTRAINT IF EXISTS log_segments_partition_id_fkey;
    END IF;
END $$;

-- queen.log_txns: the hash sidecar, one row per segment, written with it: 16 bytes per message in frame order (xxh3-128 of the
-- transaction id, big-endian). The duplicate probe and the ack by transaction id read it.
-- No foreign key, so that a purge fires no triggers. Whoever deletes a partition deletes these rows first.
CREATE TABLE IF NOT EXISTS queen.log_txns (
    partition_id UUID NOT NULL,
    base_offset  BIGINT NOT NULL,
    end_offset   BIGINT NOT NULL,
    created_at   TIMESTAMPTZ NOT NULL,
    hashes       BYTEA NOT NULL,
    PRIMARY KEY (partition_id, base_offset)
) WITH (autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_insert_scale_factor = 0.3, autovacuum_vacuum_cost_delay = 0);

-- queen.log_consumers: the cursor and the lease of one (partition, group); at most one batch is in flight.
--   committed          last acknowledged offset; never decreases except by an explicit seek
--   batch_end          inclusive end of the leased batch (committed, batch_end]; NULL when there is no lease
--   worker_id, lease_expires_at, lease_acquired_at
--                      the lease; it is live while worker_id and lease_expires_at are set and the latter is in the future.
--                      A nacked batch that is not to be delivered before lease_expires_at is kept away by a lease of nobody:
--                      worker_id '__retry__', batch_end NULL. Pops see a lease; no caller may act as that worker; it just expires.
--   batch_retry_count  retry budget spent, charged only by an explicit failed ack
--   attempt_offset, attempt_count
--                      first offset of the batch and how often it was delivered; what a queue's max_deliveries limits
--   isolate_end        messages up to here lay in a batch whose lease ran out: a queue with max_deliveries delivers them one by one,
--                      so that the one that ends its consumers is found and its neighbours are not charged for it
-- The partial index serves lease renewal, which knows only the worker.
CREATE TABLE IF NOT EXISTS queen.log_consumers (
    partition_id      UUID NOT NULL REFERENCES queen.log_partitions (id) ON DELETE CASCADE,
    consumer_group    TEXT NOT NULL DEFAULT '__QUEUE_MODE__',
    committed         BIGINT NOT NULL DEFAULT -1,
    batch_end         BIGINT,
    worker_id         TEXT,
    lease_expires_at  TIMESTAMPTZ,
    lease_acquired_at TIMESTAMPTZ,
    batch_retry_count INTEGER NOT NULL DEFAULT 0,
    attempt_offset    BIGINT,
    attempt_count     INTEGER NOT NULL DEFAULT 0,
    total_consumed    BIGINT NOT NULL DEFAULT 0,
    created_at        TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (partition_id, consumer_group)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500,
        autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
DO $$ BEGIN
    IF NOT EXISTS (SELECT 1 FROM pg_catalog.pg_attribute
                    WHERE attrelid = 'queen.log_consumers'::regclass AND attname = 'isolate_end' AND NOT attisdropped) THEN
        ALTER TABLE queen.log_consumers ADD COLUMN isolate_end BIGINT;
    END IF;
    IF to_regclass('queen.idx_log_consumers_worker') IS NULL THEN
        CREATE INDEX idx_log_consumers_worker ON queen.log_consumers (worker_id) WHERE worker_id IS NOT NULL;
    END IF;
END $$;

-- queen.log_traced: where the messages of a trace lie. Only frames that carry a trace id have a row, written in the push
-- transaction. No foreign key: retention, partition cleanup and queue delete remove the rows of what they delete.
CREATE TABLE IF NOT EXISTS queen.log_traced (
    trace_id     UUID NOT NULL,
    partition_id UUID NOT NULL,
    "offset"     BIGINT NOT NULL,
    created_at   TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (trace_id, partition_id, "offset")
);
DO $$ BEGIN
    IF to_regclass('queen.idx_log_traced_partition_offset') IS NULL THEN
        CREATE INDEX idx_log_traced_partition_offset ON queen.log_traced (partition_id, "offset");
    END IF;
END $$;

-- log_unnest_hashes: the 16-byte strides of a blob as rows.
--   idx counts from 0 in blob order. An empty or NULL blob gives no rows; a remainder shorter than 16 bytes is not returned.
-- Inlined by the planner. A caller that reads a stored column detaches it first (hashes || '' behind OFFSET 0), or every
-- stride of a value moved out of line is fetched by itself.
CREATE OR REPLACE FUNCTION queen.log_unnest_hashes(p BYTEA)
RETURNS TABLE (idx INT, h BYTEA)
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT g.i, substring(p FROM g.i * 16 + 1 FOR 16)
      FROM pg_catalog.generate_series(0, pg_catalog.octet_length(p) / 16 - 1) AS g(i)
$$;

-- iso_us_v1, iso_ms_v1: a timestamp as UTC text with a literal Z and 6 or 3 fraction digits, whatever the session's time zone.
-- NULL gives NULL. STABLE like to_char itself: an IMMUTABLE declaration would keep the planner from inlining them.
-- Locks: none.
CREATE OR REPLACE FUNCTION queen.iso_us_v1(p TIMESTAMPTZ)
RETURNS TEXT
LANGUAGE sql STABLE PARALLEL SAFE
AS $$ SELECT pg_catalog.to_char(p AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') $$;

CREATE OR REPLACE FUNCTION queen.iso_ms_v1(p TIMESTAMPTZ)
RETURNS TEXT
LANGUAGE sql STABLE PARALLEL SAFE
AS $$ SELECT pg_catalog.to_char(p AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') $$;

GRANT EXECUTE ON FUNCTION queen.log_unnest_hashes(BYTEA) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.iso_us_v1(TIMESTAMPTZ) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.iso_ms_v1(TIMESTAMPTZ) TO PUBLIC;
