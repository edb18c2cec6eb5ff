"""Large values: carried whole, in memory that their size bounds."""

from __future__ import annotations

import hashlib
import tracemalloc
from collections.abc import Iterator

import pyarrow as pa
import pytest

from tailrace.decode import decode
from tailrace.decode import octets as octets_module
from tailrace.decode.octets import to_binary
from tailrace.model import ORIGIN, Column, Offset, PgType, Relation, ReplicaIdentity
from tailrace.postgres.frames import Frames
from tests.decode import wire

LARGE_BYTES = 16 << 20
"""The largest `bytea` that Postgres can send has 500 MB. All that is done is done once for each
byte, so a smaller one shows the same factor without taking the machine's memory."""

END = Offset.whole(1 << 62)


@pytest.fixture
def pool() -> Iterator[pa.MemoryPool]:
    """Arrow's memory, counted from now on."""
    usual = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(counted)
    yield counted
    pa.set_memory_pool(usual)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [PgType.BYTEA, PgType.TEXT])
def test_f046_large_value_takes_memory_in_proportion_to_its_size(
    kind: PgType, pool: pa.MemoryPool
) -> None:
    columns = (Column("id", PgType.INT4, -1, True), Column("v", kind, -1, False))
    table = Relation(16_400, "public", "t", ReplicaIdentity.DEFAULT, columns, ("id",))
    value = hashlib.shake_256(b"large").digest(LARGE_BYTES)
    text = b"\\x" + value.hex().encode()
    rows = [wire.insert(table.oid, ["1", text]), wire.insert(table.oid, ["2", None])]
    frames = Frames.of([wire.begin(), wire.relation(table), *rows, wire.commit(100)])
    tracemalloc.start()
    try:
        (changes,) = decode(frames, initial={}, versions={}, after=ORIGIN, upto=END)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    held = value if kind is PgType.BYTEA else text.decode()
    assert changes.rows["v"].to_pylist() == [held, None]
    assert peak + (pool.max_memory() or 0) <= 2 * len(text)


@pytest.mark.parametrize("slice_digits", [2, 4, 1 << 20])
def test_values_read_in_slices_are_those_read_at_once(
    slice_digits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [b"\x00\xff" * 9, None, b"", b"\x5c", b"nonsense"]
    texts = [b"\\x" + value.hex().encode() if value is not None else None for value in values]
    texts[-1] = b"\\xnonsense"
    given = pa.array(texts, pa.binary())
    at_once = to_binary(given)
    monkeypatch.setattr(octets_module, "_LARGE_DIGITS", 0)
    monkeypatch.setattr(octets_module, "_SLICE_DIGITS", slice_digits)
    assert to_binary(given).to_pylist() == at_once.to_pylist() == [*values[:-1], None]
