"""The small log of docs/vectors: written once, read by the tests, open to other readers.

`python -m tests.log.vectors DIRECTORY` writes it anew, for a new version of the format. It holds
one of everything: a genesis, segments, a merged one, a transaction in parts, progress, a frontier,
and bases: one as read, one folded from it, an empty one.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tailrace.log import Base, BaseOrigin, Reader, Writer, base_part, layout, segment
from tailrace.log.base_part import BaseIdentity
from tailrace.log.bases import put_base, put_base_part, read_base, read_base_part
from tailrace.log.merge import MergePolicy, Merger
from tailrace.model import Column, Lsn, NamedType, Offset, PgType, Relation, ReplicaIdentity
from tailrace.postgres.frames import Frames
from tailrace.storage import FileStore, MemoryStore, Store
from tests.decode import wire
from tests.decode.copy_text import copy_lines
from tests.log.making import BEGINNING, SOURCE, Clock, Wal, begin, put_in_parts, read

MOOD = 70_001
ORDERS = Relation(
    16_385,
    "public",
    "orders",
    ReplicaIdentity.FULL,
    (
        Column("id", PgType.INT8, -1, True),
        Column("größe", PgType.NUMERIC, 655_366, True),
        Column("mood", MOOD, -1, True),
    ),
    ("id", "größe", "mood"),
)
ITEMS = Relation(
    16_390, "public", "items", ReplicaIdentity.DEFAULT, (Column("id", PgType.INT4, -1, True),)
)
WIDER = Relation(
    *(16_390, "public", "items", ReplicaIdentity.DEFAULT),
    (Column("id", PgType.INT4, -1, True), Column("note", PgType.TEXT, -1, False)),
)
NOTES = Relation(
    *(16_395, "public", "notes", ReplicaIdentity.DEFAULT),
    (Column("id", PgType.INT4, -1, True), Column("note", PgType.TEXT, -1, False)),
    ("id",),
)
NOTED: list[list[list[str | None]]] = [
    [["1", "tab\t line\n backslash \\ bell\x07 \b\f\r\v"], ["2", None], ["3", ""]],
    [["4", "\\N"], ["5", "größe 🦆"]],
]
"""The rows of a base that has no changes, part by part."""


def make() -> Store:
    """The log, in memory."""
    clock = Clock()
    store = MemoryStore(clock=clock)
    wal = Wal()
    to = Writer(store, begin(store), writer_id="vector", describe=_describe)
    _append_small_segments(to, wal)
    merger = Merger(store, writer_id="merger", policy=MergePolicy(1 << 20, 2, 1.0))
    for _ in range(2):
        clock.now_s += 10
        merger.step(clock.now_s)
    put_in_parts(
        to,
        wal.transaction(
            *(wire.insert(ITEMS.oid, ["2", "a"]), wire.insert(ITEMS.oid, ["3", None])),
            *(wire.insert(ITEMS.oid, ["4", "c"]), wire.delete(ITEMS.oid, key=["1", None])),
            ts_us=836_000_000_000_003,
        ),
        3,
    )
    to.append(
        wal.transaction(
            wire.message("tailrace.test", b"hello"),
            wire.truncate(ORDERS.oid, ITEMS.oid),
            ts_us=836_000_000_000_001,
        )
    )
    to.put_progress(Lsn(wal.end + 0x18))
    _put_bases(store)
    return store


def _put_bases(store: Store) -> None:
    begin = BEGINNING.commit_lsn
    empty = Base(
        SOURCE, ITEMS, wire.relation(ITEMS), begin, 1_782_684_800_000_000, BaseOrigin.EMPTY
    )
    put_base(store, empty)
    identity = BaseIdentity(SOURCE, NOTES.oid, Lsn(begin + 200), "vector")
    parts = tuple(
        put_base_part(store, identity, copy_lines(rows), stretch=stretch, number=0)
        for stretch, rows in enumerate(NOTED)
    )
    read = replace(
        empty,
        relation=NOTES,
        frame=wire.relation(NOTES),
        position=identity.position,
        origin=BaseOrigin.SNAPSHOT,
        parts=parts,
    )
    put_base(store, read)
    folded = replace(
        read,
        position=Lsn(begin + 300),
        taken_ts_us=1_782_684_800_000_002,
        origin=BaseOrigin.COMPACTION,
        folded_from=read.position,
    )
    put_base(store, folded)


def _append_small_segments(to: Writer, wal: Wal) -> None:
    first = wal.transaction(
        *(wire.type_name(MOOD, "mood"), wire.relation(ORDERS)),
        wire.insert(ORDERS.oid, ["1", "12.50", "sad"]),
        wire.insert(ORDERS.oid, ["2", "NaN", None]),
        ts_us=836_000_000_000_000,
    )
    second = wal.transaction(
        wire.update(ORDERS.oid, ["1", "12.50", "ok"], old=["1", "12.50", "sad"]),
        *(wire.relation(ITEMS), wire.insert(ITEMS.oid, ["1"])),
        ts_us=836_000_000_000_002,
    )
    to.append(Frames.concat([first, second]))
    to.append(
        wal.transaction(
            *(wire.relation(WIDER), wire.update(ITEMS.oid, ["1", wire.UNSENT])),
            ts_us=836_000_000_000_002,
        )
    )


def _describe(relations: Sequence[Relation]) -> list[Relation]:
    known = (NamedType(MOOD, "public.mood"),)
    return [
        replace(each, key=("id",), type_names=known) if each.oid == ORDERS.oid else each
        for each in relations
    ]


def expected(store: Store) -> dict[str, object]:
    """What any reader of that log must find."""
    tip = Reader(store).tip()
    return {
        "names": [entry.key for entry in store.list("")],
        "objects": [
            _object(store, entry.key)
            for level in (layout.MERGED, layout.PARTS, layout.SEGMENTS)
            for entry in store.list(level)
        ],
        "bases": [
            _base(store, entry.key)
            for entry in store.list(layout.BASES)
            if entry.key.endswith(".json")
        ],
        "base_parts": [
            _base_part(store, entry.key)
            for entry in store.list(layout.BASES)
            if entry.key.endswith(".arrow")
        ],
        "begin": str(Reader(store).begin()),
        "segment_end": str(tip.segment_end),
        "position": str(tip.position),
        "changes": [
            {"offset": str(offset), "json": offset.to_json(), "frame": frame.hex()}
            for offset, frame in read(store, BEGINNING, Offset.whole(tip.segment_end))
        ],
    }


def _object(store: Store, key: str) -> dict[str, object]:
    found = segment.read(store, key)
    text, frames = found.header.to_json(), found.frames
    return {
        "key": key,
        "header": text,
        "header_crc32": f"{zlib.crc32(text.encode()):08x}",
        "crc32": f"{segment.checksum(text.encode(), frames):08x}",
        "frames": [[int(frames.lsn[i]), frames.frame(i).hex()] for i in range(len(frames))],
    }


def _base(store: Store, key: str) -> dict[str, object]:
    base = read_base(store, *layout.base_of(key))
    rows = [read_base_part(store, part).to_pylist() for part in base.parts]
    lines = [line.decode() for part in rows for line in part if line is not None]
    values = [row for part in NOTED for row in part] if base.parts else []
    return {"key": key, "text": store.get(key).decode(), "lines": lines, "values": values}


def _base_part(store: Store, key: str) -> dict[str, object]:
    header, rows = base_part.decode(store.get(key), key=key)
    text = header.to_json()
    return {
        "key": key,
        "header": text,
        "header_crc32": f"{zlib.crc32(text.encode()):08x}",
        "crc32": f"{base_part.checksum(text.encode(), rows):08x}",
        "rows": [line.hex() for line in rows.to_pylist() if line is not None],
    }


def main(directory: Path) -> None:
    """Write the log and what is expected of it."""
    store, files = make(), FileStore(directory / "log")
    for entry in store.list(""):
        files.put_new(entry.key, store.get(entry.key))
    # The store's place for unfinished files is no part of the log.
    (directory / "log" / "~tmp").rmdir()
    text = json.dumps(expected(store), indent=1, ensure_ascii=False)
    (directory / "log.json").write_text(text + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
