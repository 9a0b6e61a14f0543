"""How many requests a steady batch of small partitions sends, counted as they reach the store.

`wal_sink/operate/estimate.py` has the same numbers as constants, and each batch here is compared with them.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tests.house.kit import stage_tables
from tests.house.operate import Plan, Requests
from tests.house.protocol import Run
from tests.house.sinks import Chunk, Position, Sink, TransactionalSink
from tests.support.small_run import Place, Recorder, numbers
from tests.support.vault import Vault, VaultSink
from wal_sink import Settings

BUDGET = 16 << 20
ROWS = 10
"""Rows of a partition."""
BATCHES = 3
"""The last is counted: it is neither the first of its run, nor does it collect."""
STAGED = ["segment batches", "create batches"]
RELEASED = ["read terms", "create batches"]
"""A look at the term, then the release."""
LOOK = "read terms"
RECORD = MARKER = "create sinks"
SEGMENT = "read batches"


class Idempotent(Sink):
    idempotent = True

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []

    def write(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)


class Plain(Idempotent):
    idempotent = False


class Ledger(TransactionalSink):
    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.ledger: dict[str, Position] = {}

    def write(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)
        self.ledger[chunk.position.slot] = chunk.position

    def last(self, slot: str) -> Position | None:
        return self.ledger.get(slot)


def steady_batch(sink: Any, partitions: int, chunks: int) -> list[str]:
    """The requests of a batch of `chunks` equal chunks, each with its folder."""
    place, chunk_rows = Place(), ROWS * partitions // chunks
    run = place.open({"a": sink}, settings=Settings(chunk_rows=chunk_rows))
    tables = [numbers(number, ROWS) for number in range(partitions)]
    asked = [deliver(place, run, batch_id, tables) for batch_id in range(BATCHES)][-1]
    kind = run.committers[0].served_sink.promise.ability
    plan = Plan(batch_interval_s=1, rows_per_s=ROWS * partitions, chunk_rows=chunk_rows, sinks=(kind,))
    assert requests_of(asked) == plan.of_batch
    return asked


def requests_of(asked: list[str]) -> Requests:
    kinds = Counter(request.partition(" ")[0] for request in asked)
    assert set(kinds) <= {"segment", "create", "read"}
    return Requests(puts=kinds["segment"] + kinds["create"], gets=kinds["read"])


def deliver(place: Place, run: Run, batch_id: int, tables: list[pa.Table]) -> list[str]:
    query = place.query()
    query.start_batch(batch_id, batch_id)
    place.requests.clear()
    attempt = run.begin_staging(batch_id, planned_ms=query.planned_ms(batch_id))
    assert attempt is not None
    run.end_staging(attempt, stage_tables(run, attempt, tables, inline_bytes=BUDGET))
    query.complete_batch(batch_id)
    run.deliver_all()
    return [request.partition("/")[0] for request in place.requests]


each_number_of_partitions = pytest.mark.parametrize("partitions", [1, 200])


@pytest.mark.parametrize(
    ("make", "partitions", "chunks"),
    [
        *itertools.product([Idempotent, Ledger], [1, 200], [1, 2]),
        *itertools.product([Idempotent, Ledger], [200], [100]),
        (Idempotent, 2_000, 100),
    ],
)
def test_no_chunk_costs_a_request_where_repeats_do_nothing(
    make: Callable[[], Any], partitions: int, chunks: int
) -> None:
    sink = make()

    asked = steady_batch(sink, partitions, chunks)

    assert asked == [*STAGED, *RELEASED, SEGMENT, MARKER]
    assert len(sink.chunks) == BATCHES * chunks


@each_number_of_partitions
@pytest.mark.parametrize(
    ("chunks", "between"),
    [(1, []), (2, [RECORD, LOOK])],
)
def test_a_chunk_of_a_plain_sink_costs_a_record_and_a_look(partitions: int, chunks: int, between: list[str]) -> None:
    sink = Recorder()

    asked = steady_batch(sink, partitions, chunks)

    assert asked == [*STAGED, *RELEASED, SEGMENT, *between, MARKER]
    assert len(sink.chunks) == BATCHES * chunks


@each_number_of_partitions
@pytest.mark.parametrize("chunks", [1, 2])
def test_a_two_phase_sink_prepares_the_packed_rows_for_five_requests_more(partitions: int, chunks: int) -> None:
    vault = Vault()

    asked = steady_batch(VaultSink(vault), partitions, chunks)

    find_prepared, begun, prepared = "read sinks", "create sinks", "create sinks"
    assert asked == [*STAGED, *RELEASED, find_prepared, SEGMENT, begun, prepared, LOOK, MARKER]
    assert len(vault.rows()) == BATCHES * partitions * ROWS


@pytest.mark.parametrize("make", [Idempotent, Ledger, Plain])
def test_three_requests_lie_between_the_completion_of_a_batch_and_its_first_row(make: Callable[[], Any]) -> None:
    """A look at the term, the release, the segment. The record of the checkpoint is no request to the WAL's store."""
    sink, place = make(), Place()
    run = place.open({"a": sink})
    before_first_row: list[list[str]] = []
    write = sink.write

    def noting(chunk: Chunk) -> object:
        before_first_row.append([request.partition("/")[0] for request in place.requests])
        return write(chunk)

    sink.write = noting
    for batch_id in range(BATCHES):
        query = place.query()
        query.start_batch(batch_id, batch_id)
        query.stage(run, batch_id)
        query.complete_batch(batch_id)
        place.requests.clear()
        run.deliver_all()
    assert before_first_row[-1] == [*RELEASED, SEGMENT]
