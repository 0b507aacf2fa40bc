-- The triggers that count created and removed partitions (functions: 019). Attached only when absent: attaching takes SHARE ROW
-- EXCLUSIVE on the hottest table, and dropping ACCESS EXCLUSIVE, which would stop every push at every start of a broker.
-- A changed definition needs the trigger dropped by hand; a changed function body takes effect by itself.
DO $$ BEGIN
    IF NOT EXISTS (SELECT 1 FROM pg_catalog.pg_trigger t
                    WHERE t.tgrelid = 'queen.log_partitions'::regclass AND t.tgname = 'trg_partitions_created_counter') THEN
        CREATE TRIGGER trg_partitions_created_counter
            AFTER INSERT ON queen.log_partitions
            REFERENCING NEW TABLE AS new_partitions
            FOR EACH STATEMENT EXECUTE FUNCTION queen.bump_partitions_created_trigger();
    END IF;
    IF NOT EXISTS (SELECT 1 FROM pg_catalog.pg_trigger t
                    WHERE t.tgrelid = 'queen.log_partitions'::regclass AND t.tgname = 'trg_partitions_deleted_counter') THEN
        CREATE TRIGGER trg_partitions_deleted_counter
            AFTER DELETE ON queen.log_partitions
            REFERENCING OLD TABLE AS old_partitions
            FOR EACH STATEMENT EXECUTE FUNCTION queen.bump_partitions_deleted_trigger();
    END IF;
END $$;
