"""Streams between the configuration file, the control schema and the pipeline.

A definition is in the words of the file: `${NAME}` is kept and expanded by the pipeline that
delivers the stream. A secret that the file spells out stays there: its place in the control schema
says so, and the pipeline takes it from its own file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Final

from pydantic import ValidationError

from tailrace.cli.config import Config, Stream, stream_at
from tailrace.cli.config_error import explain
from tailrace.cli.document import Document
from tailrace.cli.secret_options import REFERENCE, secret_options
from tailrace.control.streams import Definition, Origin
from tailrace.errors import ConfigError
from tailrace.streams.kept_roster import Kept

HIDDEN: Final = "${tailrace.yaml}"
"""What stands in the control schema for a secret that the file spells out."""

_OPTIONS: Final = ("trigger_interval", "max_changes_per_batch", "max_bytes_per_batch", "verify")


def declared(config: Config) -> list[Kept]:
    """The streams of the file."""
    return [
        Kept(name, Origin.FILE, _definition(config, name), paused=False, revision=0)
        for name in config.streams
    ]


def resolve(config: Config, kept: Kept, environ: Mapping[str, str] = os.environ) -> Stream:
    """A stream's section, as if the file had it; raises ConfigError."""
    definition = kept.definition
    value: dict[str, object] = {
        "tables": list(definition.tables),
        "sink": {
            option: _revealed(config, kept.name, (option,), text)
            for option, text in definition.sink.items()
        },
        **definition.options,
    }
    narrowed = {"columns": definition.columns, "key": definition.key}
    value.update({name: list(names) for name, names in narrowed.items() if names is not None})
    if definition.where is not None:
        value["where"] = definition.where
    document = Document(f"stream {kept.name}", value, {})
    try:
        section = Stream.model_validate(document.expand(environ).value)
    except ValidationError as error:
        raise explain(error, document) from None
    if section.verify is not None and kept.origin is Origin.SQL:
        raise ConfigError(
            f"stream {kept.name}: verify needs a stream of the configuration file",
            hint="declare the stream there, or run `tailrace verify` by other means",
        )
    return stream_at(section, config.root)


def _definition(config: Config, name: str) -> Definition:
    written = _plain(config.written_stream(name))
    sink: dict[str, object] = {"type": "delta", **_mapping(written.get("sink"))}
    for place, secret in secret_options(config.streams[name].sink, sink):
        sink = _with(sink, place, _hidden(secret))
    where = written.get("where")
    return Definition(
        tables=tuple(map(str, _list(written.get("tables")) or ("public.*",))),
        sink=sink,
        where=None if where is None else str(where),
        columns=_names(written.get("columns")),
        key=_names(written.get("key")),
        options={key: written[key] for key in _OPTIONS if written.get(key) is not None},
    )


def _with(options: Mapping[str, object], place: Sequence[str], value: object) -> dict[str, object]:
    """The same options, with this value in this place."""
    first, *rest = place
    inner = _with(_mapping(options.get(first)), rest, value) if rest else value
    return {**options, first: inner}


def _hidden(value: object) -> object:
    if isinstance(value, dict):
        return {key: _hidden(each) for key, each in value.items()}
    return value if isinstance(value, str) and REFERENCE.fullmatch(value) else HIDDEN


def _revealed(config: Config, stream: str, place: tuple[str, ...], value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _revealed(config, stream, (*place, key), v) for key, v in value.items()}
    if value != HIDDEN:
        return value
    found: object = _mapping(config.written_stream(stream)).get("sink")
    for key in place:
        found = _mapping(found).get(key)
    if found is None:
        raise ConfigError(
            f"stream {stream} takes {'.'.join(place)} from tailrace.yaml, which does not have it",
            hint="declare the stream there as on the node that made it, or use ${NAME}",
        )
    return found


def _plain(value: object) -> Mapping[str, object]:
    """As JSON has it: YAML knows dates."""
    return _mapping(json.loads(json.dumps(value, default=str)))


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _names(value: object) -> tuple[str, ...] | None:
    return tuple(map(str, value)) if isinstance(value, list) else None
