"""Bugs that the tests must notice: each is one that this code has had, or could have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

CORE: Final = ("tests/capture/test_core.py",)
TIMING: Final = ("tests/capture/test_core_timing.py",)
MACHINE: Final = ("tests/capture/test_core_machine.py",)
SIMULATION: Final = ("tests/capture/test_simulation.py",)
POWER_CUT: Final = ("tests/storage/test_power_cut.py",)
LOADS: Final = ("tests/streams/test_loads.py", "tests/streams/test_refused_tables.py")
COMPACTION: Final = ("tests/compaction/test_compaction.py",)
REPLAY: Final = ("tests/streams/test_replay.py",)
WHERE: Final = ("tests/where/test_crossing.py::test_filtered_stream_equals_the_filtered_table",)
VALUES: Final = ("tests/decode/test_values.py",)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A bug: `before`, which stands once in `path`, becomes `after`; `tests` must fail."""

    name: str
    path: str
    before: str
    after: str
    tests: tuple[str, ...]


MUTANTS: Final = (
    Mutant(
        "keepalives are acknowledged at once",
        "capture/core.py",
        "                self._idle = _Idle(position, self._last_end)\n            messages",
        "                self.durable = max(self.durable, position)\n            messages",
        CORE,
    ),
    Mutant(
        "a keepalive inside an open transaction counts as idle",
        "capture/core.py",
        "            if not self._assembly.is_open:\n",
        "            if True:\n",
        CORE,
    ),
    Mutant(
        "an idle position does not wait for what came before it",
        "capture/core.py",
        "idle is not None and self.durable >= idle.after and idle.position > self.durable",
        "idle is not None and idle.position > self.durable",
        CORE,
    ),
    Mutant(
        "progress is acknowledged before it is stored",
        "capture/core.py",
        "            return StoreProgress(self._idle.position)\n",
        "            self.durable = self._idle.position\n"
        "            return StoreProgress(self.durable)\n",
        MACHINE,
    ),
    Mutant(
        "what was received is acknowledged instead of what is durable",
        "capture/core.py",
        "SendStatus(max(self.received, self.durable), self.durable, is_asking)",
        "SendStatus(self.received, max(self.received, self.durable), is_asking)",
        CORE,
    ),
    Mutant(
        "a part of a transaction is acknowledged",
        "capture/core.py",
        "            case StorePart() | DiscardParts():\n                pass\n",
        "            case StorePart() | DiscardParts():\n"
        "                self.durable = max(self.durable, self.received)\n",
        CORE,
    ),
    Mutant(
        "status waits for the writer",
        "capture/core.py",
        "        return -inf if self._is_asking else self._status_at + interval_s\n",
        "        return self._status_at + (interval_s if self._job is None else inf)\n",
        TIMING,
    ),
    Mutant(
        "a store that hangs keeps the connection",
        "capture/core.py",
        "now >= self._job_at + limits.stall_timeout_s",
        "now < self._job_at",
        TIMING,
    ),
    Mutant(
        "silence is concluded without looking at the socket",
        "capture/core.py",
        "            if self._drained_at >= self._asked_at",
        "            if now >= self._asked_at",
        TIMING,
    ),
    Mutant(
        "the transaction at the tip is taken again",
        "capture/assembly.py",
        "keep = transactions.end_lsn > self._tip",
        "keep = transactions.end_lsn >= self._tip",
        CORE,
    ),
    Mutant(
        "a huge transaction at the tip is taken again",
        "capture/assembly.py",
        "if self._last_end <= self._tip:",
        "if self._last_end < self._tip:",
        CORE,
    ),
    Mutant(
        "commits may go back",
        "capture/assembly.py",
        "            raise Rejected(CloseReason.DISORDER)\n",
        "            pass\n",
        CORE,
    ),
    Mutant(
        "a transaction without its begin is stored",
        "capture/assembly.py",
        "frames.frames_of(Tag.BEGIN, size=_BEGIN_BYTES), expected",
        "expected, expected",
        CORE,
    ),
    Mutant(
        "messages of others are stored",
        "capture/assembly.py",
        "message.transactional and message.prefix.startswith(MESSAGE_PREFIX)",
        "True",
        CORE,
    ),
    Mutant(
        "a commit's position is where its record starts",
        "postgres/frames.py",
        "end_lsn=self.integers(commits, 10,",
        "end_lsn=self.integers(commits, 2,",
        CORE,
    ),
    Mutant(
        "a table is read from where the stream is, not from its base",
        "streams/taken.py",
        "    return min((table.position for table in tables), default=otherwise)\n",
        "    return max((table.position for table in tables), default=otherwise)\n",
        LOADS,
    ),
    Mutant(
        "a change that the base holds is delivered again",
        "spark/packed.py",
        "if table.after <= after}",
        "}",
        LOADS,
    ),
    Mutant(
        "a folded base is taken for a new generation",
        "log/bases.py",
        "return self.position if self.folded_from is None else self.folded_from",
        "return self.position",
        LOADS,
    ),
    Mutant(
        "a fold takes what was not sent for NULL",
        "compaction/folding.py",
        "fresh=folded.upserts.filter(pc.invert(mask)),",
        "fresh=folded.upserts,",
        COMPACTION,
    ),
    Mutant(
        "retention forgets the bases",
        "log/retention.py",
        "[*reader_positions(store).values(), *needed.values()]",
        "[*reader_positions(store).values()]",
        COMPACTION,
    ),
    Mutant(
        "a row that leaves the where stays in the sink",
        "where/crossing.py",
        "    goes = op[Op.UPDATE] & old & ~now\n",
        "    goes = np.zeros_like(now)\n",
        WHERE,
    ),
    Mutant(
        "a slot ahead of the log is streamed over",
        "capture/attach.py",
        "    if confirmed > tip.position.wal:\n",
        "    if False:\n",
        ("tests/capture/test_attach.py::test_f010_a_slot_that_was_advanced_by_hand_is_a_gap",),
    ),
    Mutant(
        "a server that was set back is streamed over",
        "capture/origin.py",
        "    if written < tip.position.wal:\n",
        "    if False:\n",
        ("tests/capture/test_attach.py::test_f039_a_server_that_was_set_back_is_a_gap",),
    ),
    Mutant(
        "a row filter in our publication stays",
        "capture/roll.py",
        "for member in found.members if member not in ours)",
        "for member in found.members if False)",
        (
            "tests/capture/test_watch.py"
            "::test_f061_what_someone_changes_in_our_publication_is_set_right_before_long",
        ),
    ),
    Mutant(
        "what is not streamed goes unnoticed",
        "capture/watch.py",
        "        if reason:\n",
        "        if False:\n",
        (
            "tests/capture/test_watch.py"
            "::test_f056_what_happens_while_nobody_captures_is_found_as_well",
        ),
    ),
    Mutant(
        "a table without its key stays published",
        "capture/removal.py",
        "        if finding.severity is Severity.BLOCKER:\n            return finding.message\n",
        "        assert finding\n",
        (
            "tests/capture/test_watch.py::test_f052_a_table_that_loses_its_key"
            "_is_set_aside_before_long_and_comes_back_by_itself",
        ),
    ),
    Mutant(
        "a fold answers for what it has missed",
        "log/wanted.py",
        "read_base(store, mark.oid, newest).generation",
        "read_base(store, mark.oid, newest).position",
        ("tests/log/test_wanted.py",),
    ),
    Mutant(
        "a partition that comes with rows is as good as an empty one",
        "postgres/standing.py",
        "        return conn.execute(query).fetchone() == (True,)\n",
        "        return True\n",
        ("tests/postgres/test_standing.py::test_f056_what_is_not_streamed_is_found",),
    ),
    Mutant(
        "inserts alone are published with updates",
        "postgres/publication.py",
        "publish = 'insert, truncate'",
        "publish = 'insert, update, truncate'",
        (
            "tests/capture/test_watch.py"
            "::test_f052_of_a_keyless_table_inserts_alone_are_taken_where_that_is_asked_for",
        ),
    ),
    Mutant(
        "everybody leads",
        "capture/daemon.py",
        "while not session.try_lock(slot):",
        "while session.try_lock(slot) is None:",
        (
            "tests/capture/test_processes.py"
            "::test_of_two_one_leads_and_the_other_takes_over_when_it_ends",
        ),
    ),
    Mutant(
        "a file's bytes are not synced",
        "storage/file.py",
        "                self._disk.fsync(handle)\n                if is_bulk",
        "                if is_bulk",
        POWER_CUT,
    ),
    Mutant(
        "a directory is not synced",
        "storage/file.py",
        "            self._sync_directory(directory)\n        except OSError as error:\n"
        "            if error.errno == errno.ENOENT:\n",
        "        except OSError as error:\n            if error.errno == errno.ENOENT:\n",
        POWER_CUT,
    ),
    Mutant(
        "a put replaces what is there",
        "storage/file.py",
        "        try:\n            self._disk.link(temporary, path)\n",
        "        self._discard(path)\n        try:\n            self._disk.link(temporary, path)\n",
        ("tests/storage/test_conformance.py",),
    ),
    Mutant(
        "recovery builds on what a power cut may take",
        "log/tip.py",
        "        store.sync(level)\n",
        "        pass\n",
        SIMULATION,
    ),
    Mutant(
        "another writer's segment is taken for our own",
        "log/writer.py",
        "        if found.writer != header.writer or found.end != header.end:\n",
        "        if found.end < header.start:\n",
        SIMULATION,
    ),
    Mutant(
        "a segment below the frontier is no reason to stop",
        "log/writer.py",
        "        if read_frontiers(self._store).highest > header.start:\n",
        "        if not header.start:\n",
        ("tests/log/test_writer.py", "tests/log/test_merge.py"),
    ),
    Mutant(
        "small segments are deleted before the frontier has moved",
        "log/merge.py",
        "            move_frontier(self._store, FrontierKind.MERGED, end)\n",
        "",
        ("tests/log/test_merge.py", "tests/log/test_reader.py"),
    ),
    Mutant(
        "small segments go though a power cut may take the merged one",
        "log/merge.py",
        "            self._store.sync(layout.MERGED)\n",
        "            pass\n",
        ("tests/log/test_merge.py", "tests/capture/test_simulation.py"),
    ),
    Mutant(
        "ordinals are off by one",
        "log/offsets.py",
        "before - np.repeat(before[first_frame], sizes)",
        "before - np.repeat(before[first_frame], sizes) + 1",
        ("tests/log/test_writer.py", "tests/log/test_plan.py"),
    ),
    Mutant(
        "ordinals of decoded changes are off by one",
        "decode/changes.py",
        "ordinal = np.arange(len(rows)) + (",
        "ordinal = np.arange(len(rows)) + 1 + (",
        ("tests/decode/test_against_reference.py",),
    ),
    Mutant(
        "a value that was not sent is NULL without a mark",
        "decode/table.py",
        "    unsent = [cells.kind == UNCHANGED for cells in rows.now]\n",
        "    unsent = [cells.kind == 0 for cells in rows.now]\n",
        ("tests/decode/test_against_reference.py",),
    ),
    Mutant(
        "a truncate is ignored",
        "sinks/fold.py",
        " + 1 if len(truncates) else 0\n",
        " + 1 if len(truncates) < 0 else 0\n",
        ("tests/sinks/test_fold.py",),
    ),
    Mutant(
        "a TRUNCATE ends no version",
        "sinks/versions.py",
        "last_place[_after(truncates, at)]",
        "every.num_rows",
        ("tests/sinks/test_history.py",),
    ),
    Mutant(
        "a value that was not sent is taken from an ended version",
        "sinks/delta/history.py",
        "read = partial(target.read, where=_OPEN)",
        "read = target.read",
        ("tests/sinks/test_history.py",),
    ),
    Mutant(
        "a rename is taken for a new column",
        "sinks/evolution.py",
        "if early is not None:",
        "if early is None:",
        ("tests/sinks/test_evolution.py",),
    ),
    Mutant(
        "a rewrite forgets the rows that a batch adds",
        "sinks/delta/rewrite.py",
        "yield ordered.combine_chunks()",
        "yield held",
        ("tests/sinks/test_rewrite.py",),
    ),
    Mutant(
        "a batch that was written is written again",
        "sinks/delta/target.py",
        "recorded >= commit.version",
        "recorded > commit.version",
        ("tests/sinks/test_conformance.py",),
    ),
    Mutant(
        "a message that is not here as a whole is taken for one",
        "postgres/wire.py",
        "            if end > self._filled:\n",
        "            if at + _HEADER_BYTES > self._filled:\n",
        ("tests/postgres/test_wire.py",),
    ),
    Mutant(
        "the rest of a message is lost when what came before it is taken",
        "postgres/wire.py",
        "            self._filled, self._taken, self._wanted = rest, 0, 0\n",
        "            self._filled, self._taken, self._wanted = 0, 0, 0\n",
        ("tests/postgres/test_wire.py",),
    ),
    Mutant(
        "the size of a domain's type is forgotten",
        "model/relation.py",
        "return known.base_oid, known.base_typmod",
        "return known.base_oid, -1",
        VALUES,
    ),
    Mutant(
        "what a type is made of is known only while its table stands",
        "postgres/description.py",
        "for relation in relations for column",
        "for relation in relations if relation.oid in catalog for column",
        ("tests/postgres/test_description.py",),
    ),
    Mutant(
        "a setting of the source changes the text of values",
        "postgres/session.py",
        '        "IntervalStyle": "postgres",\n',
        "",
        ("tests/decode/test_settings.py",),
    ),
    Mutant(
        "a database without an encoding is read as if it had one",
        "postgres/session.py",
        'return NO_ENCODING if has_none else PINNED["client_encoding"]',
        'return PINNED["client_encoding"]',
        ("tests/postgres/test_check_names.py",),
    ),
    Mutant(
        "large bytes are cut at the end of a slice",
        "decode/octets.py",
        "min(at + _SLICE_DIGITS, stop)",
        "at + _SLICE_DIGITS - 2 * (at + _SLICE_DIGITS > stop)",
        ("tests/decode/test_large.py",),
    ),
    Mutant(
        "a shape that rows came in between two looks is forgotten",
        "capture/looks.py",
        "            store.put_new(key, relation_frame(relation))",
        "            layout.shape_key(relation.oid, key)",
        (
            "tests/capture/test_watch.py"
            "::test_f058_what_a_column_was_between_two_looks_is_known_from_its_rows",
        ),
    ),
    Mutant(
        "a snapshot is read before what it shows has come to its end",
        "postgres/snapshot.py",
        "            if row[0] == 0:\n",
        "            if row[0] >= 0:\n",
        ("tests/postgres/test_snapshot.py",),
    ),
    Mutant(
        "what looks like the beginning of a message is taken for one",
        "postgres/wire.py",
        "rest > _HEADER_BYTES or not np.array_equal(ends[:-1], starts[1:])",
        "rest > _HEADER_BYTES",
        ("tests/postgres/test_wire.py",),
    ),
    Mutant(
        "a fold crosses a change of the key",
        "compaction/range.py",
        "{*newer.key} == {*older.key} and ",
        "",
        COMPACTION,
    ),
    Mutant(
        "a fold hides the base that was read meanwhile",
        "compaction/compactor.py",
        "if self._was_read_anew(base):",
        "if False:",
        COMPACTION,
    ),
    Mutant(
        "a base that is outdone is loaded as it stood",
        "streams/preparing.py",
        "if newest_positions(store).get(base.relation.oid) != base.position:",
        "if False:",
        LOADS,
    ),
    Mutant(
        "a replay puts an older state over a newer one",
        "streams/replay/newest.py",
        "stays = ~later.concern(key_columns(rows, shape.key), upto)",
        "stays = np.ones(rows.num_rows, dtype=np.bool_)",
        REPLAY,
    ),
    Mutant(
        "a replay takes what was committed before or after its time",
        "streams/replay/window.py",
        "    return first, until if isinstance(until, int) else (1 << 63) - 1\n",
        "    return None\n",
        REPLAY,
    ),
    Mutant(
        "a live message counts as sent by a replay",
        "sinks/letters/message.py",
        'return f"{event_id}@{batch}@{replay}"',
        'return f"{event_id}@{batch}"',
        ("tests/sinks/queue/test_webhook.py",),
    ),
)
