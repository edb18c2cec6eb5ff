-- What an operator is told is true while nobody streams, too: for how long nothing was confirmed is
-- known once it is noted when something was.
ALTER TABLE tailrace.change_tracking ADD COLUMN IF NOT EXISTS confirmed_at timestamptz;
COMMENT ON COLUMN tailrace.change_tracking.confirmed_at IS
    'When decoder_confirmed_lsn was last found to have moved.';

CREATE OR REPLACE FUNCTION tailrace.note_confirmation() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    NEW.confirmed_at := clock_timestamp();
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER note_confirmation BEFORE UPDATE ON tailrace.change_tracking
    FOR EACH ROW WHEN (OLD.decoder_confirmed_lsn IS DISTINCT FROM NEW.decoder_confirmed_lsn)
    EXECUTE FUNCTION tailrace.note_confirmation();

-- Seconds: as measured by the server while the slot is streamed, else since the last confirmation,
-- unless nothing at all was written since. NULL if neither is known.
CREATE OR REPLACE VIEW tailrace.stat_slots AS
SELECT t.source, coalesce(s.slot_name, t.source) AS slot_name,
       s.slot_name IS NOT NULL AS "exists",
       coalesce(s.active, false) AS active,
       CASE WHEN s.wal_status = 'lost' THEN 'ERROR'
            WHEN s.active OR s.slot_name IS NULL AND tailrace.is_led(t.source) THEN 'ACTIVE'
            ELSE 'STOPPED' END AS decoder_status,
       s.wal_status, s.restart_lsn, s.confirmed_flush_lsn,
       pg_wal_lsn_diff(pg_current_wal_lsn(), s.confirmed_flush_lsn)::bigint AS lag_bytes,
       CASE WHEN s.active THEN extract(epoch FROM r.flush_lag)
            WHEN s.confirmed_flush_lsn >= pg_current_wal_lsn() THEN 0
            WHEN s.slot_name IS NOT NULL
            THEN extract(epoch FROM clock_timestamp() - t.confirmed_at)
       END::double precision AS lag_seconds,
       pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn)::bigint AS retained_bytes,
       s.safe_wal_size, t.tables
  FROM (SELECT source, count(*) AS tables, max(confirmed_at) AS confirmed_at
          FROM tailrace.change_tracking GROUP BY source) AS t
  LEFT JOIN pg_replication_slots AS s
         ON s.slot_name = t.source AND s.database = current_database()
  LEFT JOIN pg_stat_replication AS r ON r.pid = s.active_pid;

-- What triggers have buffered waits since the oldest row of it, unless it is streamed.
CREATE OR REPLACE VIEW tailrace.stat_tables AS
SELECT t.table_oid, t.schema_name, t.table_name, t.source, t.cdc_mode, t.slot_name,
       t.publication_name,
       CASE WHEN t.last_error IS NOT NULL THEN 'ERROR' ELSE s.decoder_status END AS decoder_status,
       s.lag_bytes,
       CASE WHEN s.active OR t.cdc_mode = 'WAL' THEN s.lag_seconds
            ELSE greatest(extract(epoch FROM clock_timestamp() - b.oldest), 0)::double precision
       END AS lag_seconds,
       coalesce(s.confirmed_flush_lsn, t.decoder_confirmed_lsn) AS confirmed_lsn,
       b.rows AS buffered_rows, b.oldest AS oldest_buffered,
       t.handed_over_at, t.transition_started_at, t.tracked_by, t.last_error
  FROM tailrace.change_tracking AS t
  JOIN tailrace.stat_slots AS s USING (source)
 CROSS JOIN LATERAL tailrace.buffered(t.table_oid) AS b;

-- The oldest open transaction that has written to a table's buffer: what it wrote is invisible until
-- it ends, so that nothing else tells of it. A prepared one holds its locks without a pid; the lock
-- on its own xid, under the same virtual transaction, tells which one it is. The age of a session of
-- a role that we may not look at is not known.
CREATE OR REPLACE FUNCTION tailrace.oldest_writer(tracked oid, OUT name text, OUT age interval)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT CASE WHEN x.gid IS NULL THEN format('pid %s', l.pid)
            ELSE format('prepared transaction %L', x.gid) END,
       clock_timestamp() - coalesce(a.xact_start, x.prepared)
  FROM pg_locks AS l
  LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
  LEFT JOIN pg_locks AS own
         ON l.pid IS NULL AND own.pid IS NULL AND own.locktype = 'transactionid'
        AND own.virtualtransaction = l.virtualtransaction
  LEFT JOIN pg_prepared_xacts AS x ON x.transaction = own.transactionid
 WHERE l.locktype = 'relation' AND l.granted AND l.mode = 'RowExclusiveLock'
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND l.relation = to_regclass(format('tailrace_changes.changes_%s', tracked))
 ORDER BY 2 DESC NULLS LAST
 LIMIT 1
$$;

-- Everything that is wrong with a table, one line each.
DROP FUNCTION IF EXISTS tailrace.table_alerts(oid, bigint, bigint, interval, interval);
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

-- One row for each captured table, of one source if it is named. What is wrong is also told to
-- whoever listens on channel tailrace_cdc_alert, once the transaction commits, unless it is only
-- looked at.
DROP FUNCTION IF EXISTS tailrace.check_cdc_health(bigint, bigint, interval, interval);
CREATE OR REPLACE FUNCTION tailrace.check_cdc_health(
    lag_bytes_max bigint DEFAULT 256 * 1024 * 1024,
    retained_bytes_max bigint DEFAULT 4::bigint * 1024 * 1024 * 1024,
    lag_max interval DEFAULT '5 minutes',
    transition_max interval DEFAULT '10 minutes',
    buffer_bytes_max bigint DEFAULT 10::bigint * 1024 * 1024 * 1024,
    only_source text DEFAULT NULL,
    is_told boolean DEFAULT true)
RETURNS TABLE (table_name text, cdc_mode text, lag_bytes bigint, lag_seconds double precision,
               confirmed_lsn pg_lsn, alert boolean, reason text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    FOR table_name, cdc_mode, lag_bytes, lag_seconds, confirmed_lsn, reason IN
        SELECT format('%s.%s', t.schema_name, t.table_name), t.cdc_mode, t.lag_bytes,
               t.lag_seconds, t.confirmed_lsn,
               (SELECT string_agg(a.reason, '; ')
                  FROM tailrace.table_alerts(t, s, lag_bytes_max, retained_bytes_max, lag_max,
                                             transition_max, buffer_bytes_max) AS a (reason))
          FROM tailrace.stat_tables AS t
          JOIN tailrace.stat_slots AS s USING (source)
         WHERE only_source IS NULL OR t.source = only_source
         ORDER BY t.schema_name, t.table_name
    LOOP
        alert := reason IS NOT NULL;
        IF alert AND is_told THEN
            PERFORM pg_notify('tailrace_cdc_alert', left(json_build_object(
                'table', table_name, 'mode', cdc_mode, 'reason', left(reason, 2000))::text, 7900));
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;

GRANT EXECUTE ON FUNCTION
    tailrace.check_cdc_health(bigint, bigint, interval, interval, bigint, text, boolean)
    TO pg_monitor;

-- The sequence of a table's buffer, and how many numbers a session takes from it at once. With more
-- than one, two changes of one key may not have the order of their commits.
CREATE OR REPLACE FUNCTION tailrace.numbering(tracked oid, OUT name regclass, OUT cache bigint)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT q.seqrelid::regclass, q.seqcache
  FROM pg_depend AS d
  JOIN pg_sequence AS q ON q.seqrelid = d.objid
 WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass
   AND d.refobjid = to_regclass(format('tailrace_changes.changes_%s', tracked))
   AND d.deptype = 'i'
$$;

-- Let the numbers be in order again. The caller has locked out the writers of the table: sessions
-- may hold numbers that they took ahead, and forget them because ALTER SEQUENCE gives the sequence a
-- new file (init_sequence in sequence.c).
CREATE OR REPLACE FUNCTION tailrace.restore_numbering(tracked oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    numbers record;
BEGIN
    SELECT * INTO numbers FROM tailrace.numbering(tracked);
    IF numbers.cache <> 1 THEN
        EXECUTE format('ALTER SEQUENCE %s CACHE 1', numbers.name);
    END IF;
END $$;

-- What keeps the triggers of a table from capturing every change, on it and each partition, in order.
CREATE OR REPLACE FUNCTION tailrace.trigger_problems(tracked oid) RETURNS SETOF text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
WITH RECURSIVE tree (oid, is_root) AS (
    SELECT tracked, true
     UNION ALL
    SELECT i.inhrelid, false
      FROM tree
      JOIN pg_inherits AS i ON i.inhparent = tree.oid AND NOT i.inhdetachpending
      JOIN pg_class AS c ON c.oid = i.inhrelid AND c.relispartition
), triggers AS (
    SELECT format('trigger %s on %s.%s is %s', coalesce(t.tgname, wanted.name), n.nspname,
                  c.relname,
                  CASE WHEN t.oid IS NULL THEN 'missing' WHEN t.tgenabled = 'D' THEN 'disabled'
                       ELSE 'not enabled always' END) AS problem,
           row_number() OVER (ORDER BY n.nspname, c.relname, wanted.name) AS place
      FROM tree
      JOIN pg_class AS c ON c.oid = tree.oid
      JOIN pg_namespace AS n ON n.oid = c.relnamespace
     -- What fires it is a set of bits: 1 for each row, 4 insert, 8 delete, 16 update, 32 truncate.
     CROSS JOIN (VALUES (format('tailrace_capture_row_%s', tracked), 29, true),
                        (format('tailrace_capture_truncate_%s', tracked), 32, false))
             AS wanted (name, fired_by, is_cloned)
      LEFT JOIN pg_trigger AS t
             ON t.tgrelid = c.oid AND t.tgtype = wanted.fired_by
            AND t.tgfoid = to_regprocedure(format('tailrace_changes.capture_%s()', tracked))
     WHERE t.tgenabled IS DISTINCT FROM 'A' AND (tree.is_root OR wanted.is_cloned)
), problems AS (
    SELECT problem, place FROM triggers
     UNION ALL
    SELECT format('sequence %s has CACHE %s, and rows lose their order', name, cache), NULL
      FROM tailrace.numbering(tracked) WHERE cache <> 1
)
SELECT problem FROM problems ORDER BY place
$$;
