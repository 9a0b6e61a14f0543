"""The simulation is worth something only if it sees bugs: each one planted here must be reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import wal_sink.batch_delivery
import wal_sink.retention
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
from wal_sink import paths
from wal_sink.batch_delivery import BatchDelivery
from wal_sink.checkpoint import Gate
from wal_sink.committer import Committer
from wal_sink.delivery import SegmentDelivery, SinkFailedError
from wal_sink.errors import WalSinkError
from wal_sink.log import Log
from wal_sink.records import Manifest
from wal_sink.releasing import Released, Releaser
from wal_sink.retention import Collector
from wal_sink.stager import Stager
from wal_sink.terms import Term

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]


def marker_before_delivery(patch: Patch) -> None:
    def early(self: Committer, manifest: Manifest, *, taken_over: bool) -> BatchDelivery:
        delivery = made(self, manifest, taken_over=taken_over)
        self._mark(manifest, unknown=0)
        return delivery

    made = Committer._delivery
    patch.setattr(Committer, "_delivery", early)


def no_progress_reload_at_takeover(patch: Patch) -> None:
    patch.setattr(BatchDelivery, "reload_progress", lambda _: None)


def gate_ignored(patch: Patch) -> None:
    def is_open(self: Gate, batch_id: int) -> bool:
        return bool(self._checkpoint.offsets(batch_id))

    patch.setattr(Gate, "is_open", is_open)


def release_not_pinned(patch: Patch) -> None:
    def decide(self: Releaser, batch_id: int, staged: Manifest | None) -> Released:
        return Released(staged or self._highest_manifest(batch_id), "somebody")

    patch.setattr(Releaser, "_decide", decide)


def no_lookup(patch: Patch) -> None:
    patch.setattr(SegmentDelivery, "_was_applied", lambda *_: False)


def record_skipped(patch: Patch) -> None:
    patch.setattr(SegmentDelivery, "_record", lambda *_: None)


def record_before_sending(patch: Patch) -> None:
    def send(self: SegmentDelivery, run: Any, chunk: Any) -> None:
        self._record(run.order, chunk)
        self._write(chunk)
        run.rows = chunk.position.rows
        run.chunks += 1

    patch.setattr(SegmentDelivery, "_send", send)


def low_water_after_deletion(patch: Patch) -> None:
    raise_low_water, delete_through = Log.raise_low_water, Collector._delete_through
    targets: list[int] = []
    patch.setattr(Log, "raise_low_water", lambda _, batch_id: targets.append(batch_id))

    def delete_first(self: Collector, batch_id: int) -> None:
        delete_through(self, batch_id)
        raise_low_water(self._log, targets[-1])

    patch.setattr(Collector, "_delete_through", delete_first)


def retention_ignores_what_is_undelivered(patch: Patch) -> None:
    patch.setattr(Collector, "_delivered_everywhere", lambda self: self._shared.gate.search() + 2)


def term_not_checked(patch: Patch) -> None:
    patch.setattr(Term, "check", lambda *_: None)


def replay_restaged(patch: Patch) -> None:
    patch.setattr(Stager, "_is_replay", lambda *_: False)


def highest_manifest_not_chosen(patch: Patch) -> None:
    def lowest(self: Releaser, batch_id: int) -> Manifest:
        names = [paths.parse_manifest(name) for name in self._log.store.list(paths.batch(batch_id))]
        first = min(name for name in names if name is not None)
        found = self._log.find(Manifest, paths.manifest(batch_id, first.term, first.attempt))
        assert found is not None
        return found

    patch.setattr(Releaser, "_highest_manifest", lowest)


def dead_letters_not_kept_at_takeover(patch: Patch) -> None:
    patch.setattr(wal_sink.batch_delivery, "keep_last_recorded", lambda *_: None)


def no_second_read_at_takeover(patch: Patch) -> None:
    def never(_: Committer, delivery: BatchDelivery, batch_id: int) -> bool:  # noqa: ARG001
        delivery.reload_progress()
        return False

    patch.setattr(Committer, "_is_done_after_all", never)


def batches_start_at_the_newest(patch: Patch) -> None:
    def newest(self: Committer) -> int | None:
        return None if self._shared.history.wal is None else max(self._shared.gate.search(), self.marked_through + 1)

    patch.setattr(Committer, "next_batch", newest)


def failures_counted_as_done(patch: Patch) -> None:
    """What Flink's sink does with a send that answers False."""
    real = SegmentDelivery._write

    def write(self: SegmentDelivery, *args: Any) -> Any:
        try:
            return real(self, *args)
        except SinkFailedError:
            return None

    patch.setattr(SegmentDelivery, "_write", write)


def marker_skipped(patch: Patch) -> None:
    patch.setattr(
        Committer, "_mark", lambda self, manifest, **_: setattr(self, "_marker", _FakeMarker(manifest.batch_id))
    )


class _FakeMarker:
    witness_batch, witness_rows = -1, ()

    def __init__(self, batch_id: int) -> None:
        self.batch_id = batch_id


PLANTED: list[tuple[Plant, Callable[[str], Iterator[World]], str]] = [
    (marker_before_delivery, crashes, "plain"),
    (no_progress_reload_at_takeover, crashes, "plain"),
    (gate_ignored, crashes, "plain"),
    (release_not_pinned, replays, "plain"),
    (no_lookup, crashes, "lookup"),
    (record_skipped, crashes, "plain"),
    (record_before_sending, crashes, "plain"),
    (low_water_after_deletion, collections, "plain"),
    (retention_ignores_what_is_undelivered, collections, "plain"),
    (term_not_checked, late_sends, "plain"),
    (replay_restaged, replays, "plain"),
    (highest_manifest_not_chosen, double_crashes, "plain"),
    (dead_letters_not_kept_at_takeover, crashes, "at_most_once"),
    (no_second_read_at_takeover, late_finishes_of_single_chunks, "plain"),
    (batches_start_at_the_newest, backlogs, "plain"),
    (failures_counted_as_done, failing_sends, "plain"),
    (marker_skipped, crashes, "plain"),
]


@pytest.mark.parametrize(("plant", "histories", "kind"), PLANTED, ids=[plant.__name__ for plant, _, _ in PLANTED])
def test_the_simulation_reports_a_planted_bug(
    plant: Plant, histories: Callable[[str], Iterator[World]], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal_sink.retention, "COLLECT_EVERY_BATCHES", 2)
    plant(monkeypatch)

    with pytest.raises((AssertionError, WalSinkError)):
        for _ in histories(kind):
            pass


@pytest.mark.parametrize("histories", [backlogs, collections, failing_sends, late_sends], ids=lambda h: h.__name__)
def test_the_same_histories_without_a_bug_are_clean(
    histories: Callable[[str], Iterator[World]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal_sink.retention, "COLLECT_EVERY_BATCHES", 2)

    assert sum(1 for _ in histories("plain")) >= 18
