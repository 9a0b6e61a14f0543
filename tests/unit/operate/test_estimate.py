"""The formula of an estimate, against the requests that the core sends to a store that counts, and by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass
from typing import Any

import pyarrow as pa
import pytest

from tests.house.kit import served_sink
from tests.house.log import Manifest, load_segment
from tests.house.operate import Plan, Requests
from tests.house.protocol import COLLECT_EVERY_BATCHES, DeliveryContext, Run
from tests.house.sinks import BatchSink, Chunk, Position, ReleasedBatch, SegmentSink, Sink, TransactionalSink
from tests.house.stores import MemoryStore, StoreSpec
from tests.simulation.histories.lives import lower_retention
from tests.support.counted_store import CountedStore
from tests.support.lake import Lake, LakeSink
from tests.support.vault import Vault, VaultSink
from wal_sink.errors import ConfigError
from wal_sink.operate.estimate import KINDS, MONTH_S, Estimate, Prices
from wal_sink.settings import Delivery
from wal_sink.testing import FakeQuery, simulated_runtime

KEPT = 4
CHUNK_ROWS = 2
FIRST = KEPT - 1 + COLLECT_EVERY_BATCHES
"""The batch after which the first collection comes. The second collection is as all later ones are, except that it
deletes no old low water.
"""
_numbers = itertools.count()


class Plain(Sink):
    def write(self, chunk: Chunk) -> None:
        assert chunk.key


class Idempotent(Plain):
    idempotent = True


class Asked(Plain):
    def was_applied(self, key: str) -> bool:
        raise AssertionError(f"nothing was doubted, {key} neither")


class Ledger(Plain, TransactionalSink):
    def __init__(self) -> None:
        self.ledger: dict[str, Position] = {}

    def write(self, chunk: Chunk) -> None:
        self.ledger[chunk.position.slot] = chunk.position

    def last(self, slot: str) -> Position | None:
        return self.ledger.get(slot)


class WholeSegments(SegmentSink):
    def write_segment(self, ordinal: int, batch_id: int, chunks: Iterable[Chunk]) -> None:
        assert min(ordinal, batch_id) >= 0
        assert list(chunks)


class WholeBatches(BatchSink):
    def write_batch(self, batch: ReleasedBatch) -> None:
        raise AssertionError(f"the dispatcher of these tests writes batch {batch.batch_id}")


MAKE: dict[str, Callable[[], Any]] = {
    "plain": Plain,
    "at most once": Plain,
    "idempotent": Idempotent,
    "lookup": Asked,
    "transactional": Ledger,
    "two-phase": lambda: VaultSink(Vault()),
    "segment writer": WholeSegments,
    "batch writer": WholeBatches,
    "commit": lambda: LakeSink(Lake()),
}


@dataclass
class Life:
    """A run of sinks of one kind over a WAL and a checkpoint in memory, whose requests are counted."""

    plan: Plan

    def __post_init__(self) -> None:
        number, plan = next(_numbers), self.plan
        files = MemoryStore(StoreSpec(f"memory://counted-{number}/checkpoint"))
        self.wal = CountedStore(MemoryStore(StoreSpec(f"memory://counted-{number}/wal")))
        self.checkpoint = CountedStore(files)
        rows = round(plan.rows / plan.segments)
        table = pa.table({"number": pa.array(range(rows), pa.int64())})
        self.query = FakeQuery(files, lambda _, __: [table] * plan.segments)
        settings = lower_retention(KEPT, chunk_rows=plan.chunk_rows)
        self.run = Run(self.wal, self.checkpoint, settings, runtime=simulated_runtime(seed=number))
        self.run.open([self._served(f"sink-{at}", kind) for at, kind in enumerate(plan.sinks)])
        self.run.become_stager()

    def _served(self, name: str, kind: str) -> Any:
        sink = MAKE[kind]()
        delivery = Delivery(sink, guarantee="at_most_once" if kind == "at most once" else None)
        served = served_sink(name, sink, delivery, self.run.log, write_batch=self._reading_once)
        assert kind == ("at most once" if served.promise.at_most_once else served.promise.ability)
        return served

    def _reading_once(self, _: DeliveryContext, manifest: Manifest) -> None:
        """A writer that evaluates its DataFrame once."""
        for segment in manifest.segments:
            load_segment(self.run.log.store, segment)

    def live(self, through: int) -> Requests:
        """The requests to the WAL of the batches up to one, each staged, completed and delivered."""
        self.wal.taken()
        self.checkpoint.taken()
        for _ in self.query.batches(self.run, through + 1):
            self.run.deliver_all()
        return self.wal.taken()


def plan_of(kinds: Iterable[str], segments: int, chunks: int) -> Plan:
    """A plan whose segments have so many chunks each."""
    plan = Plan(
        batch_interval_s=1,
        rows_per_s=segments * chunks * CHUNK_ROWS,
        segments=segments,
        chunk_rows=CHUNK_ROWS,
        sinks=tuple(kinds),
    )
    assert plan.chunks == segments * chunks
    return plan


EXACT = [[kind] for kind in KINDS if kind != "two-phase"]
each_shape = pytest.mark.parametrize(("segments", "chunks"), [(1, 1), (1, 4), (3, 1), (8, 4)])


@pytest.mark.parametrize("kinds", [*EXACT, ["plain", "plain"], ["idempotent", "at most once"]], ids=str)
@each_shape
def test_the_formula_counts_the_requests_of_a_steady_batch_and_of_a_collection(
    kinds: list[str], segments: int, chunks: int
) -> None:
    plan = plan_of(kinds, segments, chunks)
    life = Life(plan)
    life.live(FIRST)

    assert life.live(FIRST + 1) == plan.of_batch
    read = life.checkpoint.taken()
    assert read == plan.of_checkpoint if len(kinds) == 1 else read.gets <= plan.of_checkpoint.gets
    rest = plan.of_batch.times(COLLECT_EVERY_BATCHES - 1)
    assert life.live(FIRST + COLLECT_EVERY_BATCHES) == rest + plan.of_collection


@each_shape
def test_rows_that_a_two_phase_sink_prepares_while_they_are_staged_cost_no_more_than_the_formula(
    segments: int, chunks: int
) -> None:
    plan = plan_of(["two-phase"], segments, chunks)
    life = Life(plan)
    life.live(FIRST)

    found = life.live(FIRST + COLLECT_EVERY_BATCHES)

    most = plan.of_batch.times(COLLECT_EVERY_BATCHES) + plan.of_collection
    assert found.puts <= most.puts
    assert found.gets <= most.gets
    assert found.lists <= most.lists
    assert sum(astuple(found)) > 0.6 * sum(astuple(most))


def test_a_month_is_calculated_from_requests_and_bytes() -> None:
    plan = Plan(batch_interval_s=10, rows_per_s=1000, row_bytes=100, segments=1, sinks=("transactional",))

    found = Estimate(plan, Prices(per_1000_puts=5, per_1000_gets=1, gb_month=2))

    # Of the batch, of the checkpoint, of a sixteenth of a collection with 10 listings and one for each of its batches.
    assert found.requests == Requests(4, 2) + Requests(0, 4) + Requests(1, 3, 26, 1).times(1 / 16)
    batches = MONTH_S / 10
    assert found.request_dollars == pytest.approx(batches * (0.005 * (4 + 27 / 16) + 0.001 * (6 + 3 / 16)))
    assert found.stored_bytes == (200 + 8) * 10_000 * 100
    assert found.storage_dollars == pytest.approx(208_000_000 / 2**30 * 2)


def test_each_thousand_objects_of_a_collection_are_deleted_by_one_request() -> None:
    assert plan_of(["plain"], 8, 4).of_collection.deletes == 1
    assert plan_of(["transactional"], 1000, 1).of_collection.deletes == 17  # 16 batches of 1,003 objects, a low water


def test_a_batch_without_rows_is_sent_as_one_chunk_for_each_segment() -> None:
    assert Plan(rows_per_s=0, segments=3).chunks == 3


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"batch_interval_s": 0}, "batch_interval_s=0: expected a number from 0.001 to 1e+12"),
        ({"rows_per_s": -1}, "rows_per_s=-1: expected a number from 0"),
        ({"rows_per_s": float("nan")}, "rows_per_s=nan"),
        ({"row_bytes": 1e13}, "row_bytes=10000000000000.0"),
        ({"segments": 0}, "segments=0: expected a number from 1"),
        ({"chunk_rows": 0}, "chunk_rows=0"),
        ({"retention_batches": -1}, "retention_batches=-1"),
        ({"sinks": ()}, "expected the kind of at least one sink"),
        ({"sinks": ("plain", "tape")}, "sinks='tape': expected one of plain, at most once"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Plan(**wrong)
    assert said in str(refused.value)


def test_a_price_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="gb_month=-1: expected a number from 0"):
        Prices(gb_month=-1)
