"""Arrow columns without what their values are wrapped in, and texts that are not UTF-8.

A Spark string may hold any bytes, which JSON shows as U+FFFD.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import pyarrow as pa

ArrowType: TypeAlias = Any  # pyarrow has no common base class for its types
Array: TypeAlias = Any

_IS: Any = pa.types


def stored_type(arrow_type: ArrowType) -> ArrowType:
    """The type of the values inside extension types and dictionaries."""
    if isinstance(arrow_type, pa.BaseExtensionType):
        return stored_type(arrow_type.storage_type)
    return stored_type(arrow_type.value_type) if _IS.is_dictionary(arrow_type) else arrow_type


def array_of(column: Any) -> Array:
    """A column as one array, with the values inside extension types and dictionaries in their place."""
    array: Array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    while True:
        if isinstance(array.type, pa.BaseExtensionType):
            array = array.storage
        elif _IS.is_dictionary(array.type):
            array = array.dictionary_decode()
        else:
            return array


def as_numbers(moments: Array) -> Array:
    """Dates, times and timestamps as the whole numbers that Arrow stores: Python knows fewer years."""
    return moments.view(pa.int64() if moments.type.bit_width == 64 else pa.int32())


def is_text(kind: ArrowType) -> bool:
    """Whether a column of this type holds texts, also inside an extension type or a dictionary. Texts within arrays,
    maps and structs do not count.
    """
    stored = stored_type(kind)
    return bool(_IS.is_string(stored) or _IS.is_large_string(stored) or _IS.is_string_view(stored))


def text_bytes(column: Any) -> list[bytes | None]:
    """A column of texts as they are stored, UTF-8 or not."""
    found: list[bytes | None] = array_of(column).cast(pa.large_binary()).to_pylist()
    return found


def rows_without_utf8(table: pa.Table) -> dict[int, str]:
    """Rows with a text that is not UTF-8, and the reason by row. JSON may turn two such values into one."""
    refused: dict[int, str] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if is_text(column.type) and not _is_utf8(array_of(column)):
            texts_of(array_of(column), name, refused)
    return refused


def _is_utf8(array: Any) -> bool:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def texts_of(array: Array, name: str, refused: dict[int, str]) -> list[str | None]:
    """The texts of a column. Rows that are not UTF-8 become None and are added to `refused`."""
    try:
        texts: list[str | None] = array.to_pylist()
    except UnicodeDecodeError:
        texts = [
            _text(value, row, name, refused) for row, value in enumerate(array.cast(pa.large_binary()).to_pylist())
        ]
    return texts


def _text(value: bytes | None, row: int, name: str, refused: dict[int, str]) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError as error:
        refused.setdefault(row, f"column {name!r} holds bytes that are not UTF-8 text: {error.reason}")
        return None
