-- A trigger of ours is known by the function it calls and by what fires it, not by its name: whoever
-- has renamed one has not switched it off.
CREATE OR REPLACE FUNCTION tailrace.trigger_problems(tracked oid) RETURNS SETOF text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
WITH RECURSIVE tree (oid, is_root) AS (
    SELECT tracked, true
     UNION ALL
    SELECT i.inhrelid, false
      FROM tree
      JOIN pg_inherits AS i ON i.inhparent = tree.oid AND NOT i.inhdetachpending
      JOIN pg_class AS c ON c.oid = i.inhrelid AND c.relispartition
)
SELECT format('trigger %s on %s.%s is %s', coalesce(t.tgname, wanted.name), n.nspname, c.relname,
              CASE WHEN t.oid IS NULL THEN 'missing' WHEN t.tgenabled = 'D' THEN 'disabled'
                   ELSE 'not enabled always' END)
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
 ORDER BY n.nspname, c.relname, wanted.name
$$;
