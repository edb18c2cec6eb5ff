"""Bugs in sinks, reads, replays and compaction that the tests must notice, beside `planted`."""

from __future__ import annotations

from typing import Final

from tests.planted import Mutant

SINK_MUTANTS: Final = (
    Mutant(
        "a zombie's letter counts",
        "sinks/queue/dead_letter.py",
        " if not _is_zombies(name, floors)]",
        "]",
        ("tests/streams/test_queue.py",),
    ),
    Mutant(
        "a zombie's letter is told of",
        "sinks/queue/sink.py",
        "            self._fence.check()\n            self._copier.put(kept)\n",
        "            self._copier.put(kept)\n",
        ("tests/sinks/queue/test_copies.py",),
    ),
    Mutant(
        "a copy of a letter is forgotten before its queue has it",
        "sinks/queue/copier.py",
        "            if sent.delivered:\n                self._outbox.remove(sent.delivered)\n",
        "            self._outbox.remove(each.place for each in letters)\n",
        ("tests/sinks/queue/test_copies.py",),
    ),
    Mutant(
        "a letter that was found is told of without its error",
        "sinks/queue/dead_letter.py",
        "            letter = Letter.from_json(self._store.get(key), key=key)\n",
        "            pass\n",
        ("tests/sinks/queue/test_copies.py",),
    ),
    Mutant(
        "a table forgets that it waits because of a lost slot",
        "log/wanted.py",
        "    if _waits_for_slot(store, wanted.oid):\n",
        "    if not wanted.reason:\n",
        ("tests/log/test_wanted.py",),
    ),
    Mutant(
        "a stream is healthy before it has the base that a lost slot made due",
        "streams/observing.py",
        "t.generation < lost.get(t.oid, t.generation)",
        "t.oid not in lost and t.generation < lost.get(t.oid, t.generation)",
        ("tests/streams/test_control.py",),
    ),
    Mutant(
        "a pipeline that was fenced leads again without the lock",
        "streams/leading.py",
        "            self._presumed.discard(name)\n",
        "            pass\n",
        ("tests/streams/test_control.py",),
    ),
    Mutant(
        "a batch that a database has is written again",
        "sinks/postgres/watermark.py",
        "self.recorded >= sequence",
        "self.recorded > sequence",
        ("tests/sinks/test_changes.py",),
    ),
    Mutant(
        "a value that was not sent is NULL in the database",
        "sinks/postgres/merge.py",
        "        if name not in self.kept:\n",
        "        if name:\n",
        ("tests/sinks/test_conformance.py",),
    ),
    Mutant(
        "a table of somebody else is written to",
        "sinks/postgres/target.py",
        "if source != relation.qualified:",
        "if source not in (None, relation.qualified):",
        ("tests/sinks/test_postgres.py",),
    ),
    Mutant(
        "a batch whose files are there is put again",
        "sinks/parquet/entry.py",
        "recorded >= sequence",
        "recorded > sequence",
        ("tests/sinks/test_changes.py",),
    ),
    Mutant(
        "a writer that was overtaken does not look again",
        "sinks/parquet/sink.py",
        "        if last.covers(self.stream, self.sequence):\n            return None\n",
        "",
        ("tests/sinks/test_parquet.py",),
    ),
    Mutant(
        "a load leaves what comes again",
        "sinks/delta/append.py",
        "replace_some(target, pieces, commit, where=_from(load))",
        "add_all(target, pieces, commit)",
        ("tests/sinks/test_changes.py",),
    ),
    Mutant(
        "a step of a fold begins with the rows of the base",
        "compaction/compactor.py",
        "            parts = (*(part for each in done for part in each.parts), *fresh)\n",
        "            parts = (*base.parts, *fresh)\n",
        ("tests/compaction/test_steps.py",),
    ),
    Mutant(
        "bases of tables that are gone are folded for ever",
        "compaction/compactor.py",
        "        gone = gone_tables(self._store)\n",
        "        gone: set[int] = set()\n",
        ("tests/compaction/test_compaction.py",),
    ),
    Mutant(
        "a zombie forgets the request of another replay",
        "streams/replay/requests.py",
        "        fence.check()\n",
        "",
        ("tests/streams/test_replay_zombies.py",),
    ),
    Mutant(
        "a replay of rows fails behind the last change that was made since",
        "streams/replay/later_changes.py",
        "[later] if later.num_rows else []",
        "[later]",
        ("tests/streams/test_replay.py",),
    ),
    Mutant(
        "tables that are written anew side by side wait for each other for ever",
        "sinks/delta/rewrite.py",
        "with FEEDING, pieces.own_failure():",
        "with pieces.own_failure():",
        ("tests/sinks/test_rewrite.py",),
    ),
    Mutant(
        "streams share what they select in different ways",
        "spark/packed.py",
        "names, str(options.selection), options.between_us",
        "names, options.between_us",
        ("tests/spark/test_recent.py",),
    ),
    Mutant(
        "a log that was made anew is taken for the old one",
        "log/plan.py",
        "header.data_bytes, header.writer)",
        'header.data_bytes, "")',
        ("tests/spark/test_recent.py",),
    ),
)
