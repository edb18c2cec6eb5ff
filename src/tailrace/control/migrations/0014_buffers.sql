-- A publication of somebody else that has all tables, or all of our schema, has the buffers as well,
-- and Postgres refuses each DELETE on a table whose deletes are published and that has no identity,
-- whatever wal_level is.
--
-- The publication for which nothing can be deleted from a table's buffer, NULL if there is none.
CREATE OR REPLACE FUNCTION tailrace.delete_blocker(tracked oid) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    buffer regclass := to_regclass(format('tailrace_changes.changes_%s', tracked));
    found text;
BEGIN
    IF NOT EXISTS (SELECT FROM pg_class WHERE oid = buffer AND relreplident <> 'f') THEN
        RETURN NULL;
    END IF;
    SELECT min(p.pubname::text) INTO found
      FROM pg_publication AS p LEFT JOIN pg_publication_rel AS r ON r.prpubid = p.oid
     WHERE p.pubdelete AND (p.puballtables OR r.prrelid = buffer);
    -- From Postgres 15 on.
    IF found IS NULL AND to_regclass('pg_catalog.pg_publication_namespace') IS NOT NULL THEN
        SELECT min(p.pubname::text) INTO found
          FROM pg_publication AS p JOIN pg_publication_namespace AS s ON s.pnpubid = p.oid
         WHERE p.pubdelete AND s.pnnspid = 'tailrace_changes'::regnamespace;
    END IF;
    RETURN found;
END $$;

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
        -- Now nobody writes it. Elsewhere it would only make each DELETE log the row once more.
        IF tailrace.delete_blocker(tracked) IS NOT NULL THEN
            EXECUTE format('ALTER TABLE %s REPLICA IDENTITY FULL', buffer);
        END IF;
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

-- How many rows a buffer holds, and since when it holds these. Dead rows that Postgres must keep are
-- passed as well, so what is looked at is bounded: of a large buffer that is its end, where new rows
-- are as a rule, and pages of all of it at random; how many rows there are is then estimated.
CREATE OR REPLACE FUNCTION tailrace.buffered(tracked oid, OUT rows bigint, OUT oldest timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    buffer regclass := to_regclass(format('tailrace_changes.changes_%s', tracked));
    looked_at CONSTANT integer := 4096;
    at_end CONSTANT integer := 512;
    pages bigint;
BEGIN
    rows := 0;
    IF buffer IS NULL THEN
        RETURN;
    END IF;
    pages := pg_relation_size(buffer) / current_setting('block_size')::bigint;
    IF pages <= looked_at THEN
        EXECUTE format('SELECT count(*), min(ts) FROM %s', buffer) INTO rows, oldest;
    ELSE
        EXECUTE format(
            'SELECT greatest(round(part.rows * %2$s), last.rows), least(part.oldest, last.oldest) '
            'FROM (SELECT count(*), min(ts) FROM %1$s TABLESAMPLE SYSTEM (100 / %2$s)) '
            'AS part (rows, oldest), '
            '(SELECT count(*), min(ts) FROM %1$s WHERE ctid >= ''(%3$s,0)''::tid) '
            'AS last (rows, oldest)',
            buffer, pages / looked_at::numeric, pages - at_end) INTO rows, oldest;
    END IF;
END $$;

-- Everything that is wrong with a table, one line each.
CREATE OR REPLACE FUNCTION tailrace.table_alerts(
    t tailrace.stat_tables, s tailrace.stat_slots, lag_bytes_max bigint,
    retained_bytes_max bigint, lag_max interval, transition_max interval, buffer_bytes_max bigint)
RETURNS SETOF text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
WITH known AS (
    SELECT EXISTS (SELECT FROM pg_class AS c WHERE c.oid = t.table_oid) AS is_there,
           extract(epoch FROM lag_max) AS seconds_max,
           pg_total_relation_size(to_regclass(format('tailrace_changes.changes_%s', t.table_oid)))
               AS buffer_bytes,
           t.cdc_mode = 'WAL' AND NOT s.active AS is_by_confirmation
)
SELECT alert.reason
  FROM known
 CROSS JOIN LATERAL (
    SELECT 'the table is gone' AS reason WHERE NOT known.is_there
     UNION ALL
    SELECT format('slot %s is missing', t.slot_name)
     WHERE t.cdc_mode <> 'TRIGGER' AND NOT s."exists"
     UNION ALL
    SELECT format('slot %s is %s', s.slot_name, s.wal_status)
     WHERE s.wal_status IN ('lost', 'unreserved')
     UNION ALL
    SELECT 'no capture process runs' WHERE s.decoder_status = 'STOPPED'
     UNION ALL
    SELECT format('the stream is %s behind', pg_size_pretty(s.lag_bytes))
     WHERE s.lag_bytes > lag_bytes_max
     UNION ALL
    SELECT format('the slot keeps %s of wal', pg_size_pretty(s.retained_bytes))
     WHERE s.retained_bytes > retained_bytes_max
     UNION ALL
    SELECT format(CASE WHEN known.is_by_confirmation THEN 'nothing was confirmed for %s s'
                       ELSE 'changes wait for %s s' END, round(t.lag_seconds))
     WHERE t.lag_seconds > known.seconds_max
     UNION ALL
    SELECT format('%s has been open for %s s, and what it wrote waits', w.name,
                  round(extract(epoch FROM w.age)))
      FROM tailrace.oldest_writer(t.table_oid) AS w
     WHERE t.cdc_mode <> 'WAL' AND NOT s."exists" AND w.age > lag_max
     UNION ALL
    SELECT format('its buffer takes %s', pg_size_pretty(known.buffer_bytes))
     WHERE known.buffer_bytes > buffer_bytes_max
     UNION ALL
    SELECT format('its buffer cannot be emptied: publication %s publishes deletes', blocker.name)
      FROM tailrace.delete_blocker(t.table_oid) AS blocker (name)
     WHERE blocker.name IS NOT NULL
     UNION ALL
    SELECT tailrace.trigger_problems(t.table_oid)
     WHERE t.cdc_mode <> 'WAL' AND known.is_there
     UNION ALL
    SELECT 'its triggers are enabled beside the wal'
     WHERE t.cdc_mode = 'WAL' AND EXISTS (
        SELECT FROM pg_trigger AS g
         WHERE g.tgrelid = t.table_oid AND g.tgenabled <> 'D'
           AND g.tgfoid = to_regprocedure(format('tailrace_changes.capture_%s()', t.table_oid)))
     UNION ALL
    SELECT format('it is not in publication %s', t.publication_name)
     WHERE t.cdc_mode = 'WAL' AND known.is_there AND NOT EXISTS (
        SELECT FROM pg_publication AS p JOIN pg_publication_rel AS r ON r.prpubid = p.oid
         WHERE p.pubname = t.publication_name AND r.prrelid = t.table_oid)
     UNION ALL
    SELECT format('its hand-over has been under way since %s', t.transition_started_at)
     WHERE t.cdc_mode = 'TRANSITIONING' AND clock_timestamp() - t.transition_started_at
                                            > transition_max
     UNION ALL
    SELECT t.last_error WHERE t.last_error IS NOT NULL
 ) AS alert
$$;
