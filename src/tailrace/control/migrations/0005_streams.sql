-- Streams: what is delivered to which sink, and how that is going. People write the wish (tables,
-- sink, paused, replay), the pipeline writes the state, in the same row; so that neither takes the
-- other's columns by mistake, the pipeline says who it is by `tailrace.reporting`.

CREATE TABLE tailrace.streams (
    source text NOT NULL,
    name text NOT NULL,
    origin text NOT NULL DEFAULT 'sql',
    tables text[] NOT NULL DEFAULT '{public.*}',
    "where" text,
    columns text[],
    key text[],
    sink jsonb NOT NULL,
    options jsonb NOT NULL DEFAULT '{}',
    paused boolean NOT NULL DEFAULT false,
    replay_from_ts timestamptz,
    replay_to_ts timestamptz,
    replay_progress double precision,
    replay_note text,
    available_from_ts timestamptz,
    available_to_ts timestamptz,
    revision bigint NOT NULL DEFAULT 1,
    status text NOT NULL DEFAULT 'stopped',
    reason text DEFAULT 'no pipeline has taken it up yet',
    node text,
    epoch bigint NOT NULL DEFAULT 0,
    "position" pg_lsn,
    lag_bytes bigint,
    lag_seconds double precision,
    batch_count bigint NOT NULL DEFAULT 0,
    change_count bigint NOT NULL DEFAULT 0,
    replayed_count bigint NOT NULL DEFAULT 0,
    failure_count bigint NOT NULL DEFAULT 0,
    dead_letter_count bigint NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    status_since timestamptz NOT NULL DEFAULT clock_timestamp(),
    reported_at timestamptz,
    PRIMARY KEY (source, name),
    CHECK (origin IN ('file', 'sql')),
    CHECK (status IN ('healthy', 'failover', 'replay', 'slot_recovery', 'paused', 'stopped')),
    CHECK (status <> 'stopped' OR reason IS NOT NULL)
) WITH (fillfactor = 50);

COMMENT ON TABLE tailrace.streams IS
    'Each stream: what it delivers and where to, which you may write, and how it is doing.';
COMMENT ON COLUMN tailrace.streams.origin IS
    'Who declares it: the configuration file, or SQL. A file never removes a stream of SQL.';
COMMENT ON COLUMN tailrace.streams.sink IS
    'As in tailrace.yaml: {"type": "webhook", "url": "${HOOK_URL}"}. Secrets by reference only.';
COMMENT ON COLUMN tailrace.streams.options IS
    'trigger_interval, max_changes_per_batch, max_bytes_per_batch, verify.';
COMMENT ON COLUMN tailrace.streams.paused IS
    'Set it to pause the stream, clear it to resume; a stream that has stopped is tried again.';
COMMENT ON COLUMN tailrace.streams.available_from_ts IS
    'When the oldest and, in available_to_ts, the newest transaction was committed that the log has.';
COMMENT ON COLUMN tailrace.streams.replay_from_ts IS
    'Set it, and replay_to_ts if it is to end, to deliver once more what was committed since.';

CREATE FUNCTION tailrace.is_reporting() RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT coalesce(current_setting('tailrace.reporting', true), '') = 'on'
$$;

-- What is wrong with the definition of a stream, if anything, and what cures it.
CREATE FUNCTION tailrace.stream_problem(s tailrace.streams, OUT problem text, OUT hint text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
WITH types AS (
    SELECT ARRAY['console', 'delta', 'kafka', 'kinesis', 'memory', 'parquet', 'postgres',
                 'webhook'] AS known
), places AS (
    SELECT p.name, CASE jsonb_typeof(p.options) WHEN 'object' THEN p.options ELSE '{}' END AS options
      FROM (VALUES ('', s.sink), ('dead_letter_queue.', s.sink -> 'dead_letter_queue'))
        AS p (name, options)
), secrets AS (
    SELECT places.name || o.key AS key,
           CASE jsonb_typeof(o.value) WHEN 'object'
                THEN ARRAY(SELECT h.value FROM jsonb_each_text(o.value) AS h)
                ELSE ARRAY[o.value #>> '{}'] END AS texts
      FROM places, jsonb_each(places.options) AS o
     WHERE o.key IN ('dsn', 'headers', 'password', 'properties', 'sasl_password', 'secret', 'token')
        OR o.key = 'url' AND places.options ->> 'type' = 'webhook'
), literal AS (
    SELECT secrets.key FROM secrets, unnest(secrets.texts) AS value
     WHERE CASE WHEN secrets.key = 'dsn'
                THEN value ~ '://[^/@]*:[^/@$][^/@]*@|password\s*=\s*[^$ ]'
                ELSE value !~ '\$\{[A-Za-z_][A-Za-z0-9_]*\}' END
       AND NOT (s.origin = 'file' AND value = '${tailrace.yaml}')
)
SELECT wrong.problem, wrong.hint
  FROM types, LATERAL (VALUES
    (1, s.name !~ '^[a-z0-9_][a-z0-9_-]{0,62}$', format('%L is not a stream''s name', s.name),
     'it may hold only a-z, 0-9, _ and -'),
    (2, coalesce(array_length(s.tables, 1), 0) = 0, 'the stream names no table',
     'tables = ARRAY[''public.orders'']'),
    (3, EXISTS (SELECT FROM unnest(s.tables) AS t
                 WHERE t IS NULL OR t !~ '^("([^"]|"")+"|[^".]+)\.("([^"]|"")+"|[^".]+)$'),
     'a table is not written as schema.table', 'tables = ARRAY[''public.orders'', ''shop.*'']'),
    (4, s.columns = '{}' OR array_position(s.columns, NULL) IS NOT NULL,
     'columns names no column', 'columns = NULL delivers every column'),
    (5, s.key = '{}' OR array_position(s.key, NULL) IS NOT NULL,
     'key names no column', 'key = NULL takes the key of the table'),
    (6, jsonb_typeof(s.sink) <> 'object' OR jsonb_typeof(s.sink -> 'type') IS DISTINCT FROM 'string',
     'the sink has no type', 'sink = ''{"type": "delta", "path": "/lake"}'''),
    (7, s.sink ->> 'type' <> ALL (types.known),
     format('there is no sink of type %L', s.sink ->> 'type'),
     'one of: ' || array_to_string(types.known, ', ')),
    (8, jsonb_typeof(s.options) <> 'object', 'options is not an object',
     'options = ''{"trigger_interval": "1s"}'''),
    (9, EXISTS (SELECT FROM literal),
     format('sink option %s is a secret and would be readable here',
            (SELECT min(literal.key) FROM literal)),
     'name an environment variable of the pipeline: "${NAME}"'),
    (10, s.replay_to_ts IS NOT NULL AND s.replay_from_ts IS NULL,
     'replay_to_ts is set and replay_from_ts is not', 'set both, or replay_from_ts alone'),
    (11, s.replay_to_ts <= s.replay_from_ts, 'the replay ends before it begins',
     'replay_from_ts must be earlier than replay_to_ts')
  ) AS wrong (place, is_so, problem, hint)
 WHERE wrong.is_so
 ORDER BY wrong.place
 LIMIT 1
$$;

-- Which column of the pipeline's somebody else has written, if any.
CREATE FUNCTION tailrace.reported_column(old tailrace.streams, new tailrace.streams) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT n.key
  FROM jsonb_each(to_jsonb(old)) AS o JOIN jsonb_each(to_jsonb(new)) AS n USING (key)
 WHERE o.value <> n.value
   AND n.key IN ('revision', 'status', 'reason', 'node', 'epoch', 'position', 'lag_bytes',
                 'lag_seconds', 'replay_progress', 'replay_note', 'available_from_ts',
                 'available_to_ts', 'batch_count', 'change_count',
                 'replayed_count', 'failure_count', 'dead_letter_count', 'created_at', 'updated_at',
                 'status_since', 'reported_at')
 ORDER BY n.key LIMIT 1
$$;

-- The source of a stream that names none: the only one that this database has.
CREATE FUNCTION tailrace.only_source() RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    sources text[] := ARRAY(SELECT source FROM tailrace.change_tracking
                             UNION SELECT source FROM tailrace.streams ORDER BY 1);
BEGIN
    IF array_length(sources, 1) > 1 THEN
        RAISE EXCEPTION 'this database has several sources, and the stream names none'
              USING ERRCODE = 'check_violation',
                    HINT = 'source = one of: ' || array_to_string(sources, ', ');
    END IF;
    RETURN coalesce(sources[1], 'tailrace_main');
END $$;

CREATE FUNCTION tailrace.on_stream() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    is_ours boolean := tailrace.is_reporting();
    wrong record;
    definition text[] := ARRAY['tables', 'where', 'columns', 'key', 'sink', 'options'];
    is_defined boolean := true;
    column_name text;
BEGIN
    IF TG_OP = 'INSERT' THEN
        NEW.source := coalesce(NEW.source, tailrace.only_source());
        column_name := CASE WHEN NEW.origin = 'file' THEN 'origin' END;
    ELSE
        is_defined := (SELECT jsonb_object_agg(k, to_jsonb(OLD) -> k)
                              <> jsonb_object_agg(k, to_jsonb(NEW) -> k)
                         FROM unnest(definition) AS k);
        column_name := CASE WHEN NEW.origin = 'file' AND OLD.origin = 'sql' THEN 'origin'
                            ELSE tailrace.reported_column(OLD, NEW) END;
        IF NEW.name <> OLD.name OR NEW.source <> OLD.source THEN
            RAISE EXCEPTION 'stream % cannot be renamed', OLD.name USING ERRCODE = 'check_violation',
                HINT = 'delete it and insert another, which takes up every table anew';
        END IF;
    END IF;
    IF column_name IS NOT NULL AND NOT is_ours THEN
        RAISE EXCEPTION 'column % is written by the pipeline', column_name
              USING ERRCODE = 'check_violation',
                    HINT = 'SET paused = true pauses a stream, SET paused = false resumes it';
    END IF;
    IF TG_OP = 'UPDATE' AND is_defined AND NOT is_ours AND NEW.origin = 'file' THEN
        RAISE EXCEPTION 'stream % is declared in tailrace.yaml', NEW.name
              USING ERRCODE = 'check_violation', HINT = 'change it there, or take it over: '
                    'SET origin = ''sql'' in the same UPDATE, and take it out of the file';
    END IF;
    SELECT * INTO wrong FROM tailrace.stream_problem(NEW);
    IF wrong.problem IS NOT NULL THEN
        RAISE EXCEPTION 'stream %: %', NEW.name, wrong.problem
              USING ERRCODE = 'check_violation', HINT = wrong.hint;
    END IF;
    IF TG_OP = 'UPDATE' THEN
        IF is_defined OR NEW.paused <> OLD.paused
           OR NOT is_ours AND NOT NEW.paused AND OLD.status = 'stopped' THEN
            NEW.revision := OLD.revision + 1;
            NEW.updated_at := clock_timestamp();
        END IF;
        IF NEW.paused <> OLD.paused THEN
            NEW.status := CASE WHEN NEW.paused THEN 'paused' ELSE 'stopped' END;
            NEW.reason := CASE WHEN NOT NEW.paused THEN 'no pipeline has taken it up yet' END;
        END IF;
        IF NEW.status <> OLD.status THEN
            NEW.status_since := clock_timestamp();
        END IF;
    ELSIF NEW.paused THEN
        NEW.status := 'paused';
        NEW.reason := NULL;
    END IF;
    RETURN NEW;
END $$;

CREATE FUNCTION tailrace.on_stream_delete() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF OLD.origin = 'file' AND NOT tailrace.is_reporting() THEN
        RAISE EXCEPTION 'stream % is declared in tailrace.yaml', OLD.name
              USING ERRCODE = 'check_violation',
                    HINT = 'take it out of the file, then: tailrace stream rm ' || OLD.name;
    END IF;
    RETURN OLD;
END $$;

-- Told to whoever listens on channel tailrace_streams, once the transaction commits.
CREATE FUNCTION tailrace.tell_stream() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    told tailrace.streams := coalesce(NEW, OLD);
BEGIN
    PERFORM pg_notify('tailrace_streams', json_build_object(
        'source', told.source, 'stream', told.name,
        'change', CASE WHEN TG_OP = 'UPDATE' AND NEW.revision = OLD.revision THEN 'replay'
                       ELSE lower(TG_OP) END)::text);
    RETURN NULL;
END $$;

CREATE TRIGGER check_stream BEFORE INSERT OR UPDATE ON tailrace.streams
    FOR EACH ROW EXECUTE FUNCTION tailrace.on_stream();
CREATE TRIGGER check_delete BEFORE DELETE ON tailrace.streams
    FOR EACH ROW EXECUTE FUNCTION tailrace.on_stream_delete();
CREATE TRIGGER tell_made AFTER INSERT OR DELETE ON tailrace.streams
    FOR EACH ROW EXECUTE FUNCTION tailrace.tell_stream();
CREATE TRIGGER tell_changed AFTER UPDATE ON tailrace.streams
    FOR EACH ROW WHEN (OLD.revision <> NEW.revision
                       OR (OLD.replay_from_ts, OLD.replay_to_ts)
                          IS DISTINCT FROM (NEW.replay_from_ts, NEW.replay_to_ts))
    EXECUTE FUNCTION tailrace.tell_stream();

GRANT SELECT ON tailrace.streams TO pg_monitor;
