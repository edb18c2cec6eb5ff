-- A source that captures from the WAL alone, and has no stream yet, is known by its slot.
CREATE OR REPLACE FUNCTION tailrace.only_source() RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    sources text[] := ARRAY(SELECT source FROM tailrace.change_tracking
                             UNION SELECT source FROM tailrace.streams ORDER BY 1);
BEGIN
    IF sources = '{}' THEN
        sources := ARRAY(SELECT slot_name::text FROM pg_replication_slots
                          WHERE database = current_database() AND plugin = 'pgoutput'
                            AND NOT temporary AND starts_with(slot_name::text, 'tailrace_')
                          ORDER BY 1);
    END IF;
    IF array_length(sources, 1) > 1 THEN
        RAISE EXCEPTION 'this database has several sources, and the stream names none'
              USING ERRCODE = 'check_violation',
                    HINT = 'source = one of: ' || array_to_string(sources, ', ');
    END IF;
    RETURN coalesce(sources[1], 'tailrace_main');
END $$;
