"""The lake's side of the proof: a Delta table's rows, read by SQL, as Postgres would print them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError, TableNotFoundError

from tailrace.cli.proof.digest import Row, Text
from tailrace.errors import SinkError
from tailrace.model.change import TEXT

Array: TypeAlias = "pa.Array[Any]"

_FLOAT_NAN: Final = {4: "7fc00000", 8: "7ff8000000000000"}


class LakeTable:
    """One version of a Delta table."""

    def __init__(self, table: DeltaTable) -> None:
        self._table = table

    @classmethod
    def open(cls, uri: str) -> LakeTable | None:
        """The table at `uri` as it is now, or None if there is none."""
        try:
            return cls(DeltaTable(uri))
        except TableNotFoundError:
            return None
        except DeltaError as error:
            raise SinkError(f"cannot open the delta table at {uri}: {error}") from error

    @property
    def columns(self) -> frozenset[str]:
        """The names of its columns."""
        return frozenset(field.name for field in self._table.schema().fields)

    def count(self) -> int:
        """How many rows it has."""
        return sum(batch.num_rows for batch in self._batches())

    def rows(self, columns: tuple[str, ...]) -> Iterator[Row]:
        """The text of these columns, row by row."""
        for batch in self._batches():
            texts = {name: column_texts(batch.column(name)) for name in columns}
            if TEXT in batch.schema.names:
                _fill(texts, batch.column(TEXT))
            yield from zip(*texts.values(), strict=True)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        # Everything is selected, so that no name has to be quoted.
        found = QueryBuilder().register("lake", self._table).execute("SELECT * FROM lake")
        yield from pa.RecordBatchReader.from_stream(found)


def column_texts(column: Array) -> list[Text]:
    """Each value as Postgres prints it; a float as its bytes."""
    return _converter(column.type)(column)


def _converter(kind: pa.DataType) -> Callable[[Array], list[Text]]:
    if pa.types.is_floating(kind):
        return _float_texts
    if pa.types.is_timestamp(kind):
        return _timestamp_texts
    if pa.types.is_date(kind):
        return _date_texts
    return lambda column: [_text(value) for value in column.to_pylist()]


def _text(value: object) -> Text:
    match value:
        case None | str():
            return value
        case bool():
            return "t" if value else "f"
        case bytes():
            return f"\\x{value.hex()}"
        case Decimal():
            return f"{value:f}"  # str() would write 1E-8
        case _:
            return str(value)


def _float_texts(column: Array) -> list[Text]:
    width = column.type.bit_width // 8
    values = column.to_numpy(zero_copy_only=False)
    data = values.astype(f">f{width}").tobytes().hex()
    size = 2 * width
    texts: list[Text] = [data[at : at + size] for at in range(0, len(data), size)]
    for position in np.flatnonzero(np.isnan(values)):
        texts[position] = _FLOAT_NAN[width] if column[int(position)].is_valid else None
    return texts


def _timestamp_texts(column: Array) -> list[Text]:
    zone = "+00" if column.type.tz else ""
    moments = column.cast(pa.int64()).fill_null(0).to_numpy().astype("datetime64[us]")
    texts = np.datetime_as_string(moments, unit="us").tolist()
    return [
        _moment_text(text, zone) if valid else None
        for text, valid in zip(texts, column.is_valid().to_pylist(), strict=True)
    ]


def _moment_text(iso: str, zone: str) -> str:
    day, time = iso.split("T")
    date, era = _date_and_era(day)
    return f"{date} {time.rstrip('0').rstrip('.') if '.' in time else time}{zone}{era}"


def _date_texts(column: Array) -> list[Text]:
    days = column.cast(pa.int32()).cast(pa.int64()).fill_null(0).to_numpy()
    texts = np.datetime_as_string(days.astype("datetime64[D]")).tolist()
    return [
        "".join(_date_and_era(text)) if valid else None
        for text, valid in zip(texts, column.is_valid().to_pylist(), strict=True)
    ]


def _date_and_era(day: str) -> tuple[str, str]:
    """numpy counts a year 0 and negative years; Postgres writes them as 1 BC and so on."""
    year, month, of_month = day.rsplit("-", 2)
    if int(year) > 0:
        return f"{int(year):04}-{month}-{of_month}", ""
    return f"{1 - int(year):04}-{month}-{of_month}", " BC"


def _fill(texts: dict[str, list[Text]], kept: Array) -> None:
    """Put in the texts of values that the typed columns could not hold."""
    for position, pairs in enumerate(kept.to_pylist()):
        for name, text in pairs or ():
            if name in texts and texts[name][position] is None:
                texts[name][position] = text
