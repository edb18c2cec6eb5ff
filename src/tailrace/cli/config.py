"""The configuration: what `tailrace.yaml` may say, and what holds when it says nothing.

Every key has a default, so an empty file and no file mean the same. A key that is not known here is
an error: a setting that is silently ignored is worse than none. Only this package reads the file;
the layers below take plain arguments.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import quote

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from tailrace.cli import document
from tailrace.cli.config_error import explain
from tailrace.cli.section import Section
from tailrace.cli.sink_sections import DeltaSink, ParquetSink, Sink
from tailrace.cli.values import (
    Columns,
    Count,
    Dsn,
    Duration,
    Master,
    OptionalTablePatterns,
    Setting,
    Size,
    SourceName,
    StreamName,
    TablePatterns,
    TablePatternText,
    Url,
    Where,
    below_deadlock_timeout,
    yes_or_no,
)
from tailrace.errors import ConfigError

FILE_NAME: Final = "tailrace.yaml"

_URL = re.compile(r"file://|(?!file:)[A-Za-z][A-Za-z0-9+.-]+:")


class Source(Section):
    """The Postgres whose changes are captured; without a DSN, an embedded one."""

    name: SourceName = "main"
    dsn: Dsn | None = None


class Log(Section):
    """Where the change log is kept, and for how long."""

    url: Url = "file:.tailrace/log"
    retention: Duration = timedelta(days=7)
    retention_bytes: Size | None = None
    hard_limit: Size | None = None
    compaction_interval: Duration = timedelta(days=1)


class TableSettings(Section):
    """How some tables are captured differently; what is left out is as for all tables."""

    mode: Literal["auto", "wal", "trigger"] | None = None
    wal_transition_timeout: Duration | None = None
    auto_replica_identity: Annotated[bool, BeforeValidator(yes_or_no)] | None = None
    lock_timeout: Annotated[Duration, AfterValidator(below_deadlock_timeout)] | None = None
    max_handover_lag: Size | None = None
    shadow: Duration | None = None


class Capture(Section):
    """What is captured, and how the connection is watched."""

    mode: Literal["auto", "wal", "trigger"] = "auto"
    tables: TablePatterns = ("public.*",)
    inserts_only: OptionalTablePatterns = ()
    heartbeat_interval: Duration = timedelta(seconds=10)
    receive_timeout: Duration = timedelta(seconds=30)
    poll_interval: Duration = timedelta(milliseconds=500)
    wal_transition_timeout: Duration = timedelta(minutes=5)
    auto_replica_identity: Annotated[bool, BeforeValidator(yes_or_no)] = False
    lock_timeout: Annotated[Duration, AfterValidator(below_deadlock_timeout)] = timedelta(
        milliseconds=200
    )
    max_handover_lag: Size = 16 << 20
    shadow: Duration | None = None
    table_settings: dict[TablePatternText, TableSettings] = Field(default_factory=dict)
    metrics_port: Annotated[Count, Field(ge=1, le=65535)] | None = None


class Pipeline(Section):
    """What holds for all streams of a process."""

    metrics_port: Annotated[Count, Field(ge=1, le=65535)] | None = None


class Base(Section):
    """How bases are taken: whole tables, read while they are written."""

    max_wait: Duration = timedelta(minutes=10)
    max_snapshot_age: Duration = timedelta(hours=12)
    max_xmin_age: Annotated[Count, Field(ge=1)] = 200_000_000
    bytes_per_second: Size | None = None


class Spark(Section):
    """The Spark session; `master: none` uses the one that spark-submit made."""

    master: Master = "local[*]"
    packages: tuple[str, ...] = ()
    settings: dict[str, Setting] = Field(default_factory=dict)


class Verify(Section):
    """How often a lake is compared with its source by itself, and whether it is repaired."""

    every: Duration = timedelta(days=1)
    repair: Annotated[bool, BeforeValidator(yes_or_no)] = False


class Stream(Section):
    """Some tables, delivered to one sink."""

    tables: TablePatterns = ("public.*",)
    where: Where | None = None
    columns: Columns | None = None
    key: Columns | None = None
    sink: Sink = DeltaSink()
    trigger_interval: Duration = timedelta(milliseconds=200)
    max_changes_per_batch: Annotated[Count, Field(ge=1)] | None = None
    max_bytes_per_batch: Size | None = None
    verify: Verify | None = None

    @model_validator(mode="after")
    def _has_something_to_verify(self) -> Stream:
        if self.verify is not None and self.sink.type != "delta":
            raise ValueError("verify needs a delta sink: only lakes are compared")
        return self


def _no_streams(value: object) -> object:
    return {} if value is None else value


class Config(Section):
    """The whole file. Paths in it are absolute: they were relative to the file."""

    source: Source = Source()
    log: Log = Log()
    capture: Capture = Capture()
    pipeline: Pipeline = Pipeline()
    base: Base = Base()
    spark: Spark = Spark()
    streams: Annotated[dict[StreamName, Stream], BeforeValidator(_no_streams)] = Field(
        default_factory=lambda: {"lake": Stream()}
    )

    @model_validator(mode="after")
    def _has_a_port_for_each(self) -> Config:
        port = self.pipeline.metrics_port
        if port is not None and port == self.capture.metrics_port:
            raise ValueError("has one metrics_port for both capture and pipeline: choose two")
        return self

    _root: Path = PrivateAttr(default=Path())
    _written: Mapping[str, object] = PrivateAttr(default={})

    @property
    def root(self) -> Path:
        """Where relative paths begin: the directory of the file."""
        return self._root

    def written_stream(self, name: str) -> object:
        """A stream's section as the file spells it, before anything is expanded; None if the file
        has none of this name.
        """
        return self._written.get(name)

    @property
    def directory(self) -> Path:
        """What Tailrace keeps beside the file: the embedded Postgres, checkpoints."""
        return self._root / ".tailrace"

    def at(self, root: Path, written: object = None) -> Config:
        """The same configuration with its relative paths taken from `root`; `written` is what the
        file holds.
        """
        log = self.log.model_copy(update={"url": _url_at(self.log.url, root)})
        streams = {name: stream_at(stream, root) for name, stream in self.streams.items()}
        resolved = self.model_copy(update={"log": log, "streams": streams})
        resolved._root = root
        sections = written.get("streams") if isinstance(written, dict) else None
        resolved._written = sections if isinstance(sections, dict) else {}
        return resolved


def _url_at(url: str, root: Path) -> str:
    """A relative `file:path`, whose path is percent-encoded as in every URL, made absolute."""
    scheme, _, path = url.partition(":")
    if scheme.lower() != "file" or path.startswith(("/", "~")):
        return url
    return f"file:{os.path.normpath(f'{quote(str(root))}/{path}')}"


def stream_at(stream: Stream, root: Path) -> Stream:
    """The same stream, with the path of its sink taken from `root`."""
    if not isinstance(stream.sink, DeltaSink | ParquetSink) or _URL.match(stream.sink.path):
        return stream
    path = Path(stream.sink.path.removeprefix("file:")).expanduser()
    sink = stream.sink.model_copy(update={"path": os.path.normpath(root / path)})
    return stream.model_copy(update={"sink": sink})


def load(
    path: Path | None = None,
    *,
    required: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> Config:
    """Read `path`, or `./tailrace.yaml`; without the latter take the defaults unless `required`."""
    file = path or Path(FILE_NAME)
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        if path is None and not required:
            return parse("", root=Path.cwd(), environ=environ)
        raise ConfigError(
            f"there is no {file}", hint="`tailrace init` writes one; `--config FILE` reads another"
        ) from None
    except OSError as error:
        reason = (error.strerror or "unknown reason").lower()
        raise ConfigError(f"cannot read {file}: {reason}") from error
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: is not UTF-8 text", hint="save it as UTF-8") from None
    return parse(text, root=file.parent.absolute(), environ=environ, name=str(file))


def parse(text: str, *, root: Path, environ: Mapping[str, str], name: str = FILE_NAME) -> Config:
    """Read the text of a configuration whose relative paths start at `root`."""
    written = document.parse(text, name=name)
    try:
        found = Config.model_validate(written.expand(environ).value)
        return found.at(root, written.value)
    except ValidationError as error:
        raise explain(error, written) from None
