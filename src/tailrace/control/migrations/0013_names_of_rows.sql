-- Which columns a row has is asked of the parser, without its values: a type may have a cast to json,
-- which would be called for a value, by a function of the user's and with the rights of our role.
--
-- The form of a row that is kept as text: the table's, and the names of the row's own columns in
-- the order of the text, which in a partition may be another. NULL if it cannot be told, because
-- the transaction sees the catalog as it was before the table was altered, or because we may not
-- read the partition: then a new base is due.
CREATE OR REPLACE FUNCTION tailrace_changes.row_form(tracked oid, relation oid, changed record)
RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    names text[];
    seen text[];
    file oid;
BEGIN
    EXECUTE format(
        'SELECT ARRAY(SELECT json_object_keys(row_to_json(q))) '
        'FROM (SELECT t.* FROM (SELECT) AS one LEFT JOIN ONLY %s AS t ON false) AS q',
        relation::regclass) INTO names;
    SELECT array_agg(attname::text ORDER BY attnum) INTO seen
      FROM pg_attribute WHERE attrelid = relation AND attnum > 0 AND NOT attisdropped;
    SELECT relfilenode INTO file FROM pg_class WHERE oid = relation;
    IF names IS DISTINCT FROM seen OR file IS DISTINCT FROM pg_relation_filenode(relation) THEN
        RETURN NULL;
    END IF;
    RETURN tailrace_changes.table_form(tracked) || jsonb_build_object('row', to_jsonb(names));
EXCEPTION WHEN OTHERS THEN
    RETURN NULL;
END $$;
