"""The base with which a read of one table may start: which one, its rows as tasks, and the rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import InputPartition

from tailrace.errors import OffsetOutOfRange
from tailrace.log import Base, BasePart, layout
from tailrace.log.bases import read_base, read_base_part
from tailrace.log.plan import Limits
from tailrace.model import ORDINAL_MAX, Lsn, Offset
from tailrace.spark.place import Place
from tailrace.storage import ObjectMissing, Store

if TYPE_CHECKING:
    from tailrace.decode import TableChanges

PARTITION_BYTES: Final = 8 << 20
"""About how much of a base one task decodes; a part that is larger is one task's."""


def newest_base(store: Store, table: str, *, upto: Offset | None = None) -> Base | None:
    """The newest complete base of a table (`schema.name`), not later than `upto`.

    A table that was dropped and made again has bases of both: the one counts that was read last.
    """
    newest: dict[int, Lsn] = {}
    for position, oid in sorted(_complete(store)):
        if upto is None or Offset.whole(position) <= upto:
            newest[oid] = position
    found = [_read(store, oid, position) for oid, position in newest.items()]
    named = [base for base in found if base is not None and base.relation.qualified == table]
    return max(named, key=lambda base: base.generation, default=None)


def base_at(store: Store, table: str, position: Lsn) -> Base:
    """The base of a table at one position; raises OffsetOutOfRange if it was deleted."""
    for at, oid in _complete(store):
        base = _read(store, oid, position) if at == position else None
        if base is not None and base.relation.qualified == table:
            return base
    raise OffsetOutOfRange(
        f"the base of {table} at {position} is gone",
        hint="a newer one has taken its place: begin with a new checkpoint",
    )


def _complete(store: Store) -> list[tuple[Lsn, int]]:
    keys = [entry.key for entry in store.list(layout.BASES)]
    found = [(key, *layout.base_of(key)) for key in keys]
    return [(at, oid) for key, oid, at in found if key == layout.base_key(oid, at)]


def _read(store: Store, oid: int, position: Lsn) -> Base | None:
    try:
        return read_base(store, oid, position)
    except ObjectMissing:
        return None


def end_in_base(base: Base, start: Place, limits: Limits) -> Place:
    """Where a batch ends that begins inside of a base: at a limit, else with the base."""
    first = first_row(base, start)
    rows, size, at = 0, 0, 0
    for part in base.parts:
        in_part = min(part.row_count, at + part.row_count - first)
        at += part.row_count
        if in_part <= 0:
            continue
        part_size = part.data_bytes * in_part // max(part.row_count, 1)
        if rows + in_part > limits.changes_max or size + part_size > limits.bytes_max:
            by_size = (limits.bytes_max - size) * in_part // max(part_size, 1)
            taken = min(limits.changes_max - rows, max(by_size, 0), in_part)
            last = first + max(rows + taken, 1) - 1
            return Place(Offset(base.position, last), in_base=True)
        rows, size = rows + in_part, size + part_size
    return Place(Offset.whole(base.position))


def first_row(base: Base, start: Place) -> int:
    """The number of the first row that follows `start`."""
    return start.offset.ordinal + 1 if start.base_position == base.position else 0


@dataclass(frozen=True, slots=True)
class PartRows:
    """Rows `first` to `last` of a base, all in one part, whose own first one is number `begin`."""

    part: BasePart
    begin: int
    first: int
    last: int


class BasePartition(InputPartition):
    """Some rows of a base, for one task."""

    def __init__(self, base: Base, rows: tuple[PartRows, ...]) -> None:
        super().__init__(None)
        self.base = base
        self.rows = rows


def base_partitions(
    base: Base, first: int = 0, last: int = ORDINAL_MAX
) -> Sequence[InputPartition]:
    """The rows `first` to `last` of a base, as tasks."""
    groups: list[list[PartRows]] = []
    size, begin = 0, 0
    for part in base.parts:
        rows = PartRows(part, begin, max(first, begin), min(last, begin + part.row_count - 1))
        begin += part.row_count
        if rows.first > rows.last:
            continue
        if not groups or size + part.data_bytes > PARTITION_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(rows)
        size += part.data_bytes
    return [BasePartition(base, tuple(group)) for group in groups]


def decode_partition(
    store: Store, partition: BasePartition, columns: tuple[str, ...] | None
) -> Iterator[TableChanges]:
    """Fetch and decode, on an executor; raises OffsetOutOfRange if the base was deleted."""
    from tailrace.decode import decode_base

    base = partition.base
    for rows in partition.rows:
        try:
            lines = read_base_part(store, rows.part)
        except ObjectMissing as error:
            raise OffsetOutOfRange(
                f"the base of {base.relation.qualified} at {base.position} is gone",
                hint="a newer one has taken its place: read again",
            ) from error
        yield from decode_base(
            lines[rows.first - rows.begin : rows.last - rows.begin + 1],
            base.relation,
            position=base.position,
            taken_ts_us=base.taken_ts_us,
            first_ordinal=rows.first,
            columns=columns,
        )
