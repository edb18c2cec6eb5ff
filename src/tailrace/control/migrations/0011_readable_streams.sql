-- A window that nobody could read is refused, and so are tables in a list within a list. A password is
-- hidden by the name of a variable alone, not by any text that begins with $.
CREATE OR REPLACE FUNCTION tailrace.stream_problem(s tailrace.streams, OUT problem text, OUT hint text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
WITH types AS (
    SELECT ARRAY['console', 'delta', 'kafka', 'kinesis', 'memory', 'parquet', 'postgres',
                 'webhook'] AS known
), years AS (
    SELECT tstzrange('0001-01-02 00:00:00+00', '9999-12-30 00:00:00+00') AS readable
), reference AS (
    -- A password that is anything but names of variables, in a URL and as a word of its own.
    SELECT format('://[^/@:]*:(?!(%s)+@)[^/@]+@', name) AS in_url,
           format('password\s*=\s*(?!(%s)+(\s|&|$))\S', name) AS in_words
      FROM (VALUES ('\$\{[A-Za-z_][A-Za-z0-9_]*\}')) AS written (name)
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
    SELECT secrets.key FROM reference, secrets, unnest(secrets.texts) AS value
     WHERE CASE WHEN secrets.key = 'dsn'
                THEN value ~ reference.in_url OR value ~ reference.in_words
                ELSE value !~ '\$\{[A-Za-z_][A-Za-z0-9_]*\}' END
       AND NOT (s.origin = 'file' AND value = '${tailrace.yaml}')
)
SELECT wrong.problem, wrong.hint
  FROM types, years, LATERAL (VALUES
    (1, s.name !~ '^[a-z0-9_][a-z0-9_-]{0,62}$', format('%L is not a stream''s name', s.name),
     'it may hold only a-z, 0-9, _ and -'),
    (2, coalesce(array_length(s.tables, 1), 0) = 0, 'the stream names no table',
     'tables = ARRAY[''public.orders'']'),
    (3, array_ndims(s.tables) > 1
        OR EXISTS (SELECT FROM unnest(s.tables) AS t
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
    (11, s.replay_to_ts < s.replay_from_ts, 'the replay ends before it begins',
     'replay_from_ts must not be later than replay_to_ts'),
    -- No others can be read by everybody who reads this table.
    (12, NOT s.replay_from_ts <@ years.readable OR NOT s.replay_to_ts <@ years.readable,
     'the replay is not within the years 1 to 9999',
     'replay_from_ts = available_from_ts replays all that the log has')
  ) AS wrong (place, is_so, problem, hint)
 WHERE wrong.is_so
 ORDER BY wrong.place
 LIMIT 1
$$;

-- What a pipeline reports is not held up by what a row was before it was looked at as closely as now.
CREATE OR REPLACE FUNCTION tailrace.on_stream() RETURNS trigger
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
    -- Nor is who pauses a stream, or resumes it.
    IF is_defined OR NOT is_ours AND
       (NEW.origin, NEW.replay_from_ts, NEW.replay_to_ts)
       IS DISTINCT FROM (OLD.origin, OLD.replay_from_ts, OLD.replay_to_ts) THEN
        SELECT * INTO wrong FROM tailrace.stream_problem(NEW);
        IF wrong.problem IS NOT NULL THEN
            RAISE EXCEPTION 'stream %: %', NEW.name, wrong.problem
                  USING ERRCODE = 'check_violation', HINT = wrong.hint;
        END IF;
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
