"""The context of the thread of a sink's calls: it is the thread's own, and lasts from `open` to `close`."""

from __future__ import annotations

import decimal
import itertools
import logging
import pickle
import threading
from contextvars import ContextVar, Token
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.house.protocol import Run, SegmentTask
from tests.house.spark import PickledSink, _DeliveryTask
from tests.house.stores import StoreSpec, open_store
from tests.house.support import SYSTEM, ThreadCall, logger_of, side_by_side
from tests.spark.test_carriers import InTask
from tests.support.one_segment import Stage
from tests.support.small_run import Place, served_sink
from wal_sink import Chunk, Sink, SinkContext
from wal_sink.settings import Settings
from wal_sink.support.logs import logging_about

LONG = Decimal("1234567890123456789012345678901234.5678")
TWICE = "2469135780246913578024691357802469.1356"
attached: ContextVar[str] = ContextVar("attached", default="nothing")
logger = logger_of(__name__)
_ends = itertools.count()


class Scaling(Sink):
    """Sets what belongs to the context of a thread when it is opened, as decimal and OpenTelemetry do."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.token: Token[str] | None = None

    def open(self, context: SinkContext) -> None:
        decimal.getcontext().prec = 50
        self.token = attached.set(context.sink)

    def write(self, chunk: Chunk) -> None:
        logger.warning("wrote")
        self.note(f"{chunk.segment_id}-{chunk.rows[0]}", f"{LONG * 2} {attached.get()}")

    def close(self) -> None:
        assert self.token is not None
        attached.reset(self.token)  # raises where the token is of another context
        self.note(f"closed-{next(_ends)}", attached.get())  # threads that follow each other may have one id
        self.token = None

    def note(self, name: str, text: str) -> None:
        (Path(self.folder) / name).write_text(text)

    def __reduce__(self) -> Any:
        return Scaling, (self.folder,)


def noted(folder: Path) -> tuple[set[str], list[str]]:
    """The texts of the writes, and of the ends."""
    found = {path.name: path.read_text() for path in folder.iterdir()}
    ends = [text for name, text in found.items() if name.startswith("closed-")]
    return {text for name, text in found.items() if not name.startswith("closed-")}, ends


def test_what_a_call_sets_in_its_context_is_there_in_the_next_one() -> None:
    call, sink = ThreadCall(), {"token": None}

    def begin() -> None:
        decimal.getcontext().prec = 50
        sink["token"] = attached.set("opened")  # type: ignore[assignment]

    call.call(begin, timeout_s=60)
    assert call.call(lambda: (str(LONG * 2), attached.get()), timeout_s=60) == (TWICE, "opened")
    call.call(lambda: attached.reset(sink["token"]), timeout_s=60)  # type: ignore[arg-type]
    assert call.call(attached.get, timeout_s=60) == "nothing"
    call.close()
    assert attached.get() == "nothing"
    assert decimal.getcontext().prec != 50


def test_in_the_driver_a_sink_writes_and_closes_in_the_context_that_it_opened(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = Place(rows=lambda _: [4])
    with caplog.at_level(logging.WARNING):
        run = place.open({"a": Scaling(str(tmp_path))}, runtime=SYSTEM)
        place.stream(run, 1)
    assert noted(tmp_path) == ({f"{TWICE} a"}, ["nothing"] * len(noted(tmp_path)[1]))
    assert noted(tmp_path)[1]
    records = [record.__dict__ for record in caplog.records if record.message == "wrote"]
    assert [(each["sink"], each["batch"]) for each in records] == [("a", 0), ("a", 0), ("a", 1), ("a", 1)]
    assert all(each["segment"] for each in records)


@pytest.mark.parametrize("threads", [1, 2])
def test_in_a_task_a_sink_writes_and_closes_in_the_context_that_it_opened(
    tmp_path: Path, threads: int, caplog: pytest.LogCaptureFixture
) -> None:
    place = Place(rows=lambda _: [3, 3])
    (tmp_path / "noted").mkdir()
    sink = Scaling(str(tmp_path / "noted"))
    spec = StoreSpec(str(tmp_path / "wal"))
    run = Run(open_store(spec), place.checkpoint, Settings(chunk_rows=2))
    run.open([served_sink(run, "a", sink)])
    run.become_stager()
    next(place.query().batches(run, 1))
    staged = run.history.staged(0)
    assert staged is not None
    given = replace(Stage().given, sink="a", segments=2, chunk_rows=2, term=run.committers[0].term)
    tasks = tuple(SegmentTask(number, segment, 0, maybe_sent=False) for number, segment in enumerate(staged.segments))
    task = _DeliveryTask(PickledSink(pickle.dumps(sink)), spec, "run", given, (tasks,), threads=threads)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wal_sink.spark.delivery.TaskContext.get", lambda: InTask(0))
        assert [result.failure for result in task([0])] == [None, None]
    assert noted(tmp_path / "noted") == ({f"{TWICE} a"}, ["nothing"] * threads)
    segments = {record.__dict__["segment"] for record in caplog.records if record.message == "wrote"}
    assert segments == {segment.id for segment in staged.segments}


def records_logged_here(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """The attributes of what the functions here log, on whichever thread. Threads of other tests may log, too."""
    return [record.__dict__ for record in caplog.records if record.name == __name__]


def test_the_subject_of_a_call_is_gone_after_it_however_it_ended(caplog: pytest.LogCaptureFixture) -> None:
    call = ThreadCall()

    def fail() -> None:
        logger.warning("fails")
        raise ValueError("planned")

    with logging_about(sink="a"), pytest.raises(ValueError, match="planned"):
        call.call(fail, timeout_s=60)
    call.call(logger.warning, "without", timeout_s=60)
    call.close()
    assert [record["sink"] for record in records_logged_here(caplog)] == ["a", None]


def test_calls_side_by_side_share_no_context_with_their_caller(caplog: pytest.LogCaptureFixture) -> None:
    mine, precision = decimal.getcontext(), decimal.getcontext().prec
    both_here = threading.Barrier(2)

    def work(_: int) -> int:
        both_here.wait(60)
        logger.warning("beside")
        if decimal.getcontext() is not mine:
            decimal.getcontext().prec = 7
        both_here.wait(60)
        return id(decimal.getcontext())

    with logging_about(batch=3):
        assert len(set(side_by_side(work, range(2)))) == 2
    assert decimal.getcontext().prec == precision
    assert [record["batch"] for record in records_logged_here(caplog)] == [3, 3]
