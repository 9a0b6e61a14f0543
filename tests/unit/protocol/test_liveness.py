"""The liveness file: touched while every committer makes progress, and by nobody else."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import wal_sink.walsink
from tests.house.protocol import Run
from tests.house.sinks import Chunk
from tests.house.stores import StoreSpec, open_store
from tests.house.support import SYSTEM, Runtime
from tests.support.small_run import Recorder
from tests.support.waiting import PATIENCE_S, wait_until
from wal_sink import ConfigError, Delivery, WalSink
from wal_sink.protocol.committer_thread import BEAT_EVERY_S, LONGEST_FOLLOWING_POLL_S, TOUCH_EVERY_S, Liveness
from wal_sink.settings import Settings
from wal_sink.testing import FakeQuery

OLD_S = 1e9


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    @property
    def runtime(self) -> Runtime:
        return replace(SYSTEM, monotonic_s=lambda: self.now_s)


def age(file: Path) -> None:
    os.utime(file, (OLD_S, OLD_S))


def is_touched(file: Path) -> bool:
    return file.exists() and file.stat().st_mtime > OLD_S + 1


def test_a_single_committer_touches_the_file_once_a_second_at_most(tmp_path: Path) -> None:
    clock, file = Clock(), tmp_path / "alive"
    liveness = Liveness(str(file), clock.runtime)
    touches = 0
    for _ in range(100):
        liveness.beat("a", lambda: ["a"])
        if is_touched(file):
            touches += 1
            age(file)
        clock.now_s += TOUCH_EVERY_S / 10
    assert touches == 10


def test_a_beat_just_one_interval_after_the_last_touch_touches_the_file(tmp_path: Path) -> None:
    clock, file = Clock(), tmp_path / "alive"
    liveness = Liveness(str(file), clock.runtime)
    liveness.beat("a", lambda: ["a"])
    age(file)
    clock.now_s += TOUCH_EVERY_S
    liveness.beat("a", lambda: ["a"])
    assert is_touched(file)


def test_a_committer_that_is_stuck_keeps_it_old_although_the_others_go_on(tmp_path: Path) -> None:
    clock, file = Clock(), tmp_path / "alive"
    liveness = Liveness(str(file), clock.runtime)
    running = ["a", "b"]
    liveness.beat("b", lambda: running)
    for _ in range(100):
        liveness.beat("a", lambda: running)
        if is_touched(file):
            age(file)  # once: b has beaten before it hung
        clock.now_s += 10
    assert not is_touched(file)

    liveness.beat("b", lambda: running)
    assert is_touched(file)


@pytest.mark.parametrize("path", ["", "missing/alive", "."])
def test_a_file_that_cannot_be_touched_is_refused_at_the_start(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"\(--liveness-file\): this file cannot be touched: "):
        Liveness(path).begin()


def test_a_file_that_cannot_be_touched_any_more_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    (tmp_path / "folder").mkdir()
    liveness = Liveness(str(tmp_path / "folder/alive"), clock.runtime)
    (tmp_path / "folder").rmdir()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            liveness.beat("a", lambda: ["a"])
            clock.now_s += 10
        assert caplog.text.count("cannot be touched any more") == 1

        (tmp_path / "folder").mkdir()
        liveness.beat("a", lambda: ["a"])
        (tmp_path / "folder/alive").unlink()
        (tmp_path / "folder").rmdir()
        clock.now_s += 10
        liveness.beat("a", lambda: ["a"])
    assert caplog.text.count("cannot be touched any more") == 2, "it could be touched in the meantime"


# --- in a drain


class Hanging:
    """A sink function whose call of one batch does not return until it is told to."""

    def __init__(self) -> None:
        self.called, self.go = threading.Event(), threading.Event()

    def __call__(self, chunk: Chunk) -> None:  # noqa: ARG002
        self.called.set()
        assert self.go.wait(PATIENCE_S)


@pytest.fixture
def wal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[object], WalSink]:
    """Make a drain of a WAL with two complete batches."""
    monkeypatch.setattr(wal_sink.walsink, "current_session", lambda: None)
    checkpoint = open_store(StoreSpec(str(tmp_path / "checkpoint")))
    run = Run(open_store(StoreSpec(str(tmp_path / "wal"))), checkpoint, Settings())
    run.open()
    run.become_stager()
    list(FakeQuery(checkpoint, lambda *_: [pa.table({"id": [1]})]).batches(run, 2))
    return lambda to: WalSink(to, wal=str(tmp_path / "wal"), checkpoint=str(tmp_path / "checkpoint"))


SHORT_S = 0.05


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every wait of a drain that touches the file short."""
    monkeypatch.setattr("wal_sink.protocol.committer_thread.TOUCH_EVERY_S", SHORT_S)
    monkeypatch.setattr("wal_sink.protocol.committer_thread.LONGEST_FOLLOWING_POLL_S", SHORT_S)
    monkeypatch.setattr("wal_sink.spark.committers.BEAT_EVERY_S", SHORT_S)


def test_the_file_is_touched_every_five_seconds_and_no_more_than_once_a_second() -> None:
    """The document for supervisors says so."""
    assert TOUCH_EVERY_S == 1.0
    assert BEAT_EVERY_S == LONGEST_FOLLOWING_POLL_S == 5.0


def earliest(to: object) -> Delivery:
    return Delivery(to, start_from="earliest")


@pytest.mark.usefixtures("short_waits")
def test_an_idle_drain_touches_it(wal: Callable[[object], WalSink], tmp_path: Path) -> None:
    file, target = tmp_path / "alive", Recorder()
    sink = wal(earliest(target))
    sink.drain(liveness_file=str(file))
    assert target.batches == [0, 1]
    age(file)
    pool = sink._committers.pool
    assert pool is not None
    thread = threading.Thread(target=pool.follow, args=(PATIENCE_S,), daemon=True)
    thread.start()
    wait_until(lambda: is_touched(file))
    age(file)
    wait_until(lambda: is_touched(file))
    sink.close()
    thread.join()


@pytest.mark.usefixtures("short_waits")
def test_a_call_that_hangs_keeps_it_old(wal: Callable[[object], WalSink], tmp_path: Path) -> None:
    file, hanging = tmp_path / "alive", Hanging()
    sink = wal({"a": earliest(Recorder()), "b": earliest(hanging)})

    def run() -> None:
        sink.drain(follow=True, liveness_file=str(file))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert hanging.called.wait(PATIENCE_S)
    liveness = sink._committers.liveness
    assert liveness is not None
    wait_until(lambda: "wal-sink-committer-b" not in liveness._beaten, "its beat before the call was used up")
    with liveness._lock:  # not in the middle of the touch that used it up
        age(file)
    threading.Event().wait(5 * SHORT_S)
    wait_until(lambda: "wal-sink-committer-a" in liveness._beaten, "the other one goes on")
    assert not is_touched(file)

    hanging.go.set()
    wait_until(lambda: is_touched(file))
    sink.close()
    thread.join()


@pytest.mark.usefixtures("short_waits")
def test_a_drain_that_waits_for_a_retry_touches_it(wal: Callable[[object], WalSink], tmp_path: Path) -> None:
    """It is not stuck: the target is unreachable, and it says so. It beats also in a pause of minutes."""
    file = tmp_path / "alive"
    sink = wal(earliest(Recorder()))
    sink.drain(liveness_file=str(file))
    paused = threading.Thread(
        target=sink._committers._pause, args=(60.0,), name="wal-sink-committer-default", daemon=True
    )
    threading.Event().wait(2 * SHORT_S)
    age(file)
    paused.start()
    wait_until(lambda: is_touched(file))
    age(file)
    wait_until(lambda: is_touched(file))
    sink.close()
    sink._committers._stopping.set()
    paused.join(PATIENCE_S)
    assert not paused.is_alive()
