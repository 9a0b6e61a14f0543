"""The life of a `WalSink` with a query beside it, without Spark: whatever order things end in, nothing waits for ever,
nothing complete is forgotten, and who leaves normally knows that all was delivered.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import itertools
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from pyspark.sql.types import StructType

import wal_sink.spark.committers
import wal_sink.spark.query
import wal_sink.spark.staging
import wal_sink.spark.streaming_query
import wal_sink.walsink
from tests.house.log import paths
from tests.house.protocol import Run
from tests.house.stores import MemoryStore, StoreSpec
from tests.support.small_run import Recorder, numbers
from tests.support.waiting import PATIENCE_S, wait_until
from wal_sink import (
    ConfigError,
    Delivery,
    DeliveryError,
    PermanentError,
    Retry,
    Settings,
    UndeliveredError,
    WalSink,
    WalSinkError,
)
from wal_sink.spark import identity
from wal_sink.spark import identity as earlier_rows
from wal_sink.spark.committers import Placement
from wal_sink.testing import FakeQuery
from wal_sink.testing.simulation.fake_query import QUERY_ID

_homes = itertools.count()


class Interrupted(Exception):
    """The error that Spark raises in the stream's thread when the query is stopped. The query has not failed."""


class Stream:
    """A streaming query as a `WalSink` sees it. As with Spark, `stop` waits for the thread that runs `foreachBatch`."""

    sparkSession = None  # noqa: N815 - Spark's name
    schema: Any = StructType([])

    def __init__(self, home: Home, on_batch: Callable[[Any, int], None], through: int) -> None:
        self.runId = str(uuid.UUID(int=next(home.run_ids)))
        self.through = through
        self.stopped = threading.Event()
        self.query = home.query()
        self.error: BaseException | None = None
        self._home = home
        self._on_batch = on_batch
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()
        home.streams.append(self)

    @property
    def active(self) -> bool:
        return self._thread.is_alive()

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        return self.active

    def is_on_its_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def stop(self) -> None:
        assert threading.current_thread() is not self._thread, "the stream waits for itself"
        self.stopped.set()
        self._thread.join(PATIENCE_S)
        assert not self.active, "the query could not be stopped"

    def exception(self) -> BaseException | None:
        return self.error

    def awaitTermination(self) -> None:  # noqa: N802 - Spark's name
        self._thread.join(PATIENCE_S)
        if self.error is not None:
            raise self.error

    def wait_for_end(self) -> None:
        self._thread.join(PATIENCE_S)

    def complete(self, through: int) -> None:
        """Let it run batches up to this one."""
        self.through = through
        wait_until(lambda: self._home.completed >= through)

    def _work(self) -> None:
        try:
            while not self.stopped.wait(0.002):
                batch_id = self._home.completed + 1
                if batch_id <= self.through:
                    self.query.start_batch(batch_id, batch_id)
                    self._on_batch(self, batch_id)
                    self._home.before_commit(batch_id)
                    self.query.complete_batch(batch_id)
        except Interrupted:
            return
        except BaseException as error:  # noqa: BLE001 - as Spark does
            self.error = error

    def sleep(self, seconds: float) -> None:
        if self.stopped.wait(seconds):
            raise Interrupted


@dataclass(frozen=True)
class Identity:
    """The query and the batch of a caller; see `QueryIdentity`. A stream of the tests is its own DataFrame."""

    query: Stream
    batch_id: int
    session: Any = None
    query_id: str = QUERY_ID

    @property
    def run_id(self) -> str:
        return self.query.runId

    def is_on_its_thread(self) -> bool:
        return self.query.is_on_its_thread()


@dataclass
class Home:
    """A WAL and a checkpoint in memory, which outlive `WalSink`s, and the Spark that is not there."""

    url: str = field(default_factory=lambda: f"memory://life-{next(_homes)}")
    run_ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    before_commit: Callable[[int], None] = lambda _: None
    threads_before: list[threading.Thread] = field(default_factory=threading.enumerate)
    streams: list[Stream] = field(default_factory=list)

    @property
    def checkpoint(self) -> MemoryStore:
        return MemoryStore(StoreSpec(f"{self.url}/checkpoint"))

    @property
    def wal(self) -> MemoryStore:
        return MemoryStore(StoreSpec(f"{self.url}/wal"))

    @property
    def completed(self) -> int:
        return max((int(name) for name in self.checkpoint.list("commits")), default=-1)

    def query(self) -> FakeQuery:
        return FakeQuery(self.checkpoint, lambda batch_id, _: [numbers(batch_id, 1)])

    def sink(self, to: object, **options: Any) -> WalSink:
        return WalSink(to, wal=f"{self.url}/wal", checkpoint=f"{self.url}/checkpoint", **options)

    def chain(self, on_batch: Callable[[Any, int], None], through: int = -1) -> Stream:
        """An own `writeStream` chain."""
        return Stream(self, on_batch, through)

    def left_behind(self, batches: int) -> None:
        """Complete batches of an earlier run, for a sink 'default' that has none of them."""
        with self.sink(Recorder()):
            pass
        with self.sink(None) as stager:
            self.chain(stager.stage).complete(batches - 1)

    def committers(self) -> list[str]:
        """The committer threads that live since this home was made."""
        new = [thread.name for thread in threading.enumerate() if thread not in self.threads_before]
        return [name for name in new if name.startswith("wal-sink-committer")]


class Hanging(Recorder):
    """A target that does not answer until `go` is set, or its test is over."""

    of_this_test: ClassVar[list[Hanging]] = []

    def __init__(self) -> None:
        self.called, self.go = threading.Event(), threading.Event()
        self.of_this_test.append(self)
        super().__init__(self.hang)

    def hang(self, _: object) -> str | None:
        self.called.set()
        return None if self.go.wait(PATIENCE_S) else "no answer"


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    made = Home()
    query = wal_sink.spark.query
    monkeypatch.setattr(wal_sink.walsink, "current_session", lambda: None)
    monkeypatch.setattr(wal_sink.spark.committers, "GRACE_S", 0.2)
    monkeypatch.setattr(wal_sink.spark.committers, "CANCEL_S", 0.1)
    monkeypatch.setattr(query, "session_of", lambda _: None)
    monkeypatch.setattr(query, "refuse_leftovers", lambda *_: None)
    monkeypatch.setattr(query, "schema_of", lambda _: StructType().add("n", "long"))
    monkeypatch.setattr(query, "start_query", lambda through, _, on_batch: Stream(made, on_batch, through))
    monkeypatch.setattr(query, "stop_query", lambda stream: stream.stop())
    monkeypatch.setattr(identity, "identity_of", Identity)
    monkeypatch.setattr(earlier_rows.BatchRows, "refuse_earlier", lambda *_: None)
    monkeypatch.setattr(identity, "refuse_other_checkpoint", lambda *_: None)
    monkeypatch.setattr(query, "sleep_in_stream", lambda stream, seconds: stream.sleep(seconds), raising=False)
    monkeypatch.setattr(
        wal_sink.spark.staging,
        "stage_batch",
        lambda run, _, stream, caller, **_given: stream.query.stage(run, caller.batch_id),
    )
    yield made
    while Hanging.of_this_test:
        Hanging.of_this_test.pop().go.set()
    for stream in made.streams:  # one that goes on would slow down every later test
        stream.stopped.set()
    for stream in made.streams:
        stream.wait_for_end()


def writer(through: int) -> Any:
    """What `WalSink.start` takes for a `DataStreamWriter`: the last batch it runs."""
    return through


class Soon:
    """The block ends by itself: it does not wait for what waits for `PATIENCE_S`."""

    def __init__(self, seconds: float = PATIENCE_S * 2 / 3) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        self._began_s = time.monotonic()

    def __exit__(self, *_: object) -> None:
        took_s = time.monotonic() - self._began_s
        assert took_s < self._seconds, f"it took {took_s:.1f} s"


# --- draining and leaving


def test_leaving_the_block_after_a_drain_that_timed_out_delivers_everything(home: Home) -> None:
    target = Hanging()
    with home.sink(target) as sink:
        stream = home.chain(sink.stage)
        stream.complete(0)
        with pytest.raises(UndeliveredError, match=r"'default' of .* not all complete batches were delivered within"):
            sink.drain(timeout_s=0.05)
        target.go.set()
        wait_until(lambda: target.batches == [0])
        time.sleep(0.05)  # a thread that was told to finish would end here
        stream.complete(1)

    assert target.batches == [0, 1]


def test_leaving_the_block_raises_again_what_closing_in_it_raised(home: Home) -> None:
    target = Hanging()
    with pytest.raises(UndeliveredError, match=r"delivered within 0\.05 s"), home.sink(target) as sink:  # noqa: PT012
        home.chain(sink.stage).complete(0)
        with pytest.raises(UndeliveredError):
            sink.close(timeout_s=0.05)
        target.go.set()
    assert target.batches in ([], [0])


@pytest.mark.parametrize("ended_by", [KeyboardInterrupt, OSError])
def test_leaving_the_block_after_a_run_that_failed_raises(
    home: Home, ended_by: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ended_by("in the middle")

    monkeypatch.setattr(wal_sink.walsink.WalSink, "start", fail)
    sink = home.sink(Recorder())
    again = ended_by if issubclass(ended_by, Exception) else UndeliveredError
    with pytest.raises(again), sink, pytest.raises(ended_by):
        sink.run(writer(0))
    with pytest.raises(again):
        sink.close()


def test_a_drain_beside_a_running_query_waits_for_no_batch_that_is_not_complete(home: Home) -> None:
    completing = threading.Event()
    home.before_commit = lambda _: assert_true(completing.wait(PATIENCE_S))
    with home.sink(target := Recorder()) as sink:
        home.chain(sink.stage, through=0)
        wait_until(lambda: bool(home.wal.list("batches")))
        with Soon():
            sink.drain()
        assert target.batches == []

        completing.set()

        wait_until(lambda: target.batches == [0])


def assert_true(holds: bool) -> None:
    assert holds


@pytest.mark.parametrize("follow", [False, True])
def test_draining_without_sinks_is_refused(home: Home, follow: bool) -> None:
    with pytest.raises(ConfigError, match="only stages"):
        home.sink(None).drain(follow=follow)


def test_a_following_drain_ends_when_every_sink_is_parked(home: Home) -> None:
    home.left_behind(1)
    parked = Delivery(Recorder(lambda _: False), retry=Retry(attempts=1), on_failure="park")
    with Soon(), pytest.raises(UndeliveredError, match=r"'default' of .* is parked"):
        home.sink(parked).drain(follow=True)


def test_a_following_drain_leaves_no_thread_though_nobody_closes(home: Home) -> None:
    home.left_behind(1)
    sink = home.sink(target := Recorder())
    sink.drain(follow=True, timeout_s=0.1)
    wait_until(lambda: not home.committers(), timeout_s=PATIENCE_S)

    with home.sink(None) as stager:
        home.chain(stager.stage).complete(1)
    for seconds in (0.2, 2.0, 20.0, 60.0):  # a slow machine may have no time to find the batch
        sink.drain(follow=True, timeout_s=seconds)
        if target.batches == [0, 1]:
            break

    assert target.batches == [0, 1]
    wait_until(lambda: not home.committers(), timeout_s=PATIENCE_S)


def test_run_in_one_thread_and_close_in_another_agree(home: Home) -> None:
    for _ in range(10):
        sink = home.sink(target := Recorder())
        failed: list[BaseException] = []
        running = threading.Thread(target=run_and_note, args=(sink, home.completed + 1, failed))
        running.start()
        wait_until(lambda target=target: bool(target.batches))  # type: ignore[misc]
        sink.close()
        running.join(PATIENCE_S)
        assert failed == []


def run_and_note(sink: WalSink, through: int, failed: list[BaseException]) -> None:
    try:
        sink.run(writer(through))
    except BaseException as error:  # noqa: BLE001 - whatever it is
        failed.append(error)


def test_the_exit_hook_lets_a_sink_that_was_dropped_finish_its_chunk(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.left_behind(1)
    hooks: list[Callable[[], None]] = []
    monkeypatch.setattr(atexit, "register", hooks.append)
    monkeypatch.setattr(wal_sink.spark.committers, "GRACE_S", PATIENCE_S)
    target = Hanging()

    def drain_and_drop() -> None:
        with pytest.raises(UndeliveredError):
            home.sink(target).drain(timeout_s=0.1)

    drain_and_drop()
    assert target.called.wait(PATIENCE_S)
    gc.collect()
    threading.Timer(0.1, target.go.set).start()
    hooks.pop()()

    assert target.batches == [0]
    assert home.committers() == []


def test_a_failing_sink_gives_the_chunk_in_hand_of_another_time_to_end(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal_sink.spark.committers, "GRACE_S", PATIENCE_S)
    good, cancelled = Hanging(), threading.Event()

    def refuses(_: object) -> None:
        assert good.called.wait(PATIENCE_S)
        raise PermanentError("refused")

    sink = home.sink({"good": good, "bad": refuses})
    stream = home.chain(sink.stage, through=0)
    assert good.called.wait(PATIENCE_S)
    monkeypatch.setattr(Placement, "cancel_jobs", lambda *_: cancelled.set())
    wait_until(lambda: not stream.active)
    threading.Timer(0.1, good.go.set).start()
    sink._end_early()

    assert home.wal.list(paths.markers("good")) == [f"{0:019}.json"]
    assert not cancelled.is_set()


def test_a_sink_that_has_ended_is_let_go_of(home: Home) -> None:
    sink = home.sink(Recorder())
    with sink:
        sink.drain()
    ended = weakref.ref(sink)
    del sink
    wait_until(lambda: is_gone(ended))


def is_gone(thing: weakref.ref[Any]) -> bool:
    """A thread that is about to end may still refer to it."""
    gc.collect()
    return thing() is None


# --- own chains


def test_a_batch_is_staged_by_one_call(home: Home) -> None:
    def twice(df: Any, batch_id: int) -> None:
        sink.stage(df, batch_id)
        sink.stage(df, batch_id)

    sink = home.sink(target := Recorder())
    stream = home.chain(twice, through=0)
    wait_until(lambda: not stream.active)
    sink.close()

    assert isinstance(stream.error, ConfigError)
    assert "batch 0 of" in str(stream.error)
    assert "Union the DataFrames" in str(stream.error)
    assert target.batches == []


class QueryFailedError(Exception):
    """The query fails after a batch was staged, before it is complete."""


def failing_once(home: Home, at: int) -> None:
    failures = iter([at])

    def before_commit(batch_id: int) -> None:
        if batch_id == at and next(failures, None) is not None:
            raise QueryFailedError

    home.before_commit = before_commit


def test_a_restarted_query_stages_its_batch_again_and_waits_for_room_for_none_but_earlier_ones(home: Home) -> None:
    failing_once(home, at=1)
    with home.sink(target := Recorder(), settings=Settings(max_pending_batches=1)) as sink:
        first = home.chain(sink.stage, through=1)
        wait_until(lambda: not first.active)
        assert isinstance(first.error, QueryFailedError)

        home.chain(sink.stage).complete(2)

    assert target.batches == [0, 1, 2]


def test_closing_stops_the_newest_run_of_an_own_chain(home: Home) -> None:
    sink = home.sink(target := Recorder())
    first = home.chain(sink.stage)
    first.complete(0)
    first.stop()
    second = home.chain(sink.stage)
    second.complete(1)

    sink.close()

    assert not second.active
    assert target.batches == [0, 1]


def test_a_started_query_forgets_how_an_earlier_one_failed(home: Home) -> None:
    sink = home.sink(target := Recorder())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wal_sink.spark.staging, "stage_batch", raising(WalSinkError("the store sleeps")))
        first = sink.start(writer(0))
        with pytest.raises(WalSinkError):
            first.awaitTermination()
    sink.start(writer(0))
    wait_until(lambda: home.completed == 0)

    sink.close()

    assert target.batches == [0]


def raising(error: BaseException) -> Callable[..., None]:
    def fail(*_: object, **_given: object) -> None:
        raise error

    return fail


def claims(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made: list[str] = []
    claim = Run.become_stager

    def counted(run: Run) -> None:
        made.append(run.log.run_id)
        claim(run)

    monkeypatch.setattr(Run, "become_stager", counted)
    return made


def test_every_start_of_a_query_claims_the_stagers_term_once(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    made = claims(monkeypatch)
    with home.sink(Recorder()) as sink:
        for through in (1, 3):
            stream = sink.start(writer(through))
            wait_until(lambda through=through: home.completed == through)  # type: ignore[misc]
            stream.stop()
        assert len(made) == 2
        for through in (5, 7):
            own = home.chain(sink.stage)
            own.complete(through)
            own.stop()
        assert len(made) == 4


def test_a_batch_whose_error_was_swallowed_is_told_by_the_next_and_by_closing(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[Exception] = []
    failures = iter([WalSinkError("the store sleeps")])
    claim = Run.become_stager

    def flaky(run: Run) -> None:
        if (error := next(failures, None)) is not None:
            raise error
        claim(run)

    def swallowing(df: Any, batch_id: int) -> None:
        try:
            sink.stage(df, batch_id)
        except WalSinkError as error:
            said.append(error)

    monkeypatch.setattr(Run, "become_stager", flaky)
    sink = home.sink(target := Recorder())
    home.chain(swallowing).complete(2)
    for _ in range(2):
        with pytest.raises(WalSinkError, match="the store sleeps"):
            sink.close()
    assert [str(error) for error in said] == ["the store sleeps"] * 3
    assert target.batches == []


def test_what_a_missing_batch_was_not_staged_for_is_what_closing_raises(home: Home) -> None:
    def swallowing(df: Any, batch_id: int) -> None:
        with contextlib.suppress(ZeroDivisionError):
            sink.stage(df, batch_id)

    sink = home.sink(Recorder())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "begin_staging", bound_and_not_staged)
        home.chain(swallowing).complete(0)
    with pytest.raises(ZeroDivisionError) as caught:
        sink.close()
    assert "holds no manifest" in str(caught.value.__cause__)


def bound_and_not_staged(run: Run, batch_id: int, *_: object, **__: object) -> None:
    run.history.bind(batch_id)
    raise ZeroDivisionError


def test_a_batch_that_failed_and_comes_again_is_no_error_of_closing(home: Home) -> None:
    def fail(df: Any, batch_id: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(wal_sink.spark.staging, "stage_batch", raising(WalSinkError("the store sleeps")))
            sink.stage(df, batch_id)

    with home.sink(Recorder()) as sink:
        stream = home.chain(fail, through=0)
        wait_until(lambda: not stream.active)
    assert home.completed == -1


# --- inside foreachBatch


def test_leaving_inside_foreach_batch_is_refused_and_the_query_fails(home: Home) -> None:
    def on_batch(df: Any, batch_id: int) -> None:
        with home.sink(Recorder()) as sink:
            sink.stage(df, batch_id)

    stream = home.chain(on_batch, through=0)
    wait_until(lambda: not stream.active)
    assert isinstance(stream.error, ConfigError)
    assert "was closed inside foreachBatch, in batch 0" in str(stream.error)
    assert home.completed == -1


def test_closing_on_a_thread_that_staged_is_refused_before_its_batch_is_complete(home: Home) -> None:
    said: list[BaseException | None] = []

    def stage_and_close(sink: WalSink, df: Any, batch_id: int) -> None:
        sink.stage(df, batch_id)
        sink.close()

    def on_batch(df: Any, batch_id: int) -> None:
        with ThreadPoolExecutor(1) as pool:
            said.append(pool.submit(stage_and_close, home.sink(Recorder()), df, batch_id).exception(PATIENCE_S))

    home.chain(on_batch).complete(0)
    (error,) = said
    assert isinstance(error, ConfigError)
    assert "inside foreachBatch" in str(error)


def test_a_thread_that_staged_closes_once_its_batch_is_complete_and_stops_the_query(home: Home) -> None:
    sink = home.sink(target := Recorder())
    with ThreadPoolExecutor(1) as pool:
        stream = home.chain(lambda df, batch_id: pool.submit(sink.stage, df, batch_id).result(PATIENCE_S))
        stream.complete(0)
        pool.submit(sink.close).result(PATIENCE_S)
    assert not stream.active
    assert target.batches == [0]


# --- stopping


def held(home: Home, sink: WalSink, start: Callable[[WalSink], Any]) -> Any:
    """A query that waits for room."""
    stream = start(sink)
    wait_until(lambda: home.completed == 0 and bool(home.checkpoint.list("offsets", after="0")))
    time.sleep(0.1)
    assert stream.active
    return stream


HOW: Mapping[str, Callable[[Home], Callable[[WalSink], Any]]] = {
    "start": lambda _: lambda sink: sink.start(writer(9)),
    "own chain": lambda home: lambda sink: home.chain(sink.stage, through=9),
}


@pytest.mark.parametrize("how", HOW)
def test_ctrl_c_ends_soon_though_the_query_waits_for_room(home: Home, how: str) -> None:
    sink = home.sink(Hanging(), settings=Settings(max_pending_batches=1))
    sink.__enter__()
    stream = held(home, sink, HOW[how](home))
    with Soon():
        sink.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert (stream.active, stream.error) == (False, None)


@pytest.mark.parametrize("how", HOW)
def test_closing_stops_a_query_that_waits_for_room_and_delivers_what_is_complete(home: Home, how: str) -> None:
    sink = home.sink(target := Hanging(), settings=Settings(max_pending_batches=1))
    stream = held(home, sink, HOW[how](home))
    threading.Timer(0.3, target.go.set).start()

    sink.close()

    assert (stream.active, stream.error) == (False, None)
    assert target.batches == list(range(home.completed + 1))


@pytest.mark.parametrize("how", HOW)
def test_a_batch_that_comes_while_the_sink_closes_is_no_failure_of_the_query(
    home: Home, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The second batch asks whether the sink is closed just after it was closed, before its query is stopped."""
    open_now = WalSink._open
    came = threading.Event()

    def after_the_close(sink: WalSink, *given: Any) -> Any:
        if home.completed == 0:
            came.set()
            wait_until(lambda: sink._committers.is_closed)
        return open_now(sink, *given)

    monkeypatch.setattr(WalSink, "_open", after_the_close)
    stream = HOW[how](home)(sink := home.sink(Recorder()))
    assert came.wait(PATIENCE_S)
    with Soon():
        sink.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert (stream.active, stream.error) == (False, None)


def test_a_sink_that_gives_up_on_what_was_left_stops_the_chain_whose_first_stage_waits(home: Home) -> None:
    home.left_behind(1)
    go = threading.Event()
    sink = home.sink(Delivery(Recorder(lambda _: go.wait(PATIENCE_S) and False), retry=Retry(attempts=1)))
    stream = home.chain(sink.stage, through=9)
    wait_until(lambda: bool(home.committers()))
    go.set()
    with Soon():
        wait_until(lambda: not stream.active)
    with pytest.raises(DeliveryError):
        sink.close()


def test_opening_elsewhere_holds_no_stage_up(home: Home) -> None:
    """The committer that gives up stops the query, which waits for `stage`; nobody may make that wait in turn."""
    home.left_behind(1)
    go = threading.Event()
    sink = home.sink(Delivery(Recorder(lambda _: go.wait(PATIENCE_S) and False), retry=Retry(attempts=1)))
    said: list[BaseException] = []

    def enter() -> None:
        try:
            sink.start(writer(9))
        except DeliveryError as error:
            said.append(error)

    opening = threading.Thread(target=enter)
    opening.start()
    wait_until(lambda: bool(home.committers()))
    stream = home.chain(sink.stage, through=9)
    time.sleep(0.1)
    go.set()
    with Soon():
        opening.join(PATIENCE_S)
        wait_until(lambda: not stream.active)
    assert len(said) == 1


def test_committers_end_though_the_query_cannot_be_stopped_and_its_next_batch_fails(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = home.sink(Recorder())
    stream: Any = sink.start(writer(0))
    wait_until(lambda: home.completed == 0)
    monkeypatch.setattr(wal_sink.spark.query, "stop_query", raising(WalSinkError("the query cannot be stopped")))
    sink.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
    wait_until(lambda: not home.committers())
    assert home.committers() == []
    stream.through = 1
    with Soon():
        wait_until(lambda: not stream.active)
    assert "was closed. Create a new WalSink" in str(stream.error)


def test_what_completed_after_a_drain_is_delivered_by_closing(home: Home) -> None:
    home.left_behind(2)
    sink = home.sink(target := Recorder())
    sink.drain()
    assert target.batches == [0, 1]
    with home.sink(None) as other:
        home.chain(other.stage).complete(2)

    sink.close()

    assert target.batches == [0, 1, 2]


@pytest.mark.parametrize("timeout_s", [None, 0.05])
def test_after_a_drain_the_query_is_delivered_on_without_closing(home: Home, timeout_s: float | None) -> None:
    target, other = Hanging(), Recorder()
    target.go.set()
    with home.sink({"a": target, "b": other}, settings=Settings(max_pending_batches=1)) as sink:
        stream = home.chain(sink.stage)
        stream.complete(0)
        if timeout_s:
            wait_until(lambda: target.batches == [0])
            target.go.clear()
            stream.through = 1
            wait_until(lambda: home.completed == 1)
            with pytest.raises(UndeliveredError):
                sink.drain(timeout_s=timeout_s)
            target.go.set()
        else:
            sink.drain()

        stream.complete(3)

        wait_until(lambda: target.batches == other.batches == [0, 1, 2, 3])


def test_a_drain_leaves_no_thread_though_nobody_closes(home: Home) -> None:
    home.left_behind(3)
    wait_until(lambda: not home.committers())
    sink, target = home.sink(to := Recorder()), to

    sink.drain()

    assert target.batches == [0, 1, 2]
    wait_until(lambda: not home.committers())
    sink.drain()
    wait_until(lambda: not home.committers())


def test_what_made_a_drain_fail_is_raised_by_closing_too(home: Home) -> None:
    home.left_behind(1)
    sink = home.sink(Delivery(Recorder(lambda _: False), retry=Retry(attempts=1)))
    with pytest.raises(DeliveryError):
        sink.drain()
    with pytest.raises(DeliveryError):
        sink.close()


def test_a_following_drain_goes_on_while_one_sink_is_not_parked_and_tells_at_its_end(home: Home) -> None:
    home.left_behind(1)
    parked = Delivery(Recorder(lambda _: False), retry=Retry(attempts=1), on_failure="park")
    target = Recorder()
    sink = home.sink({"default": parked, "b": Delivery(target, start_from="earliest")})
    pool = sink._open()
    wait_until(lambda: target.batches == [0] and "default" in pool.parked)
    began_s = time.monotonic()
    with pytest.raises(UndeliveredError, match=r"'default' of .* is parked"):
        sink.drain(follow=True, timeout_s=0.5)
    assert time.monotonic() - began_s >= 0.5


def test_a_following_drain_ends_when_another_thread_closes(home: Home) -> None:
    home.left_behind(1)
    sink = home.sink(target := Recorder())
    draining = threading.Thread(target=sink.drain, kwargs={"follow": True})
    draining.start()
    wait_until(lambda: target.batches == [0])

    sink.close()

    draining.join(PATIENCE_S)
    assert not draining.is_alive()


def test_one_exit_hook_is_registered_however_often_it_drains(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    hooks: list[object] = []
    monkeypatch.setattr(atexit, "register", hooks.append)
    with home.sink(Recorder()) as sink:
        sink.drain()
        sink.drain()
        home.chain(sink.stage).complete(1)
    assert len(hooks) == 1


def test_a_restarted_query_that_only_a_parked_sink_holds_back_is_told(home: Home) -> None:
    failing_once(home, at=1)
    parked = Delivery(Recorder(lambda chunk: chunk.batch_id == 0 or None), retry=Retry(attempts=1), on_failure="park")
    sink = home.sink({"bad": parked, "good": (good := Recorder())}, settings=Settings(max_pending_batches=2))
    first = home.chain(sink.stage, through=1)
    wait_until(lambda: not first.active and good.batches == [0])
    second = home.chain(sink.stage, through=9)
    with Soon():
        wait_until(lambda: not second.active)
    assert isinstance(second.error, UndeliveredError)
    with pytest.raises(UndeliveredError, match=r"'bad' of .* is parked"):
        sink.close()
    assert good.batches == list(range(home.completed + 1))


def test_a_claim_that_failed_is_made_again(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    made = claims(monkeypatch)
    answers: Iterator[BaseException | None] = iter([WalSinkError("the store sleeps"), None])
    claim = Run.become_stager

    def flaky(run: Run) -> None:
        if (error := next(answers, None)) is not None:
            raise error
        claim(run)

    monkeypatch.setattr(Run, "become_stager", flaky)

    def patient(df: Any, batch_id: int) -> None:
        try:
            sink.stage(df, batch_id)
        except WalSinkError:
            sink.stage(df, batch_id)

    with home.sink(target := Recorder()) as sink:
        home.chain(patient).complete(1)
    assert target.batches == [0, 1]
    assert len(made) == 1


def test_a_sink_that_staged_nothing_may_be_left_anywhere(home: Home) -> None:
    def on_batch(_: object, __: int) -> None:
        with home.sink(Recorder()):
            pass

    home.chain(on_batch).complete(0)


def test_ctrl_c_ends_soon_though_the_first_stage_waits_for_what_was_left(home: Home) -> None:
    home.left_behind(1)
    sink = home.sink(Hanging(), settings=Settings(max_pending_batches=1))
    stream = home.chain(sink.stage, through=9)
    wait_until(lambda: bool(home.committers()))
    time.sleep(0.1)
    with Soon():
        sink.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert (stream.active, stream.error) == (False, None)


def test_a_sink_opened_before_there_was_a_session_is_refused_when_one_comes(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where sinks run and through what the checkpoint is read was decided without it."""
    session = object()
    monkeypatch.setattr(wal_sink.spark.query, "session_of", lambda _: session)
    monkeypatch.setattr(identity, "identity_of", lambda stream, batch_id: Identity(stream, batch_id, session))
    with (
        home.sink(Recorder()) as sink,
        pytest.raises(ConfigError, match="Create the SparkSession before you enter the"),
    ):
        sink.start(writer(0))
    with home.sink(Recorder()) as sink:
        stream = home.chain(sink.stage, through=0)
        wait_until(lambda: not stream.active)
        assert "Create the SparkSession before you enter the with block" in str(stream.error)
