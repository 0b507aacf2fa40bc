-- What a pop gives back of its own claim before it answers.

-- log_pop_shorten_v1: let batches end earlier that were claimed and not delivered yet.
--   p_group, p_worker  the claim
--   p_pids, p_ends     partition ids and the offset of the last message that is still wanted; NULL gives the whole batch back
-- Returns the partitions whose lease now ends where it was asked to. Those that were given back, and those whose lease ran out or is
-- somebody else's, are left out.
-- A batch that is given back was not delivered: its claim does not count as an attempt. Retry state and cursors stay.
-- Locks: the consumer rows, ascending by partition. Called by: pg.ShortenLeases, pg.ReleaseLease.
CREATE OR REPLACE FUNCTION queen.log_pop_shorten_v1(p_group TEXT, p_worker TEXT, p_pids UUID[], p_ends BIGINT[])
RETURNS SETOF UUID
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_now TIMESTAMPTZ;
BEGIN
    PERFORM 1 FROM queen.log_consumers c
      WHERE c.partition_id = ANY (p_pids) AND c.consumer_group = p_group
      ORDER BY c.partition_id
        FOR UPDATE;
    v_now := clock_timestamp();  -- a lease may run out while this waited
    RETURN QUERY
    WITH shortened AS (
        UPDATE queen.log_consumers c
           SET batch_end        = u.upto,
               worker_id        = CASE WHEN u.upto IS NULL THEN NULL ELSE c.worker_id END,
               lease_expires_at = CASE WHEN u.upto IS NULL THEN NULL ELSE c.lease_expires_at END,
               attempt_count    = CASE WHEN u.upto IS NULL THEN GREATEST(c.attempt_count - 1, 0) ELSE c.attempt_count END
          FROM unnest(p_pids, p_ends) AS u(id, upto)
         WHERE c.partition_id = u.id AND c.consumer_group = p_group
           AND c.worker_id = p_worker AND c.lease_expires_at >= v_now
           AND (u.upto IS NULL OR (u.upto > c.committed AND u.upto <= c.batch_end))
        RETURNING c.partition_id, u.upto
    )
    SELECT s.partition_id FROM shortened s WHERE s.upto IS NOT NULL;
END $$;
