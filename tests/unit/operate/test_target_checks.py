"""The target: unknown kinds are unknown, failures are errors, and rows are compared with the newest staged ones."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from tests.house.operate import WalFacts
from tests.house.protocol import Run
from tests.house.sinks import Chunk, Sink, as_sink
from tests.house.stores import MemoryStore, StoreSpec
from tests.house.support import SYSTEM, Finding, Level
from tests.support.counted_store import CountedStore
from wal_sink.errors import PermanentError
from wal_sink.operate.doctor import newest_schema, target_findings
from wal_sink.reporting.findings import fine
from wal_sink.settings import Settings
from wal_sink.testing import FakeQuery, simulated_runtime

_numbers = itertools.count()
SCHEMA = pa.schema([pa.field("id", pa.int64())])


class Looks(Sink):
    """A sink that keeps the schemas it gets."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.asked: list[Any] = []

    def write(self, chunk: Chunk) -> None:
        raise AssertionError(chunk)

    def open(self, context: object) -> None:
        raise AssertionError(context)

    def examine(self, schema: Any) -> Sequence[Finding]:
        self.asked.append(schema)
        if self.error is not None:
            raise self.error
        return [fine("target", "it is there")]


def test_a_sink_that_can_look_is_asked_and_is_not_opened() -> None:
    sink = Looks()
    there, rows = target_findings(sink, SCHEMA, simulated_runtime())
    assert sink.asked == [SCHEMA]
    assert (there.level, rows.level) == (Level.OK, Level.OK)
    assert "1 column" in rows.found


def test_without_staged_rows_it_is_unknown_whether_they_fit() -> None:
    _, rows = target_findings(Looks(), None, simulated_runtime())
    assert rows.level is Level.WARNING
    assert "unknown" in rows.found


def test_a_failure_is_an_error_with_the_text_of_the_sink() -> None:
    password = "hush-hush-0123"  # noqa: S105 - a dummy
    (finding,) = target_findings(Looks(PermanentError(f"no table, password={password}")), None, SYSTEM)
    assert finding.level is Level.ERROR
    assert "no table" in finding.found
    assert password not in finding.found


def test_any_other_sink_is_unknown() -> None:
    (finding,) = target_findings(as_sink(print), SCHEMA, simulated_runtime())
    assert finding.level is Level.WARNING
    assert finding.next_step


def wal_of(rows: Sequence[int]) -> tuple[MemoryStore, CountedStore]:
    """A WAL whose batches have these numbers of rows."""
    number = next(_numbers)
    wal, checkpoint = (MemoryStore(StoreSpec(f"memory://{name}-schema-{number}")) for name in ("wal", "checkpoint"))
    run = Run(wal, checkpoint, Settings(), runtime=simulated_runtime())
    run.open()
    run.become_stager()
    query = FakeQuery(
        checkpoint,
        lambda batch, _end: [pa.table({"id": pa.array(range(rows[batch]), pa.int64()), "b": [batch] * rows[batch]})],
    )
    assert len(list(query.batches(run, len(rows)))) == len(rows)
    return wal, CountedStore(wal)


def test_the_schema_is_that_of_the_newest_rows() -> None:
    wal, _ = wal_of([2, 3, 0])
    schema, damage = newest_schema(WalFacts(wal))
    assert (schema.names, damage) == (["id", "b"], [])


def test_a_wal_without_rows_has_none() -> None:
    for rows in ([0, 0], []):
        wal, _ = wal_of(rows)
        assert newest_schema(WalFacts(wal)) == (None, [])


def test_a_damaged_batch_is_an_error() -> None:
    wal, _ = wal_of([2])
    segments = [name for name in wal.list("", recursive=True) if name.endswith(".parquet")]
    wal.delete(segments)
    schema, (finding,) = newest_schema(WalFacts(wal))
    assert schema is None
    assert finding.level is Level.ERROR


@pytest.mark.parametrize("batches", [9, 60])
def test_few_batches_are_looked_at_however_many_are_pending(batches: int) -> None:
    counted = wal_of([0] * batches)[1]
    facts = WalFacts(counted)
    assert len(facts.batches) == batches
    counted.taken()
    newest_schema(facts)
    requests = counted.taken()
    assert requests.gets + requests.lists == 8 * 2
