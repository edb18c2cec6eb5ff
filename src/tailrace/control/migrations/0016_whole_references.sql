-- That some variable is named beside a secret does not hide it: a secret is names of variables as a
-- whole, in a header behind the word for its scheme. Of a URL that holds for the user, the password
-- and each value of the query; the rest, with a path, may be anything as long as a variable is named.
-- The same rule as in cli/secret_options.py.
CREATE OR REPLACE FUNCTION tailrace.stream_problem(s tailrace.streams, OUT problem text, OUT hint text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
WITH types AS (
    SELECT ARRAY['console', 'delta', 'kafka', 'kinesis', 'memory', 'parquet', 'postgres',
                 'webhook'] AS known
), years AS (
    SELECT tstzrange('0001-01-02 00:00:00+00', '9999-12-30 00:00:00+00') AS readable
), reference AS (
    -- What is found in them is a secret that is anything but names of variables: a password, in a URL
    -- and as a word of its own; who a URL is for; what stands behind its question mark; the whole.
    SELECT format('://[^/@:]*:(?!(%s)+@)[^/@]+@', name) AS dsn_url,
           format('password\s*=\s*(?!(%s)+(\s|&|$))\S', name) AS dsn_words,
           format('://(?!([^/?#@:]*:)?(%s)+@)[^/?#]*@', name) AS url_user,
           format('[?&](?!([^=&#]*=)?(%s)+([&#]|$))[^&#]', name) AS url_query,
           format('^(?!([A-Za-z]+ )?(%s)+$)', name) AS header,
           format('^(?!(%s)+$)', name) AS whole,
           name
      FROM (VALUES ('\$\{[A-Za-z_][A-Za-z0-9_]*\}')) AS written (name)
), places AS (
    SELECT p.name, CASE jsonb_typeof(p.options) WHEN 'object' THEN p.options ELSE '{}' END AS options
      FROM (VALUES ('', s.sink), ('dead_letter_queue.', s.sink -> 'dead_letter_queue'))
        AS p (name, options)
), secrets AS (
    SELECT places.name || o.key AS key, o.key AS option,
           CASE jsonb_typeof(o.value) WHEN 'object'
                THEN ARRAY(SELECT h.value FROM jsonb_each_text(o.value) AS h)
                ELSE ARRAY[o.value #>> '{}'] END AS texts
      FROM places, jsonb_each(places.options) AS o
     WHERE o.key IN ('dsn', 'headers', 'password', 'properties', 'sasl_password', 'secret', 'token')
        OR o.key = 'url' AND places.options ->> 'type' = 'webhook'
), literal AS (
    SELECT secrets.key FROM reference, secrets, unnest(secrets.texts) AS value
     WHERE CASE secrets.option
           WHEN 'dsn' THEN value ~ reference.dsn_url OR value ~ reference.dsn_words
           WHEN 'url' THEN value !~ reference.name OR value ~ reference.url_user
                           OR value ~ reference.url_query
           WHEN 'headers' THEN value ~ reference.header
           ELSE value ~ reference.whole END
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
