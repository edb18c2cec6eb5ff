"""Fixtures that every test may use: Postgres servers and a Spark session, real ones, one of each
per worker.

Tests that need a server are found by the fixtures they ask for and marked `server`; `make unit`
runs the others.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings
from pyspark.sql import SparkSession

from tailrace.sinks.delta.spark import SESSION_SETTINGS, delta_is_available
from tailrace.spark.session import spark_session
from tests.archive import java_options
from tests.jars import jars
from tests.server import FAST_SETTINGS, VERSIONS, Database, Server, ServerFactory, Servers

# Time never decides a test: the machine may be busy with others.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("untimed"), max_examples=20)
settings.load_profile("untimed")

_SERVER_FIXTURES = {
    *("database", "postgres", "postgres_server", "server_dir", "source_servers"),
    *("spark", "delta_session"),
}

_DELTA_SETTINGS: Final = {
    **SESSION_SETTINGS,
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.ui.enabled": "false",
    # To compile a class for each plan takes longer than to run it on a few rows.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def pytest_configure() -> None:
    """Let every Java of the tests, and of the programs that they start, begin soon."""
    os.environ.setdefault("SPARK_SUBMIT_OPTS", java_options())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need a server, and let every worker begin with slow ones: at the end
    the others would wait for it.
    """
    for item in items:
        if isinstance(item, pytest.Function) and _SERVER_FIXTURES & set(item.fixturenames):
            item.add_marker(pytest.mark.server)
        if item.get_closest_marker("spark") and "spark" in getattr(item, "fixturenames", ()):
            raise pytest.UsageError(f"{item.nodeid}: with mark spark the session is delta_session")
    slow = [item for item in items if item.get_closest_marker("slow")]
    quick = [item for item in items if not item.get_closest_marker("slow")]
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    shares = [slow[first::workers] + quick[first::workers] for first in range(workers)]
    items[:] = [item for share in shares for item in share]


@pytest.fixture(scope="session")
def server_dir() -> Iterator[Path]:
    """A directory for clusters that any account may enter, unlike those of `tmp_path`."""
    directory = Path(tempfile.mkdtemp(prefix="tailrace-test-"))
    directory.chmod(0o711)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def source_servers(server_dir: Path) -> Iterator[Servers]:
    """The worker's shared server of a version, made when first asked for: wal_level logical, a Unix
    socket and a loopback port.
    """
    running: dict[int, Server] = {}
    with ExitStack() as stack:

        def server(version: int) -> Server:
            if version not in running:
                directory = server_dir / f"source-{version}"
                made = Server(directory, version=version, settings=FAST_SETTINGS, tcp=True)
                stack.callback(made.destroy)
                running[version] = stack.enter_context(made)
            return running[version]

        yield server


@pytest.fixture(scope="session")
def postgres(source_servers: Servers) -> Server:
    """The worker's shared server of the newest version."""
    return source_servers(VERSIONS[0])


@pytest.fixture
def version() -> int:
    """Of the server that a test gets: the newest, unless it says `both_versions`."""
    return VERSIONS[0]


@pytest.fixture
def database(source_servers: Servers, version: int) -> Iterator[Database]:
    """A fresh database on the shared server."""
    with source_servers(version).database() as fresh:
        yield fresh


@pytest.fixture
def postgres_server(server_dir: Path) -> Iterator[ServerFactory]:
    """A factory of private servers with settings and a version of their own."""
    with ExitStack() as stack:

        def make(
            settings: Mapping[str, str] | None = None, *, version: int = 18, tcp: bool = True
        ) -> Server:
            directory = Path(tempfile.mkdtemp(prefix="private-", dir=server_dir))
            directory.chmod(0o711)
            server = Server(
                directory / "data",
                version=version,
                settings={**FAST_SETTINGS, **(settings or {})},
                tcp=tcp,
            )
            stack.callback(server.destroy)
            server.start()
            return server

        yield make


@pytest.fixture(scope="session")
def spark(server_dir: Path) -> Iterator[SparkSession]:
    """The worker's shared Spark session, with two cores of one machine."""
    session = spark_session(master="local[2]", app_name="tests", work_dir=server_dir / "spark")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def delta_session() -> SparkSession:
    """Spark with Delta and the connector for Kafka: the process's one session, so it must not have
    been made without.
    """
    session = spark_session(
        master="local[2]",
        app_name="tests",
        settings={**_DELTA_SETTINGS, "spark.jars": ",".join(jars("delta") + jars("connector"))},
    )
    assert delta_is_available(session), "Spark was started without Delta: run with -m spark"
    return session
