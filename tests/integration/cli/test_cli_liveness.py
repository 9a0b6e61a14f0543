"""A real drain under a supervisor: the file that shows that it lives, and its restart after it was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import wal_sink.walsink
from tests.house.cli import main
from tests.house.protocol import Run
from tests.house.stores import StoreSpec, open_store
from tests.support.processes import python_environment
from tests.support.waiting import wait_until
from wal_sink.settings import Settings
from wal_sink.testing import FakeQuery

MODULE = """
import os

def take(chunk):
    with open("taken.txt", "a") as file:
        file.write(f"{os.getpid()} {chunk.batch_id}\\n")
"""
LIMIT_S = 60.0


@dataclass
class Place:
    """A WAL with a query that stages into it, in this process."""

    folder: Path
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

    def taken(self) -> list[tuple[int, int]]:
        """Which process took which batch."""
        file = self.folder / "taken.txt"
        lines = file.read_text().splitlines() if file.exists() else []
        return [(int(pid), int(batch)) for pid, batch in map(str.split, lines)]

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
    return ["drain", wal, "--to", "shared_targets:take", "--start-from", "earliest", "--follow", *more]


def invoke(wal: str, *more: str) -> Result:
    return CliRunner().invoke(main, command(wal, *more))


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


def test_a_drain_that_a_supervisor_starts_again_after_a_kill_goes_on(place: Place) -> None:
    with drain(place.wal) as one:
        first = place.wait_taken(0)
        one.kill()
        one.wait(timeout=LIMIT_S)
    place.stage()
    with drain(place.wal, "--take-over"):
        assert place.wait_taken(1) != first


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


def test_a_drain_that_follows_ends_with_its_time(place: Place) -> None:
    place.stage()

    result = invoke(place.wal, "--timeout", "3", "--json")

    assert result.exit_code == 0, result.output
    assert place.taken()[0] == (os.getpid(), 0)
