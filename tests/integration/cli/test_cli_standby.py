"""Several real drains of one sink: one serves, the others stand by and take over within seconds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import wal_sink.walsink
from tests.support.processes import python_environment
from tests.support.waiting import wait_until
from wal_sink.cli import standby
from wal_sink.cli.main import main
from wal_sink.errors import FencedError, StoreError
from wal_sink.inspection import read_status
from wal_sink.lifecycle.run import Run
from wal_sink.runtime.clock import SYSTEM
from wal_sink.settings import Settings
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import StoreSpec
from wal_sink.testing import FakeQuery
from wal_sink.wal import paths
from wal_sink.wal.fencing import claim
from wal_sink.wal.lease import Lease
from wal_sink.wal.log import Log
from wal_sink.wal.standby import Watch

MODULE = """
import os

def take(chunk):
    with open("taken.txt", "a") as file:
        file.write(f"{os.getpid()} {chunk.batch_id}\\n")
"""
ROLE = paths.committer_role("default")
LIMIT_S = 60.0
LEASE_S = 12.0
"""Longer than a slow machine may keep a process waiting: the process that serves the sink would lose it."""


@dataclass
class Place:
    """A WAL with a query that stages into it, in this process."""

    folder: Path
    batches: int = 0
    _more: Callable[[], object] = field(init=False)

    def __post_init__(self) -> None:
        checkpoint = open_store(StoreSpec(str(self.folder / "checkpoint")))
        run = Run(open_store(StoreSpec(self.wal)), checkpoint, Settings())
        run.open()
        run.become_stager()
        stream = FakeQuery(checkpoint, lambda *_: [pa.table({"id": [1]})]).batches(run, 1000)
        self._more = lambda: next(stream)

    @property
    def wal(self) -> str:
        return str(self.folder / "wal")

    def stage(self) -> None:
        """Stage and complete one batch more."""
        self._more()
        self.batches += 1

    def taken(self) -> list[tuple[int, int]]:
        """Which process took which batch."""
        file = self.folder / "taken.txt"
        lines = file.read_text().splitlines() if file.exists() else []
        return [(int(pid), int(batch)) for pid, batch in map(str.split, lines)]

    def delivered_through(self) -> int:
        (sink,) = read_status(open_store(StoreSpec(self.wal))).sinks
        return sink.delivered_through

    def terms(self) -> list[int]:
        """The terms of the sink so far."""
        return sorted(Log(open_store(StoreSpec(self.wal)), SYSTEM, "").numbers(paths.terms(ROLE)))

    def wait_taken(self, batch: int) -> int:
        """Wait until a batch was taken; the process that took it."""
        wait_until(lambda: any(taken == batch for _, taken in self.taken()), f"batch {batch} is taken")
        return next(pid for pid, taken in self.taken() if taken == batch)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(wal_sink.walsink, "current_session", lambda: None)
    (tmp_path / "shared_targets.py").write_text(MODULE)
    place = Place(tmp_path)
    place.stage()
    return place


def command(wal: str, *more: str) -> list[str]:
    told = ["--to", "shared_targets:take", "--start-from", "earliest", "--follow", "--standby"]
    return ["drain", wal, *told, "--lease", f"{LEASE_S:g}", *more]


@contextmanager
def drain(wal: str, *more: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "wal_sink.cli", *command(wal, *more)],
        env=python_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=LIMIT_S)


def stop(process: subprocess.Popen[str]) -> None:
    """Stop it as Ctrl-Z does, and wait until no thread of it runs."""
    os.kill(process.pid, signal.SIGSTOP)
    threads = Path(f"/proc/{process.pid}/task")
    wait_until(lambda: {_state(thread) for thread in threads.iterdir()} == {"T"}, "it is stopped")


def _state(thread: Path) -> str:
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # it ended just now
        return ""


def said(process: subprocess.Popen[str]) -> str:
    return process.communicate(timeout=LIMIT_S)[1]


def test_of_two_drains_one_delivers_and_the_other_takes_over_when_it_is_killed(place: Place) -> None:
    with drain(place.wal) as one, drain(place.wal) as two:
        for _ in range(2):
            place.stage()
        first = place.wait_taken(1)
        assert first in {one.pid, two.pid}
        active, other = (one, two) if first == one.pid else (two, one)
        active.kill()
        place.stage()
        place.stage()
        assert place.wait_taken(place.batches - 1) == other.pid

        other.send_signal(signal.SIGTERM)
        told = said(other)
        assert other.returncode == 0
        assert "ended by SIGTERM: " in told
    batches = [batch for _, batch in place.taken()]
    assert sorted(set(batches)) == list(range(place.batches))
    assert len(batches) <= place.batches + 1, "at most the chunk that was in flight when it was killed came again"


def test_a_drain_that_is_stopped_in_order_is_replaced_before_its_lease_runs_out(place: Place) -> None:
    """On any host: the record of its end tells."""
    with drain(place.wal) as one:
        place.stage()
        place.wait_taken(0)
        with drain(place.wal) as two:
            wait_until(lambda: watched_by(two) or two.poll() is not None)
            one.send_signal(signal.SIGTERM)
            told = said(one)
            assert one.returncode == 0, told
            place.stage()
            assert place.wait_taken(2) == two.pid


def next_line(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    return process.stderr.readline()


def watched_by(process: subprocess.Popen[str]) -> bool:
    return "standing by" in next_line(process)


def test_a_drain_that_slept_past_its_lease_delivers_nothing_more_and_stands_by(place: Place) -> None:
    with drain(place.wal) as one:
        place.stage()
        place.wait_taken(0)
        with drain(place.wal) as two:
            wait_until(lambda: watched_by(two))
            wait_until(lambda: place.delivered_through() == 1, "no chunk is in flight")
            stop(one)
            place.stage()
            place.stage()
            assert place.wait_taken(2) == two.pid
            os.kill(one.pid, signal.SIGCONT)
            wait_until(lambda: watched_by(one))
            place.stage()
            assert place.wait_taken(3) == two.pid
            assert one.poll() is None
    batches = [batch for _, batch in place.taken()]
    assert batches == sorted(set(batches)), "nothing came twice"


def test_a_query_takes_over_at_once_and_is_replaced_when_it_ends(place: Place) -> None:
    """It renews no lease. Its process is found on this machine, and its end is recorded."""
    with drain(place.wal) as one:
        place.stage()
        place.wait_taken(0)
        with wal_sink.WalSink(lambda _: None, wal=place.wal, checkpoint=str(place.folder / "checkpoint")):
            wait_until(lambda: f":{os.getpid()} has served it" in next_line(one))
            assert one.poll() is None
            terms = place.terms()
        wait_until(lambda: place.terms() == [*terms, terms[-1] + 1])


@pytest.fixture
def _only_sleep_takes_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes for a standby in its pauses alone: a slow machine costs it none of its time."""
    now_s = [0.0]

    def sleep_s(seconds: float) -> None:
        now_s[0] += seconds

    monkeypatch.setattr(standby, "SYSTEM", replace(SYSTEM, monotonic_s=lambda: now_s[0], sleep_s=sleep_s))


def invoke(wal: str, *more: str) -> Result:
    return CliRunner().invoke(main, [*command(wal), "--no-progress", *more])


def drained(wal: str) -> None:
    """Register the sink."""
    told = ["--to", "shared_targets:take", "--start-from", "earliest"]
    assert CliRunner().invoke(main, ["drain", wal, *told]).exit_code == 0


@pytest.mark.usefixtures("_only_sleep_takes_time")
def test_a_standby_ends_with_its_time_too(place: Place) -> None:
    drained(place.wal)
    log = Log(open_store(StoreSpec(place.wal)), SYSTEM, "r", lease=Lease(30.0))
    claim(log, ROLE)

    result = invoke(place.wal, "--timeout", "1", "--json", "--liveness-file", "alive")

    assert result.exit_code == 0
    assert '"batches": 0' in result.stdout
    assert Path("alive").exists(), "it made progress while it stood by"
    assert "standing by. " in result.stderr
    assert "until its lease runs out" in result.stderr


def test_a_shell_sees_by_the_file_that_a_drain_lives(place: Place) -> None:
    look = ["find", "alive", "-mmin", "-1"]
    with drain(place.wal, "--liveness-file", "alive") as one:
        place.wait_taken(0)
        assert subprocess.run(look, capture_output=True, text=True, check=True).stdout == "alive\n"
        stop(one)
        os.utime("alive", (1e9, 1e9))
        time.sleep(2.0)
        assert subprocess.run(look, capture_output=True, text=True, check=True).stdout == ""
        os.kill(one.pid, signal.SIGCONT)
        wait_until(lambda: subprocess.run(look, capture_output=True, text=True, check=True).stdout == "alive\n")


def test_a_liveness_file_that_cannot_be_is_refused(place: Place) -> None:
    result = invoke(place.wal, "--liveness-file", "missing/alive")

    assert result.exit_code == 2
    assert "(--liveness-file): this file cannot be touched" in result.stderr


@pytest.mark.usefixtures("_only_sleep_takes_time")
def test_one_that_serves_ends_with_it(place: Place) -> None:
    place.stage()
    result = invoke(place.wal, "--timeout", "3", "--json")

    assert result.exit_code == 0, result.output
    assert place.taken()[0] == (os.getpid(), 0)


@pytest.mark.parametrize("target_term", [0, 7])
def test_a_standby_that_is_fenced_stands_by_again_and_gives_no_advice_for_others(
    place: Place, capsys: pytest.CaptureFixture[str], target_term: int
) -> None:
    store = open_store(StoreSpec(place.wal))
    log = Log(store, SYSTEM, "other")
    fenced = claim(log, ROLE).superseded(store)
    known_by_target = FencedError("a process with term 7 has already written", term=7)
    errors = [known_by_target if target_term else fenced]

    def one_turn(_lease: Lease, _left_s: float | None) -> str:
        if errors:
            raise errors.pop()
        return "served"

    turns = standby.Turns(store, "free", Lease(LEASE_S), take_over=False, liveness=None)

    assert turns.serve(one_turn, None) == "served"
    said = " ".join(capsys.readouterr().err.split())
    assert "another process was faster or took over" in said
    assert "This process stands by" in said
    assert "Stop this process" not in said
    assert "If a supervisor" not in said
    assert ("term 7" in said) is bool(target_term)


def test_ctrl_c_ends_a_standby(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: Watch) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(Watch, "look", interrupted)
    result = invoke(place.wal, "--json")

    assert result.exit_code == 0
    assert "ended by Ctrl-C: " in result.stderr
    assert '"interrupted": true' in result.stdout


@pytest.mark.usefixtures("_only_sleep_takes_time")
def test_a_standby_whose_store_fails_says_so_once_and_goes_on(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([StoreError("no route"), StoreError("no route"), None])
    look = Watch.look

    def failing(watch: Watch) -> int | None:
        error = next(answers, None)
        if error is not None:
            raise error
        return look(watch)

    monkeypatch.setattr(Watch, "look", failing)
    result = invoke(place.wal, "--timeout", "3", "--lease", "1")

    assert result.exit_code == 0, result.output
    assert place.taken() == [(os.getpid(), 0)]
    assert result.stderr.count("the lease cannot be read: no route") == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--standby"], "--standby needs --follow"),
        (["--follow", "--lease", "5"], "--lease belongs to --standby"),
        (["--follow", "--standby", "--lease", "0.5"], r"duration_s=0.5 (--lease): expected seconds from 1 to 3600"),
        (["--follow", "--standby", "--lease", "nan"], "expected seconds from 1 to 3600"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_anything_is_opened(options: list[str], said: str) -> None:
    result = CliRunner().invoke(main, ["drain", "no/wal", "--to", "a:b", *options])

    assert result.exit_code == 2
    assert said in result.stderr


@pytest.mark.usefixtures("_only_sleep_takes_time")
def test_take_over_counts_for_the_holder_of_now(place: Place) -> None:
    """A holder without a lease on another host: nobody knows whether it lives."""
    drained(place.wal)
    with ExitStack() as stack:
        stack.enter_context(pytest.MonkeyPatch.context()).setattr("wal_sink.wal.fencing.process_identity", lambda: None)
        claim(Log(open_store(StoreSpec(place.wal)), SYSTEM, "r"), ROLE)
    place.stage()
    waits = invoke(place.wal, "--timeout", "1")
    takes = invoke(place.wal, "--timeout", "3", "--take-over")

    assert "until it ended: it renews no lease" in waits.stderr
    assert (waits.exit_code, takes.exit_code) == (0, 0)
    assert place.taken()[-1] == (os.getpid(), 1)


def test_a_lease_lasts_as_long_as_its_default_unless_said_otherwise() -> None:
    assert standby.lease_of(standby=True, follow=True, lease_s=None) == Lease()
