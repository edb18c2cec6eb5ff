"""Names in SQL: whatever they hold, they stay names."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailrace.errors import ConfigError
from tailrace.postgres.quote import (
    SOURCE_NAME_CHARACTERS_MAX,
    SourceNames,
    identifier,
    qualified,
    shown,
    statement,
)
from tailrace.postgres.session import connect
from tests.postgres.names import IDENTIFIERS
from tests.server import Database, newest_version

ONE_SESSION = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@newest_version
@given(name=IDENTIFIERS)
@ONE_SESSION
def test_f107_any_identifier_passes_postgres_parser_unchanged(
    database: Database, name: str
) -> None:
    with connect(database.dsn) as conn:
        cursor = conn.execute(statement("SELECT 1 AS {}", identifier(name)))
        assert cursor.description is not None
        assert [column.name for column in cursor.description] == [name]


@newest_version
@given(schema=IDENTIFIERS, table=IDENTIFIERS)
@ONE_SESSION
def test_f107_text_for_people_names_the_same_table(
    database: Database, schema: str, table: str
) -> None:
    text = shown("{}", qualified(schema, table))
    with connect(database.dsn) as conn:
        row = conn.execute("SELECT parse_ident(%s)", (text,)).fetchone()
    assert row == ([schema, table],)


@newest_version
@given(name=st.one_of(st.text(), st.from_regex(r"[a-z0-9_]{1,70}", fullmatch=True)))
@ONE_SESSION
def test_f107_a_source_name_is_refused_or_names_a_slot(database: Database, name: str) -> None:
    try:
        names = SourceNames.of(name)
    except ConfigError as error:
        assert error.hint
        return
    assert names.slot == names.publication == f"tailrace_{name}"
    query = "SELECT slot_name FROM pg_create_physical_replication_slot(%s, temporary => true)"
    with connect(database.dsn) as conn:
        assert conn.execute(query, (names.slot,)).fetchone() == (names.slot,)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "Main",
        "a-b",
        "a b",
        'a"; DROP',
        "é",
        "x" * (SOURCE_NAME_CHARACTERS_MAX + 1),
        "a_buffers",
        "a_inserts",
    ],
)
def test_f107_bad_source_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        SourceNames.of(name)
