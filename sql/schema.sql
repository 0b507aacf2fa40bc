-- The schema of Queen: shared tables. Applied first, at every boot; it only creates and may be applied any number of times.
--
-- CREATE TABLE IF NOT EXISTS looks the name up without a lock on the table, CREATE INDEX IF NOT EXISTS does not: it takes a
-- SHARE lock first, waits behind every open write and makes new writes wait behind itself. So secondary indexes are created
-- inside blocks that look in the catalogue before they touch the table.
CREATE SCHEMA IF NOT EXISTS queen;

-- queen.queues: one row per queue, the queue identity everywhere.
--   Created by the first push, /configure, the transaction wire, a streams sink, and a wildcard pop on an unknown name.
--   namespace, task: from the dotted name on implicit creation (text before the first dot; text between the first and second).
--   lease_time, ttl, delayed_processing, window_buffer, *_seconds: seconds. retry_delay, min_pop_wait_time, redelivery_delay_ms: ms.
--   max_queue_size: most unconsumed messages; 0 is unlimited. dedup_window_seconds: 0 turns the duplicate probe off.
--   Dead-lettering is on when either of dead_letter_queue and dlq_after_max_retries is true.
--   dlq_retention_seconds, redelivery_delay_ms, max_deliveries: 0 is off.
CREATE TABLE IF NOT EXISTS queen.queues (
    id                          UUID PRIMARY KEY DEFAULT gen_random_uuid(),
    name                        VARCHAR(255) NOT NULL,
    tenant_id                   UUID NOT NULL DEFAULT '00000000-0000-0000-0000-000000000001',
    namespace                   VARCHAR(255),
    task                        VARCHAR(255),
    priority                    INTEGER DEFAULT 0,
    lease_time                  INTEGER DEFAULT 60,
    retry_limit                 INTEGER DEFAULT 3,
    retry_delay                 INTEGER DEFAULT 1000,
    ttl                         INTEGER DEFAULT 3600,
    dead_letter_queue           BOOLEAN DEFAULT TRUE,
    dlq_after_max_retries       BOOLEAN DEFAULT TRUE,
    delayed_processing          INTEGER DEFAULT 0,
    window_buffer               INTEGER DEFAULT 0,
    retention_seconds           INTEGER DEFAULT 0,
    completed_retention_seconds INTEGER DEFAULT 0,
    retention_enabled           BOOLEAN DEFAULT FALSE,
    encryption_enabled          BOOLEAN DEFAULT FALSE,
    max_wait_time_seconds       INTEGER DEFAULT 0,
    max_queue_size              INTEGER DEFAULT 0,
    min_pop_wait_time           INTEGER DEFAULT 0,
    dedup_window_seconds        INTEGER NOT NULL DEFAULT 3600,
    created_at                  TIMESTAMPTZ DEFAULT now(),
    dlq_retention_seconds       INTEGER NOT NULL DEFAULT 0,
    redelivery_delay_ms         INTEGER NOT NULL DEFAULT 0,
    max_deliveries              INTEGER NOT NULL DEFAULT 0
);
DO $$ BEGIN
    IF to_regclass('queen.queues_tenant_name_uk') IS NULL THEN
        CREATE UNIQUE INDEX queues_tenant_name_uk ON queen.queues (tenant_id, name);
    END IF;
    IF to_regclass('queen.idx_queues_name') IS NULL THEN
        CREATE INDEX idx_queues_name ON queen.queues (name);
    END IF;
END $$;

-- queen.consumer_groups_metadata: durable subscription record of a group, and the marker whose first insertion elects the one
-- transaction that seeds the group's cursors. queue_id is NULL for namespace and task discovery.
--   subscription_mode: all | new | timestamp; 'all' stores the epoch as its timestamp.
CREATE TABLE IF NOT EXISTS queen.consumer_groups_metadata (
    id                     UUID PRIMARY KEY DEFAULT gen_random_uuid(),
    tenant_id              UUID NOT NULL DEFAULT '00000000-0000-0000-0000-000000000001',
    consumer_group         TEXT NOT NULL,
    queue_id               UUID REFERENCES queen.queues (id) ON DELETE CASCADE,
    partition_name         TEXT NOT NULL DEFAULT '',
    namespace              TEXT NOT NULL DEFAULT '',
    task                   TEXT NOT NULL DEFAULT '',
    subscription_mode      TEXT NOT NULL,
    subscription_timestamp TIMESTAMPTZ NOT NULL,
    created_at             TIMESTAMPTZ NOT NULL DEFAULT now()
);
DO $$ BEGIN
    IF to_regclass('queen.cgm_identity_uk') IS NULL THEN
        CREATE UNIQUE INDEX cgm_identity_uk ON queen.consumer_groups_metadata
            (tenant_id, consumer_group, queue_id, partition_name, namespace, task) NULLS NOT DISTINCT;
    END IF;
    IF to_regclass('queen.idx_cgm_queue') IS NULL THEN
        CREATE INDEX idx_cgm_queue ON queen.consumer_groups_metadata (queue_id);
    END IF;
END $$;

-- queen.consumer_watermarks: per (queue, group), the floor of the candidate scan and when emptiness was last verified.
CREATE TABLE IF NOT EXISTS queen.consumer_watermarks (
    queue_id           UUID NOT NULL REFERENCES queen.queues (id) ON DELETE CASCADE,
    consumer_group     VARCHAR(255) NOT NULL DEFAULT '__QUEUE_MODE__',
    last_empty_scan_at TIMESTAMPTZ NOT NULL DEFAULT '1970-01-01 00:00:00+00',
    updated_at         TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (queue_id, consumer_group)
);

-- queen.settled: one row. Of the transactions that had begun to write before "at" none is under way any more; the same holds of next_at once
-- none below next_xid is. See log_settled_at_v1.
CREATE TABLE IF NOT EXISTS queen.settled (
    one      BOOLEAN PRIMARY KEY DEFAULT TRUE CHECK (one),
    at       TIMESTAMPTZ NOT NULL DEFAULT '-infinity',
    next_at  TIMESTAMPTZ NOT NULL DEFAULT '-infinity',
    next_xid XID8 NOT NULL DEFAULT '0'
);
INSERT INTO queen.settled DEFAULT VALUES ON CONFLICT DO NOTHING;

-- queen.retention_history: one audit row per step that deleted something. partition_id has no foreign key: the row outlives it.
--   retention_type: retention | completed_retention | max_wait_time_eviction | __partition_deleted__ (an event, not messages).
CREATE TABLE IF NOT EXISTS queen.retention_history (
    id               UUID PRIMARY KEY DEFAULT gen_random_uuid(),
    partition_id     UUID,
    messages_deleted INTEGER DEFAULT 0,
    retention_type   VARCHAR(50),
    executed_at      TIMESTAMPTZ DEFAULT now()
);
DO $$ BEGIN
    IF to_regclass('queen.idx_retention_history_partition') IS NULL THEN
        CREATE INDEX idx_retention_history_partition ON queen.retention_history (partition_id);
    END IF;
    IF to_regclass('queen.idx_retention_history_executed') IS NULL THEN
        CREATE INDEX idx_retention_history_executed ON queen.retention_history (executed_at);
    END IF;
END $$;

-- queen.system_metrics: one row per broker process and minute, written by the metrics collector.
CREATE TABLE IF NOT EXISTS queen.system_metrics (
    id           UUID PRIMARY KEY DEFAULT gen_random_uuid(),
    timestamp    TIMESTAMPTZ NOT NULL,
    hostname     TEXT NOT NULL,
    port         INTEGER NOT NULL,
    worker_id    TEXT NOT NULL,
    sample_count INTEGER NOT NULL DEFAULT 60,
    metrics      JSONB NOT NULL,
    CONSTRAINT unique_metric_per_replica UNIQUE (timestamp, hostname, port, worker_id)
);
DO $$ BEGIN
    IF to_regclass('queen.idx_system_metrics_timestamp') IS NULL THEN
        CREATE INDEX idx_system_metrics_timestamp ON queen.system_metrics (timestamp DESC);
    END IF;
    IF to_regclass('queen.idx_system_metrics_replica') IS NULL THEN
        CREATE INDEX idx_system_metrics_replica ON queen.system_metrics (hostname, port);
    END IF;
    IF to_regclass('queen.idx_system_metrics_worker') IS NULL THEN
        CREATE INDEX idx_system_metrics_worker ON queen.system_metrics (worker_id);
    END IF;
    IF to_regclass('queen.idx_system_metrics_metrics') IS NULL THEN
        CREATE INDEX idx_system_metrics_metrics ON queen.system_metrics USING gin (metrics);
    END IF;
END $$;

-- queen.message_traces, queen.message_trace_names: what clients recorded about a message. Ids carry no foreign key: a trace
-- outlives the segment it describes. message_id is always NULL on this engine. encrypted: data is an envelope.
CREATE TABLE IF NOT EXISTS queen.message_traces (
    id             UUID PRIMARY KEY DEFAULT gen_random_uuid(),
    message_id     UUID,
    partition_id   UUID,
    transaction_id VARCHAR(255) NOT NULL,
    consumer_group VARCHAR(255),
    event_type     VARCHAR(100),
    data           JSONB NOT NULL,
    created_at     TIMESTAMPTZ DEFAULT now(),
    worker_id      VARCHAR(255)
);
CREATE TABLE IF NOT EXISTS queen.message_trace_names (
    trace_id   UUID NOT NULL REFERENCES queen.message_traces (id) ON DELETE CASCADE,
    trace_name TEXT NOT NULL,
    PRIMARY KEY (trace_id, trace_name)
);
DO $$ BEGIN
    IF NOT EXISTS (SELECT 1 FROM pg_catalog.pg_attribute
                    WHERE attrelid = 'queen.message_traces'::regclass AND attname = 'encrypted' AND NOT attisdropped) THEN
        ALTER TABLE queen.message_traces ADD COLUMN encrypted BOOLEAN NOT NULL DEFAULT FALSE;
    END IF;
    IF to_regclass('queen.idx_message_traces_message_id') IS NULL THEN
        CREATE INDEX idx_message_traces_message_id ON queen.message_traces (message_id);
    END IF;
    IF to_regclass('queen.idx_message_traces_transaction_partition') IS NULL THEN
        CREATE INDEX idx_message_traces_transaction_partition ON queen.message_traces (transaction_id, partition_id);
    END IF;
    IF to_regclass('queen.idx_message_traces_created_at') IS NULL THEN
        CREATE INDEX idx_message_traces_created_at ON queen.message_traces (created_at DESC);
    END IF;
    IF to_regclass('queen.idx_message_traces_partition') IS NULL THEN
        CREATE INDEX idx_message_traces_partition ON queen.message_traces (partition_id);
    END IF;
    IF to_regclass('queen.idx_message_trace_names_name') IS NULL THEN
        CREATE INDEX idx_message_trace_names_name ON queen.message_trace_names (trace_name);
    END IF;
    IF to_regclass('queen.idx_message_trace_names_trace_id') IS NULL THEN
        CREATE INDEX idx_message_trace_names_trace_id ON queen.message_trace_names (trace_id);
    END IF;
END $$;

-- queen.system_state: cluster-wide flags. Keys maintenance_mode and pop_maintenance_mode, value {"enabled": bool}; absent is false.
CREATE TABLE IF NOT EXISTS queen.system_state (
    key        TEXT PRIMARY KEY,
    value      JSONB NOT NULL,
    updated_at TIMESTAMPTZ DEFAULT now()
);

-- queen.stats: figures computed by the stats reconciler. stat_key is queues.id as text for 'queue', the namespace or task text
-- for those, 'global' for 'system'. Few rows, rewritten every few seconds: hence the low fillfactor and the eager vacuum.
CREATE TABLE IF NOT EXISTS queen.stats (
    stat_type               VARCHAR(20) NOT NULL,
    stat_key                VARCHAR(512) NOT NULL,
    queue_id                UUID REFERENCES queen.queues (id) ON DELETE CASCADE,
    partition_id            UUID,
    consumer_group          VARCHAR(255) DEFAULT '__QUEUE_MODE__',
    child_count             INTEGER NOT NULL DEFAULT 0,
    total_messages          BIGINT NOT NULL DEFAULT 0,
    pending_messages        BIGINT NOT NULL DEFAULT 0,
    processing_messages     BIGINT NOT NULL DEFAULT 0,
    completed_messages      BIGINT NOT NULL DEFAULT 0,
    dead_letter_messages    BIGINT NOT NULL DEFAULT 0,
    retained_bytes          BIGINT NOT NULL DEFAULT 0,
    oldest_pending_at       TIMESTAMPTZ,
    newest_message_at       TIMESTAMPTZ,
    avg_lag_seconds         INTEGER DEFAULT 0,
    max_lag_seconds         INTEGER DEFAULT 0,
    median_lag_seconds      INTEGER DEFAULT 0,
    avg_offset_lag          INTEGER DEFAULT 0,
    max_offset_lag          INTEGER DEFAULT 0,
    ingested_per_second     NUMERIC(10,2) DEFAULT 0,
    processed_per_second    NUMERIC(10,2) DEFAULT 0,
    prev_total_messages     BIGINT DEFAULT 0,
    prev_completed_messages BIGINT DEFAULT 0,
    prev_snapshot_at        TIMESTAMPTZ,
    last_scanned_at         TIMESTAMPTZ,
    last_scanned_message_id UUID,
    last_computed_at        TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (stat_type, stat_key)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 50, autovacuum_vacuum_cost_delay = 0);
DO $$ BEGIN
    IF to_regclass('queen.idx_stats_type') IS NULL THEN
        CREATE INDEX idx_stats_type ON queen.stats (stat_type);
    END IF;
    IF to_regclass('queen.idx_stats_queue') IS NULL THEN
        CREATE INDEX idx_stats_queue ON queen.stats (queue_id) WHERE queue_id IS NOT NULL;
    END IF;
    IF to_regclass('queen.idx_stats_partition') IS NULL THEN
        CREATE INDEX idx_stats_partition ON queen.stats (partition_id) WHERE partition_id IS NOT NULL;
    END IF;
    IF to_regclass('queen.idx_stats_computed') IS NULL THEN
        CREATE INDEX idx_stats_computed ON queen.stats (last_computed_at);
    END IF;
END $$;

-- queen.stats_history: kept for the shape that readers of the catalogue expect; nothing writes it.
CREATE TABLE IF NOT EXISTS queen.stats_history (
    stat_type            VARCHAR(20) NOT NULL,
    stat_key             VARCHAR(512) NOT NULL,
    bucket_time          TIMESTAMPTZ NOT NULL,
    total_messages       BIGINT NOT NULL DEFAULT 0,
    pending_messages     BIGINT NOT NULL DEFAULT 0,
    processing_messages  BIGINT NOT NULL DEFAULT 0,
    completed_messages   BIGINT NOT NULL DEFAULT 0,
    dead_letter_messages BIGINT NOT NULL DEFAULT 0,
    messages_ingested    BIGINT NOT NULL DEFAULT 0,
    messages_processed   BIGINT NOT NULL DEFAULT 0,
    max_lag_seconds      INTEGER DEFAULT 0,
    PRIMARY KEY (stat_type, stat_key, bucket_time)
);
