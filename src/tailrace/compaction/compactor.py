"""Folds bases, one after the other, each in steps of bounded size.

A step puts parts and then the newer base, which makes them count; it may die anywhere. Done again
it makes the same parts under the same names, because everything follows from the older base and the
range. Tables for which a new base is asked for are left alone: what they miss is not in the log. So
are those that are not captured any more.
A table may be read from Postgres anew while its older base is folded. The new one counts then, so
the fold is given up; should both come about at the same moment, one more base is asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from tailrace.compaction.folding import Folded, fold_texts
from tailrace.compaction.range import Range, foldable, wanted
from tailrace.compaction.rewriting import Rewritten, groups, put_fresh, rewrite
from tailrace.compaction.running import Run, give_back
from tailrace.compaction.steps import in_steps
from tailrace.compaction.texts import as_texts
from tailrace.decode import TableChanges
from tailrace.errors import LogError, SchemaError
from tailrace.failpoint import failpoint
from tailrace.log import Base, BaseOrigin, BasePart, Reader, layout
from tailrace.log.base_part import BaseIdentity
from tailrace.log.bases import newest_bases, positions_after, put_base, read_base
from tailrace.log.gone import gone_tables
from tailrace.log.plan import pieces
from tailrace.log.wanted import WantedBase, want_base, wanted_bases
from tailrace.model import Lsn, Offset, Relation
from tailrace.spark.planning import decode_pieces, worker_store
from tailrace.storage import Store

logger = logging.getLogger(__name__)

STEP_BYTES: Final = 64 << 20
"""About how much of a table's changes is folded at once, whatever the size of a transaction."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a table: where its newest base stands, how many changes were folded into it
    at most, and why it could not be brought to the end of the log, if so.
    """

    table: str
    position: Lsn
    change_count: int
    reason: str = ""


class Compactor:
    """Driven by one thread."""

    def __init__(self, store: Store, run: Run, *, step_bytes: int = STEP_BYTES) -> None:
        self._store = store
        self._run = run
        self._step_bytes = step_bytes

    def due(self, *, interval_s: float, now_s: float) -> set[str]:
        """The tables (`schema.name`) whose newest base was made longer ago than that."""
        made: dict[int, float] = {}
        for entry in self._store.list(layout.BASES):
            oid, position = layout.base_of(entry.key)
            if entry.key == layout.base_key(oid, position):
                made[oid] = max(made.get(oid, 0.0), entry.modified_s)
        old = {oid for oid, at in made.items() if at < now_s - interval_s}
        if not old:
            return set()
        bases = self._bases()
        return {base.relation.qualified for oid, base in bases.items() if oid in old}

    def compact(self, tables: Container[str] | None = None) -> list[Outcome]:
        """Bring the bases of these tables (`schema.name`), or of all, to the end of the log."""
        bases = self._bases()
        asked = wanted_bases(self._store, {oid: base.position for oid, base in bases.items()})
        chosen = [
            base for base in bases.values() if tables is None or base.relation.qualified in tables
        ]
        return [
            self._skipped(base, asked[base.relation.oid])
            if base.relation.oid in asked
            else self._compact(base)
            for base in sorted(chosen, key=lambda base: base.relation.qualified)
        ]

    def _bases(self) -> dict[int, Base]:
        """The newest of each table that is captured."""
        gone = gone_tables(self._store)
        return {oid: base for oid, base in newest_bases(self._store).items() if oid not in gone}

    def _skipped(self, base: Base, asked: WantedBase) -> Outcome:
        reason = f"a new base is asked for: {asked.reason}"
        return Outcome(base.relation.qualified, base.position, 0, reason)

    def _compact(self, base: Base) -> Outcome:
        reader, folded, reason = Reader(self._store), 0, ""
        try:
            while not reason:
                found = foldable(reader, base, bytes_max=self._step_bytes)
                if found.stopped_at is not None:
                    reason = f"its name, columns or key changed at {found.stopped_at}"
                if found.end > base.position:
                    newer = self._folded_base(reader, base, found)
                    failpoint("compaction.before_base")
                    if self._was_read_anew(base):
                        break
                    put_base(self._store, newer)
                    failpoint("compaction.after_base")
                    if self._was_read_anew(base, before=newer.position):
                        # Just now, and it does not count beside one that reaches further.
                        reason = "it was read anew while it was folded"
                    base, folded = newer, folded + found.change_count
                elif found.stopped_at is None:
                    break
        except SchemaError as error:
            reason = str(error)
        if reason:
            # Only Postgres knows what the rows of the base hold now.
            position = Lsn(base.position + 1)
            want_base(self._store, WantedBase(base.relation.oid, position, reason))
        outcome = Outcome(base.relation.qualified, base.position, folded, reason)
        logger.info("base folded table=%s position=%s", outcome.table, outcome.position)
        return outcome

    def _was_read_anew(self, base: Base, *, before: Lsn | None = None) -> bool:
        """Whether there is a base of the table that has more than this one and the changes."""
        newer = positions_after(self._store, base.relation.oid, base.position)
        return any(
            read_base(self._store, base.relation.oid, position).generation > base.generation
            for position in newer
            if before is None or position < before
        )

    def _folded_base(self, reader: Reader, base: Base, found: Range) -> Base:
        """The newer base, whose parts are put."""
        newer = replace(
            base,
            relation=found.relation,
            frame=found.frame,
            position=found.end,
            taken_ts_us=found.taken_ts_us,
            origin=BaseOrigin.COMPACTION,
            folded_from=base.generation,
        )
        # With no change there is no new shape either.
        parts = self._parts(reader, base, newer) if found.change_count else base.parts
        return replace(newer, parts=parts)

    def _parts(self, reader: Reader, base: Base, newer: Base) -> tuple[BasePart, ...]:
        """The parts of the newer base, put. If it takes several steps, each goes on from the parts
        of the one before; only those of the last are named.
        """
        # The same whenever it is done again, and unlike that of any other writer.
        writer = f"compaction-{base.position.hex16}"
        identity = BaseIdentity(base.source, base.relation.oid, newer.position, writer)
        parts, relation, stretch = base.parts, base.relation, 0
        for step in in_steps(self._changes(reader, base, newer), bytes_max=self._step_bytes):
            folded = fold_texts(newer.relation, step)
            numbered = list(enumerate(groups(parts), stretch))
            # Rows that are new are not for the tasks; a slice of them would still take all along.
            told = replace(folded, fresh=folded.fresh.schema.empty_table())
            task = partial(_rewrite, self._store.url, identity, relation, told)
            done: list[Rewritten] = self._run(task, numbered)
            if sum(each.completed for each in done) != folded.partial.num_rows:
                raise LogError(
                    f"the base of {base.relation.qualified} at {base.position} lacks a row that was"
                    " updated since",
                    hint="run `tailrace snapshot` for the table",
                )
            stretch += len(numbered)
            fresh = put_fresh(self._store, identity, folded, stretch=stretch)
            give_back()
            parts = (*(part for each in done for part in each.parts), *fresh)
            relation, stretch = newer.relation, stretch + 1
        return parts

    def _changes(self, reader: Reader, base: Base, newer: Base) -> Iterator[TableChanges]:
        wants = wanted(base)
        after, upto = Offset.whole(base.position), Offset.whole(newer.position)
        planned = pieces(reader, after, upto, wanted=wants)
        return decode_pieces(self._store, planned, wants, None, read_as=as_texts)


def _rewrite(
    url: str,
    identity: BaseIdentity,
    relation: Relation,
    folded: Folded,
    numbered: tuple[int, tuple[BasePart, ...]],
) -> Rewritten:
    """A task, on any machine."""
    done = rewrite(worker_store(url), identity, as_texts(relation), folded, numbered)
    give_back()
    return done
