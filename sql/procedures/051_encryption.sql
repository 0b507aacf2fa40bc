-- Encryption at rest: the keys in use, and the progress of putting what is stored under another key.

-- queen.encryption_keys: the keys that brokers of this database encrypt with.
--   id       tells keys apart without telling anything about them: 8 hexadecimal digits
--   used_at  when a broker last said that it encrypts with it, at least every minute
-- A broker that lacks one of these keys does not start, and what it cannot open is a key that it lacks, not a broken message.
CREATE TABLE IF NOT EXISTS queen.encryption_keys (
    id         TEXT PRIMARY KEY,
    created_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    used_at    TIMESTAMPTZ NOT NULL DEFAULT now()
);

-- queen.key_rotations: how far re-encryption under a key has come. One row per key; work goes through what is stored in four stages,
-- segments, letters (dead letters), traces and states (of streaming queries), in the order of their primary keys; states by their names.
--   after_id, after_offset  the last row done in the stage
--   seen, changed           rows read, and rows written again; payloads: re-encrypted; unreadable: payloads that no key opened
CREATE TABLE IF NOT EXISTS queen.key_rotations (
    key_id       TEXT PRIMARY KEY,
    stage        TEXT NOT NULL DEFAULT 'segments',
    after_id     UUID NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
    after_offset BIGINT NOT NULL DEFAULT -1,
    seen         BIGINT NOT NULL DEFAULT 0,
    changed      BIGINT NOT NULL DEFAULT 0,
    payloads     BIGINT NOT NULL DEFAULT 0,
    unreadable   BIGINT NOT NULL DEFAULT 0,
    started_at   TIMESTAMPTZ NOT NULL DEFAULT now(),
    updated_at   TIMESTAMPTZ NOT NULL DEFAULT now()
);

-- encryption_key_used_v1: note that the caller encrypts with p_active, and tell it which keys of the database it lacks.
--   p_ring  the ids of all its keys, p_active among them; '' as p_active notes nothing
-- Returns the ids that are in use and not in p_ring, ascending. Locks: one encryption_keys row. Called by: pg.UseEncryptionKey.
CREATE OR REPLACE FUNCTION queen.encryption_key_used_v1(p_active TEXT, p_ring TEXT[])
RETURNS TEXT[]
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    IF p_active <> '' THEN
        INSERT INTO queen.encryption_keys AS k (id) VALUES (p_active)
        ON CONFLICT (id) DO UPDATE SET used_at = clock_timestamp();
    END IF;
    RETURN ARRAY(SELECT k.id FROM queen.encryption_keys k WHERE k.id <> ALL (p_ring) ORDER BY k.id);
END $$;

-- encryption_key_retire_v1: forget a key under which nothing is stored any more. Refused while a broker encrypts with it: one did within
-- the last five minutes. Returns whether it is forgotten; an unknown one is. Locks: its row. Called by: pg.RetireEncryptionKey.
CREATE OR REPLACE FUNCTION queen.encryption_key_retire_v1(p_id TEXT)
RETURNS BOOLEAN
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    DELETE FROM queen.encryption_keys k WHERE k.id = p_id AND k.used_at < clock_timestamp() - interval '5 minutes';
    RETURN NOT EXISTS (SELECT 1 FROM queen.encryption_keys k WHERE k.id = p_id);
END $$;

-- rekey_segments_v1: segments behind (p_after_id, p_after_offset) in the order of the primary key, some 16 MiB of them, at least one.
-- Returns id (the partition's), off (the base offset), blob. Locks: none. Called by: pg.SealedSegments.
CREATE OR REPLACE FUNCTION queen.rekey_segments_v1(p_after_id UUID, p_after_offset BIGINT, p_limit INTEGER)
RETURNS TABLE (id UUID, off BIGINT, blob BYTEA)
LANGUAGE sql STABLE
SET enable_seqscan = off
AS $$
    SELECT y.partition_id, y.base_offset, y.blob
      FROM (SELECT x.*, sum(octet_length(x.blob)) OVER (ORDER BY x.partition_id, x.base_offset) - octet_length(x.blob) AS before
              FROM (SELECT s.partition_id, s.base_offset, s.blob
                      FROM queen.log_segments s
                     WHERE (s.partition_id, s.base_offset) > (p_after_id, p_after_offset)
                     ORDER BY s.partition_id, s.base_offset
                     LIMIT p_limit) x) y
     WHERE y.before < 16777216
     ORDER BY y.partition_id, y.base_offset
$$;

-- rekey_store_segments_v1: put segments back, each with the same messages. One that retention took meanwhile stays away, and one that
-- somebody else changed stays as it is: p_was is what was read.
-- Returns how many were written. Locks: the log_segments rows, ascending by primary key, and nothing else: retention, which holds a
-- partition while it deletes segments in the same order, waits for one batch at most. Called by: pg.StoreResealed.
CREATE OR REPLACE FUNCTION queen.rekey_store_segments_v1(p_ids UUID[], p_offs BIGINT[], p_was BYTEA[], p_blobs BYTEA[])
RETURNS BIGINT
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_rows BIGINT;
BEGIN
    PERFORM 1
       FROM unnest(p_ids, p_offs) AS u (id, off)
       JOIN queen.log_segments s ON s.partition_id = u.id AND s.base_offset = u.off
      ORDER BY s.partition_id, s.base_offset
        FOR UPDATE OF s;
    UPDATE queen.log_segments s
       SET blob = u.blob
      FROM unnest(p_ids, p_offs, p_was, p_blobs) AS u (id, off, was, blob)
     WHERE s.partition_id = u.id AND s.base_offset = u.off AND s.blob = u.was;
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    RETURN v_rows;
END $$;

GRANT EXECUTE ON FUNCTION queen.encryption_key_used_v1(TEXT, TEXT[]) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.encryption_key_retire_v1(TEXT) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.rekey_segments_v1(UUID, BIGINT, INTEGER) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.rekey_store_segments_v1(UUID[], BIGINT[], BYTEA[], BYTEA[]) TO PUBLIC;
