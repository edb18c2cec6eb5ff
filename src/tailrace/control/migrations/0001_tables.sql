-- What capture keeps in the source itself. The log and the catalog are the truth; these rows are
-- what is shown, and what the next leader reads to go on or to undo.

CREATE TABLE tailrace.change_tracking (
    table_oid oid PRIMARY KEY,
    source text NOT NULL,
    schema_name text NOT NULL,
    table_name text NOT NULL,
    cdc_mode text NOT NULL DEFAULT 'TRIGGER'
        CHECK (cdc_mode IN ('TRIGGER', 'TRANSITIONING', 'WAL')),
    slot_name text,
    publication_name text,
    decoder_confirmed_lsn pg_lsn,
    handed_over_at timestamptz,
    transition_started_at timestamptz,
    tracked_by text[] NOT NULL DEFAULT '{}',
    last_error text,
    tracked_since timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK (cdc_mode <> 'TRANSITIONING' OR transition_started_at IS NOT NULL)
);
COMMENT ON TABLE tailrace.change_tracking IS
    'Each captured table: how its changes are captured, and who needs them.';

-- The columns of a table each time they changed: a buffered row is read with the shape it was
-- written in, whatever the table looks like by then.
CREATE TABLE tailrace.table_shapes (
    table_oid oid,
    shape integer CHECK (shape > 0),
    form jsonb NOT NULL,
    made_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (table_oid, shape)
);
COMMENT ON TABLE tailrace.table_shapes IS
    'What a table looked like when its buffered rows were written.';

-- Without a slot only a drain can show a snapshot whose position is known: who takes a base asks
-- for one, the leader answers with the snapshot of its next drain and holds it until it is taken.
CREATE TABLE tailrace.base_requests (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    source text NOT NULL,
    requested_by text NOT NULL,
    requested_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    snapshot_name text,
    "position" pg_lsn,
    answered_at timestamptz,
    imported_at timestamptz,
    CHECK ((answered_at IS NULL) = (snapshot_name IS NULL)),
    CHECK ((answered_at IS NULL) = ("position" IS NULL))
);
COMMENT ON TABLE tailrace.base_requests IS
    'Who waits for the snapshot of a drain, to read a base under it.';

CREATE FUNCTION tailrace.tell_transition() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pg_notify('tailrace_cdc_transition', json_build_object(
        'table', format('%s.%s', NEW.schema_name, NEW.table_name),
        'old_mode', CASE WHEN TG_OP = 'UPDATE' THEN OLD.cdc_mode END,
        'new_mode', NEW.cdc_mode,
        'slot', NEW.slot_name)::text);
    RETURN NULL;
END $$;

CREATE TRIGGER tell_new_mode AFTER INSERT ON tailrace.change_tracking
    FOR EACH ROW EXECUTE FUNCTION tailrace.tell_transition();
CREATE TRIGGER tell_transition AFTER UPDATE ON tailrace.change_tracking
    FOR EACH ROW WHEN (OLD.cdc_mode IS DISTINCT FROM NEW.cdc_mode)
    EXECUTE FUNCTION tailrace.tell_transition();
