"""A sink that is described on the command line, in the words of the configuration.

The text is kept beside the log until the pipeline has used it. So a secret in it is the name of a
variable of the pipeline's environment, never the secret itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import BaseModel

from tailrace.cli import document
from tailrace.cli.config import parse
from tailrace.cli.secret_options import is_hidden, secret_options
from tailrace.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tailrace.sinks import Sink
    from tailrace.storage import Store

_NAME: Final = "--to-sink"
_HINT: Final = "for example: --to-sink '{type: parquet, path: ./again}'"


def read_other_sink(text: str, root: Path, environ: Mapping[str, str] = os.environ) -> BaseModel:
    """The section of the configuration that it is; raises ConfigError."""
    raw = document.parse(text, name=_NAME).value
    if not isinstance(raw, dict) or "type" not in raw:
        raise ConfigError(f"{_NAME} does not describe a sink", hint=_HINT)
    whole = parse(f"streams: {{other: {{sink: {text}}}}}", root=root, environ=environ, name=_NAME)
    sink = whole.streams["other"].sink
    for place, written in secret_options(sink, raw):
        values = written.values() if isinstance(written, dict) else [written]
        if not all(is_hidden(place[-1], str(value)) for value in values):
            raise ConfigError(
                f"option {'.'.join(place)} of {_NAME} is a secret and would be kept beside the log",
                hint="name a variable of the pipeline's environment: ${NAME}",
            )
    return sink


def open_other_sink(text: str, name: str, *, root: Path, spark: SparkSession, store: Store) -> Sink:
    """Open it, in the pipeline."""
    from tailrace.sinks import open_sink

    options = read_other_sink(text, root).model_dump(by_alias=True)
    return open_sink(options, session=spark, store=store, stream=name)
