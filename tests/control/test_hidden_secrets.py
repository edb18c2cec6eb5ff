"""A secret that leaves the configuration is names of variables as a whole: on the command line,
whose text is kept beside the log, and in SQL, where others read it. One rule, in two languages.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Final

import pytest
from psycopg.errors import CheckViolation
from psycopg.types.json import Jsonb

from tailrace.cli.secret_options import is_hidden
from tailrace.postgres.session import Connection

HOOK: Final[dict[str, object]] = {"type": "webhook", "url": "${Y}"}
SPELT_OUT: Final[list[tuple[dict[str, object], str, str]]] = [
    ({"type": "postgres"}, "dsn", "postgresql://u:hunter2@${H}/db"),
    ({"type": "postgres"}, "dsn", "postgresql://u:${P}hunter2@h/db"),
    ({"type": "postgres"}, "dsn", "host=${H} password=hunter2"),
    ({"type": "postgres"}, "dsn", "host=${H} password=${P}hunter2"),
    ({"type": "webhook"}, "url", "https://h/?token=hunter2&x=${Y}"),
    ({"type": "webhook"}, "url", "https://h/?x=${Y}&token=${T}hunter2"),
    ({"type": "webhook"}, "url", "https://h/${Y}?hunter2"),
    ({"type": "webhook"}, "url", "https://u:hunter2@h/${Y}"),
    ({"type": "webhook"}, "url", "https://hunter2@h/${Y}"),
    ({"type": "webhook"}, "url", "${Y}?token=hunter2"),
    (HOOK, "secret", "hunter2${S}"),
    (HOOK, "headers", "${S}hunter2"),
    (HOOK, "headers", "Bearer hunter2 ${S}"),
    ({"type": "kafka"}, "properties", "hunter2${S}"),
]
HIDDEN: Final[list[tuple[dict[str, object], str, str]]] = [
    ({"type": "postgres"}, "dsn", "postgresql://u:${P}@${H}:5432/db?sslmode=require"),
    ({"type": "postgres"}, "dsn", "host=${H} password=${P} dbname=d"),
    ({"type": "webhook"}, "url", "${Y}"),
    ({"type": "webhook"}, "url", "https://${H}/in/a@b"),
    ({"type": "webhook"}, "url", "https://u:${P}@h/in?token=${T}&x=${A}${B}#part"),
    ({"type": "webhook"}, "url", "https://h/in?${Q}"),
    (HOOK, "secret", "${S}"),
    (HOOK, "headers", "Bearer ${S}"),
    ({"type": "kafka"}, "properties", "${S}"),
]
_INSERT: Final = """
INSERT INTO tailrace.streams (source, name, tables, sink) VALUES ('s', 'a', %s, %s)
"""
_MANY: Final = ("headers", "properties")


@pytest.mark.parametrize(("others", "option", "written"), [*SPELT_OUT, *HIDDEN])
def test_secret_that_is_spelt_out_beside_a_variable_is_none_that_is_hidden(
    controlled: Connection, others: dict[str, object], option: str, written: str
) -> None:
    is_fine = (others, option, written) in HIDDEN
    assert is_hidden(option, written) == is_fine
    sink = {**others, option: {"name": written} if option in _MANY else written}
    for each in (sink, {**HOOK, "dead_letter_queue": sink}):
        refused = pytest.raises(CheckViolation, match=f"{option} is a secret")
        with nullcontext() if is_fine else refused, controlled.transaction(force_rollback=True):
            controlled.execute(_INSERT, (["public.t"], Jsonb(each)))
