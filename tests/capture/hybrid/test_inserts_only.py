"""Tables without a key of which inserts alone are captured, while triggers have them."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import psycopg
import pytest

from tailrace.capture.buffers.shapes import InsertsOnlyTables
from tailrace.errors import SourceError
from tailrace.model import Relation, ReplicaIdentity
from tailrace.postgres.session import Connection, connect
from tailrace.storage import FileStore
from tests.capture.hybrid.test_handover import modes
from tests.capture.oracle import read_changes
from tests.capture.running import FAST, Running, hybrid, settings
from tests.capture.tracked import oid_of
from tests.server import Database, both_versions

pytestmark = [both_versions, pytest.mark.usefixtures("quickly")]


@pytest.mark.parametrize("has_parts", [False, True], ids=["whole", "parts"])
@pytest.mark.parametrize("mode", ["trigger", "auto"], ids=["drained", "streamed"])
def test_triggers_give_inserts_alone_of_a_table_without_a_key_that_is_listed_so(
    database: Database,
    source: psycopg.Connection,
    store: FileStore,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    has_parts: bool,
) -> None:
    if has_parts:
        # Of some parts nothing is left.
        monkeypatch.setattr("tailrace.capture.drains.taking.PART_BYTES", 1)
    source.execute("CREATE TABLE keyless (id int NOT NULL)")
    told = settings(
        database.dsn,
        inserts_only=["public.keyless"],
        limits=replace(FAST, part_bytes=200) if has_parts else FAST,
        hybrid=hybrid(mode, tables={"public.keyless": "trigger"}),
    )

    def ops() -> str:
        found = [each for each in read_changes(store) if each.relation.name == "keyless"]
        return "".join(each.op for each in found)

    with Running(told, store) as capture:
        capture.wait_until(lambda: modes(source).get("keyless") == "TRIGGER")
        source.execute("INSERT INTO keyless VALUES (1)")
        with source.transaction():
            source.execute("UPDATE keyless SET id = 2")
            source.execute("INSERT INTO keyless VALUES (3)")
            source.execute("DELETE FROM keyless WHERE id = 2")
        source.execute("DELETE FROM keyless")
        source.execute("TRUNCATE keyless")
        capture.wait_until(lambda: ops() == "IIT")
        # With a key all of it is captured.
        source.execute("ALTER TABLE keyless ADD PRIMARY KEY (id)")
        source.execute("INSERT INTO keyless VALUES (4)")
        source.execute("UPDATE keyless SET id = 5")
        source.execute("DELETE FROM keyless")
        capture.wait_until(lambda: ops() == "IITIUD")


def test_whether_only_inserts_are_wanted_is_asked_on_one_session(
    database: Database, source: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.execute("CREATE TABLE keyless (id int NOT NULL)")
    opened: list[Connection] = []

    def connecting(dsn: str) -> Connection:
        opened.append(connect(dsn))
        return opened[-1]

    monkeypatch.setattr("tailrace.capture.buffers.shapes.connect", connecting)
    selection = settings(database.dsn, inserts_only=["public.keyless"]).duties.selection
    relation = Relation(
        oid_of(source, "public.keyless"), "public", "keyless", ReplicaIdentity.DEFAULT, ()
    )
    with closing(InsertsOnlyTables(database.dsn, selection)) as is_inserts_only:
        assert [is_inserts_only(relation) for _ in range(5)] == [True] * 5
        assert len(opened) == 1
        source.execute("SELECT pg_terminate_backend(%s)", [opened[0].info.backend_pid])
        with pytest.raises(SourceError):
            is_inserts_only(relation)
        source.execute("ALTER TABLE keyless ADD PRIMARY KEY (id)")
        assert not is_inserts_only(relation), "it is judged as it is now"
        assert len(opened) == 2
    assert all(conn.closed for conn in opened)


def test_a_table_without_a_key_is_updated_by_its_owner_though_a_shadow_is_asked_for(
    database: Database, source: psycopg.Connection, store: FileStore
) -> None:
    source.execute("CREATE TABLE keyless (v text)")
    tables = {"public.t": "trigger", "public.keyless": "trigger"}
    by_trigger = hybrid("auto", tables=tables)
    with Running(settings(database.dsn, hybrid=by_trigger), store) as capture:
        capture.wait_until(lambda: modes(source) == {"t": "TRIGGER", "keyless": "TRIGGER"})
    shadow = hybrid("auto", shadow_s=3.0)
    told = settings(database.dsn, inserts_only=["public.keyless"], hybrid=shadow)
    with Running(told, store) as capture:

        def are_handed_over() -> bool:
            source.execute("INSERT INTO keyless VALUES ('a')")
            source.execute("UPDATE keyless SET v = 'b'")
            source.execute("DELETE FROM keyless")
            return modes(source) == {"t": "WAL", "keyless": "WAL"}

        capture.wait_until(are_handed_over)
