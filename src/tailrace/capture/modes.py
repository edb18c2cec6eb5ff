"""How tables are to be captured: what the configuration says, for all of them and for some.

A setting of one table wins over that of all. Patterns are looked at in the order written; the first
that means the table decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tailrace.postgres.catalog import TableInfo
from tailrace.postgres.pattern import TablePattern


class CaptureMode(StrEnum):
    """From where changes are taken: the WAL alone, triggers alone, or the WAL as soon as it can."""

    WAL = "wal"
    AUTO = "auto"
    TRIGGER = "trigger"


@dataclass(frozen=True, slots=True)
class TableRules:
    """What holds for one table.

    A hand-over that has not come about after `transition_timeout_s` is given up for a while; it is
    not begun while the stream is more than `handover_lag_bytes_max` behind. A lock is waited for
    `lock_timeout_ms`, which must stay below deadlock_timeout. For `shadow_s` both captures are
    compared before triggers are switched off. `auto_replica_identity` lets us alter a table that
    the WAL cannot be taken from otherwise.
    """

    mode: CaptureMode = CaptureMode.WAL
    transition_timeout_s: float = 300.0
    auto_replica_identity: bool = False
    lock_timeout_ms: int = 200
    handover_lag_bytes_max: int = 16 << 20
    shadow_s: float = 0.0


@dataclass(frozen=True, slots=True)
class HybridSettings:
    """All of it: what holds for every table, and what holds for those of a pattern instead.

    `poll_interval_s` is how often buffers are drained while there is no slot.
    """

    rules: TableRules = field(default_factory=TableRules)
    of_some: Sequence[tuple[str, TableRules]] = ()
    poll_interval_s: float = 0.5

    @property
    def may_use_triggers(self) -> bool:
        """False if every table is to come from the WAL: then nothing but WAL capture is set up."""
        return any(mode is not CaptureMode.WAL for mode in self._modes())

    @property
    def may_use_wal(self) -> bool:
        """False if no table is ever to come from the WAL: then no slot is needed."""
        return any(mode is not CaptureMode.TRIGGER for mode in self._modes())

    @property
    def transition_s_max(self) -> float:
        """No hand-over, of whatever table, is under way for longer unless it is stuck: it is given
        up after its timeout and its shadow, and has as long as the timeout again for that.
        """
        every = (self.rules, *(rules for _, rules in self.of_some))
        return max(2 * each.transition_timeout_s + each.shadow_s for each in every)

    def of(self, table: TableInfo) -> TableRules:
        """The rules for one table."""
        for pattern, rules in self.of_some:
            if TablePattern.parse(pattern).matches(table.schema, table.name):
                return rules
        return self.rules

    def _modes(self) -> set[CaptureMode]:
        return {self.rules.mode, *(rules.mode for _, rules in self.of_some)}
