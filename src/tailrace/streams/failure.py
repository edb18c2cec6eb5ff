"""Why a query ended, and whether trying again may help."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from tailrace import errors
from tailrace.errors import LogError, StoreError, TailraceError
from tailrace.spark.options import ERROR_PREFIX
from tailrace.storage import is_outage

_OURS: Final = re.compile(rf"(\w+): {re.escape(ERROR_PREFIX)}(.*)")
_PYTHON: Final = re.compile(r"^(?:\w+\.)*(\w+(?:Error|Exception)(?:: .*)?)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Failure:
    """`is_known` if Tailrace has raised it on purpose, and so knows whether it may pass."""

    error: TailraceError
    is_known: bool


def failure_of(raised: BaseException) -> Failure:
    """What was raised here; through Spark, if a task has raised it.

    A log whose store denies access is waited for, like a sink that does: credentials come back.
    """
    if isinstance(raised, TailraceError) and is_outage(raised):
        return Failure(StoreError(str(raised), hint=raised.hint), is_known=True)
    if isinstance(raised, TailraceError):
        return Failure(raised, is_known=True)
    if isinstance(raised, PySparkException):
        return failure_told(str(raised))
    text = " ".join(str(raised).split())
    return _unknown(f"{type(raised).__name__}: {text}" if text else type(raised).__name__)


def query_failure(query: StreamingQuery) -> Failure:
    """What was raised by the source, in another process, or by Spark itself."""
    exception = query.exception()
    return failure_told(str(exception)) if exception else _unknown("somebody has stopped it")


def failure_told(text: str) -> Failure:
    """What a traceback says: nothing else is left of an error that came through Spark."""
    ours = _OURS.findall(text)
    if ours:
        name, message = ours[-1]
        kind = getattr(errors, name, LogError)
        return Failure(kind(message.strip()), is_known=True)
    python = _PYTHON.findall(text)
    return _unknown(python[-1] if python else text.strip().partition("\n")[0])


def _unknown(reason: str) -> Failure:
    return Failure(TailraceError(f"the query failed: {reason}", retry=True), is_known=False)
