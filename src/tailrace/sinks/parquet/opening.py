"""Change files as the options describe them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tailrace.errors import ConfigError
from tailrace.sinks.parquet.options import ParquetOptions, Partition
from tailrace.sinks.parquet.sink import ParquetSink

OPTIONS: Final = ("path", "partition_by")


def open_parquet(options: Mapping[str, object]) -> ParquetSink:
    """Raises ConfigError."""
    if "path" not in options:
        raise ConfigError("a parquet sink needs a path", hint="e.g. path: ./changes")
    wanted = str(options.get("partition_by", Partition.COMMIT_DATE))
    if wanted not in list(Partition):
        raise ConfigError(
            f"a parquet sink is not partitioned by {wanted!r}", hint=f"{' or '.join(Partition)}"
        )
    return ParquetSink(ParquetOptions(str(options["path"]), Partition(wanted)))
