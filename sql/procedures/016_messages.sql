-- Messages addressed by partition and transaction id.

-- delete_message_v1: delete the dead letters at an address. Live messages lie in immutable segments and cannot be deleted.
--   the caller has proven that the partition belongs to its tenant
-- Returns {"success":bool,"partitionId","transactionId","message":"Message deleted successfully"|"Message not found"}.
-- Locks: the log_dlq rows, ascending by id. Called by: pg.DeleteDeadLetterAt.
CREATE OR REPLACE FUNCTION queen.delete_message_v1(p_partition_id UUID, p_transaction_id TEXT)
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_ids UUID[];
BEGIN
    SELECT array_agg(l.id) INTO v_ids
      FROM (SELECT d.id FROM queen.log_dlq d
             WHERE d.partition_id = p_partition_id AND d.transaction_id = p_transaction_id
             ORDER BY d.id FOR UPDATE) l;
    DELETE FROM queen.log_dlq d WHERE d.id = ANY (v_ids);
    RETURN jsonb_build_object('success', FOUND, 'partitionId', p_partition_id, 'transactionId', p_transaction_id,
        'message', CASE WHEN FOUND THEN 'Message deleted successfully' ELSE 'Message not found' END);
END $$;

GRANT EXECUTE ON FUNCTION queen.delete_message_v1(UUID, TEXT) TO PUBLIC;
