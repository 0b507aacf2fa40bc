-- The binary forms of the specific and the discovery pop: blobs travel as bytea[] beside a small JSON description, without base64
-- on either side. The binary forms of the wildcard and the list pop are in 004.
--
-- meta is {"partitions":[{"queue","partition","partitionId","attempt","poison"?,"segments":[{"seq","startOff","take","createdAt"}]}]}; blobs are those
-- of its segments in the same order. One row always. attempt counts the deliveries of the batch that starts at the same offset, from 1.

-- A changed row type cannot be replaced in place; see 004.
DO $$
DECLARE
    v_old RECORD;
BEGIN
    FOR v_old IN
        SELECT f.signature
          FROM (VALUES
            ('queen.log_pop_specific_bin_v1(text,text,text,integer,integer,text,boolean,text,text,uuid)'),
            ('queen.log_pop_discover_bin_v1(text,text,text,integer,integer,text,boolean,integer,text,text,uuid)')
          ) AS f(signature)
         WHERE to_regprocedure(f.signature) IS NOT NULL
           AND pg_catalog.pg_get_function_result(to_regprocedure(f.signature)) <> 'TABLE(meta jsonb, blobs bytea[])'
    LOOP
        EXECUTE 'DROP FUNCTION ' || v_old.signature;
    END LOOP;
END $$;

-- log_pop_specific_bin_v1: pop from one partition. Parameters as log_pop_v1; an unknown queue or partition gives an empty meta.
-- Locks: as log_pop_v1. Called by: pg.PopSpecific.
CREATE OR REPLACE FUNCTION queen.log_pop_specific_bin_v1(
    p_queue TEXT, p_partition TEXT, p_group TEXT, p_budget INTEGER, p_lease_seconds INTEGER, p_worker TEXT, p_auto_ack BOOLEAN,
    p_sub_mode TEXT DEFAULT 'all', p_sub_from TEXT DEFAULT '', p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS TABLE (meta JSONB, blobs BYTEA[])
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    SELECT c.r_meta, c.r_blobs INTO meta, blobs
      FROM queen.log_pop_partition_v1(p_queue, p_partition, p_group, p_budget, p_lease_seconds, p_worker, p_auto_ack, p_sub_mode,
                                      p_sub_from, FALSE, p_tenant) c;
    RETURN NEXT;
END $$;

-- log_pop_discover_bin_v1: pop from the queues in a namespace and with a task. Parameters as log_pop_discover_wire_v1.
-- Locks: as log_pop_scan_v1. Called by: pg.PopDiscover.
CREATE OR REPLACE FUNCTION queen.log_pop_discover_bin_v1(
    p_namespace TEXT, p_task TEXT, p_group TEXT, p_budget INTEGER, p_lease_seconds INTEGER, p_worker TEXT, p_auto_ack BOOLEAN,
    p_max_partitions INTEGER, p_sub_mode TEXT DEFAULT 'all', p_sub_from TEXT DEFAULT '',
    p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS TABLE (meta JSONB, blobs BYTEA[])
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    SELECT s.r_meta, s.r_blobs INTO meta, blobs
      FROM queen.log_pop_scan_v1(queen.log_pop_discover_ids_v1(p_namespace, p_task, p_tenant), TRUE, p_group, p_budget, p_lease_seconds,
                                 p_worker, p_auto_ack, p_max_partitions, p_sub_mode, p_sub_from, p_tenant) s;
    RETURN NEXT;
END $$;

GRANT EXECUTE ON FUNCTION queen.log_pop_specific_bin_v1(TEXT, TEXT, TEXT, INTEGER, INTEGER, TEXT, BOOLEAN, TEXT, TEXT, UUID) TO PUBLIC;
GRANT EXECUTE ON FUNCTION queen.log_pop_discover_bin_v1(TEXT, TEXT, TEXT, INTEGER, INTEGER, TEXT, BOOLEAN, INTEGER, TEXT, TEXT, UUID) TO PUBLIC;
