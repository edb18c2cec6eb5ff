"""What every store promises, tried on each of them."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailrace.errors import LogError
from tailrace.storage import ObjectExists, ObjectMissing, Store, open_store

MiB = 1 << 20


@pytest.fixture(params=["file", "memory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store of each kind."""
    if request.param == "s3":
        return open_store(request.getfixturevalue("s3_url"))
    if request.param == "file":
        return open_store(f"file:{tmp_path}/not/there/yet")
    return open_store(f"memory:{uuid.uuid4().hex}")


def keys(store: Store, prefix: str = "", after: str = "") -> list[str]:
    """The listed keys."""
    return [entry.key for entry in store.list(prefix, after=after)]


def test_an_object_is_given_back_as_it_was_put(store: Store) -> None:
    store.put_new("a/1", b"bytes")
    store.put_new("a/2", memoryview(b"..view..")[2:6])
    store.put_new("a/empty", b"")
    assert store.get("a/1") == b"bytes"
    assert store.get("a/2") == b"view"
    assert store.get("a/empty") == b""


def test_a_big_object_is_given_back_as_it_was_put(store: Store) -> None:
    data = bytes(range(256)) * (20 * MiB // 256)
    store.put_new("big", data)
    assert store.get("big") == data
    assert store.get("big", start=20 * MiB - 3) == b"\xfd\xfe\xff"
    assert [entry.size for entry in store.list("")] == [20 * MiB]


def test_f095_an_object_never_changes(store: Store) -> None:
    store.put_new("a", b"first")
    with pytest.raises(ObjectExists) as caught:
        store.put_new("a", b"second, longer")
    assert not caught.value.retry
    assert store.get("a") == b"first"


def test_a_missing_object_is_said_to_be_missing(store: Store) -> None:
    store.put_new("a/1", b"x")
    for key in ("a/2", "b/1"):
        with pytest.raises(ObjectMissing) as caught:
            store.get(key)
        assert not caught.value.retry
        with pytest.raises(ObjectMissing):
            store.get(key, start=1, length=1)


def test_errors_pickle(store: Store) -> None:
    with pytest.raises(ObjectMissing) as caught:
        store.get("a")
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is ObjectMissing
    assert isinstance(again, LogError)
    assert (str(again), again.hint, again.retry) == (str(caught.value), "", False)
    assert type(pickle.loads(pickle.dumps(ObjectExists("x")))) is ObjectExists


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(start=st.integers(0, 12), length=st.none() | st.integers(0, 12))
def test_a_range_is_a_slice(store: Store, start: int, length: int | None) -> None:
    data = b"0123456789"
    if not keys(store):
        store.put_new("digits", data)
        store.put_new("empty", b"")
    end = None if length is None else start + length
    assert store.get("digits", start=start, length=length) == data[start:end]
    assert store.get("empty", start=start, length=length) == b""


@pytest.mark.parametrize(("start", "length"), [(-1, None), (0, -1)])
def test_a_backward_range_is_refused(store: Store, start: int, length: int | None) -> None:
    store.put_new("a", b"x")
    with pytest.raises(ValueError, match="not a range"):
        store.get("a", start=start, length=length)


def test_a_listing_is_sorted_and_below_its_prefix(store: Store) -> None:
    put = ["b/2", "a", "b-/1", "b/10", "b/c/d/1", "b/1", "bb/1"]
    for key in put:
        store.put_new(key, key.encode())
    assert keys(store) == sorted(put)
    assert keys(store, "b/") == ["b/1", "b/10", "b/2", "b/c/d/1"]
    assert keys(store, "b/c/") == ["b/c/d/1"]
    assert keys(store, "nothing/") == []
    assert [entry.size for entry in store.list("b/")] == [3, 4, 3, 7]


def test_a_listing_goes_on_after_a_key(store: Store) -> None:
    put = [f"{part}/{number}" for part in ("a", "b/x", "b-", "c") for number in range(3)]
    for key in put:
        store.put_new(key, b"")
    for after in [*put, "0", "a", "b", "b/x", "b/x/11", "d"]:
        assert keys(store, after=after) == sorted(key for key in put if key > after)
        assert keys(store, "b/", after=after) == sorted(
            key for key in put if key > after and key.startswith("b/")
        )


def test_a_listing_tells_when_an_object_came(store: Store) -> None:
    before_s = time.time()
    store.put_new("a", b"x")
    [entry] = store.list("")
    # S3 counts whole seconds, and the kernel's file clock lags by a tick.
    assert before_s - 2 < entry.modified_s < time.time() + 2


def test_an_empty_store_has_an_empty_listing(store: Store) -> None:
    assert store.list("") == []
    store.sync("")
    store.delete(["a/1"])


def test_a_listing_shows_all_that_was_there_while_others_write(store: Store) -> None:
    there = [f"a/{number:03}" for number in range(0, 60, 2)]
    for key in there:
        store.put_new(key, b"x")
    done = threading.Event()

    def write() -> None:
        for number in range(1, 60, 2):
            store.put_new(f"a/{number:03}", b"x")
            if number > 10:
                store.delete([f"a/{number - 10:03}"])
        done.set()

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        while not done.is_set() and not writing.done():
            listed = keys(store, "a/")
            assert listed == sorted(set(listed))
            assert set(there) <= set(listed)
        writing.result()


def test_delete_can_be_repeated(store: Store) -> None:
    for key in ("a/1", "a/2", "a/3"):
        store.put_new(key, b"x")
    for _ in range(2):
        store.delete(key for key in ("a/1", "a/3", "a/none", "none/1"))
        assert keys(store) == ["a/2"]
    store.delete([])
    with pytest.raises(ObjectMissing):
        store.get("a/1")
    store.put_new("a/1", b"new")
    assert store.get("a/1") == b"new"


def test_sync_leaves_everything_as_it_is(store: Store) -> None:
    store.put_new("a/b/1", b"x")
    store.put_new("c", b"x")
    store.sync("")
    store.sync("a/")
    store.sync("none/")
    assert keys(store) == ["a/b/1", "c"]


ODD_PATHS = ["", "/a", "a/", "a//b", "..", "../a", "a/../b", "a/./b", ".hidden", "~tmp/a"]
ODD_CHARACTERS = ["a b", "=a", "é", "a\n", "a\0b", "a\\b", "a?b", "x" * 256]


@pytest.mark.parametrize("key", ODD_PATHS + ODD_CHARACTERS)
def test_an_odd_key_is_refused(store: Store, key: str) -> None:
    for call in (
        lambda: store.put_new(key, b""),
        lambda: store.get(key),
        lambda: store.delete([key]),
    ):
        with pytest.raises(ValueError, match="not a key"):
            call()
    assert store.list("") == []


def test_an_odd_key_to_go_on_after_is_refused(store: Store) -> None:
    with pytest.raises(ValueError, match="not a key"):
        store.list("", after="a/")


@pytest.mark.parametrize("prefix", ["a", "/", "../", "a//", "./", ".a/", "~tmp/"])
def test_an_odd_prefix_is_refused(store: Store, prefix: str) -> None:
    with pytest.raises(ValueError, match="not a prefix"):
        store.list(prefix)
    with pytest.raises(ValueError, match="not a prefix"):
        store.sync(prefix)


def test_the_longest_key_is_taken(store: Store) -> None:
    for key in ("x" * 255, "a/" + "y" * 253):
        store.put_new(key, b"long")
        assert store.get(key) == b"long"


def test_one_of_many_threads_wins(store: Store) -> None:
    start = threading.Barrier(8)

    def put(writer: int) -> list[int]:
        start.wait()
        won = []
        for number in range(10):
            try:
                store.put_new(f"race/{number}", b"%d" % writer)
            except ObjectExists:
                continue
            won.append(number)
        return won

    with ThreadPoolExecutor(8) as pool:
        wins = list(pool.map(put, range(8)))
    assert sorted(chain(*wins)) == list(range(10))
    for writer, won in enumerate(wins):
        for number in won:
            assert store.get(f"race/{number}") == b"%d" % writer


RACE = """
import sys
from tailrace.storage import ObjectExists, open_store
store, writer = open_store(sys.argv[1]), sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
for number in range(20):
    try:
        store.put_new(f"race/{number}", writer.encode())
    except ObjectExists:
        continue
    print(number)
"""


# A store in memory has no second process.
@pytest.mark.parametrize("store", ["file", "s3"], indirect=True)
def test_one_of_many_processes_wins(store: Store) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, store.url, str(writer)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for writer in range(3)
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    wins = [[int(line) for line in writer.communicate()[0].split()] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    assert sorted(chain(*wins)) == list(range(20))
    for index, won in enumerate(wins):
        for number in won:
            assert store.get(f"race/{number}") == str(index).encode()


def test_the_url_opens_the_same_store(store: Store) -> None:
    store.put_new("a/1", b"x")
    again = open_store(store.url)
    assert again.url == store.url
    assert again.get("a/1") == b"x"
