-- Leases: who holds what, for how long, and taking one back. A redelivery that waits for its time ('__retry__') is nobody's lease and
-- is not listed.

-- lease_list_v1: the leases of a tenant.
--   p_filters  {"queue"?,"partition"?,"consumerGroup"?: exact,"expiringWithinSeconds"?: only leases that end within that time, soonest
--              first,"heldLongerThanSeconds"?: only leases held longer (renewed again and again), longest first,"abandoned"?: true lists
--              batches whose lease ran out and that nobody has taken since, instead of live ones,"minAttempts"?: batches, held or
--              abandoned, that were delivered at least so often, the most often first,"limit"? = 100,"offset"? = 0,"_tenant"?}
-- Returns {"leases":[{"queue","partition","partitionId","consumerGroup","leaseId","acquiredAt","leaseExpiresAt":ISO-ms,
-- "secondsRemaining","heldSeconds":1 decimal,"messageCount":batch_end - committed,"batchRetryCount","attemptCount"}],"total":all of
-- them,"abandoned":batches of the tenant whose lease ran out,"pagination"}; ordered by queue, partition, group unless a filter says
-- otherwise. A growing abandoned figure means that consumers die. Locks: none. Called by: pg.Leases.
CREATE OR REPLACE FUNCTION queen.lease_list_v1(p_filters JSONB DEFAULT '{}')
RETURNS JSONB
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    v_tenant    UUID := COALESCE(NULLIF(p_filters ->> '_tenant', '')::UUID, '00000000-0000-0000-0000-000000000001');
    v_limit     INT := GREATEST(COALESCE((p_filters ->> 'limit')::INT, 100), 0);
    v_offset    INT := GREATEST(COALESCE((p_filters ->> 'offset')::INT, 0), 0);
    v_within    FLOAT8 := (p_filters ->> 'expiringWithinSeconds')::FLOAT8;
    v_held      FLOAT8 := (p_filters ->> 'heldLongerThanSeconds')::FLOAT8;
    v_attempts  INT := (p_filters ->> 'minAttempts')::INT;
    v_abandoned BOOLEAN := COALESCE((p_filters ->> 'abandoned')::BOOLEAN, FALSE);
    v_now       TIMESTAMPTZ := clock_timestamp();
    v_result    JSONB;
BEGIN
    WITH held AS MATERIALIZED (
        SELECT q.name::TEXT AS queue, p.name AS partition, c.*, c.lease_expires_at > v_now AS live
          FROM queen.log_consumers c
          JOIN queen.log_partitions p ON p.id = c.partition_id
          JOIN queen.queues q ON q.id = p.queue_id
         WHERE c.worker_id <> '__retry__' AND c.lease_expires_at IS NOT NULL AND q.tenant_id = v_tenant
           AND (COALESCE(p_filters ->> 'queue', '') = '' OR q.name = p_filters ->> 'queue')
           AND (COALESCE(p_filters ->> 'partition', '') = '' OR p.name = p_filters ->> 'partition')
           AND (COALESCE(p_filters ->> 'consumerGroup', '') = '' OR c.consumer_group = p_filters ->> 'consumerGroup')),
    wanted AS MATERIALIZED (
        SELECT h.* FROM held h
         WHERE CASE WHEN v_attempts IS NULL THEN h.live <> v_abandoned ELSE h.attempt_count >= v_attempts END
           AND (h.live OR h.batch_end > h.committed)
           AND (v_within IS NULL OR h.lease_expires_at <= v_now + make_interval(secs => v_within))
           AND (v_held IS NULL OR h.lease_acquired_at < v_now - make_interval(secs => v_held))),
    page AS (
        SELECT w.*, row_number() OVER (ORDER BY -CASE WHEN v_attempts IS NOT NULL THEN w.attempt_count END,
                   CASE WHEN v_within IS NOT NULL THEN w.lease_expires_at WHEN v_held IS NOT NULL THEN w.lease_acquired_at END,
                   w.queue COLLATE "C", w.partition COLLATE "C", w.consumer_group COLLATE "C") AS ord
          FROM wanted w ORDER BY ord LIMIT v_limit OFFSET v_offset)
    SELECT jsonb_build_object(
               'leases', COALESCE(jsonb_agg(jsonb_build_object('queue', g.queue, 'partition', g.partition, 'partitionId', g.partition_id,
                   'consumerGroup', g.consumer_group, 'leaseId', g.worker_id, 'acquiredAt', queen.iso_ms_v1(g.lease_acquired_at),
                   'leaseExpiresAt', queen.iso_ms_v1(g.lease_expires_at),
                   'secondsRemaining', round(extract(epoch FROM g.lease_expires_at - v_now), 1),
                   'heldSeconds', round(extract(epoch FROM v_now - g.lease_acquired_at), 1),
                   'messageCount', GREATEST(g.batch_end - g.committed, 0), 'batchRetryCount', g.batch_retry_count,
                   'attemptCount', g.attempt_count) ORDER BY g.ord), '[]'::JSONB),
               'total', (SELECT count(*) FROM wanted),
               'abandoned', (SELECT count(*) FROM held h WHERE NOT h.live AND h.batch_end > h.committed),
               'pagination', jsonb_build_object('limit', v_limit, 'offset', v_offset))
      INTO v_result
      FROM page g;
    RETURN v_result;
END $$;

-- lease_utilization_v1: how many partitions of each queue are leased now.
--   p_queue, p_group  '' or NULL is all; a group counts only its own leases
-- Returns {"queues":[{"queue","totalPartitions","leasedPartitions","utilizationPct":2 decimals, null without a partition}]}, by name.
-- Locks: none. Called by: pg.LeaseUtilization.
CREATE OR REPLACE FUNCTION queen.lease_utilization_v1(
    p_queue TEXT, p_group TEXT, p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE sql STABLE
AS $$
    SELECT jsonb_build_object('queues', COALESCE(jsonb_agg(jsonb_build_object('queue', x.name, 'totalPartitions', x.total,
               'leasedPartitions', x.leased, 'utilizationPct', round(100.0 * x.leased / NULLIF(x.total, 0), 2))
               ORDER BY x.name COLLATE "C"), '[]'::JSONB))
      FROM (SELECT q.name, count(p.id) AS total, count(l.partition_id) AS leased
              FROM queen.queues q
              LEFT JOIN queen.log_partitions p ON p.queue_id = q.id
              LEFT JOIN (SELECT DISTINCT c.partition_id FROM queen.log_consumers c
                          WHERE c.worker_id <> '__retry__' AND c.lease_expires_at > now()
                            AND (COALESCE(p_group, '') = '' OR c.consumer_group = p_group)) l ON l.partition_id = p.id
             WHERE q.tenant_id = p_tenant AND (COALESCE(p_queue, '') = '' OR q.name = p_queue)
             GROUP BY q.id, q.name) x
$$;

-- lease_release_v1: take the batch of (partition, group) back from whoever holds it, for an operator. Its messages can be delivered
-- again at once; the holder's acks fail from then on. Retry budget and delivery count stay. A redelivery that waits for its time is
-- brought forward: "released" is true then, and "leaseId" null.
--   p_worker  release only this lease; '' or NULL whichever there is
-- Returns {"released":bool,"partitionId","consumerGroup","leaseId":released or null,"queue","partition"}, or {"error":"Partition not found"}
-- when the partition is not the tenant's. Locks: the consumer row. Called by: pg.ReleaseLeaseOf.
CREATE OR REPLACE FUNCTION queen.lease_release_v1(
    p_partition_id UUID, p_group TEXT, p_worker TEXT, p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_names  RECORD;
    v_worker TEXT;
BEGIN
    SELECT q.id, q.name::TEXT AS queue, p.name AS partition INTO v_names
      FROM queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id
     WHERE p.id = p_partition_id AND q.tenant_id = p_tenant;
    IF NOT FOUND THEN
        RETURN jsonb_build_object('error', 'Partition not found');
    END IF;
    SELECT c.worker_id INTO v_worker
      FROM queen.log_consumers c
     WHERE c.partition_id = p_partition_id AND c.consumer_group = p_group AND c.worker_id IS NOT NULL
       AND (COALESCE(p_worker, '') = '' OR c.worker_id = p_worker AND p_worker <> '__retry__')
       FOR UPDATE;
    IF FOUND THEN
        UPDATE queen.log_consumers c SET worker_id = NULL, lease_expires_at = NULL, batch_end = NULL
         WHERE c.partition_id = p_partition_id AND c.consumer_group = p_group;
        -- No push announces that there is work again.
        INSERT INTO queen.hotlist_repairs (tenant_id, queue_id, consumer_group) VALUES (p_tenant, v_names.id, p_group);
    END IF;
    RETURN jsonb_build_object('released', v_worker IS NOT NULL, 'partitionId', p_partition_id, 'consumerGroup', p_group,
        'leaseId', NULLIF(v_worker, '__retry__'), 'queue', v_names.queue, 'partition', v_names.partition);
END $$;

GRANT EXECUTE ON FUNCTION queen.lease_list_v1(JSONB) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.lease_utilization_v1(TEXT, TEXT, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.lease_release_v1(UUID, TEXT, TEXT, UUID) TO PUBLIC;
