"""How a lake is kept: what its tables hold, how they are laid out, and when they are tidied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from tailrace.errors import ConfigError, SchemaError
from tailrace.model import Relation
from tailrace.sinks.columns import Mode

VACUUM_AFTER_MIN: Final = timedelta(days=1)
"""What a reader or a writer of an older version still needs must not be younger than this."""


@dataclass(frozen=True, slots=True)
class DeltaOptions:
    """`partition_by` and `cluster_by` give columns for a table (`schema.name`). With
    `deletion_vectors` new tables may mark rows as deleted instead of writing their files anew.

    After every `compact_after` commits to a table it is looked at for small files and for rows
    that are out of order; 0 leaves the tables as they are. Files that no version of the last
    `vacuum_after` needs are deleted then.
    """

    mode: Mode = Mode.UPSERT
    soft_delete: bool = False
    partition_by: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    cluster_by: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    deletion_vectors: bool = False
    compact_after: int = 100
    vacuum_after: timedelta = timedelta(days=7)

    def __post_init__(self) -> None:
        if self.soft_delete and self.mode is not Mode.UPSERT:
            raise ConfigError(
                f"soft_delete does not go with mode {self.mode}",
                hint="only an upsert deletes rows; append and history keep them anyway",
            )
        if self.compact_after < 0:
            raise ConfigError("compact_after must be at least 0", hint="0 switches it off")
        if self.vacuum_after < VACUUM_AFTER_MIN:
            raise ConfigError(
                "vacuum_after must be at least 1d",
                hint="younger files may still be needed by who reads or writes the table",
            )

    def partitions(self, relation: Relation) -> list[str]:
        """The columns that the table is partitioned by; raises SchemaError."""
        return _columns(self.partition_by, relation, "partition_by")

    def clusters(self, relation: Relation) -> list[str]:
        """The columns that its rows are ordered by, those of its key if nothing else is said."""
        chosen = _columns(self.cluster_by, relation, "cluster_by")
        default = [] if self.mode is Mode.APPEND else list(relation.key)
        parts = self.partition_by.get(relation.qualified, ())
        return [name for name in chosen or default if name not in parts]


def _columns(chosen: Mapping[str, tuple[str, ...]], relation: Relation, option: str) -> list[str]:
    names = chosen.get(relation.qualified, ())
    missing = next((name for name in names if name not in relation.column_names), None)
    if missing is not None:
        raise SchemaError(
            f"table {relation.qualified} has no column {missing}, by which it is to be laid out",
            hint=f"correct {option} of the sink; there are {', '.join(relation.column_names)}",
        )
    return list(names)
