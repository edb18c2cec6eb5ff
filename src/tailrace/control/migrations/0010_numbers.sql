-- The number of a buffered row is given once for ever, also if its table had a buffer before that
-- was dropped. Every number that was given has made the WAL longer by more than one byte, so the
-- numbers of a new buffer start at the end of the WAL: above all that any earlier one has given.
--
-- Make buffer and function fit the table as it is; the number of its shape, NULL if it is gone. The
-- caller has locked the table, be it in ACCESS SHARE mode. Writers of the table hold up the lock of
-- the buffer, which is taken only if columns are missing.
CREATE OR REPLACE FUNCTION tailrace.sync_capture(tracked oid) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    buffer text := format('tailrace_changes.changes_%s', tracked);
    plan record;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'the catalog must be seen as of now'
            USING ERRCODE = 'invalid_transaction_state';
    END IF;
    IF to_regclass(buffer) IS NULL THEN
        -- As few columns as can be, since an INSERT prepares each of them, filled or not; and
        -- without an index: every writer would pay for it, and it is read from end to end anyway.
        EXECUTE format(
            'CREATE TABLE %s (seq bigint GENERATED ALWAYS AS IDENTITY (START WITH %s CACHE 1), '
            'xid xid8, op "char", depth integer, ts timestamptz, key_hash bigint, shape text, '
            'new_row text, old_row text) USING heap WITH '
            '(autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 20000)',
            buffer, pg_current_wal_insert_lsn() - '0/0'::pg_lsn);
    END IF;
    SELECT * INTO plan FROM tailrace.plan_capture(tracked);
    IF plan.form IS NULL THEN
        RETURN NULL;
    END IF;
    IF plan.adds IS NOT NULL THEN
        EXECUTE format('ALTER TABLE %s %s', buffer, plan.adds);
    END IF;
    IF plan.is_new THEN
        INSERT INTO tailrace.table_shapes (table_oid, shape, form)
        VALUES (tracked, plan.shape, plan.form);
    END IF;
    IF NOT tailrace.has_function(tracked, plan.body, plan.is_pinned) THEN
        PERFORM tailrace.replace_function(tracked, plan.body, plan.is_pinned);
    END IF;
    RETURN plan.shape;
END $$;
