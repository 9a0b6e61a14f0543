"""The advice of an estimate on the first change, and that it helps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from wal_sink.estimation.advice import HEADROOM, advise, changes
from wal_sink.estimation.estimate import Estimate, estimate
from wal_sink.estimation.plan import S3_MODEL, Plan, Prices
from wal_sink.settings import Settings
from wal_sink.sinks.guarantees import Ability


def first(**more: Any) -> Estimate:
    return estimate(Plan(**{"executors": 1, **more}), S3_MODEL)


@pytest.mark.parametrize(
    ("found", "problem", "change"),
    [
        (first(), "", ""),
        (first(segments=500), "", ""),
        (first(segments=500, inline_bytes=0), "delivery takes too much", "partitions a batch"),
        (
            first(segments=40, rows_per_s=5000, where="driver", inline_bytes=0),
            "delivery takes too much",
            "where='executors'",
        ),
        (
            first(executors=20, segments=40, settings=Settings(max_delivery_tasks=2), sink_call_s=0.5),
            "delivery takes too much",
            "max_delivery_tasks",
        ),
        (first(executors=2, rows_per_s=250_000), "delivery takes too much", "chunk_rows=100000"),
        (first(executors=100), "requests are dear", "partitions a batch"),
        (first(executors=1000), "a long restart", "partitions a batch"),
        (first(executors=10_000, pending_batches=0), "delivery takes too much", "partitions a batch"),
    ],
)
def test_the_first_thing_to_change(found: Estimate, problem: str, change: str) -> None:
    advice = advise(found)
    assert advice.problem.startswith(problem)
    assert change in advice.change
    assert bool(advice.problem) == bool(problem)


def test_what_is_advised_mends_it() -> None:
    found = first(executors=10_000)
    assert found.busy > HEADROOM
    advice = advise(found)
    (changed,) = [change for change in changes(found) if change.what == advice.change]
    assert estimate(changed.plan, found.store).busy <= HEADROOM


FAST = replace(S3_MODEL, write_s=0.001, read_s=0.001, bandwidth=1e12)
LEDGER = Ability.TRANSACTIONAL
ROLLING = Plan(
    1000, segments=1000, batch_interval_s=2.7, rows_per_s=14_800, ability=LEDGER, sink_call_s=0.001,
    settings=Settings(segment_bytes=1),
)  # fmt: skip
"""Few partitions, whose segments roll over: they all lie beside one another."""


@pytest.mark.parametrize(
    ("plan", "problem"),
    [
        (ROLLING, "the store's limit for a prefix"),
        (Plan(50_000, batch_interval_s=120, rows_per_s=10, ability=LEDGER), "segments that end together"),
        (Plan(2000, where="executors"), "the store's limit, until it has split"),
        (Plan(100, segments=100_000, batch_interval_s=3600, ability=LEDGER), "a large manifest"),
    ],
)
def test_what_shows_first_on_a_fast_store(plan: Plan, problem: str) -> None:
    advice = advise(estimate(plan, FAST))
    assert advice.problem.startswith(problem)
    assert "partitions a batch" in advice.change


def test_several_queries_are_advised_where_chunks_end_by_their_bytes() -> None:
    """Neither larger chunks nor fewer segments make fewer chunks then, and a longer interval has more rows."""
    advice = advise(estimate(Plan(100, rows_per_s=520, row_bytes=10**6, sink_call_s=0.001), FAST))
    assert "queries, each with its own WAL" in advice.change


def test_several_queries_are_never_advised_for_cost() -> None:
    dear = replace(FAST, prices=Prices(5.0, 0.4, 0.0, 0.023, as_of="a test"))
    plan = Plan(8, segments=1, rows_per_s=50, row_bytes=10**6, sink_call_s=0.001)
    advice = advise(estimate(plan, dear))
    assert (advice.problem, advice.change) == ("requests are dear", "")


def test_without_a_change_that_is_enough_it_says_so() -> None:
    advice = advise(estimate(Plan(1, segments=1, sink_call_s=3600), S3_MODEL))
    assert advice.change == ""
    assert "no single change is enough" in str(advice)
