"""Bugs of slots, triggers, drains and hand-overs, which the tests must notice as well."""

from __future__ import annotations

from typing import Final

from tests.planted import Mutant

TRIGGERS: Final = ("tests/postgres/test_triggers.py",)
DRAIN: Final = ("tests/capture/drains/test_drain.py",)
SLOT_CYCLE: Final = ("tests/capture/drains/test_slot_cycle.py",)
SLOTLESS: Final = ("tests/capture/drains/test_slotless.py",)
HANDOVER: Final = ("tests/capture/hybrid/test_handover.py",)
COMPARISONS: Final = ("tests/capture/hybrid/test_comparisons.py",)
WRITERS: Final = ("tests/capture/hybrid/test_handover_writers.py",)
SWITCHED: Final = ("tests/capture/hybrid/test_switched_triggers.py",)
LEADERS: Final = ("tests/capture/hybrid/test_two_leaders.py",)

HYBRID_MUTANTS: Final = (
    Mutant(
        "a table is put on record as from the wal before its row is waited for",
        "capture/hybrid/on_record.py",
        "                raise psycopg.Rollback\n",
        "                return\n",
        ("tests/capture/hybrid/test_on_record.py",),
    ),
    Mutant(
        "one table that is held keeps all that were compared published",
        "capture/hybrid/shadow_publication.py",
        "    for oid in sorted(leaving):\n        _is_out(conn, names, {oid}, leader_pid)\n",
        "    _is_out(conn, names, leaving, leader_pid)\n",
        ("tests/capture/hybrid/test_shadow.py",),
    ),
    Mutant(
        "a base stays that was taken beside a slot which is gone",
        "capture/footing.py",
        "    return any(DRAINED in (header.note or {}) for header in later)\n",
        "    return not list(later) and False\n",
        ("tests/capture/drains/test_slotless.py",),
    ),
    Mutant(
        "an error that comes in one piece is read when something more comes",
        "capture/streaming.py",
        "self._has_more = not is_all or wire.has_ended",
        "self._has_more = not is_all",
        ("tests/capture/test_streaming.py",),
    ),
    Mutant(
        "a new slot is tried with the view of the catalog that it was made with",
        "postgres/slot_proof.py",
        "    conn.execute(statement(_CHANGE, identifier(publication)))\n",
        "",
        ("tests/postgres/test_slot_proof.py",),
    ),
    Mutant(
        "triggers do not fire for a replica",
        "postgres/triggers.py",
        'how = "ENABLE ALWAYS" if enabled',
        'how = "ENABLE" if enabled',
        TRIGGERS,
    ),
    Mutant(
        "a trigger that is there under another name is made again",
        "postgres/triggers.py",
        "            if fired_by not in there:\n",
        "            if name not in there:\n",
        TRIGGERS,
    ),
    Mutant(
        "the barrier leaves the triggers in force beside the wal",
        "capture/hybrid/handover.py",
        "            switch_triggers(conn, table, enabled=False)\n",
        "",
        WRITERS,
    ),
    Mutant(
        "triggers that were switched off pass the barrier",
        "capture/hybrid/handover.py",
        '            self._must_be_in_force(conn, table, "be handed over")\n',
        "",
        ("tests/capture/hybrid/test_on_record.py",),
    ),
    Mutant(
        "triggers that were switched off and on again pass the barrier",
        "capture/hybrid/handover.py",
        "            _must_be_as_seen(conn, table, look)\n",
        "",
        SWITCHED,
    ),
    Mutant(
        "a zombie passes the barrier",
        "postgres/barrier.py",
        "                must_lead(conn, self.slot, self.leader_pid)\n                # By",
        "                # By",
        HANDOVER,
    ),
    Mutant(
        "a leader that lost its lock inside the barrier commits it",
        "postgres/barrier.py",
        "                must_lead(conn, self.slot, self.leader_pid)\n        except",
        "        except",
        LEADERS,
    ),
    Mutant(
        "triggers are put back beside the wal by one who has looked too early",
        "capture/hybrid/upkeep.py",
        "            self._must_be_by_trigger(conn, table)\n",
        "",
        LEADERS,
    ),
    Mutant(
        "triggers are dropped when the wal is wished for and cannot be had",
        "capture/hybrid/wanting.py",
        "rules.mode is CaptureMode.WAL and not by_trigger",
        "rules.mode is CaptureMode.WAL",
        ("tests/capture/drains/test_slotless.py",),
    ),
    Mutant(
        "a zombie changes what is on record, and drops what is not needed",
        "postgres/leading.py",
        "        must_lead(conn, slot, pid)\n        yield\n        must_lead(conn, slot, pid)\n",
        "        yield\n",
        ("tests/capture/hybrid/test_two_leaders.py",),
    ),
    Mutant(
        "triggers are put back and no base is asked for",
        "capture/hybrid/upkeep.py",
        "            want_anew(conn, self._store, table.oid, table.qualified, problem)\n",
        "",
        HANDOVER,
    ),
    Mutant(
        "whatever two captures tell is the same",
        "capture/hybrid/shadow_rows.py",
        "        if len(mine) != len(other) or not all(map(_agree, mine, other)):\n",
        "        if False:\n",
        COMPARISONS,
    ),
    Mutant(
        "a table stays published whose comparison has ended",
        "capture/hybrid/tables.py",
        "        self._handover.keep_shadows(conn)\n",
        "",
        COMPARISONS,
    ),
    Mutant(
        "what was drained is drained again",
        "capture/drains/outstanding.py",
        "        if self.passed is None:\n",
        "        if True:\n",
        DRAIN,
    ),
    Mutant(
        "what was open during a drain is taken for drained",
        "capture/drains/outstanding.py",
        '"xid >= pg_snapshot_xmin({0}) AND NOT pg_visible_in_snapshot(xid, {0})"',
        '"xid >= pg_snapshot_xmax({0})"',
        DRAIN,
    ),
    Mutant(
        "rows are deleted that the log does not have",
        "capture/drains/passed_rows.py",
        "\n   AND pg_visible_in_snapshot(xid, {passed}::pg_snapshot)\n",
        "\n   AND {passed} <> ''\n",
        DRAIN,
    ),
    Mutant(
        "a drain is appended before it is on the server's disk",
        "postgres/session.py",
        '"synchronous_commit": "local",\n',
        '"synchronous_commit": "off",\n',
        DRAIN,
    ),
    Mutant(
        "the last change of a row is drained first",
        "capture/buffers/copying.py",
        'order: sql.Composable = sql.SQL("seq")',
        'order: sql.Composable = sql.SQL("seq DESC")',
        DRAIN,
    ),
    Mutant(
        "what came by a slot that was lost is drained again",
        "capture/drains/outstanding.py",
        "    return Outstanding(passed, *_logged(reader, max(since, reader.begin())))\n",
        "    return Outstanding(passed)\n",
        SLOT_CYCLE,
    ),
    Mutant(
        "a slot begins without what its snapshot shows",
        "capture/drains/drain.py",
        "in rows_of(session, buffers, outstanding, go_on",
        "in rows_of(session, {}, outstanding, go_on",
        SLOT_CYCLE,
    ),
    Mutant(
        "buffers are emptied before the log has passed the mark",
        "capture/drains/passed_marks.py",
        "        if self._mark is not None and durable.wal < self._mark.position:\n",
        "        if False:\n",
        SLOT_CYCLE,
    ),
    Mutant(
        "a buffer that others publish is never emptied",
        "capture/drains/passed_rows.py",
        "            if make_deletable(conn, table):\n",
        "            if False:\n",
        ("tests/capture/drains/test_publications_of_others.py",),
    ),
    Mutant(
        "a look in vain is followed by the next at once",
        "capture/drains/pace.py",
        "        self._due_at = self._clock() + pause_s\n",
        "        self._due_at = self._clock()\n",
        ("tests/capture/drains/test_pace.py",),
    ),
    Mutant(
        "buffers are not looked at though something was committed",
        "capture/drains/drain.py",
        "        if outstanding.passed == snapshot and",
        "        if outstanding.passed is not None and",
        ("tests/capture/drains/test_pace.py",),
    ),
    Mutant(
        "of a transaction that is too large for a shadow all is kept",
        "capture/hybrid/shadow_rows.py",
        "        if is_row and self._bytes_left < 0:\n",
        "        if False:\n",
        ("tests/capture/hybrid/test_shadow.py",),
    ),
    Mutant(
        "teardown leaves what is on no record",
        "control/removal.py",
        "*read_captures(conn)} - foreign",
        "} - foreign",
        ("tests/control/test_removal.py",),
    ),
    Mutant(
        "a source drains the buffers of another",
        "capture/drains/passed_rows.py",
        "for table, oid in read_buffers(conn).items() if table not in foreign}",
        "for table, oid in read_buffers(conn).items() if foreign is not None}",
        SLOTLESS,
    ),
    Mutant(
        "a row that changes its key waits for one of its two keys only",
        "capture/buffers/touched_keys.py",
        "        for row in np.flatnonzero(self.before != self.after).tolist():\n",
        "        for row in np.flatnonzero(self.before < 0).tolist():\n",
        ("tests/capture/buffers/test_translate.py",),
    ),
    Mutant(
        "rows that could not wait go out of order, and nobody is told",
        "capture/buffers/translate.py",
        "            if holding is not None and holding.is_torn(oid, groups):\n",
        "            if False:\n",
        ("tests/capture/buffers/test_translate.py",),
    ),
    Mutant(
        "the end of a slot takes it from whoever uses it by now",
        "capture/slot_end.py",
        "            if not (self._leads_again(session) and self._is_of_no_use(session)):\n",
        "            if not self._leads_again(session):\n",
        ("tests/capture/hybrid/test_two_leaders.py",),
    ),
    Mutant(
        "a base is taken though its table was published while the snapshot was made",
        "bases/take.py",
        "(oid not in before or oid not in now or before[oid] != now[oid]):\n",
        "(oid not in before or oid not in now):\n",
        ("tests/bases/test_published_anew.py",),
    ),
    Mutant(
        "the barrier takes a table that has the name by now for the one that is meant",
        "postgres/barrier.py",
        "                must_be_unchanged(conn, table)\n",
        "                pass\n",
        ("tests/capture/hybrid/test_names_that_move.py",),
    ),
)
