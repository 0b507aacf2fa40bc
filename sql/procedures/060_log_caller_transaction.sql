-- Pushes and acknowledgments inside a transaction of the caller's own, beside the caller's own rows: what a program without a
-- broker in between calls. The functions check what a broker would, because nothing else stands between them and the tables.
--
-- They run with the rights of the schema's owner and are granted to nobody: a role that gets EXECUTE on them, and USAGE on the schema,
-- needs nothing else, and can push to and read from every queue of every tenant.
--
-- Lock order. A transaction must not push after it has acknowledged: partitions come before consumer rows (005), and whoever takes them
-- the other way round deadlocks with brokers. log_caller_ack_v1 leaves a mark in the transaction, by which log_caller_push_v1 refuses.

-- log_caller_hint_v1: wake the pops that wait at brokers, in the format of internal/mesh. It takes effect when the caller commits.
--   p_queues, p_partitions  parallel arrays
-- A payload is at most 8,000 bytes: beyond, queues stand for their partitions, and beyond that nothing is told; brokers find it by
-- looking. Commits that notify wait for each other: see 050.
-- Locks: PostgreSQL's own for notifications, at commit. Called by: log_caller_push_v1, log_caller_ack_v1.
CREATE OR REPLACE FUNCTION queen.log_caller_hint_v1(p_tenant UUID, p_queues TEXT[], p_partitions TEXT[])
RETURNS VOID
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    c_most  CONSTANT INT := 7900;
    v_head  JSONB := jsonb_build_object('v', 1, 's', 'pgtx', 'b', '00000000-0000-0000-0000-000000000000', 't', 'm');
    v_owner JSONB := CASE WHEN p_tenant = '00000000-0000-0000-0000-000000000001' THEN '{}'::JSONB ELSE jsonb_build_object('t', p_tenant) END;
    v_text  TEXT;
BEGIN
    SELECT (v_head || jsonb_build_object('i', jsonb_agg(v_owner || jsonb_build_object('q', x.queue, 'p', x.names) ORDER BY x.queue)))::TEXT
      INTO v_text
      FROM (SELECT s.queue, jsonb_agg(DISTINCT s.part) AS names FROM unnest(p_queues, p_partitions) AS s(queue, part) GROUP BY s.queue) x;
    IF octet_length(v_text) > c_most THEN
        SELECT (v_head || jsonb_build_object('i', jsonb_agg(v_owner || jsonb_build_object('q', x.queue) ORDER BY x.queue)))::TEXT
          INTO v_text
          FROM (SELECT DISTINCT s.queue FROM unnest(p_queues) AS s(queue)) x;
    END IF;
    IF octet_length(v_text) <= c_most THEN
        PERFORM pg_notify('queen_mesh', v_text);
    END IF;
END $$;

-- log_caller_push_v1: store messages in the caller's transaction, one segment per element, at most one per partition.
--   p_queues .. p_blobs  parallel arrays, as in log_push_multi_v1
--   p_plain              which segments hold plain payloads
--   p_traces             as in log_push_multi_v1
--   p_seals              the caller can encrypt: it gets the verdict 'config' and sends the segment again; otherwise an exception
--   p_hint               wake waiting pops at commit
-- Returns the verdicts of log_push_multi_v1, without 'full'. 'duplicate', 'config' and 'held' wrote nothing of their segment: the
-- caller sends them again, without the duplicates.
-- Raises, and so ends the caller's transaction: QUEUE_FULL (53400), and QCALL with SQLSTATE QU005 push after ack, QU006 encryption without a key,
-- QU007 pushes in maintenance, QU008 bounded queue under snapshot isolation, whose depth is that of the snapshot; and what
-- log_push_core_v1 raises.
-- Locks: as log_push_multi_v1, held until the caller commits. Called by: queen/pgtx.
CREATE OR REPLACE FUNCTION queen.log_caller_push_v1(
    p_tenant UUID, p_queues TEXT[], p_partitions TEXT[], p_counts INT[], p_hashes BYTEA[], p_blobs BYTEA[], p_plain BOOLEAN[], p_traces JSONB,
    p_seals BOOLEAN, p_hint BOOLEAN)
RETURNS JSONB
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_n        INT := COALESCE(cardinality(p_queues), 0);
    v_verdicts JSONB;
    v_bad      RECORD;
BEGIN
    IF current_setting('queen.caller_acked', TRUE) = 'yes' THEN
        RAISE EXCEPTION 'QCALL push after an acknowledgment in one transaction: push first, then acknowledge' USING ERRCODE = 'QU005';
    END IF;
    IF EXISTS (SELECT 1 FROM queen.system_state s WHERE s.key = 'maintenance_mode' AND s.value ->> 'enabled' = 'true') THEN
        RAISE EXCEPTION 'QCALL pushes are switched off for maintenance' USING ERRCODE = 'QU007';
    END IF;
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') AND EXISTS (
        SELECT 1 FROM unnest(p_queues) AS s(queue) JOIN queen.queues q ON q.tenant_id = p_tenant AND q.name = s.queue WHERE q.max_queue_size > 0) THEN
        RAISE EXCEPTION 'QCALL a queue with a maxSize takes pushes at READ COMMITTED only' USING ERRCODE = 'QU008';
    END IF;
    v_verdicts := queen.log_push_multi_v1(p_queues, p_partitions, p_counts, p_hashes, array_fill(-1::INT8, ARRAY[v_n]), p_blobs,
                                          array_fill(p_tenant, ARRAY[v_n]), p_plain, FALSE, p_traces);
    SELECT v.value ->> 'status' AS status, p_queues[v.ord] AS queue, v.value ->> 'limit' AS lim INTO v_bad
      FROM jsonb_array_elements(v_verdicts) WITH ORDINALITY AS v (value, ord)
     WHERE v.value ->> 'status' = 'full' OR v.value ->> 'status' = 'config' AND NOT p_seals
     ORDER BY v.value ->> 'status' DESC, v.ord LIMIT 1;
    IF v_bad.status = 'full' THEN
        RAISE EXCEPTION 'QUEUE_FULL queue "%" is full (maxSize %)', v_bad.queue, v_bad.lim USING ERRCODE = '53400';
    ELSIF v_bad.status = 'config' THEN
        RAISE EXCEPTION 'QCALL queue "%" is encrypted and no key was given', v_bad.queue USING ERRCODE = 'QU006';
    END IF;
    IF p_hint THEN
        PERFORM queen.log_caller_hint_v1(p_tenant, p_queues, p_partitions);
    END IF;
    RETURN v_verdicts;
END $$;

-- log_caller_ack_v1: complete messages in the caller's transaction.
--   p_partitions, p_groups, p_leases  parallel arrays; every lease must be named and live
--   p_hashes                          per element the concatenated 16-byte hashes of the transaction ids of its messages
--   p_hint                            wake waiting pops at commit
-- All of it takes effect, or it raises QCALL and so ends the caller's transaction: QU009 the lease is lost, a message is not part of it or
-- was completed before - what the caller did for it must not be committed a second time; QU004 not this tenant's partition.
-- Returns how many leases it ended.
-- Locks: consumer rows ascending (partition_id, consumer_group), held until the caller commits: nobody takes the messages over
-- meanwhile, even when the lease ends. Called by: queen/pgtx.
CREATE OR REPLACE FUNCTION queen.log_caller_ack_v1(
    p_tenant UUID, p_partitions UUID[], p_groups TEXT[], p_leases TEXT[], p_hashes BYTEA[], p_hint BOOLEAN)
RETURNS INT
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_ack      RECORD;
    v_result   JSONB;
    v_reason   TEXT;
    v_released INT := 0;
    v_queues   TEXT[] := '{}'::TEXT[];
    v_names    TEXT[] := '{}'::TEXT[];
BEGIN
    IF cardinality(p_groups) IS DISTINCT FROM cardinality(p_partitions) OR cardinality(p_leases) IS DISTINCT FROM cardinality(p_partitions)
       OR cardinality(p_hashes) IS DISTINCT FROM cardinality(p_partitions) THEN
        RAISE EXCEPTION 'QCALL misaligned arrays (% partitions)', cardinality(p_partitions) USING ERRCODE = 'QU003';
    END IF;
    PERFORM set_config('queen.caller_acked', 'yes', TRUE);
    FOR v_ack IN
        SELECT a.pid, COALESCE(NULLIF(a.grp, ''), '__QUEUE_MODE__') AS grp, a.lease, a.h, q.name AS queue, lp.name AS part
          FROM unnest(p_partitions, p_groups, p_leases, p_hashes) AS a(pid, grp, lease, h)
          LEFT JOIN queen.log_partitions lp ON lp.id = a.pid
          LEFT JOIN queen.queues q ON q.id = lp.queue_id AND q.tenant_id = p_tenant
         ORDER BY a.pid, 2  -- global lock order
    LOOP
        IF v_ack.queue IS NULL THEN
            RAISE EXCEPTION 'QCALL partition % is not owned by this tenant', v_ack.pid USING ERRCODE = 'QU004';
        END IF;
        v_result := NULL;
        v_reason := NULL;
        IF COALESCE(v_ack.lease, '') = '' THEN
            v_reason := 'no lease was named';
        ELSE
            v_result := queen.log_ack_by_hash_v1(v_ack.pid, v_ack.grp, v_ack.lease,
                ARRAY(SELECT u.h FROM queen.log_unnest_hashes(v_ack.h) u ORDER BY u.idx), NULL);
            IF NOT COALESCE((v_result ->> 'ok')::BOOLEAN, FALSE) THEN
                v_reason := COALESCE(v_result ->> 'error', 'ack rejected');
            ELSIF jsonb_array_length(v_result -> 'noopHashes') > 0 THEN
                v_reason := 'a message was completed before';
            ELSIF jsonb_array_length(v_result -> 'unresolvedHashes') > 0 THEN
                v_reason := 'a message is not part of the leased batch';
            END IF;
        END IF;
        IF v_reason IS NOT NULL THEN
            RAISE EXCEPTION 'QCALL ack failed for partition % group "%": %', v_ack.pid, v_ack.grp, v_reason USING ERRCODE = 'QU009';
        END IF;
        IF (v_result ->> 'leaseReleased')::BOOLEAN THEN
            v_released := v_released + 1;
            v_queues := v_queues || v_ack.queue::TEXT;
            v_names := v_names || v_ack.part;
        END IF;
    END LOOP;
    IF p_hint AND v_released > 0 THEN
        PERFORM queen.log_caller_hint_v1(p_tenant, v_queues, v_names);
    END IF;
    RETURN v_released;
END $$;

-- log_caller_pop_v1: claim messages without a broker.
--   p_queue      NULL pops by p_namespace and p_task
--   p_partition  NULL takes any
--   the rest     as in log_pop_wildcard_bin_v1
-- Returns one row (030). Nothing while pops are in maintenance.
-- Locks: as the pops of 004 and 030. Called by: queen/pgtx.
CREATE OR REPLACE FUNCTION queen.log_caller_pop_v1(
    p_tenant UUID, p_queue TEXT, p_partition TEXT, p_namespace TEXT, p_task TEXT, p_group TEXT, p_budget INTEGER, p_lease_seconds INTEGER,
    p_worker TEXT, p_max_partitions INTEGER, p_sub_mode TEXT, p_sub_from TEXT)
RETURNS TABLE (meta JSONB, blobs BYTEA[])
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM queen.system_state s WHERE s.key = 'pop_maintenance_mode' AND s.value ->> 'enabled' = 'true') THEN
        meta := '{"partitions":[]}';
        blobs := '{}';
        RETURN NEXT;
    ELSIF p_queue IS NULL THEN
        RETURN QUERY SELECT c.meta, c.blobs FROM queen.log_pop_discover_bin_v1(p_namespace, p_task, p_group, p_budget, p_lease_seconds, p_worker, FALSE,
            p_max_partitions, p_sub_mode, p_sub_from, p_tenant) c;
    ELSIF p_partition IS NOT NULL THEN
        RETURN QUERY SELECT c.meta, c.blobs FROM queen.log_pop_specific_bin_v1(p_queue, p_partition, p_group, p_budget, p_lease_seconds, p_worker, FALSE,
            p_sub_mode, p_sub_from, p_tenant) c;
    ELSE
        RETURN QUERY SELECT c.meta, c.blobs FROM queen.log_pop_wildcard_bin_v1(p_queue, p_group, p_budget, p_lease_seconds, p_worker, FALSE,
            p_max_partitions, p_sub_mode, p_sub_from, p_tenant) c;
    END IF;
END $$;

-- log_caller_extend_v1: lengthen every live lease of one pop, as log_renew_lease_v1 does, when it is the tenant's.
-- Returns the smallest new expiry, NULL when nothing was live.
-- Locks: as log_renew_lease_v1. Called by: queen/pgtx.
CREATE OR REPLACE FUNCTION queen.log_caller_extend_v1(p_tenant UUID, p_worker TEXT, p_seconds INTEGER)
RETURNS TIMESTAMPTZ
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM queen.log_consumers c JOIN queen.log_partitions lp ON lp.id = c.partition_id JOIN queen.queues q ON q.id = lp.queue_id
                    WHERE c.worker_id = p_worker AND c.lease_expires_at > clock_timestamp() AND q.tenant_id = p_tenant) THEN
        RETURN NULL;
    END IF;
    RETURN (queen.log_renew_lease_v1(p_worker, p_seconds) ->> 'expiresAt')::TIMESTAMPTZ;
END $$;

REVOKE ALL ON FUNCTION queen.log_caller_hint_v1(UUID, TEXT[], TEXT[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION queen.log_caller_push_v1(UUID, TEXT[], TEXT[], INT[], BYTEA[], BYTEA[], BOOLEAN[], JSONB, BOOLEAN, BOOLEAN) FROM PUBLIC;
REVOKE ALL ON FUNCTION queen.log_caller_ack_v1(UUID, UUID[], TEXT[], TEXT[], BYTEA[], BOOLEAN) FROM PUBLIC;
REVOKE ALL ON FUNCTION queen.log_caller_pop_v1(UUID, TEXT, TEXT, TEXT, TEXT, TEXT, INTEGER, INTEGER, TEXT, INTEGER, TEXT, TEXT) FROM PUBLIC;
REVOKE ALL ON FUNCTION queen.log_caller_extend_v1(UUID, TEXT, INTEGER) FROM PUBLIC;
