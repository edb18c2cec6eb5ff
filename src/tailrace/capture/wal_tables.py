"""Keeps the tables of a source that is captured from the WAL alone."""

from __future__ import annotations

from collections.abc import Callable

from tailrace.capture.membership import Membership, Refusal
from tailrace.capture.mending import mend
from tailrace.capture.removal import take_out
from tailrace.capture.roll import rolls_of
from tailrace.capture.watch import Watch
from tailrace.postgres.quote import SourceNames
from tailrace.postgres.selection import Selection
from tailrace.postgres.session import Connection
from tailrace.storage import Store


class WalTables:
    """One leader's view of them."""

    is_done = False

    def __init__(self, store: Store, names: SourceNames, selection: Selection) -> None:
        self._store = store
        self._rolls = rolls_of(names)
        self._selection = selection
        self._watch = Watch(store, self._rolls)

    def open(
        self, conn: Connection, *, should_go_on: Callable[[], bool]
    ) -> tuple[list[Refusal], int]:
        """Before the stream begins: what is refused, and how many tables are captured."""
        refusals, member_count = [], 0
        for roll in self._rolls:
            mend(conn, self._store, roll)
            take_out(conn, self._store, roll, self._selection, should_go_on=should_go_on)
        for roll in self._rolls:
            membership = Membership(conn, self._store, roll)
            refusals += membership.take_up(self._selection, should_go_on=should_go_on)
            member_count += len(membership.member_oids())
        return refusals, member_count

    def look_after(self, conn: Connection, *, should_go_on: Callable[[], bool]) -> list[Refusal]:
        """Now and then while streaming; raises SourceGap if a publication is gone."""
        refusals = []
        for roll in self._rolls:
            mend(conn, self._store, roll)
            take_out(conn, self._store, roll, self._selection, should_go_on=should_go_on)
        memberships = [Membership(conn, self._store, roll) for roll in self._rolls]
        self._watch.look(conn, [oid for each in memberships for oid in each.member_oids()])
        for membership in memberships:
            refusals += membership.take_up(self._selection, should_go_on=should_go_on)
        return refusals

    def close(self) -> None:
        """There is nothing to give up."""
