"""Some parts of a base, as they are after the changes: one task of a compaction.

Lines that stay are copied as they are. Parts of which every line stays are named by the newer base
as well, and not written again, unless they are small and have small neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from tailrace.compaction.folding import Folded
from tailrace.compaction.texts import to_lines, widened
from tailrace.decode import change_schema, decode_base
from tailrace.failpoint import failpoint
from tailrace.log import BasePart
from tailrace.log.base_part import BaseIdentity
from tailrace.log.bases import put_base_part, read_base_part
from tailrace.model import Lsn, Relation
from tailrace.model.change import TEXT
from tailrace.postgres.binaries import text_offsets
from tailrace.sinks.fold import Fold
from tailrace.sinks.keys import Mask, find_keys
from tailrace.sinks.settle import settle
from tailrace.storage import Store

PART_BYTES: Final = 16 << 20
"""About how large the parts are that a compaction writes."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The parts that take the place of a group, and how many partial rows they complete."""

    parts: tuple[BasePart, ...]
    completed: int


def groups(parts: Sequence[BasePart]) -> Iterator[tuple[BasePart, ...]]:
    """Neighbouring parts that fit into one."""
    group: list[BasePart] = []
    for part in parts:
        if group and sum(each.data_bytes for each in group) + part.data_bytes > PART_BYTES:
            yield tuple(group)
            group = []
        group.append(part)
    if group:
        yield tuple(group)


def rewrite(
    store: Store,
    identity: BaseIdentity,
    relation: Relation,
    folded: Folded,
    numbered: tuple[int, tuple[BasePart, ...]],
) -> Rewritten:
    """The group, which has the shape `relation`, as it is after the changes, stored; the same
    whenever it is done again.
    """
    number, group = numbered
    lines = [read_base_part(store, part) for part in group]
    outcomes = [_after(each, relation, folded) for each in lines]
    completed = sum(len(added) for _, added in outcomes)
    if len(group) == 1 and not completed and outcomes[0][0] is lines[0]:
        return Rewritten(group, 0)
    left = pa.concat_arrays([lines for outcome in outcomes for lines in outcome])
    if not len(left):
        return Rewritten((), 0)
    assert isinstance(left, pa.BinaryArray)
    failpoint("compaction.before_part")
    part = put_base_part(store, identity, left, stretch=number, number=0)
    failpoint("compaction.after_part")
    return Rewritten((part,), completed)


def put_fresh(
    store: Store, identity: BaseIdentity, folded: Folded, *, stretch: int
) -> list[BasePart]:
    """The rows that the base did not have, stored."""
    lines = to_lines(folded.fresh, folded.relation.column_names)
    parts: list[BasePart] = []
    first = 0
    while first < len(lines):
        offsets = text_offsets(lines[first:])
        within = int(np.searchsorted(offsets, PART_BYTES, side="right")) - 1
        last = min(first + max(within, 1), len(lines))
        rows = lines[first:last]
        failpoint("compaction.before_part")
        parts.append(put_base_part(store, identity, rows, stretch=stretch, number=len(parts)))
        first = last
    return parts


def _after(
    lines: pa.BinaryArray, relation: Relation, folded: Folded
) -> tuple[pa.BinaryArray, pa.BinaryArray]:
    """The lines that stay, and those of partial rows that the others complete."""
    nothing, added = lines[:0], len(folded.relation.columns) - len(relation.columns)
    if folded.truncated or not folded.relation.key:
        return (nothing if folded.truncated else widened(lines, added)), nothing
    keys = _texts(lines, relation, folded.relation.key)
    stays = find_keys(keys, folded.touched) < 0
    at = find_keys(folded.origins, keys)
    kept = widened(lines if stays.all() else lines.filter(pa.array(stays)), added)
    if (at < 0).all():
        return kept, nothing
    wide = widened(lines.take(at[at >= 0]), added)
    held = _texts(wide, folded.relation, (*folded.relation.column_names, TEXT))
    return kept, to_lines(_completed(folded, at >= 0, held), folded.relation.column_names)


def _completed(folded: Folded, here: Mask, held: pa.Table) -> pa.Table:
    """Those partial rows, with the values that they lack."""
    mask = pa.array(here)
    partial = Fold(
        truncated=False,
        upserts=folded.partial.filter(mask),
        deletes=folded.origins.slice(0, 0),
        origins=folded.origins.filter(mask),
        kept={name: lacks[here] for name, lacks in folded.lacking.items()},
    )

    def read(columns: Sequence[str], _keys: pa.Table) -> pa.Table:
        return held.select(list(columns))

    return settle(partial, folded.relation, read, in_place=False).upserts


def _texts(lines: pa.BinaryArray, relation: Relation, columns: Sequence[str]) -> pa.Table:
    wanted = [name for name in columns if name != TEXT]
    pieces = decode_base(lines, relation, position=Lsn(0), taken_ts_us=0, columns=wanted)
    nothing = change_schema(relation, wanted).empty_table()
    rows = pa.concat_tables([nothing, *(piece.rows for piece in pieces)])
    return rows.select(list(columns)).combine_chunks()
