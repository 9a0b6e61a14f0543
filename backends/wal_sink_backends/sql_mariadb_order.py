"""Rows of an upsert in the order of their keys, for MariaDB and MySQL: all writers lock shared keys alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from wal_sink_backends.sql_values import Rows, array_of, kind_of, texts_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FOLDED = (
    *("utf8mb4_general_ci", "utf8mb4_unicode_ci", "utf8mb4_unicode_520_ci", "utf8mb4_uca1400_ai_ci"),
    *("utf8mb3_general_ci", "utf8mb3_unicode_ci", "latin1_swedish_ci"),
)
"""Collations in which two texts of printable ASCII characters are equal only if they are so when `folded`. A test asks
the server for each of them. No other collation that ignores case is known to be so.
"""


def in_key_order(rows: Rows, table: pa.Table, key: Sequence[str], collations: Mapping[str, str]) -> Rows:
    """The same rows, ordered by the key columns that can be ordered here; rows with one key keep their order.

    A text is left out where the column's collation may take texts for equal that differ here: of two rows with one key
    the later one has to come last.
    """
    columns = [_comparable(table[name], name, collations.get(name.lower())) for name in key]
    given = [column for column in columns if column is not None]
    if not given:
        return rows
    keys = [tuple(column[number] for column in given) for number in rows.numbers]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    return Rows(rows.columns, [rows.values[at] for at in order], [rows.numbers[at] for at in order], rows.refused)


def folded(text: str) -> str:
    """Equal for texts that a collation of `FOLDED`, or one that pads with blanks, takes for equal."""
    return text.lower().rstrip(" ")


def _comparable(column: Any, name: str, collation: str | None) -> list[Any] | None:
    """Values in some order of which every process thinks alike; None if there is none, or nobody knows."""
    kind, array = kind_of(column.type), array_of(column)
    if kind == "moment":
        return array.view(pa.int64() if array.type.bit_width == 64 else pa.int32()).to_pylist()  # type: ignore[no-any-return]
    if kind in {"integer", "boolean", "decimal", "number", "binary"}:
        return array.to_pylist()  # type: ignore[no-any-return]
    if kind != "text" or collation is None:
        return None
    texts = [text or "" for text in texts_of(array, name, {})]  # what is NULL or no text in a key is refused anyway
    if collation.endswith("_bin"):
        return [text.rstrip(" ") for text in texts]
    if collation in FOLDED and all(text.isascii() and text.isprintable() for text in texts):
        return [folded(text) for text in texts]
    return None
