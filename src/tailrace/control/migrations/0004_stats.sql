-- What can be seen of capture in SQL, by its owner and by members of pg_monitor.

-- Whether a process leads the source: it holds the advisory lock that is named for the slot.
CREATE FUNCTION tailrace.is_led(source text) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT EXISTS (
    SELECT FROM pg_locks AS l
     WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
       AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
       AND (l.classid::bigint << 32 | l.objid::bigint)
         = ('x' || left(encode(sha256(convert_to('tailrace leader of ' || source, 'UTF8')), 'hex'),
                        16))::bit(64)::bigint)
$$;

-- How many rows a buffer holds, counted up to a million and one, and since when it holds these.
CREATE FUNCTION tailrace.buffered(tracked oid, OUT rows bigint, OUT oldest timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    buffer regclass := to_regclass(format('tailrace_changes.changes_%s', tracked));
BEGIN
    rows := 0;
    IF buffer IS NOT NULL THEN
        EXECUTE format('SELECT count(*), min(ts) FROM (SELECT ts FROM %s LIMIT 1000001) AS held',
                       buffer) INTO rows, oldest;
    END IF;
END $$;

-- What keeps the triggers of a table from capturing every change, on it and each partition. A
-- trigger under our name that calls another function is none of ours.
CREATE FUNCTION tailrace.trigger_problems(tracked oid) RETURNS SETOF text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
WITH RECURSIVE tree (oid, is_root) AS (
    SELECT tracked, true
     UNION ALL
    SELECT i.inhrelid, false
      FROM tree
      JOIN pg_inherits AS i ON i.inhparent = tree.oid AND NOT i.inhdetachpending
      JOIN pg_class AS c ON c.oid = i.inhrelid AND c.relispartition
)
SELECT format('trigger %s on %s.%s is %s', wanted.name, n.nspname, c.relname,
              CASE WHEN t.oid IS NULL THEN 'missing' WHEN t.tgenabled = 'D' THEN 'disabled'
                   ELSE 'not enabled always' END)
  FROM tree
  JOIN pg_class AS c ON c.oid = tree.oid
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
 CROSS JOIN (VALUES ('tailrace_capture_row', true), ('tailrace_capture_truncate', false))
         AS wanted (name, is_cloned)
  LEFT JOIN pg_trigger AS t
         ON t.tgrelid = c.oid AND t.tgname = wanted.name
        AND t.tgfoid = to_regprocedure(format('tailrace_changes.capture_%s()', tracked))
 WHERE t.tgenabled IS DISTINCT FROM 'A' AND (tree.is_root OR wanted.is_cloned)
 ORDER BY n.nspname, c.relname, wanted.name
$$;

CREATE VIEW tailrace.stat_slots AS
SELECT t.source, coalesce(s.slot_name, t.source) AS slot_name,
       s.slot_name IS NOT NULL AS "exists",
       coalesce(s.active, false) AS active,
       CASE WHEN s.wal_status = 'lost' THEN 'ERROR'
            WHEN s.active OR s.slot_name IS NULL AND tailrace.is_led(t.source) THEN 'ACTIVE'
            ELSE 'STOPPED' END AS decoder_status,
       s.wal_status, s.restart_lsn, s.confirmed_flush_lsn,
       pg_wal_lsn_diff(pg_current_wal_lsn(), s.confirmed_flush_lsn)::bigint AS lag_bytes,
       extract(epoch FROM r.flush_lag)::double precision AS lag_seconds,
       pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn)::bigint AS retained_bytes,
       s.safe_wal_size, t.tables
  FROM (SELECT source, count(*) AS tables FROM tailrace.change_tracking GROUP BY source) AS t
  LEFT JOIN pg_replication_slots AS s
         ON s.slot_name = t.source AND s.database = current_database()
  LEFT JOIN pg_stat_replication AS r ON r.pid = s.active_pid;

CREATE VIEW tailrace.stat_tables AS
SELECT t.table_oid, t.schema_name, t.table_name, t.source, t.cdc_mode, t.slot_name,
       t.publication_name,
       CASE WHEN t.last_error IS NOT NULL THEN 'ERROR' ELSE s.decoder_status END AS decoder_status,
       s.lag_bytes,
       CASE WHEN s."exists" THEN s.lag_seconds
            ELSE greatest(extract(epoch FROM clock_timestamp() - b.oldest), 0)::double precision
       END AS lag_seconds,
       coalesce(s.confirmed_flush_lsn, t.decoder_confirmed_lsn) AS confirmed_lsn,
       b.rows AS buffered_rows, b.oldest AS oldest_buffered,
       t.handed_over_at, t.transition_started_at, t.tracked_by, t.last_error
  FROM tailrace.change_tracking AS t
  JOIN tailrace.stat_slots AS s USING (source)
 CROSS JOIN LATERAL tailrace.buffered(t.table_oid) AS b;

-- Everything that is wrong with a table, one line each.
CREATE FUNCTION tailrace.table_alerts(
    tracked oid, lag_bytes_max bigint, retained_bytes_max bigint, lag_max interval,
    transition_max interval) RETURNS SETOF text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT alert.reason
  FROM tailrace.stat_tables AS t
  JOIN tailrace.stat_slots AS s USING (source)
  LEFT JOIN pg_class AS c ON c.oid = t.table_oid
 CROSS JOIN LATERAL (
    SELECT 'the table is gone' AS reason WHERE c.oid IS NULL
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
    SELECT format('changes wait for %s s', round(t.lag_seconds))
     WHERE t.lag_seconds > extract(epoch FROM lag_max)
     UNION ALL
    SELECT tailrace.trigger_problems(t.table_oid)
     WHERE t.cdc_mode <> 'WAL' AND c.oid IS NOT NULL
     UNION ALL
    SELECT 'its triggers are enabled beside the wal'
     WHERE t.cdc_mode = 'WAL' AND EXISTS (
        SELECT FROM pg_trigger AS g
         WHERE g.tgrelid = t.table_oid AND g.tgenabled <> 'D'
           AND g.tgfoid = to_regprocedure(format('tailrace_changes.capture_%s()', t.table_oid)))
     UNION ALL
    SELECT format('it is not in publication %s', t.publication_name)
     WHERE t.cdc_mode = 'WAL' AND c.oid IS NOT NULL AND NOT EXISTS (
        SELECT FROM pg_publication AS p JOIN pg_publication_rel AS r ON r.prpubid = p.oid
         WHERE p.pubname = t.publication_name AND r.prrelid = t.table_oid)
     UNION ALL
    SELECT format('its hand-over has been under way since %s', t.transition_started_at)
     WHERE t.cdc_mode = 'TRANSITIONING' AND clock_timestamp() - t.transition_started_at
                                            > transition_max
     UNION ALL
    SELECT t.last_error WHERE t.last_error IS NOT NULL
 ) AS alert
 WHERE t.table_oid = tracked
$$;

-- One row for each captured table. What is wrong is also told to whoever listens on channel
-- tailrace_cdc_alert, once the transaction commits.
CREATE FUNCTION tailrace.check_cdc_health(
    lag_bytes_max bigint DEFAULT 256 * 1024 * 1024,
    retained_bytes_max bigint DEFAULT 4::bigint * 1024 * 1024 * 1024,
    lag_max interval DEFAULT '5 minutes',
    transition_max interval DEFAULT '10 minutes')
RETURNS TABLE (table_name text, cdc_mode text, lag_bytes bigint, lag_seconds double precision,
               confirmed_lsn pg_lsn, alert boolean, reason text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    FOR table_name, cdc_mode, lag_bytes, lag_seconds, confirmed_lsn, reason IN
        SELECT format('%s.%s', t.schema_name, t.table_name), t.cdc_mode, t.lag_bytes,
               t.lag_seconds, t.confirmed_lsn,
               (SELECT string_agg(a.reason, '; ')
                  FROM tailrace.table_alerts(t.table_oid, lag_bytes_max, retained_bytes_max,
                                             lag_max, transition_max) AS a (reason))
          FROM tailrace.stat_tables AS t
         ORDER BY t.schema_name, t.table_name
    LOOP
        alert := reason IS NOT NULL;
        IF alert THEN
            PERFORM pg_notify('tailrace_cdc_alert', left(json_build_object(
                'table', table_name, 'mode', cdc_mode, 'reason', left(reason, 2000))::text, 7900));
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;

GRANT USAGE ON SCHEMA tailrace TO pg_monitor;
GRANT SELECT ON tailrace.stat_tables, tailrace.stat_slots TO pg_monitor;
GRANT EXECUTE ON FUNCTION tailrace.is_led(text), tailrace.buffered(oid),
    tailrace.check_cdc_health(bigint, bigint, interval, interval) TO pg_monitor;
