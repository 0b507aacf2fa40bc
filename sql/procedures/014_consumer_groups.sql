-- Subscription records of consumer groups. The cursors themselves are removed by file 010.

-- delete_consumer_group_v1: forget what is recorded about a group beside its cursors.
--   p_delete_metadata  also the subscription records, which are the seed markers: the next pop of the group is a first contact
-- Returns {"success":true,"consumerGroup","deletedPartitions":0,"metadataDeleted"}; an unknown group is no error.
-- Locks: consumer_groups_metadata rows, then consumer_watermarks rows of the group, both ascending by queue id.
-- Called by: log_delete_consumer_group_v1.
CREATE OR REPLACE FUNCTION queen.delete_consumer_group_v1(
    p_consumer_group TEXT, p_delete_metadata BOOLEAN DEFAULT TRUE, p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    IF p_delete_metadata THEN
        DELETE FROM queen.consumer_groups_metadata m
         WHERE m.id IN (SELECT x.id FROM queen.consumer_groups_metadata x
                         WHERE x.tenant_id = p_tenant AND x.consumer_group = p_consumer_group
                         ORDER BY x.queue_id, x.id FOR UPDATE);
    END IF;
    DELETE FROM queen.consumer_watermarks w
     WHERE w.consumer_group = p_consumer_group
       AND w.queue_id IN (SELECT x.queue_id FROM queen.consumer_watermarks x JOIN queen.queues q ON q.id = x.queue_id
                           WHERE x.consumer_group = p_consumer_group AND q.tenant_id = p_tenant
                           ORDER BY x.queue_id FOR UPDATE OF x);
    RETURN jsonb_build_object('success', TRUE, 'consumerGroup', p_consumer_group, 'deletedPartitions', 0,
                              'metadataDeleted', p_delete_metadata);
END $$;

-- delete_consumer_group_for_queue_v1: the same for one queue. Subscriptions by namespace or task stay.
-- Returns {"success":true,"consumerGroup","queueName","deletedPartitions":0,"metadataDeleted"}.
-- Locks: as delete_consumer_group_v1. Called by: log_delete_consumer_group_for_queue_v1.
CREATE OR REPLACE FUNCTION queen.delete_consumer_group_for_queue_v1(
    p_consumer_group TEXT, p_queue_name TEXT, p_delete_metadata BOOLEAN DEFAULT TRUE,
    p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_queue UUID := (SELECT q.id FROM queen.queues q WHERE q.tenant_id = p_tenant AND q.name = p_queue_name);
BEGIN
    IF p_delete_metadata THEN
        DELETE FROM queen.consumer_groups_metadata m
         WHERE m.tenant_id = p_tenant AND m.consumer_group = p_consumer_group AND m.queue_id = v_queue;
    END IF;
    DELETE FROM queen.consumer_watermarks w WHERE w.queue_id = v_queue AND w.consumer_group = p_consumer_group;
    RETURN jsonb_build_object('success', TRUE, 'consumerGroup', p_consumer_group, 'queueName', p_queue_name,
                              'deletedPartitions', 0, 'metadataDeleted', p_delete_metadata);
END $$;

-- update_consumer_group_subscription_v1: change where a group starts on partitions that it has not touched yet.
--   p_new_timestamp  a timestamp; without a zone it is UTC. Text that is none raises (class 22)
-- Returns {"success":true,"consumerGroup","newTimestamp":p_new_timestamp,"rowsUpdated"}. Cursors stay where they are.
-- Locks: consumer_groups_metadata rows, then consumer_watermarks rows of the group. Called by: pg.SetGroupSubscription.
CREATE OR REPLACE FUNCTION queen.update_consumer_group_subscription_v1(
    p_consumer_group TEXT, p_new_timestamp TEXT, p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS JSONB
LANGUAGE plpgsql VOLATILE
SET TimeZone = 'UTC'
AS $$
DECLARE
    v_at   TIMESTAMPTZ := queen.parse_time_v1(p_new_timestamp);
    v_rows BIGINT;
BEGIN
    IF v_at IS NULL THEN
        RAISE EXCEPTION 'invalid timestamp: ""' USING ERRCODE = '22007';
    END IF;
    WITH l AS MATERIALIZED (
        SELECT m.id FROM queen.consumer_groups_metadata m
         WHERE m.tenant_id = p_tenant AND m.consumer_group = p_consumer_group
         ORDER BY m.queue_id, m.id FOR UPDATE)
    UPDATE queen.consumer_groups_metadata m
       SET subscription_timestamp = v_at
      FROM l
     WHERE m.id = l.id;
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    DELETE FROM queen.consumer_watermarks w
     WHERE w.consumer_group = p_consumer_group
       AND w.queue_id IN (SELECT x.queue_id FROM queen.consumer_watermarks x JOIN queen.queues q ON q.id = x.queue_id
                           WHERE x.consumer_group = p_consumer_group AND q.tenant_id = p_tenant
                           ORDER BY x.queue_id FOR UPDATE OF x);
    RETURN jsonb_build_object('success', TRUE, 'consumerGroup', p_consumer_group, 'newTimestamp', p_new_timestamp,
                              'rowsUpdated', v_rows);
END $$;

GRANT EXECUTE ON FUNCTION queen.delete_consumer_group_v1(TEXT, BOOLEAN, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.delete_consumer_group_for_queue_v1(TEXT, TEXT, BOOLEAN, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.update_consumer_group_subscription_v1(TEXT, TEXT, UUID) TO PUBLIC;
