"""The columns of a lake table as the text that Postgres would print, for whole columns.

Invariant: two values have the same text here if and only if Postgres holds them for the same
value, digit by digit: `1.0` is not `1.00`, `-0` is not `0`, char(4) has its blanks. A float is the
only one that is not printed but shown as its bytes in hexadecimal, because those who write decimal
digits do not agree on the last one. A value that its column could not hold is taken from `_text`.
"""

from __future__ import annotations

from binascii import unhexlify
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tailrace.model.change import TEXT
from tailrace.postgres.binaries import Array, text_bytes, text_offsets

FLOAT_NAN: Final = {4: "7fc00000", 8: "7ff8000000000000"}
"""NaN has many bit patterns and is one value."""

_DIGITS: Final = np.frombuffer(
    b"".join(b"%02x" % octet for octet in range(256)), dtype=np.dtype("<u2")
)
# Outside of the years 1 to 9999 Arrow and Postgres print a date in different ways.
_DAY_MIN: Final = -719_162
_DAY_MAX: Final = 2_932_896
_DAY_US: Final = 86_400_000_000


def texts_of(rows: pa.Table, names: Sequence[str]) -> list[Array]:
    """The texts of these columns, as binary arrays."""
    kept = rows.column(TEXT).combine_chunks() if TEXT in rows.column_names else None
    found = [column_texts(_combined(rows.column(name))) for name in names]
    if kept is None or kept.null_count == len(kept):
        return found
    return _with_kept(found, names, rows, kept)


def column_texts(column: Array) -> Array:
    """Each value as Postgres prints it; a float as its bytes."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return column.cast(pa.binary())
    if pa.types.is_integer(kind):
        return column.cast(pa.string()).cast(pa.binary())
    if pa.types.is_boolean(kind):
        words: Array = pc.if_else(column, b"t", b"f")
        return words
    if pa.types.is_floating(kind):
        return _float_texts(column)
    if pa.types.is_decimal(kind):
        return _decimal_texts(column)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _joined(b"\\x", hexadecimal(column.cast(pa.binary())))
    if pa.types.is_timestamp(kind):
        return _timestamp_texts(column)
    if pa.types.is_date(kind):
        return _date_texts(column)
    return _one_by_one(column)


def hexadecimal(values: Array) -> Array:
    """The bytes of binary values as hexadecimal digits."""
    return _binary(2 * text_offsets(values), _DIGITS[text_bytes(values)].tobytes(), values)


def _combined(column: pa.ChunkedArray[Any]) -> Array:
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # more text than one array holds
        array = pa.concat_arrays(array.chunks)
    return array


def _binary(offsets: NDArray[Any], data: bytes, like: Array) -> Array:
    """A binary array of these bytes, NULL where `like` is."""
    buffers = [None, pa.py_buffer(offsets.astype(np.int32).data), pa.py_buffer(data)]
    made = pa.Array.from_buffers(pa.binary(), len(like), buffers)
    return pc.if_else(like.is_valid(), made, None) if like.null_count else made


def _joined(*parts: Array | bytes) -> Array:
    # Typed stubs of pyarrow know only arrays here, but not that one value stands for all rows.
    join: Any = pc.binary_join_element_wise
    joined: Array = join(*parts, b"")
    return joined


def _float_texts(column: Array) -> Array:
    width = column.type.bit_width // 8
    values = column.fill_null(0).to_numpy(zero_copy_only=False).astype(f">f{width}")
    nan = np.isnan(values)
    if nan.any():
        values = values.copy()
        values[nan] = np.frombuffer(bytes.fromhex(FLOAT_NAN[width]), f">f{width}")[0]
    digits = _DIGITS[values.view(np.uint8)].tobytes()
    return _binary(np.arange(len(column) + 1) * 2 * width, digits, column)


def _decimal_texts(column: Array) -> Array:
    """Digits by way of whole numbers: Arrow itself would print 0.00000001 as 1E-8."""
    kind = column.type
    scale = max(kind.scale, 0)
    if kind.scale < 0 or not pa.types.is_decimal128(kind):
        return _one_by_one(column)
    whole = pa.Array.from_buffers(
        pa.decimal128(kind.precision, 0), len(column), column.buffers(), offset=column.offset
    )
    if scale and (quick := _pointed(column, scale)) is not None:
        return quick
    digits = whole.cast(pa.string())
    if not scale:
        return digits.cast(pa.binary())
    is_negative = pc.starts_with(digits, "-")
    padded = pc.ascii_lpad(pc.ascii_ltrim(digits, "-"), scale + 1, "0").cast(pa.binary())
    sign = pc.if_else(is_negative, b"-", b"")
    before = pc.binary_slice(padded, 0, -scale)
    behind = pc.binary_slice(padded, -scale)
    return _joined(sign, before, b".", behind)


def _pointed(column: Array, scale: int) -> Array | None:
    """The quick way, for values without a sign that fit 64 bits: digits with a point put in."""
    buffer = column.buffers()[1]
    if column.null_count or buffer is None:
        return None
    words = np.frombuffer(memoryview(buffer), np.int64).reshape(-1, 2)
    low, high = words[column.offset : column.offset + len(column)].T
    if high.any() or (low < 0).any():
        return None
    texts = pa.array(low).cast(pa.string())
    if (low < 10**scale).any():
        texts = pc.ascii_lpad(texts, scale + 1, "0")
    places = text_offsets(texts) + np.arange(len(texts) + 1)
    data = np.empty(places[-1], dtype=np.uint8)
    points = places[1:] - scale - 1
    is_digit = np.ones(len(data), dtype=np.bool_)
    is_digit[points] = False
    data[points] = ord(".")
    data[is_digit] = text_bytes(texts)
    return _binary(places, data.tobytes(), column)


def _timestamp_texts(column: Array) -> Array:
    zone = b"+00" if column.type.tz else b""
    moments = column.cast(pa.timestamp("us", column.type.tz), safe=False).view(pa.int64())
    numbers = moments.fill_null(0).to_numpy(zero_copy_only=False)
    if _is_outside(numbers, _DAY_MIN * _DAY_US, (_DAY_MAX + 1) * _DAY_US - 1):
        return _numpy_texts(column, numbers.astype("datetime64[us]"), zone.decode())
    texts = moments.view(pa.timestamp("us")).cast(pa.string())
    trimmed: Array = pc.ascii_rtrim(pc.ascii_rtrim(texts, "0"), ".")
    return _joined(trimmed.cast(pa.binary()), zone)


def _date_texts(column: Array) -> Array:
    days = column.cast(pa.date32()).view(pa.int32())
    numbers = days.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    if _is_outside(numbers, _DAY_MIN, _DAY_MAX):
        return _numpy_texts(column, numbers.astype("datetime64[D]"), "")
    return days.view(pa.date32()).cast(pa.string()).cast(pa.binary())


def _is_outside(numbers: NDArray[np.int64], low: int, high: int) -> bool:
    return bool(len(numbers)) and (int(numbers.min()) < low or int(numbers.max()) > high)


def _numpy_texts(column: Array, moments: NDArray[np.datetime64], zone: str) -> Array:
    texts = [_moment_text(text, zone) for text in np.datetime_as_string(moments).tolist()]
    return _nulled(pa.array(texts, pa.string()).cast(pa.binary()), column)


def _moment_text(iso: str, zone: str) -> str:
    """numpy counts a year 0 and negative years; Postgres writes them as 1 BC and so on."""
    day, _, time = iso.partition("T")
    year, month, of_month = day.rsplit("-", 2)
    era = "" if int(year) > 0 else " BC"
    date = f"{int(year) if int(year) > 0 else 1 - int(year):04}-{month}-{of_month}"
    if not time:
        return f"{date}{era}"
    return f"{date} {time.rstrip('0').rstrip('.') if '.' in time else time}{zone}{era}"


def _nulled(texts: Array, like: Array) -> Array:
    return pc.if_else(like.is_valid(), texts, None) if like.null_count else texts


def _one_by_one(column: Array) -> Array:
    return pa.array([_text(value) for value in column.to_pylist()], pa.binary())


def _text(value: object) -> bytes | None:
    if value is None:
        return None
    # str() would write 1E-8 for a decimal
    return (f"{value:f}" if isinstance(value, Decimal) else str(value)).encode()


def _with_kept(
    found: list[Array], names: Sequence[str], rows: pa.Table, kept: Array
) -> list[Array]:
    """Put in the texts of values that the typed columns could not hold."""
    places = {name: number for number, name in enumerate(names)}
    changed: dict[int, list[bytes | None]] = {}
    for row in np.flatnonzero(kept.is_valid().to_numpy(zero_copy_only=False)).tolist():
        for name, text in kept[row].as_py():
            place = places.get(name)
            if place is None or text is None or found[place][row].is_valid:
                continue
            texts = changed.setdefault(place, found[place].to_pylist())
            is_text = pa.types.is_string(rows.schema.field(name).type)
            texts[row] = _exact_bytes(text) if is_text else text.encode()
    return [pa.array(changed[n], pa.binary()) if n in changed else f for n, f in enumerate(found)]


def _exact_bytes(text: str) -> bytes:
    r"""The bytes that are no text, from `\x` and digits: a column of texts keeps no others."""
    return unhexlify(text[2:]) if text.startswith("\\x") else text.encode()
