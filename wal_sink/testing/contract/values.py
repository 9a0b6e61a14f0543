"""The part of `SinkContract` about single values: odd types, odd names of columns, long texts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from wal_sink.errors import ConfigError, PermanentError
from wal_sink.sinks.base import Rejected, Sink, TransactionalSink
from wal_sink.sinks.chunk import Chunk
from wal_sink.testing.contract.base import ContractBase
from wal_sink.testing.contract.calls import chunks_of, deliver, shown_error
from wal_sink.testing.data.rows import shown
from wal_sink.testing.data.tables import COLUMN_NAMES, COLUMN_TYPES, table_of_names, table_of_type, table_with_long_text
from wal_sink.testing.data.values import missing_row

_PARAMETERS = (("column_type", "column_types", COLUMN_TYPES), ("names", "column_names", COLUMN_NAMES))


class ValuesContract(ContractBase):
    """Tests of odd values: a sink writes them completely, or refuses them with a helpful error."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """One test for each type and each kind of name."""
        for argument, attribute, known in _PARAMETERS:
            if argument not in metafunc.fixturenames:
                continue
            values = getattr(self, attribute)
            if unknown := [value for value in values if value not in known]:
                raise pytest.UsageError(f"{type(self).__name__}.{attribute}: {unknown} are not in {list(known)}")
            metafunc.parametrize(argument, values)

    def test_a_column_of_this_type_is_taken_or_refused_by_name(self, target: Any, column_type: str) -> None:
        self._take_or_refuse(target, table_of_type(column_type), f"a column of type {column_type}", ["odd_one"])

    def test_columns_with_such_names_are_taken_or_refused_by_name(self, target: Any, names: str) -> None:
        self._take_or_refuse(target, table_of_names(names), f"columns {COLUMN_NAMES[names]}", COLUMN_NAMES[names])

    def test_a_very_long_text_is_taken_or_refused_for_good(self, target: Any) -> None:
        self._take_or_refuse(target, table_with_long_text(), "a text of a MiB", [""])

    def _take_or_refuse(self, target: Any, table: pa.Table, what: str, names: Sequence[str]) -> None:
        sink, (chunk,) = self._sink(target), chunks_of(table, chunk_rows=table.num_rows)
        before = list(self.rows_in(target))
        refused: object = None
        try:
            refused = next((some for some in deliver(sink, [chunk]) if isinstance(some, Rejected)), None)
        except (PermanentError, ConfigError) as error:
            refused = error
        except Exception as error:  # noqa: BLE001 - a user's sink may raise anything
            self._fail(
                expected=f"{what} is taken, or refused with PermanentError",
                found=f"{shown_error(error)}: this error would be retried again and again without success",
                next_step="raise PermanentError naming the column, or remove the case from column_types, column_names",
            )
        if refused is not None and not any(name in str(refused) for name in names):
            self._fail(
                expected=f"a message that names {list(names)}",
                found=f"{str(refused)[:300]!r}",
                next_step="name the column in the message",
            )
        self._expect_values(
            chunk.without(_not_written(sink, chunk, refused)), _added(self.rows_in(target), before), what
        )

    def _expect_values(self, chunk: Chunk, added: list[Any], what: str) -> None:
        if len(added) != chunk.num_rows:
            self._fail(
                expected=f"{chunk.num_rows} rows with {what}: all except Rejected ones; none if PermanentError was "
                "raised or a transactional sink rejected a row",
                found=f"{len(added)} rows",
                next_step="write every row, or refuse it with PermanentError naming the column, or with Rejected",
            )
        names = chunk.table.column_names
        if len(set(names)) < len(names) or not all(isinstance(row, Mapping) for row in added):
            return
        sent = zip(chunk.table.to_pylist(), json.loads(chunk.to_json(), parse_float=Decimal), strict=True)
        if missing := missing_row(list(sent), added, self.same_value):
            self._fail(
                expected=f"rows with {what} as they were sent, such as {shown([missing])}",
                found=shown(added),
                next_step="write the whole value, or raise PermanentError naming the column; if the target returns "
                "another form of the same value, override same_value(sent, found)",
            )


def _not_written(sink: Sink, chunk: Chunk, refused: object) -> Collection[int]:
    """The rows that must not be in the target, given how the sink refused."""
    if isinstance(refused, Rejected) and not isinstance(sink, TransactionalSink):
        return refused.reasons.keys()
    return range(chunk.num_rows) if refused is not None else ()


def _added(now: Iterable[Any], before: Iterable[Any]) -> list[Any]:
    old = Counter(map(repr, before))
    added = []
    for row in now:
        if old[repr(row)] > 0:
            old[repr(row)] -= 1
        else:
            added.append(row)
    return added
