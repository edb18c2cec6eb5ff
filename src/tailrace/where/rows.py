"""The values that a predicate looks at: the columns of a row as it is, or as it was before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tailrace.model.change import BEFORE, TEXT

Array: TypeAlias = "pa.Array[Any]"


@dataclass(frozen=True, slots=True)
class RowValues:
    """Columns by name, and for values that their column cannot hold their text, by row."""

    count: int
    columns: Mapping[str, Array]
    texts: Mapping[str, Mapping[int, str]]

    @classmethod
    def now(cls, rows: pa.Table, names: frozenset[str]) -> RowValues:
        """As the rows are; of a delete, as they were."""
        columns = {name: rows.column(name).combine_chunks() for name in names}
        return cls(rows.num_rows, columns, _texts(rows, names, ""))

    @classmethod
    def before(cls, rows: pa.Table, names: frozenset[str]) -> RowValues:
        """As the rows were; NULL where that did not come."""
        before = rows.column(BEFORE).combine_chunks()
        places = {name: before.type.get_field_index(name) for name in names}
        columns = {name: pc.struct_field(before, [place]) for name, place in places.items()}
        return cls(rows.num_rows, columns, _texts(rows, names, f"{BEFORE}."))


def mask_of(values: Array) -> NDArray[np.bool_]:
    """Where it is true; NULL is not."""
    return np.asarray(values.fill_null(False), dtype=np.bool_)


def _texts(rows: pa.Table, names: frozenset[str], prefix: str) -> dict[str, dict[int, str]]:
    found: dict[str, dict[int, str]] = {}
    texts = rows.column(TEXT)
    for row in np.flatnonzero(texts.is_valid().to_numpy()).tolist():
        for key, text in texts[row].as_py():
            name = key.removeprefix(prefix)
            if name in names and key == f"{prefix}{name}":
                found.setdefault(name, {})[row] = text
    return found
