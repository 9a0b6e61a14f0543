"""One delivery, and everything a sink may do: answer, refuse, raise, hang, fail to open or to close."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from tests.house.log import paths
from tests.house.protocol import Run
from tests.house.sinks import Chunk, Failure, FailureKind, ForgottenError, Rejected, Sink, SinkContext
from tests.house.stores import ObjectExists, ObjectMissing
from tests.support.hanging_calls import Hangs
from tests.support.small_run import Place, Recorder, numbers
from wal_sink.errors import (
    ConfigError,
    CorruptError,
    DeliveryError,
    FencedError,
    HistoryError,
    OutcomeUnknownError,
    PermanentError,
    StoreError,
    WalSinkError,
)
from wal_sink.settings import Delivery, Retry, Settings
from wal_sink.sinks.failures import failure_error, kind_of
from wal_sink.testing import simulated_runtime


def with_batch(to: object, *, rows: int = 5, hangs: Hangs | None = None) -> tuple[Place, Run]:
    """A run with one complete batch to deliver."""
    place = Place(rows=lambda _: [rows])
    runtime = simulated_runtime(seed=99)
    if hangs is not None:
        runtime = replace(runtime, new_timed_call=hangs.new_timed_call)
    run = place.open({"a": to}, runtime=runtime)
    next(place.query().batches(run, 1))
    return place, run


def is_marked(place: Place) -> bool:
    return bool(place.wal.list(paths.markers("a")))


def raising(error: Exception, times: int = 99) -> Callable[[Chunk], object]:
    left = [times]

    def fail(_: Chunk) -> object:
        left[0] -= 1
        if left[0] >= 0:
            raise error
        return None

    return fail


# Answers of write.


@pytest.mark.parametrize(
    "answer", [True, False, 0, 1, "ok", [], object()], ids=lambda a: type(a).__name__ + repr(a)[:5]
)
def test_any_other_answer_is_an_error_at_once_and_names_what_was_expected(answer: object) -> None:
    sink = Recorder(lambda _: answer)
    place, run = with_batch(sink)

    with pytest.raises(DeliveryError, match=r"returned .*: expected None \(the target has every row\) or Rejected"):
        run.deliver_all()

    assert sink.tries == 1
    assert not is_marked(place)


def test_rejected_rows_halt_by_default_and_the_first_reason_is_shown() -> None:
    sink = Recorder(lambda _: Rejected({1: "too long", 0: "no such city"}))
    place, run = with_batch(sink)

    with pytest.raises(
        DeliveryError, match=r"rejected 2 rows; row 0 of the chunk: no such city\. .*on_rejected='dead_letter'"
    ):
        run.deliver_all()

    assert sink.tries == 1
    assert not is_marked(place)


def test_rejected_without_rows_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="at least one row"):
        Rejected({})


# Errors of write.


def test_a_permanent_error_is_not_retried() -> None:
    sink = Recorder(raising(PermanentError("schema mismatch")))
    place, run = with_batch(sink)

    with pytest.raises(DeliveryError, match="refused permanently: schema mismatch"):
        run.deliver_all()

    assert sink.tries == 1
    assert not is_marked(place)


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("x"),
        TimeoutError("x"),
        ValueError("x"),
        StopIteration("x"),
        OutcomeUnknownError("x"),
        AssertionError("x"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_any_other_error_is_retried_with_the_same_chunk(error: Exception) -> None:
    sink = Recorder(raising(error, times=2))
    place, run = with_batch(sink, rows=2)

    run.deliver_all()

    assert is_marked(place)
    assert sink.tries == 3
    assert len(sink.keys) == 1


@pytest.mark.parametrize(
    ("error", "ends_with"), [(FencedError("higher term"), FencedError), (HistoryError("other history"), HistoryError)]
)
def test_a_target_that_says_it_is_fenced_or_elsewhere_ends_the_run(
    error: Exception, ends_with: type[Exception]
) -> None:
    sink = Recorder(raising(error))
    place, run = with_batch(sink)

    with pytest.raises(ends_with):
        run.deliver_all()

    assert sink.tries == 1
    assert not is_marked(place)


# Hanging.


def test_a_call_that_hangs_has_an_unknown_outcome_and_nothing_else_is_called_while_it_runs() -> None:
    hangs = Hangs()
    sink = Recorder(lambda _: hangs.wait())
    place, run = with_batch(Delivery(sink, retry=Retry(attempt_timeout_s=0.5)), hangs=hangs)
    try:
        with pytest.raises(DeliveryError, match=r"still running after 0\.5 s"):
            run.deliver_all()
    finally:
        hangs.release.set()

    assert sink.tries == 1
    assert not is_marked(place)


# open and close.


class Staged(Sink):
    """Notes its calls; fails where it is told to."""

    def __init__(self, *, fail_open: int = 0, fail_close: int = 0) -> None:
        self.calls: list[str] = []
        self.contexts: list[SinkContext] = []
        self.fail_open, self.fail_close = fail_open, fail_close

    def open(self, context: SinkContext) -> None:
        self.calls.append("open")
        self.contexts.append(context)
        self.fail_open -= 1
        if self.fail_open >= 0:
            raise ConnectionError("no secret")

    def write(self, chunk: Chunk) -> None:  # noqa: ARG002
        self.calls.append("write")

    def close(self) -> None:
        self.calls.append("close")
        self.fail_close -= 1
        if self.fail_close >= 0:
            raise OSError("connection reset")


def test_open_comes_once_before_the_first_write_and_close_once_after_the_last() -> None:
    sink = Staged()
    _, run = with_batch(sink)

    run.deliver_all()

    assert sink.calls == ["open", "write", "write", "write", "close"]


def test_an_open_that_raises_is_retried_and_nothing_is_written_or_closed_before_it_succeeded() -> None:
    sink = Staged(fail_open=2)
    place, run = with_batch(sink, rows=1)

    run.deliver_all()

    assert sink.calls == ["open", "open", "open", "write", "close"]
    assert is_marked(place)


def test_a_close_that_raises_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    sink = Staged(fail_close=1)
    place, run = with_batch(sink)

    run.deliver_all()

    assert is_marked(place)
    assert sink.calls.count("write") == 3
    assert "sink a: close raised OSError: connection reset" in caplog.text


def test_a_sink_is_closed_after_a_failure_too() -> None:
    sink = Staged()

    def write(chunk: Chunk) -> None:  # noqa: ARG001
        raise PermanentError("no")

    sink.write = write  # type: ignore[method-assign]
    _, run = with_batch(sink)

    with pytest.raises(DeliveryError):
        run.deliver_all()

    assert sink.calls == ["open", "close"]


# Dispatchers.


# Errors.


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FencedError("x"), FailureKind.FENCED),
        (CorruptError("x"), FailureKind.CORRUPT),
        (HistoryError("x"), FailureKind.HISTORY),
        (ForgottenError("x"), FailureKind.FORGOTTEN),
        (StoreError("x"), FailureKind.UNKNOWN),
        (ObjectMissing("x"), FailureKind.UNKNOWN),
        (ObjectExists("x"), FailureKind.UNKNOWN),
        (OutcomeUnknownError("x"), FailureKind.UNKNOWN),
        (DeliveryError("x"), FailureKind.PERMANENT),
        (ConfigError("x"), FailureKind.PERMANENT),
    ],
)
def test_every_error_of_the_core_has_a_kind(error: WalSinkError, kind: FailureKind) -> None:
    assert kind_of(error) is kind


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (FailureKind.FENCED, FencedError),
        (FailureKind.CORRUPT, CorruptError),
        (FailureKind.HISTORY, HistoryError),
        (FailureKind.PERMANENT, DeliveryError),
    ],
)
def test_every_kind_that_is_not_retried_has_an_error(kind: FailureKind, error: type[WalSinkError]) -> None:
    assert type(failure_error(Failure(kind, "why"), "what")) is error


# At most once.


def at_most_once(fail: Callable[[Chunk], object] | None = None) -> tuple[Recorder, Delivery]:
    sink = Recorder(fail)
    return sink, Delivery(sink, guarantee="at_most_once")


def test_at_most_once_never_repeats_what_failed_and_keeps_it() -> None:
    sink, delivery = at_most_once(raising(ConnectionError("half sent"), times=1))
    place, run = with_batch(delivery)

    run.deliver_all()

    assert [chunk.rows[0] for chunk in sink.chunks] == [2, 4]
    assert sink.tries == 3
    assert len(place.wal.list(paths.dead_letter_folder("a", 0))) == 1
    assert is_marked(place)


def test_at_most_once_keeps_what_a_permanent_error_refused_and_goes_on_behind_it_after_a_restart() -> None:
    sink, delivery = at_most_once(raising(PermanentError("no"), times=1))
    place, run = with_batch(delivery)
    with pytest.raises(DeliveryError):
        run.deliver_all()

    place.open({"a": delivery}).deliver_all()

    assert [chunk.rows[0] for chunk in sink.chunks] == [2, 4]
    assert len(place.wal.list(paths.dead_letter_folder("a", 0))) == 1


def test_at_most_once_records_before_it_sends() -> None:
    recorded: list[list[str]] = []
    sink, delivery = at_most_once()
    place, run = with_batch(delivery)
    sink.fail = lambda _: recorded.append(place.wal.list(paths.progress_folder("a", 0)))

    run.deliver_all()

    assert [len(names) for names in recorded] == [1, 2, 3]


def test_chunks_of_a_batch_keep_their_size_whatever_the_settings_become() -> None:
    place = Place(rows=lambda _: [5])
    run = place.open({"a": Recorder()}, settings=Settings(chunk_rows=2))
    next(place.query().batches(run, 1))
    later = Recorder()

    place.open({"a": later}, settings=Settings(chunk_rows=1000)).deliver_all()

    assert [chunk.num_rows for chunk in later.chunks] == [2, 2, 1]
    assert numbers(0, 5).equals(pa.concat_tables([chunk.table for chunk in later.chunks]))
