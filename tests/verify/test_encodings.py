"""Databases that do not store UTF-8: texts are compared all the same, and so are bytes that are
no text.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake
from psycopg import sql

from tailrace.verify.at_rest import compare_at_rest
from tailrace.verify.result import TableResult
from tests.server import Server, Servers, both_versions

pytestmark = both_versions

TEXTS = pa.map_(pa.string(), pa.string())


@contextmanager
def _encoded(server: Server, encoding: str, insert: str) -> Iterator[str]:
    """A database of this encoding with a table."""
    with server.database(encoding) as database:
        with database.connect() as connection:
            connection.execute("CREATE TABLE t (id text PRIMARY KEY, v text)")
            connection.execute(sql.SQL(insert))
        yield database.dsn


def _compare(dsn: str, lake: Path, rows: pa.Table) -> TableResult:
    write_deltalake(str(lake / "public" / "t"), rows, mode="overwrite")
    (result,) = compare_at_rest(dsn, str(lake), ["public.t"])
    return result


def test_texts_of_another_encoding(source_servers: Servers, version: int, tmp_path: Path) -> None:
    insert = r"INSERT INTO t VALUES (U&'\00E9', U&'\00FC'), ('b', NULL)"
    with _encoded(source_servers(version), "LATIN1", insert) as dsn:
        rows = pa.table({"id": ["é", "b"], "v": ["ü", None]})
        assert _compare(dsn, tmp_path, rows).equal
        (difference,) = _compare(dsn, tmp_path, rows.slice(1)).differences
        assert (difference.source, difference.lake) == ({"id": "é", "v": "ü"}, None)


def test_keys_whose_order_is_that_of_another_encoding(
    source_servers: Servers, version: int, tmp_path: Path
) -> None:
    # In WIN1252 the euro comes before é, in UTF-8 behind it.
    insert = r"""INSERT INTO t SELECT letter || n, NULL
                   FROM unnest(ARRAY[U&'\20AC', U&'\00E9']) AS letter,
                        generate_series(10001, 15000) AS n"""
    with _encoded(source_servers(version), "WIN1252", insert) as dsn:
        keys = [f"{letter}{n}" for letter in "€é" for n in range(10_001, 15_001)]
        rows = pa.table({"id": keys, "v": pa.nulls(len(keys), pa.string())})
        assert _compare(dsn, tmp_path, rows).equal
        (difference,) = _compare(dsn, tmp_path, rows.slice(1)).differences
        assert difference.key == {"id": "€10001"}


def test_f066_bytes_that_are_no_text(source_servers: Servers, version: int, tmp_path: Path) -> None:
    insert = r"INSERT INTO t VALUES ('a', convert_from('\xff41', 'SQL_ASCII')), ('b', 'x')"
    with _encoded(source_servers(version), "SQL_ASCII", insert) as dsn:
        for kept, is_equal in ((r"\xff41", True), (r"\xff42", False)):
            texts = pa.array([[("v", kept)], None], TEXTS)
            rows = pa.table({"id": ["a", "b"], "v": [None, "x"], "_text": texts})
            result = _compare(dsn, tmp_path, rows)
            assert result.equal == is_equal
            assert [each.columns for each in result.differences] == [("v",)] * (not is_equal)
