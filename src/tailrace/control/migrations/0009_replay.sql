-- A replay may begin and end at the same time: both ends are included.
CREATE OR REPLACE FUNCTION tailrace.stream_problem(s tailrace.streams, OUT problem text, OUT hint text)
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
    (11, s.replay_to_ts < s.replay_from_ts, 'the replay ends before it begins',
     'replay_from_ts must not be later than replay_to_ts')
  ) AS wrong (place, is_so, problem, hint)
 WHERE wrong.is_so
 ORDER BY wrong.place
 LIMIT 1
$$;
