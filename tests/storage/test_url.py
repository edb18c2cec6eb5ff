"""From URL to store."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from tailrace.errors import ConfigError
from tailrace.storage import FileStore, MemoryStore, ObjectStore, open_store


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("file:/var/log/x", "/var/log/x"),
        ("file:///var/log/x", "/var/log/x"),
        ("file://localhost/var/x", "/var/x"),
        ("FILE:/x", "/x"),
        ("file:///with%20space", "/with space"),
        ("file:/with space", "/with space"),
        ("file:/x/../y/", "/y"),
    ],
)
def test_a_file_url_names_a_directory(url: str, path: str) -> None:
    store = open_store(url)
    assert isinstance(store, FileStore)
    assert store.url == Path(path).as_uri()
    assert open_store(store.url).url == store.url


def test_a_relative_file_url_starts_here_and_its_store_knows_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store("file:.tailrace/log")
    assert store.url == (tmp_path / ".tailrace" / "log").as_uri()
    assert not (tmp_path / ".tailrace").exists()
    monkeypatch.chdir("/")
    store.put_new("a", b"x")
    assert (tmp_path / ".tailrace" / "log" / "a").read_bytes() == b"x"


def test_a_file_url_may_start_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert open_store("file:~/log").url == "file:///home/someone/log"


@pytest.mark.parametrize("name", ["a b", "50%", "a#b", "a?b", "é"])
def test_an_odd_path_comes_back_through_its_url(tmp_path: Path, name: str) -> None:
    FileStore(tmp_path / name).put_new("key", b"x")
    again = open_store(FileStore(tmp_path / name).url)
    assert again.get("key") == b"x"
    assert os.listdir(tmp_path) == [name]


def test_a_memory_url_opens_one_store_while_someone_holds_it() -> None:
    store = open_store("memory:test-url")
    store.put_new("a", b"x")
    assert open_store("memory:test-url") is store
    unnamed = MemoryStore()
    assert open_store(unnamed.url) is unnamed
    assert unnamed.list("") == []
    del store
    gc.collect()
    assert open_store("memory:test-url").list("") == []


def test_a_memory_store_takes_its_time_from_a_clock() -> None:
    store = MemoryStore(clock=lambda: 12.5)
    store.put_new("a", b"x")
    assert [entry.modified_s for entry in store.list("")] == [12.5]


@pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/a/prefix", "gs://b/x", "az://c/x"])
def test_a_bucket_url_opens_an_object_store(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    store = open_store(url)
    assert isinstance(store, ObjectStore)
    assert store.url == url


WRONG = ["", "log", "/var/log", "./log", "s3//bucket", "ftp://x/y", "s3:bucket", "s3://", "s3:///x"]
WRONG += ["memory:", "memory:a b", "file:", "file://host/x", "file://"]


@pytest.mark.parametrize("url", WRONG)
def test_a_wrong_url_is_refused_with_the_forms_that_work(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_store(url)
    assert "s3://" in caught.value.hint
