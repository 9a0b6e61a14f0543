"""A simulation is useful only if it reports bugs: each bug that is planted here must be reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

import wal_sink.protocol.collect
from tests.simulation import planted_bugs as bugs
from tests.simulation.planted_bugs import Plant
from tests.simulation.scenarios import (
    backlogs,
    collections,
    crashes,
    double_crashes,
    failing_sends,
    late_finishes_of_single_chunks,
    late_sends,
    replays,
)
from tests.simulation.world import World
from wal_sink.errors import WalSinkError

PLANTED: list[tuple[Plant, Callable[[str], Iterator[World]], str]] = [
    (bugs.marker_before_delivery, crashes, "plain"),
    (bugs.no_progress_reload_at_takeover, partial(crashes, begin=15), "plain"),
    (bugs.gate_ignored, crashes, "plain"),
    (bugs.release_not_pinned, replays, "plain"),
    (bugs.no_lookup, partial(crashes, begin=14), "lookup"),
    (bugs.record_skipped, partial(crashes, begin=15), "plain"),
    (bugs.record_before_sending, partial(crashes, begin=14), "plain"),
    (bugs.low_water_after_deletion, collections, "plain"),
    (bugs.retention_ignores_what_is_undelivered, collections, "plain"),
    (bugs.term_not_checked, partial(late_sends, begin=19), "plain"),
    (bugs.replay_restaged, partial(replays, begin=13), "plain"),
    (bugs.highest_manifest_not_chosen, double_crashes, "plain"),
    (bugs.dead_letters_not_kept_at_takeover, partial(crashes, begin=14), "at_most_once"),
    (bugs.no_second_read_at_takeover, partial(late_finishes_of_single_chunks, begin=22), "plain"),
    (bugs.batches_start_at_the_newest, backlogs, "plain"),
    (bugs.failures_counted_as_done, failing_sends, "plain"),
    (bugs.marker_skipped, crashes, "plain"),
]
"""The bugs, each with the family of histories that finds it, from one shortly before the first that does."""


@pytest.mark.no_cover
@pytest.mark.parametrize(("plant", "histories", "kind"), PLANTED, ids=[plant.__name__ for plant, _, _ in PLANTED])
def test_the_simulation_reports_a_planted_bug(
    plant: Plant, histories: Callable[[str], Iterator[World]], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal_sink.protocol.collect, "COLLECT_EVERY_BATCHES", 2)
    plant(monkeypatch)

    with pytest.raises((AssertionError, WalSinkError)):
        for _ in histories(kind):
            pass


@pytest.mark.no_cover
@pytest.mark.parametrize("histories", [backlogs, collections, failing_sends, late_sends], ids=lambda h: h.__name__)
def test_the_same_histories_without_a_bug_are_clean(
    histories: Callable[[str], Iterator[World]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal_sink.protocol.collect, "COLLECT_EVERY_BATCHES", 2)

    assert sum(1 for _ in histories("plain")) >= 18
