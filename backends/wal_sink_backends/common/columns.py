"""Arrow columns without what their values are wrapped in: extension types and dictionaries."""

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
    """A column as one array of plain values."""
    array: Array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    while True:
        if isinstance(array.type, pa.BaseExtensionType):
            array = array.storage
        elif _IS.is_dictionary(array.type):
            array = array.dictionary_decode()
        else:
            return array
