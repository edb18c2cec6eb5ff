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

from tailrace.log import Reader, layout, recover_tip, segment
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
    kinds = {json.loads(each["header"])["kind"] for each in OBJECTS}
    assert kinds == {"genesis", "segment", "merged", "part"}


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
    fields |= set(json.loads(make().get(EXPECTED["names"][4])))
    assert [field for field in sorted(fields) if f"`{field}`" not in page] == []
    levels = {f"`{name.split('/')[0]}/" for name in EXPECTED["names"]}
    assert all(level in page for level in levels)
