-- The buffer of a table and the function of its triggers, made from the table's form. The function
-- inserts typed columns by static statements. It must never make a transaction of the user's fail,
-- so before it names a column it is sure that all columns are what they were. Rows that do not fit
-- are kept whole, as text, with their form for a shape, until the function is made anew: by our
-- event trigger within the transaction that alters the table, where we may have one, else by the
-- leader.

CREATE FUNCTION tailrace.watches_ddl() RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT count(*) = 2 FROM pg_event_trigger
 WHERE evtname IN ('tailrace_on_alter', 'tailrace_on_drop') AND evtenabled = 'A'
   AND evtfoid = to_regprocedure('tailrace.on_ddl()')
$$;

-- The columns of a form and how each is kept. `slot` is its number, or number and a count if the
-- buffer holds values of another type under that number.
CREATE FUNCTION tailrace.slots(tracked oid, form jsonb)
RETURNS TABLE (number integer, name text, slot text, kept text, is_shown boolean,
               is_pinned boolean, width integer, is_hashed boolean, hash text, is_new boolean)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
WITH columns AS (
    SELECT c.number, c.name, c.type::oid AS type
      FROM jsonb_to_recordset(form -> 'columns') AS c (number integer, name text, type bigint)
), held AS (
    SELECT parts[1]::integer AS number, coalesce(parts[2]::integer, 1) AS turn,
           format_type(a.atttypid, -1) AS kept, substr(a.attname, 5) AS slot
      FROM pg_attribute AS a
     CROSS JOIN regexp_match(a.attname, '^new_([0-9]+)(?:_([0-9]+))?$') AS parts
     WHERE a.attrelid = to_regclass(format('tailrace_changes.changes_%s', tracked))
       AND a.attnum > 0 AND NOT a.attisdropped AND parts IS NOT NULL
)
SELECT c.number, c.name,
       coalesce(fitting.slot, c.number || coalesce('_' || taken.turn + 1, '')),
       t.kept, t.is_shown, t.is_pinned, t.width, t.is_hashed, t.hash, fitting.slot IS NULL
  FROM columns AS c
  JOIN tailrace.kept_types(ARRAY(SELECT type FROM columns)) AS t ON t.type_oid = c.type
  LEFT JOIN LATERAL (SELECT held.slot FROM held
                      WHERE held.number = c.number AND held.kept = t.kept
                      ORDER BY held.turn LIMIT 1) AS fitting ON true
  LEFT JOIN LATERAL (SELECT max(held.turn) AS turn FROM held
                      WHERE held.number = c.number) AS taken ON true
 ORDER BY c.number
$$;

-- A value of the row of that name (`new` or `old`) as it is kept.
CREATE FUNCTION tailrace.kept_value(side text, name text, is_shown boolean) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT CASE WHEN is_shown
            THEN format('CASE WHEN %1$s.%2$I IS DISTINCT FROM NULL '
                        'THEN format(''%%s'', %1$s.%2$I) END', side, name)
            ELSE format('%s.%I', side, name) END
$$;

-- What the key of such a row hashes to; NULL for what has no hash.
CREATE FUNCTION tailrace.key_hash(key jsonb, slots jsonb, side text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT CASE WHEN count(*) = 0 OR NOT bool_and(s.is_hashed) THEN 'NULL'
            WHEN count(*) = 1 AND min(s.hash) IS NOT NULL
            THEN format('%I(%s.%I, 0)', min(s.hash), side, min(s.name))
            ELSE format('hash_record_extended(ROW(%s), 0)', string_agg(
                tailrace.kept_value(side, s.name, s.is_shown), ', ' ORDER BY k.place)) END
  FROM jsonb_array_elements_text(key) WITH ORDINALITY AS k (name, place)
  JOIN jsonb_to_recordset(slots)
       AS s (name text, is_shown boolean, is_hashed boolean, hash text) ON s.name = k.name
$$;

-- The statements that keep a row whole.
CREATE FUNCTION tailrace.whole_statements(tracked oid) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT format($body$
    IF TG_OP = 'INSERT' THEN
        INSERT INTO tailrace_changes.changes_%1$s (xid, op, depth, ts, shape, new_row)
        VALUES (pg_current_xact_id(), 'I', pg_trigger_depth(), now(),
                tailrace_changes.row_form(%1$s, TG_RELID, NEW), tailrace_changes.row_text(NEW));
    ELSIF TG_OP = 'UPDATE' THEN
        INSERT INTO tailrace_changes.changes_%1$s (xid, op, depth, ts, shape, new_row, old_row)
        VALUES (pg_current_xact_id(), 'U', pg_trigger_depth(), now(),
                tailrace_changes.row_form(%1$s, TG_RELID, NEW), tailrace_changes.row_text(NEW),
                tailrace_changes.row_text(OLD));
    ELSIF TG_OP = 'DELETE' THEN
        INSERT INTO tailrace_changes.changes_%1$s (xid, op, depth, ts, shape, old_row)
        VALUES (pg_current_xact_id(), 'D', pg_trigger_depth(), now(),
                tailrace_changes.row_form(%1$s, TG_RELID, OLD), tailrace_changes.row_text(OLD));
    ELSE
        INSERT INTO tailrace_changes.changes_%1$s (xid, op, depth, ts, shape)
        VALUES (pg_current_xact_id(), 'T', pg_trigger_depth(), now(),
                tailrace_changes.table_form(%1$s) || '{"row": []}');
    END IF;
$body$, tracked)
$$;

-- The statements that keep a row by its columns, or all columns as one text where two rows of the
-- table would not fit into one of the buffer. Once planned, each condition is the comparison alone.
CREATE FUNCTION tailrace.typed_statements(
    tracked oid, shape integer, key jsonb, slots jsonb, is_wide boolean) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
WITH sides AS (
    SELECT side,
           CASE WHEN is_wide THEN format(', %s_row', side)
                ELSE string_agg(format(', %I', side || '_' || s.slot), '' ORDER BY s.number)
           END AS targets,
           CASE WHEN is_wide
                THEN format(', ROW(%s)::text',
                            string_agg(format('%s.%I', side, s.name), ', ' ORDER BY s.number))
                ELSE string_agg(', ' || tailrace.kept_value(side, s.name, s.is_shown), ''
                                ORDER BY s.number)
           END AS exprs,
           tailrace.key_hash(key, slots, side) AS hash
      FROM unnest(ARRAY['new', 'old']) AS side
      LEFT JOIN jsonb_to_recordset(slots)
           AS s (number integer, name text, slot text, is_shown boolean) ON true
     GROUP BY side
)
SELECT format($body$
    IF TG_OP = 'INSERT' AND %9$s THEN
        INSERT INTO tailrace_changes.changes_%1$s (xid, op, depth, ts, key_hash, shape%3$s)
        VALUES (pg_current_xact_id(), 'I', pg_trigger_depth(), now(), %7$s, %2$L%5$s);
        RETURN NULL;
    ELSIF TG_OP = 'UPDATE' AND %9$s THEN
        INSERT INTO tailrace_changes.changes_%1$s (xid, op, depth, ts, key_hash, shape%3$s%4$s)
        VALUES (pg_current_xact_id(), 'U', pg_trigger_depth(), now(), %7$s, %2$L%5$s%6$s);
        RETURN NULL;
    ELSIF TG_OP = 'DELETE' AND %9$s THEN
        INSERT INTO tailrace_changes.changes_%1$s (xid, op, depth, ts, key_hash, shape%4$s)
        VALUES (pg_current_xact_id(), 'D', pg_trigger_depth(), now(), %8$s, %2$L%6$s);
        RETURN NULL;
    ELSIF TG_OP = 'TRUNCATE' THEN
        INSERT INTO tailrace_changes.changes_%1$s (xid, op, depth, ts, shape)
        VALUES (pg_current_xact_id(), 'T', pg_trigger_depth(), now(), %2$L);
        RETURN NULL;
    END IF;
$body$, tracked, shape, n.targets, o.targets, n.exprs, o.exprs, n.hash, o.hash,
        format('tailrace_changes.fits(''%s''::regclass, %L)', tracked,
               tailrace_changes.signature(tracked)))
  FROM sides AS n, sides AS o WHERE n.side = 'new' AND o.side = 'old'
$$;

-- The whole function; `typed` is empty if every row is to be kept whole.
CREATE FUNCTION tailrace.capture_body(tracked oid, typed text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT format($body$
BEGIN%s%s
    RETURN NULL;
END $body$, typed, tailrace.whole_statements(tracked))
$$;

CREATE FUNCTION tailrace.replace_function(tracked oid, body text, is_pinned boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name text := format('tailrace_changes.capture_%s()', tracked);
BEGIN
    EXECUTE format(
        'CREATE OR REPLACE FUNCTION %s RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER '
        'SET search_path = pg_catalog, pg_temp %s AS %L', name, CASE WHEN is_pinned THEN
        'SET "DateStyle" = ''ISO, YMD'' SET "IntervalStyle" = postgres SET "TimeZone" = ''UTC'' '
        'SET extra_float_digits = 3 SET bytea_output = hex SET lc_monetary = ''C'' '
        'SET quote_all_identifiers = off' END, body);
    -- Who adds a partition clones the trigger, for which Postgres asks whether he may call this. He
    -- cannot name it in a trigger of his own: the schema is closed.
    EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO PUBLIC', name);
END $$;

-- What is to be: `adds` are the columns that the buffer lacks, `shape` the number of the form.
CREATE FUNCTION tailrace.plan_capture(
    tracked oid, OUT form jsonb, OUT shape integer, OUT is_new boolean, OUT adds text,
    OUT body text, OUT is_pinned boolean)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    slots jsonb;
    is_wide boolean;
    last record;
BEGIN
    form := tailrace_changes.table_form(tracked);
    IF form IS NULL THEN
        RETURN;
    END IF;
    -- A row of the buffer holds two of the table and has one page to fit in.
    SELECT coalesce(jsonb_agg(to_jsonb(s) ORDER BY s.number), '[]'),
           coalesce(sum(s.width) > 3500 OR count(*) > 700, false),
           coalesce(bool_or(s.is_pinned), false),
           string_agg(format('ADD COLUMN %I %s, ADD COLUMN %I %s', 'new_' || s.slot, s.kept,
                             'old_' || s.slot, s.kept), ', ' ORDER BY s.number)
               FILTER (WHERE s.is_new)
      INTO slots, is_wide, is_pinned, adds
      FROM tailrace.slots(tracked, form) AS s;
    IF is_wide THEN
        is_pinned := true;
        adds := NULL;
        form := form || jsonb_build_object('row', jsonb_path_query_array(slots, '$[*].name'));
    ELSE
        form := form || jsonb_build_object('slots', jsonb_path_query_array(slots, '$[*].slot'));
    END IF;
    SELECT t.shape, t.form INTO last
      FROM tailrace.table_shapes AS t WHERE t.table_oid = tracked ORDER BY t.shape DESC LIMIT 1;
    is_new := last.form IS DISTINCT FROM form;
    shape := coalesce(last.shape, 0) + is_new::integer;
    body := tailrace.capture_body(tracked, tailrace.typed_statements(
        tracked, shape, form -> 'key', slots, is_wide));
END $$;

-- Make buffer and function fit the table as it is; the number of its shape, NULL if it is gone. The
-- caller has locked the table, be it in ACCESS SHARE mode. Writers of the table hold up the lock of
-- the buffer, which is taken only if columns are missing.
CREATE FUNCTION tailrace.sync_capture(tracked oid) RETURNS integer
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
            'CREATE TABLE %s (seq bigint GENERATED ALWAYS AS IDENTITY (CACHE 1), xid xid8, '
            'op "char", depth integer, ts timestamptz, key_hash bigint, shape text, '
            'new_row text, old_row text) USING heap WITH '
            '(autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 20000)',
            buffer);
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

CREATE FUNCTION tailrace.has_function(tracked oid, body text, is_pinned boolean) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT EXISTS (
    SELECT FROM pg_proc AS p
     WHERE p.oid = to_regprocedure(format('tailrace_changes.capture_%s()', tracked))
       AND p.prosrc = body AND (cardinality(p.proconfig) > 1) = is_pinned)
$$;

-- Whether buffer and function fit the table as it is.
CREATE FUNCTION tailrace.capture_is_current(tracked oid) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT plan.form IS NOT NULL AND NOT plan.is_new AND plan.adds IS NULL
       AND tailrace.has_function(tracked, plan.body, plan.is_pinned)
  FROM tailrace.plan_capture(tracked) AS plan
$$;

-- Within the transaction that alters a table, make its capture fit; if that cannot be done at once,
-- let it keep whole rows until the leader comes by. Nothing here may make the user's command fail.
CREATE FUNCTION tailrace.on_ddl() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET lock_timeout = '50ms' AS $$
DECLARE
    altered oid[];
    tracked oid;
BEGIN
    IF TG_EVENT = 'sql_drop' THEN
        altered := ARRAY(SELECT DISTINCT objid FROM pg_event_trigger_dropped_objects()
                          WHERE object_type = 'table column');
    ELSE
        altered := ARRAY(SELECT DISTINCT objid FROM pg_event_trigger_ddl_commands()
                          WHERE classid = 'pg_class'::regclass);
    END IF;
    FOR tracked IN
        WITH RECURSIVE tree (oid) AS (
            SELECT unnest(altered)
             UNION
            SELECT i.inhrelid FROM tree JOIN pg_inherits AS i ON i.inhparent = tree.oid
        )
        SELECT tree.oid FROM tree
         WHERE to_regprocedure(format('tailrace_changes.capture_%s()', tree.oid)) IS NOT NULL
    LOOP
        BEGIN
            PERFORM tailrace.sync_capture(tracked);
        EXCEPTION WHEN OTHERS THEN
            PERFORM tailrace.replace_function(
                tracked, tailrace.capture_body(tracked, ''), is_pinned => false);
        END;
    END LOOP;
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'tailrace: capture does not fit the altered table yet: %', SQLERRM;
END $$;
