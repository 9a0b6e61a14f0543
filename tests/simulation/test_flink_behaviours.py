"""Behaviours for which Flink tests its write-ahead and two-phase sinks, and four of their seven holes, closed here."""

from __future__ import annotations

import pytest

from tests.house.log import paths
from tests.house.sinks import Chunk
from tests.support.small_run import Place, Recorder
from wal_sink.errors import DeliveryError


def raises() -> object:
    raise ConnectionError("target down")


# Behaviours.


def test_notifications_out_of_order_deliver_in_order() -> None:
    place, sink = Place(), Recorder()
    run = place.open({"a": sink})
    for batch_id in range(3):
        query = place.query()
        query.start_batch(batch_id, batch_id)
        query.stage(run, batch_id)

    place.checkpoint.create("commits/2", b"v1\n{}")
    assert run.gate.is_open(2)
    run.deliver_all()

    assert sink.batches == [0, 1, 2]


# Four of the seven holes, closed.


@pytest.mark.parametrize("kind", [ConnectionError, TimeoutError, ValueError])
def test_hole_1_a_failed_send_is_never_overtaken_by_a_later_batch(kind: type[Exception]) -> None:
    def fail(chunk: Chunk) -> object:
        if chunk.batch_id == 0 and down:
            raise kind("no")
        return None

    down = [True]
    place, sink = Place(), Recorder(fail)
    run = place.open({"a": sink})
    for _ in place.query().batches(run, 3):
        with pytest.raises(DeliveryError, match="batch 0"):
            run.deliver_all()

    assert sink.batches == []
    assert place.wal.list(paths.markers("a")) == []
    assert len([name for name in place.wal.list("batches", recursive=True) if name.endswith(".parquet")]) == 3
    down.clear()
    run.deliver_all()
    assert sink.batches == [0, 1, 2]


def test_hole_2_a_batch_restaged_with_another_parallelism_is_delivered_as_one_attempt() -> None:
    counts = iter([[4], [1, 2, 1], [2, 2]])
    place, sink = Place(rows=lambda _: next(counts)), Recorder()
    runs = [place.open({"a": sink}) for _ in range(3)]
    for run in runs:
        query = place.query()
        query.start_batch(0, 0)
        query.stage(run, 0)
    place.checkpoint.create("commits/0", b"v1\n{}")

    runs[-1].deliver_all()

    assert [chunk.num_rows for chunk in sink.chunks] == [2, 2]
    assert len({chunk.segment_id for chunk in sink.chunks}) == 2


def test_hole_3_keys_are_the_same_after_a_resubmission() -> None:
    place = Place(rows=lambda _: [5])
    first = Recorder()
    run = place.open({"a": first})
    next(place.query().batches(run, 1))
    first.fail = lambda chunk: raises() if chunk.rows[0] == 4 else None
    with pytest.raises(DeliveryError):
        run.deliver_all()

    second = Recorder()
    place.open({"a": second}).deliver_all()

    assert first.keys + second.keys == [f"{first.chunks[0].segment_id}-{a}-{b}" for a, b in ((0, 2), (2, 4), (4, 5))]


def test_hole_7_complete_batches_are_delivered_on_restore_without_a_new_one() -> None:
    place, sink = Place(), Recorder()
    list(place.query().batches(place.open({"a": Recorder(lambda _: raises())}), 3))

    place.open({"a": sink}).deliver_all()

    assert sink.batches == [0, 1, 2]


# Guarantees that both sinks lack.


def test_a_failure_of_one_sink_repeats_nothing_to_another() -> None:
    place, good, bad = Place(), Recorder(), Recorder(lambda _: raises())
    run = place.open({"good": good, "bad": bad})
    for _ in place.query().batches(run, 2):
        with pytest.raises(DeliveryError):
            run.deliver_all()
    bad.fail = None

    place.open({"good": good, "bad": bad}).deliver_all()

    assert good.batches == [0, 1]
    assert bad.batches == [0, 1]
