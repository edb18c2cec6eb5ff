"""The tables of one snapshot: read, compared with the catalog of now, made complete.

A base is complete only if its table is, after the last row was read, what the snapshot shows: the
same columns, the same partitions, the same files. A rewrite between would have hidden rows without
an error.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from tailrace.bases.progress import BaseProgress, PartCount
from tailrace.bases.reading import Failure, Outcome, Reading
from tailrace.bases.runner import Runner
from tailrace.bases.stretch import TablePlan, plan_table
from tailrace.bases.watching import Limits, watch
from tailrace.capture.footing import was_drained_after
from tailrace.capture.lent_snapshot import LentSnapshotHolder
from tailrace.errors import SchemaError, SourceError, TailraceError
from tailrace.failpoint import failpoint
from tailrace.log import Base, BaseOrigin, SourceIdentity
from tailrace.log.bases import BaseTaken, positions_after, put_base
from tailrace.model import Lsn
from tailrace.postgres.session import connect
from tailrace.postgres.snapshot import Snapshot, SnapshotHolder
from tailrace.postgres.table_shape import TableShape, read_shape
from tailrace.storage import Store

logger = logging.getLogger(__name__)

ROUNDS_MAX: Final = 3
"""How often stretches that failed are read again under the same snapshot."""

HOLDER_NAME: Final = "tailrace base"
_NAME_BYTES_MAX: Final = 63


@dataclass(frozen=True, slots=True)
class TableResult:
    """What became of one table: its base, or why there is none; what may pass is tried again.

    Neither if another process took it meanwhile.
    """

    oid: int
    table: str
    base: Base | None = None
    error: TailraceError | None = None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a group needs beside its tables."""

    dsn: str
    store: Store
    runner: Runner
    source: SourceIdentity
    limits: Limits
    show: Callable[[BaseProgress], None]
    go_on: Callable[[], None]


class Group:
    """Some tables and the snapshot that they are read under."""

    def __init__(self, around: Surroundings, holder: SnapshotHolder, snapshot: Snapshot) -> None:
        self._around = around
        self._holder = holder
        self._snapshot = snapshot
        self._position = Lsn.of(snapshot.position, era=around.source.era)
        self._started = time.monotonic()

    def take(self, oids: Sequence[int]) -> list[TableResult]:
        """A base for each table, or the reason why not. Raises TailraceError if the snapshot is
        lost, has been held for too long, or if told to stop.
        """
        shapes = {oid: read_shape(self._holder.session, oid) for oid in oids}
        plans = [plan_table(self._holder.session, shape) for shape in shapes.values() if shape]
        failpoint("base.after_plan")
        outcomes = self._read(plans)
        results = [_gone(oid) for oid, shape in shapes.items() if shape is None]
        for plan in plans:
            oid = plan.shape.relation.oid
            mine = sorted((o for o in outcomes if o.oid == oid), key=lambda o: o.number)
            results.append(self._complete(plan.shape, mine))
        return results

    def _read(self, plans: Sequence[TablePlan]) -> list[Outcome]:
        around = self._around
        count = PartCount(around.store, self._position, plans)
        left = [stretch for plan in plans for stretch in plan.stretches]
        done: list[Outcome] = []
        rate = around.limits.bytes_per_s
        reading = Reading(
            dsn=around.dsn,
            snapshot=self._snapshot.name,
            source=around.source,
            position=self._position,
            writer=secrets.token_hex(8),
            columns={plan.shape.relation.oid: plan.shape.relation.column_names for plan in plans},
            bytes_per_s=None if rate is None else rate / min(around.runner.width, len(left) or 1),
        )
        for number in range(ROUNDS_MAX):
            run = partial(around.runner.run, reading, around.store, left)
            outcomes = watch(run, around.runner.cancel, lambda: self._turn(count))
            is_last = number == ROUNDS_MAX - 1
            again = [o for o in outcomes if o.failure is Failure.PASSING and not is_last]
            done += [o for o in outcomes if o not in again]
            wanted = {(o.oid, o.number) for o in again}
            left = [stretch for stretch in left if (stretch.oid, stretch.number) in wanted]
            if not left:
                break
            logger.warning(
                "stretches are read again count=%d reason=%s", len(left), again[0].message
            )
        return done

    def _turn(self, count: PartCount) -> None:
        """Show how far it is; raise if it must not go on."""
        around, limits = self._around, self._around.limits
        around.go_on()
        progress = count.look(xmin_age=self._holder.xmin_age())
        self._holder.show(_shown(progress))
        around.show(progress)
        held_s = time.monotonic() - self._started
        if held_s > limits.snapshot_s or progress.xmin_age > limits.xmin_age_max:
            raise SourceError(
                f"the snapshot was held for {held_s:.0f} s and {progress.xmin_age} transactions, "
                "during which vacuum could clean up nothing",
                hint="raise base.max_snapshot_age or base.max_xmin_age, or spark's parallelism",
            )

    def _complete(self, shape: TableShape, outcomes: Sequence[Outcome]) -> TableResult:
        relation = shape.relation
        failures = [o for o in outcomes if o.failure is not None]
        try:
            if failures:
                raise _error(relation.qualified, failures[0])
            with connect(self._around.dsn) as now:
                if read_shape(now, relation.oid) != shape:
                    raise SchemaError(
                        f"{relation.qualified} was altered or rewritten while it was read",
                        hint="it is read again; alter it when its base is complete",
                        retry=True,
                    )
            failpoint("base.before_complete")
            base = Base(
                source=self._around.source,
                relation=relation,
                frame=shape.frame,
                position=self._position,
                taken_ts_us=self._snapshot.taken_ts_us,
                origin=BaseOrigin.SNAPSHOT,
                parts=tuple(part for outcome in outcomes for part in outcome.parts),
            )
            put_base(self._around.store, base)
            failpoint("base.after_complete")
            if positions_after(self._around.store, relation.oid, self._position):
                # Of several bases the one that reaches furthest counts.
                raise SchemaError(
                    f"an older base of {relation.qualified} was folded past the new one",
                    hint="it is read again",
                    retry=True,
                )
            if not isinstance(self._holder, LentSnapshotHolder) and was_drained_after(
                self._around.store, self._position
            ):
                # What triggers had buffered is in the base, and was drained behind it.
                raise SourceError(
                    f"the slot was lost while {relation.qualified} was read",
                    hint="it is read again",
                    retry=True,
                )
        except (SchemaError, SourceError, BaseTaken) as error:
            return TableResult(relation.oid, relation.qualified, error=error)
        logger.info(
            "base taken table=%s position=%s rows=%d",
            relation.qualified,
            base.position,
            base.row_count,
        )
        return TableResult(relation.oid, relation.qualified, base)


def _error(table: str, outcome: Outcome) -> SchemaError | SourceError:
    if outcome.failure is Failure.CHANGED:
        return SchemaError(f"{table} changed while it was read: {outcome.message}", retry=True)
    is_passing = outcome.failure is Failure.PASSING
    return SourceError(f"{table}: {outcome.message}", hint=outcome.hint, retry=is_passing)


def _gone(oid: int) -> TableResult:
    return TableResult(oid, str(oid), error=SchemaError(f"table {oid} does not exist any more"))


def _shown(progress: BaseProgress) -> str:
    """For pg_stat_activity: cut as Postgres would cut it."""
    text = f"{HOLDER_NAME} {progress.share:.0%} {', '.join(progress.tables)}"
    return text.encode()[:_NAME_BYTES_MAX].decode(errors="ignore")
