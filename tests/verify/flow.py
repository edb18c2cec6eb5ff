"""A source, its capture and a stream to a lake, delivered without Spark, for tests that compare."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from deltalake import DeltaTable
from psycopg import sql
from pyspark.sql import SparkSession

from tailrace.cli.sink_sections import DeltaSink
from tailrace.cli.verifying import sink_for_repairs
from tailrace.sinks import Sink, open_sink
from tailrace.spark.selection import EVERYTHING, Selection
from tailrace.storage import FileStore, Store, open_store
from tailrace.streams.record import StreamRecord
from tailrace.verify.repair import Repairs
from tailrace.verify.result import StreamResult, TableResult
from tailrace.verify.stream import Subject, Verification
from tests.capture.running import Running, is_published, settings, wait_caught_up
from tests.server import Database
from tests.streams.by_hand import ALL_TABLES, STREAM, Run

THINGS = "CREATE TABLE things (id bigint PRIMARY KEY, label text, ratio float8)"
FILL = "INSERT INTO things SELECT i, 'label ' || i, i / 3.0 FROM generate_series(1, 500) AS i"


@dataclass
class Watched:
    """Keeps what it is told, and does something when it hears a word."""

    said: list[str] = field(default_factory=list)
    row_count: int = 0
    on_word: tuple[str, Callable[[], None]] = ("", lambda: None)

    def say(self, text: str) -> None:
        self.said.append(text)
        word, act = self.on_word
        if word and text.startswith(word):
            act()

    def begin(self, table: str, row_count: int) -> None:
        self.say(f"begin {table}")

    def advance(self, row_count: int) -> None:
        self.row_count += row_count


@dataclass
class Flow:
    """Capture runs by itself; the stream delivers when it is told to."""

    database: Database
    store: Store
    lake: Path
    capture: Running
    options: Mapping[str, object]
    selection: Selection = EVERYTHING
    session: SparkSession | None = None

    def sink(self) -> Sink:
        options = {"type": "delta", "path": str(self.lake), **self.options}
        return open_sink(options, session=self.session)

    def repair(self, session: SparkSession | None = None) -> TableResult:
        """What comes of repairing the one table there is, as the command does it; with Spark only
        if there is a session.
        """
        described = DeltaSink.model_validate({"path": str(self.lake), **self.options})
        return _repair(self.database.dsn, self.store, described, self.selection, session)

    def start(self) -> Run:
        """A run of the stream, which has loaded what is due."""
        return Run(self.store, self.sink(), selection=self.selection)

    def deliver(self, *statements: str) -> None:
        """Execute, then deliver everything that is committed. The sink is closed: its upkeep says
        nothing any more when a command is tried behind it.
        """
        self.execute(*statements)
        self.catch_up()
        with closing(self.sink()) as sink:
            Run(self.store, sink, selection=self.selection).to_end()

    def catch_up(self) -> None:
        """Wait until the log has everything that is committed."""
        with self.database.connect() as connection:
            wait_caught_up(self.capture, connection)

    def execute(self, *statements: str) -> None:
        with self.database.connect() as connection:
            for statement in statements:
                connection.execute(sql.SQL(statement))

    def lake_table(self, name: str = "things") -> DeltaTable:
        return DeltaTable(str(self.lake / "public" / name))

    def verify(
        self, *tables: str, repair: bool = False, watched: Watched | None = None
    ) -> StreamResult:
        subject = Subject(STREAM, str(self.lake), tables, self.selection, ALL_TABLES)
        repairs = None
        if repair:
            record = StreamRecord(self.store, STREAM)
            repairs = Repairs(STREAM, self.sink(), record, self.selection)
        watcher = watched or Watched()
        return Verification(self.database.dsn, self.store, subject, watcher, repairs).run()

    def table(self, *, repair: bool = False, watched: Watched | None = None) -> TableResult:
        """What comes of comparing the one table there is."""
        (result,) = self.verify(repair=repair, watched=watched).tables
        return result

    def unlike(self) -> list[str]:
        """The keys in which the one table differs, as far as they are told."""
        result = self.table()
        assert result.equal == (not result.differences), result
        return [" ".join(map(str, each.key.values())) for each in result.differences]


@contextmanager
def flowing(
    database: Database,
    tmp_path: Path,
    *statements: str,
    selection: Selection = EVERYTHING,
    options: Mapping[str, object] = MappingProxyType({}),
    session: SparkSession | None = None,
) -> Iterator[Flow]:
    """Make tables, and capture them from the beginning; options are those of the sink."""
    with database.connect() as connection:
        for statement in statements or (THINGS,):
            connection.execute(sql.SQL(statement))
        query = "SELECT relname FROM pg_class WHERE relkind IN ('r', 'p') AND NOT relispartition"
        made = f"{query} AND relnamespace = 'public'::regnamespace"
        names = [name for (name,) in connection.execute(sql.SQL(made))]
        with Running(settings(database.dsn), FileStore(tmp_path / "log")) as capture:
            capture.wait_until(lambda: all(is_published(connection, name) for name in names))
            store = FileStore(tmp_path / "log")
            yield Flow(database, store, tmp_path / "lake", capture, options, selection, session)


def repair(dsn: str, log: str, lake: str) -> None:
    """The same in a process of its own, for a test that kills it on the way."""
    _repair(dsn, open_store(log), DeltaSink.model_validate({"path": lake}))


def _repair(
    dsn: str,
    store: Store,
    described: DeltaSink,
    selection: Selection = EVERYTHING,
    session: SparkSession | None = None,
) -> TableResult:
    with closing(sink_for_repairs(described, session)) as sink:
        repairs = Repairs(STREAM, sink, StreamRecord(store, STREAM), selection)
        subject = Subject(STREAM, described.path, (), selection)
        (result,) = Verification(dsn, store, subject, Watched(), repairs).run().tables
    return result
