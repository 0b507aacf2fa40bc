-- Queue deletion.

-- delete_queue_v1: remove a queue with its partitions, messages, cursors, dead letters, subscriptions, metrics and statistics.
-- Recorded traces stay: they describe messages, and outlive them.
-- Returns {"deleted":true,"queue","existed":true}, or {"deleted":false,"queue","existed":false,"message"} when there is none.
-- Locks: the queues row FOR UPDATE, which keeps new partitions out, then its log_partitions rows FOR UPDATE ascending by id, so
-- that pushes in flight finish first. Without that a push could commit sidecar rows after they were deleted here, and nothing
-- would ever find them again. A deadlock with a pop that registers on two partitions is possible; the caller retries 40P01.
-- Called by: pg.DeleteQueue.
CREATE OR REPLACE FUNCTION queen.delete_queue_v1(
    p_queue_name TEXT, p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_queue UUID;
    v_ids   UUID[];
BEGIN
    SELECT q.id INTO v_queue
      FROM queen.queues q
     WHERE q.tenant_id = p_tenant AND q.name = p_queue_name
       FOR UPDATE;
    IF NOT FOUND THEN
        RETURN jsonb_build_object('deleted', FALSE, 'queue', p_queue_name, 'existed', FALSE,
                                  'message', 'Queue not found, nothing was deleted');
    END IF;
    SELECT array_agg(x.id) INTO v_ids
      FROM (SELECT p.id FROM queen.log_partitions p WHERE p.queue_id = v_queue ORDER BY p.id FOR UPDATE) x;
    -- No foreign key reaches these three.
    DELETE FROM queen.log_txns t WHERE t.partition_id = ANY (v_ids);
    DELETE FROM queen.log_traced t WHERE t.partition_id = ANY (v_ids);
    DELETE FROM queen.log_dlq d WHERE d.partition_id = ANY (v_ids);
    DELETE FROM queen.queues q WHERE q.id = v_queue;
    RETURN jsonb_build_object('deleted', TRUE, 'queue', p_queue_name, 'existed', TRUE);
END $$;

GRANT EXECUTE ON FUNCTION queen.delete_queue_v1(TEXT, UUID) TO PUBLIC;
