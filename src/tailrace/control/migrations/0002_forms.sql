-- A table's form: what a Relation frame would say of it, and in which columns of its buffer the
-- values of a row are kept. What the functions of triggers call is in their own schema, so that
-- whoever drops one drops the other, and the triggers with it. The buffer never uses a type of the user's, nor a length or precision:
-- DROP TYPE and ALTER DOMAIN must not find us in their way, and a column that is widened must not
-- make our INSERT fail.

-- The types in which values are kept: a domain's base, without length; text for what is not built
-- in. `is_shown` if a value is kept as its text, `is_pinned` if settings of the session change that,
-- `hash` the function that hashes it, if there is one of just its type.
CREATE FUNCTION tailrace.kept_types(type_oids oid[])
RETURNS TABLE (type_oid oid, kept text, is_shown boolean, is_pinned boolean, width integer,
               is_hashed boolean, hash text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
WITH RECURSIVE step (type_oid, oid, typtype, typbasetype, typelem, typlen) AS (
    SELECT t.oid, t.oid, t.typtype, t.typbasetype, t.typelem, t.typlen
      FROM pg_type AS t WHERE t.oid = ANY (type_oids)
     UNION ALL
    SELECT step.type_oid, t.oid, t.typtype, t.typbasetype, t.typelem, t.typlen
      FROM step JOIN pg_type AS t ON t.oid = step.typbasetype WHERE step.typtype = 'd'
), base AS (
    SELECT step.*, step.oid < 10000 AS is_built_in FROM step WHERE step.typtype <> 'd'
), hashes AS (
    SELECT a.amproclefttype AS oid,
           min(p.proname) FILTER (WHERE p.proargtypes[0] = a.amproclefttype) AS name
      FROM pg_amproc AS a
      JOIN pg_opfamily AS f ON f.oid = a.amprocfamily
      JOIN pg_am AS m ON m.oid = f.opfmethod AND m.amname = 'hash'
      JOIN pg_proc AS p ON p.oid = a.amproc AND p.pronamespace = 'pg_catalog'::regnamespace
     WHERE a.amprocnum = 2
     GROUP BY a.amproclefttype
)
SELECT base.type_oid,
       CASE WHEN base.is_built_in THEN format_type(base.oid, -1) ELSE 'text' END,
       NOT base.is_built_in,
       NOT base.is_built_in AND base.typtype <> 'e'
           AND NOT EXISTS (SELECT FROM pg_type AS e WHERE e.oid = base.typelem AND e.typtype = 'e'),
       -- A value of variable length takes at most a pointer's place once it is moved out of line.
       CASE WHEN base.is_built_in AND base.typlen > 0 THEN greatest(base.typlen, 8) ELSE 24 END,
       NOT base.is_built_in OR base.oid = 'varchar'::regtype OR hashes.oid IS NOT NULL,
       CASE WHEN base.is_built_in THEN hashes.name END
  FROM base LEFT JOIN hashes ON hashes.oid = base.oid
$$;

-- NULL if there is no such table. Columns are those that the stream carries, in order.
CREATE FUNCTION tailrace_changes.table_form(table_oid oid) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
WITH owned AS (
    SELECT a.attnum, k.place, i.indisprimary AS is_primary,
           i.indisvalid AND i.indimmediate AND CASE c.relreplident
               WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END
               AS is_identity,
           a.attname
      FROM pg_class AS c
      JOIN pg_index AS i ON i.indrelid = c.oid
     CROSS JOIN unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, place)
      JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = k.attnum
     WHERE c.oid = table_oid AND k.place <= i.indnkeyatts
), carried AS (
    SELECT a.attnum, a.attname, a.atttypid, a.atttypmod,
           c.relreplident = 'f'
               OR EXISTS (SELECT FROM owned WHERE owned.is_identity AND owned.attnum = a.attnum)
               AS in_identity
      FROM pg_class AS c
      JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0
       AND NOT a.attisdropped AND a.attgenerated = ''
     WHERE c.oid = table_oid
), keys AS (
    SELECT (SELECT jsonb_agg(attname ORDER BY place) FROM owned WHERE is_primary) AS "primary",
           (SELECT jsonb_agg(attname ORDER BY place) FROM owned WHERE is_identity) AS "identity",
           (SELECT jsonb_agg(attname ORDER BY attnum) FROM carried WHERE in_identity) AS flagged
)
SELECT jsonb_build_object(
           'schema', n.nspname, 'name', c.relname, 'identity', c.relreplident,
           -- A row is known by its primary key if an old row is sent with that.
           'key', coalesce(CASE WHEN c.relreplident = 'f' OR keys."identity" @> keys."primary"
                                THEN keys."primary" END, keys."identity", keys.flagged, '[]'),
           'columns', coalesce((
               SELECT jsonb_agg(jsonb_build_object(
                          'number', attnum, 'name', attname, 'type', atttypid::bigint,
                          'typmod', atttypmod, 'in_identity', in_identity) ORDER BY attnum)
                 FROM carried), '[]'))
  FROM keys, pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE c.oid = table_oid
$$;

-- All columns of a table, generated ones as well: what a row of it consists of.
CREATE FUNCTION tailrace_changes.signature(table_oid oid) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT coalesce(json_agg(json_build_array(attname, atttypid::bigint, atttypmod) ORDER BY attnum),
                '[]')::text
  FROM pg_attribute WHERE attrelid = table_oid AND attnum > 0 AND NOT attisdropped
$$;

-- Whether a table has the columns of a signature now. Called immutable on purpose: where it is asked
-- with constants it is folded into the plan, and since a plan that holds a constant of type regclass
-- depends on that relation (fix_expr_common in setrefs.c), it is asked again exactly when Postgres
-- has made the plan invalid because the table was altered. Between, it costs nothing. A transaction
-- that sees the catalog as of its beginning asks the parser, which sees it as of now, all but
-- lengths; it must not wait for the root of a partition that it writes.
CREATE FUNCTION tailrace_changes.fits(tracked regclass, expected text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp SET lock_timeout = '10ms' AS $$
DECLARE
    has_fit boolean;
BEGIN
    IF current_setting('transaction_isolation') = 'read committed' THEN
        RETURN tailrace_changes.signature(tracked) = expected;
    END IF;
    EXECUTE (
        SELECT format(
                   'SELECT %L = ARRAY(SELECT json_object_keys(row_to_json(q)))::text[] AND %s '
                   'FROM (SELECT t.* FROM (SELECT) AS one LEFT JOIN ONLY %s AS t ON false) AS q',
                   array_agg(c ->> 0 ORDER BY place),
                   string_agg(format('pg_typeof(q.%I)::oid = %s', c ->> 0, c ->> 1), ' AND '),
                   tracked)
          FROM json_array_elements(expected::json) WITH ORDINALITY AS e (c, place)
    ) INTO has_fit;
    RETURN coalesce(has_fit, false);
EXCEPTION WHEN OTHERS THEN
    RETURN false;
END $$;

-- A whole row as its text, whatever its columns are: the way for rows that do not fit.
CREATE FUNCTION tailrace_changes.row_text(changed record) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
SET "DateStyle" = 'ISO, YMD' SET "IntervalStyle" = postgres SET "TimeZone" = 'UTC'
SET extra_float_digits = 3 SET bytea_output = hex SET lc_monetary = 'C'
SET quote_all_identifiers = off AS $$
BEGIN
    RETURN changed::text;
END $$;

-- The form of a row that is kept as text: the table's, and the names of the row's own columns in
-- the order of the text, which in a partition may be another. NULL if it cannot be told, because
-- the transaction sees the catalog as it was before the table was altered: then a new base is due.
CREATE FUNCTION tailrace_changes.row_form(tracked oid, relation oid, changed record) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    names text[] := ARRAY(SELECT json_object_keys(row_to_json(changed)));
    seen text[];
    file oid;
BEGIN
    SELECT array_agg(attname::text ORDER BY attnum) INTO seen
      FROM pg_attribute WHERE attrelid = relation AND attnum > 0 AND NOT attisdropped;
    SELECT relfilenode INTO file FROM pg_class WHERE oid = relation;
    IF names IS DISTINCT FROM seen OR file IS DISTINCT FROM pg_relation_filenode(relation) THEN
        RETURN NULL;
    END IF;
    RETURN tailrace_changes.table_form(tracked) || jsonb_build_object('row', to_jsonb(names));
END $$;
