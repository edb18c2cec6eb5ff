"""A stream of one table's changes, typed, from its base or from a position on."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from tailrace.errors import ConfigError, LogError, OffsetOutOfRange, SchemaError
from tailrace.log import Base, Reader
from tailrace.log.history import uses_back
from tailrace.model import ORIGIN, Offset, Relation
from tailrace.spark.options import ReadOptions, one_line_errors
from tailrace.spark.place import Place
from tailrace.spark.planning import BatchEnds, LogPartition
from tailrace.spark.table import TableRead
from tailrace.spark.whole import base_at, base_partitions, end_in_base, first_row, newest_base


class TableStreamReader(TableRead, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of micro-batches, none of which crosses a change of the table's shape."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        if options.is_bounded:
            raise ConfigError("a stream has no end", hint="endingOffset is for spark.read alone")
        self._ends: BatchEnds | None = None
        self._initial: Place | None = None
        self._certain = ORIGIN
        """No shape up to here is newer than the query's."""

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_ends": None}

    def initialOffset(self) -> dict[str, int]:
        """Spark asks twice, and again after a crash: only a position that is named by the options
        is certain to be the same then.
        """
        with one_line_errors():
            if self._initial is None:
                self._initial = self.options.start(self.options.reader())
            return self._initial.to_dict()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Rows are Spark's limit; bytes are applied here as well."""
        options = self.options
        if options.changes_max is not None:
            return ReadMaxRows(options.changes_max)
        return ReadMaxBytes(options.limits.bytes_max)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """Where the batch ends."""
        with one_line_errors():
            place, ends = Place.from_dict(start), self._batch_ends()
            if place.in_base:
                limits = ends.limited(limit)
                return end_in_base(self._base(place), place, limits).to_dict()
            return ends.next(place.offset, limit, wanted=self.wants).to_dict()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end."""
        with one_line_errors():
            self._batch_ends().stop_at_tip()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Plan on the driver."""
        with one_line_errors():
            first, last = Place.from_dict(start), Place.from_dict(end)
            if first.in_base or last.in_base:
                return self._plan_in_base(first, last)
            after, upto = first.offset, last.offset
            if after > upto:
                raise _moved(after)
            reader = self._batch_ends().reader
            self._must_fit(reader, after, upto)
            return self.plan(reader, after, upto)

    def _plan_in_base(self, first: Place, last: Place) -> Sequence[InputPartition]:
        """The end of a batch tells which base it is of."""
        store = self._batch_ends().reader.store
        if not first.in_base or first.base_position not in (None, last.base_position):
            raise _moved(first.offset)
        base = base_at(store, self.options.table, last.offset.commit_lsn)
        tasks = base_partitions(base, first_row(base, first), last.offset.ordinal)
        return tasks or [LogPartition(())]

    def _base(self, place: Place) -> Base:
        """The base that a batch reads which begins there."""
        store, table = self._batch_ends().reader.store, self.options.table
        if place.base_position is not None:
            return base_at(store, table, place.base_position)
        base = newest_base(store, table)
        if base is None:
            raise LogError(f"the base of {table} was deleted at this moment", retry=True)
        return base

    def _must_fit(self, reader: Reader, after: Offset, upto: Offset) -> None:
        """A shape newer than the query's ends the query; an older one is read under it."""
        if upto <= self._certain or not self._has_others(reader, after, upto):
            return
        newer: Offset | None = None
        read_anew = self._own_base(reader)
        for use in uses_back(reader.store, self.options.table):
            if use.since <= read_anew:
                self._certain = read_anew
                break
            if self._is_own(use.relation):
                self._certain = use.since
                break
            newer = use.since
        if newer is not None and newer <= upto:
            raise SchemaError(
                f"{self.options.table} has a new shape from {newer} on",
                hint="start the query again on its checkpoint: it goes on with the new shape",
            )

    def _own_base(self, reader: Reader) -> Offset:
        """Where the newest base stands, if it has the query's shape: no change need have it yet."""
        base = newest_base(reader.store, self.options.table)
        if base is None or not self._is_own(base.relation):
            return ORIGIN
        return Offset.whole(base.position)

    def _has_others(self, reader: Reader, after: Offset, upto: Offset) -> bool:
        """Whether the range may hold rows of another shape than the query's."""
        for link in reader.walk(after):
            for use in link.header.relations:
                is_read = self.wants(use.relation) and use.since <= upto
                if is_read and not self._is_own(use.relation):
                    return True
            if link.header.end >= upto.commit_lsn:
                break
        return False

    def _is_own(self, relation: Relation) -> bool:
        from tailrace.spark.shape import change_type

        return change_type(relation, self.options.columns) == self.schema

    def _batch_ends(self) -> BatchEnds:
        if self._ends is None:
            options = self.options
            self._ends = BatchEnds(options.reader(), limits=options.limits)
        return self._ends


def _moved(start: Offset) -> OffsetOutOfRange:
    return OffsetOutOfRange(
        f"the stream's start has moved to {start}, past its first batch",
        hint="name the start as a position, and begin with a new checkpoint",
    )
