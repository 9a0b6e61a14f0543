"""The order of rows in an upsert of MariaDB or MySQL: that of their keys, so that all writers lock alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from wal_sink_backends.common.columns import array_of, as_numbers, texts_of
from wal_sink_backends.sql.base.values import Rows, kind_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wal_sink_backends.sql.mariadb.session import Session


def in_key_order(
    connection: Session, rows: Rows, table: pa.Table, key: Sequence[str], collations: Mapping[str, str]
) -> Rows:
    """The same rows, ordered by the key; rows with one key keep their order.

    MariaDB itself orders texts, except those of a collation that compares code points. On MySQL only the columns
    count that can be ordered here. A text column is left out if its collation may treat texts as equal that differ
    here: of two rows with one key, the later one has to come last.
    """
    order = _ordered_by_server(rows, table, key, collations, connection) if connection.is_mariadb else None
    if order is None:
        columns = [_comparable(table[name], name, collations.get(name.lower())) for name in key]
        given = [column for column in columns if column is not None]
        if not given:
            return rows
        keys = [tuple(column[number] for column in given) for number in rows.numbers]
        order = sorted(range(len(keys)), key=keys.__getitem__)
    return Rows(rows.columns, [rows.values[at] for at in order], [rows.numbers[at] for at in order], rows.refused)


FOLDED = (
    *("utf8mb4_general_ci", "utf8mb4_unicode_ci", "utf8mb4_unicode_520_ci", "utf8mb4_uca1400_ai_ci"),
    *("utf8mb3_general_ci", "utf8mb3_unicode_ci", "latin1_swedish_ci"),
)
"""Collations in which two texts of printable ASCII are equal only if they are equal when `folded`. A test checks each
of them on the server. No other collation that ignores case is known to have this property.
"""


def _ordered_by_server(
    rows: Rows, table: pa.Table, key: Sequence[str], collations: Mapping[str, str], session: Session
) -> Sequence[int] | None:
    """The server's order of the rows, by one statement; None if it is not needed, or too large for a statement."""
    columns: list[Sequence[str]] = [[str(at) for at in range(len(rows.numbers))]]
    terms: list[str] = []
    for name in key:
        collation, name_in_query = collations.get(name.lower()), f"k{len(columns)}"
        if _is_ordered_by_server(table[name], collation):
            texts = texts_of(array_of(table[name]), name, {})
            columns.append([session.quoted(texts[number] or "") for number in rows.numbers])
            charset = str(collation).partition("_")[0]
            terms.append(f"CONVERT({name_in_query} USING {charset}) COLLATE {collation}")
        elif (values := _comparable(table[name], name, collation)) is not None:
            columns.append(_ranks([values[number] for number in rows.numbers]))
            terms.append(name_in_query)
    if not any("COLLATE" in term for term in terms) or not rows.numbers:
        return None
    given = ",".join(f"({','.join(one)})" for one in zip(*columns, strict=True))
    names = ", ".join(["n", *(f"k{at}" for at in range(1, len(columns)))])
    statement = f"WITH given ({names}) AS (VALUES {given}) SELECT n FROM given ORDER BY {', '.join(terms)}, n"  # noqa: S608 - quoted
    if len(statement.encode()) > session.longest_statement:
        return None
    return [int(at) for (at,) in session.execute(statement).fetchall()]


def _is_ordered_by_server(column: Any, collation: str | None) -> bool:
    """Whether only the server knows the order of a column."""
    return collation is not None and kind_of(column.type) == "text" and not collation.endswith("_bin")


def _ranks(values: Sequence[Any]) -> list[str]:
    """Numbers in the order of the values; equal values have equal numbers."""
    ranks = {value: str(rank) for rank, value in enumerate(sorted(set(values)))}
    return [ranks[value] for value in values]


def folded(text: str) -> str:
    """A form of the text that is equal for texts that are equal in a collation of `FOLDED`, or one that pads."""
    return text.lower().rstrip(" ")


def _comparable(column: Any, name: str, collation: str | None) -> list[Any] | None:
    """Values whose order is the same in every process; None if there is none, or if it is unknown here."""
    kind, array = kind_of(column.type), array_of(column)
    if kind == "moment":
        return as_numbers(array).to_pylist()  # type: ignore[no-any-return]
    if kind in {"integer", "boolean", "decimal", "number", "binary"}:
        return array.to_pylist()  # type: ignore[no-any-return]
    if kind != "text" or collation is None:
        return None
    texts = [text or "" for text in texts_of(array, name, {})]  # a key that is NULL or not UTF-8 is refused anyway
    if collation.endswith("_bin"):
        return [text.rstrip(" ") for text in texts]
    if collation in FOLDED and all(text.isascii() and text.isprintable() for text in texts):
        return [folded(text) for text in texts]
    return None
