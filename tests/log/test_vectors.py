"""The log of docs/vectors, read as its specification says, and written again the same."""

from __future__ import annotations

import json
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailrace.compaction.texts import as_texts
from tailrace.decode import decode_base
from tailrace.log import Reader, layout, recover_tip, segment
from tailrace.log.bases import read_base, read_base_part
from tailrace.log.verify import verify
from tailrace.model import Lsn, Offset
from tailrace.storage import FileStore
from tests.log.making import read
from tests.log.vectors import expected, make

DOCS = Path(__file__).parents[2] / "docs"
EXPECTED: dict[str, Any] = json.loads((DOCS / "vectors" / "log.json").read_text())
OBJECTS: list[dict[str, Any]] = EXPECTED["objects"]


@pytest.fixture
def stored(tmp_path: Path) -> FileStore:
    """A copy, since recovery may write."""
    shutil.copytree(DOCS / "vectors" / "log", tmp_path / "log")
    return FileStore(tmp_path / "log")


def test_the_vectors_hold_one_of_everything(stored: FileStore) -> None:
    assert [entry.key for entry in stored.list("")] == EXPECTED["names"]
    kinds = {json.loads(each["header"])["kind"] for each in (*OBJECTS, *EXPECTED["base_parts"])}
    assert kinds == {"genesis", "segment", "merged", "part", "base"}
    origins = {json.loads(each["text"])["origin"] for each in EXPECTED["bases"]}
    assert origins == {"snapshot", "compaction", "empty"}


@pytest.mark.parametrize("each", OBJECTS, ids=lambda each: each["key"])
def test_an_object_reads_as_expected(stored: FileStore, each: dict[str, Any]) -> None:
    found = segment.read(stored, each["key"])
    frames = found.frames
    assert found.header.to_json() == each["header"]
    assert segment.read_header(stored, each["key"]) == found.header
    assert [[int(frames.lsn[i]), frames.frame(i).hex()] for i in range(len(frames))] == each[
        "frames"
    ]


@pytest.mark.parametrize("each", OBJECTS, ids=lambda each: each["key"])
def test_metadata_and_checksums_are_as_specified(stored: FileStore, each: dict[str, Any]) -> None:
    """Without any code of ours but the store's."""
    data = stored.get(each["key"])
    with pa.ipc.open_file(pa.py_buffer(data)) as reader:
        metadata, batch = reader.schema.metadata or {}, reader.get_batch(0)
    text = each["header"].encode()
    lsns = batch.column(0).to_pylist()
    frames = [frame or b"" for frame in batch.column(1).to_pylist()]
    crc = zlib.crc32(text)
    assert metadata[b"tailrace"] == text
    assert metadata[b"tailrace.header.crc32"] == f"{crc:08x}".encode()
    assert f"{crc:08x}" == each["header_crc32"]
    crc = zlib.crc32(struct.pack(f"<{len(lsns)}Q", *lsns), crc)
    crc = zlib.crc32(struct.pack(f"<{len(frames)}i", *map(len, frames)), crc)
    crc = zlib.crc32(b"".join(frames), crc)
    assert metadata[b"tailrace.crc32"] == f"{crc:08x}".encode()
    assert f"{crc:08x}" == each["crc32"]


@pytest.mark.parametrize("each", EXPECTED["base_parts"], ids=lambda each: each["key"])
def test_parts_of_bases_are_as_specified(stored: FileStore, each: dict[str, Any]) -> None:
    """Without any code of ours but the store's."""
    with pa.ipc.open_file(pa.py_buffer(stored.get(each["key"]))) as reader:
        metadata, batch = reader.schema.metadata or {}, reader.get_batch(0)
    assert reader.schema.names == ["row"]
    rows = [row or b"" for row in batch.column(0).to_pylist()]
    assert [row.hex() for row in rows] == each["rows"]
    text = each["header"].encode()
    crc = zlib.crc32(text)
    assert metadata[b"tailrace"] == text
    assert metadata[b"tailrace.header.crc32"] == each["header_crc32"].encode() == b"%08x" % crc
    crc = zlib.crc32(struct.pack(f"<{len(rows)}i", *map(len, rows)), crc)
    crc = zlib.crc32(b"".join(rows), crc)
    assert metadata[b"tailrace.crc32"] == each["crc32"].encode() == b"%08x" % crc


@pytest.mark.parametrize("each", EXPECTED["bases"], ids=lambda each: each["key"])
def test_bases_are_as_specified_and_decode_to_their_values(
    stored: FileStore, each: dict[str, Any]
) -> None:
    head, _, tail = stored.get(each["key"]).decode().rpartition(',"crc32":')
    assert f'{head},"crc32":{tail}' == each["text"]
    assert tail == f'"{zlib.crc32((head + "}").encode()):08x}"}}'
    told = json.loads(each["text"])
    parts = {part["key"]: part["rows"] for part in EXPECTED["base_parts"]}
    lines = [bytes.fromhex(row).decode() for name, *_ in told["parts"] for row in parts[name]]
    assert lines == each["lines"]
    base = read_base(stored, *layout.base_of(each["key"]))
    assert base.to_json().decode() == each["text"]
    assert base.generation == (told["folded_from"] or told["position"])
    texts = as_texts(base.relation)
    values = [
        [row[name] for name in texts.column_names]
        for part in base.parts
        for piece in decode_base(
            read_base_part(stored, part), texts, position=base.position, taken_ts_us=0
        )
        for row in piece.rows.to_pylist()
    ]
    assert values == each["values"]


def test_progress_is_as_specified(stored: FileStore) -> None:
    (entry,) = stored.list(layout.PROGRESS)
    data = stored.get(entry.key)
    head, _, tail = data.rpartition(b',"crc32":')
    assert tail == b'"%08x"}' % zlib.crc32(head + b"}")
    assert json.loads(data)["position"] == layout.position_of(entry.key)


def test_the_vectors_are_a_sound_log(stored: FileStore) -> None:
    assert list(verify(stored))[-1].problems == []
    tip = recover_tip(stored)
    assert tip is not None and tip == Reader(stored).tip()
    assert str(tip.segment_end) == EXPECTED["segment_end"]
    assert str(tip.position) == EXPECTED["position"]
    assert str(Reader(stored).begin()) == EXPECTED["begin"]


def test_readers_find_the_expected_changes(stored: FileStore) -> None:
    after = Offset.whole(Lsn.parse(EXPECTED["begin"]))
    found = [
        {"offset": str(offset), "json": offset.to_json(), "frame": frame.hex()}
        for offset, frame in read(stored, after)
    ]
    assert found == EXPECTED["changes"]


def test_this_version_writes_the_same_log(stored: FileStore) -> None:
    """All but the packing of the Arrow files, which is the library's, byte for byte."""
    made = make()
    assert expected(made) == EXPECTED
    for key in EXPECTED["names"]:
        if not key.endswith(".arrow"):
            assert made.get(key) == stored.get(key)


def test_the_specification_names_every_field() -> None:
    page = (DOCS / "log-format.md").read_text()
    value = json.loads(OBJECTS[0]["header"])
    fields = {*value, *value["relations"][0], "tailrace", "tailrace.header.crc32", "tailrace.crc32"}
    (progress,) = (name for name in EXPECTED["names"] if name.startswith("progress/"))
    fields |= set(json.loads(make().get(progress)))
    fields |= set(json.loads(EXPECTED["bases"][0]["text"]))
    fields |= set(json.loads(EXPECTED["base_parts"][0]["header"]))
    assert [field for field in sorted(fields) if f"`{field}`" not in page] == []
    levels = {f"`{name.split('/')[0]}/" for name in EXPECTED["names"]}
    assert all(level in page for level in levels)
