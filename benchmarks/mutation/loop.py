"""Runs every mutant in a fork of one pytest session, so that a mutant costs only the time of its tests.

mutmut's own runner starts pytest again for each mutant, which costs more than most of the tests. The mutants come from
mutmut: its trampolines choose one by the environment variable `MUTANT_UNDER_TEST`, and record which tests reach it.
"""

from __future__ import annotations

import fcntl
import gc
import hashlib
import json
import mmap
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from mutmut.state import state

SURVIVED, KILLED, UNREACHED, TIMED_OUT = "survived", "killed", "not reached", "timed out"

_CHOSEN = "MUTANT_UNDER_TEST"
_LEARN = "stats"
"""The value for no mutant: the trampolines only record that they were reached."""
_FAILED, _PASSED = 1, 86
"""How a fork ends that came to its end. A mutant may end it before, even with status 0: such a mutant is killed."""
_LEARNT_AT_ONCE = 50
_FAR = 4
"""How many times slower a test counts for each step that it is farther from the mutated file."""
_CPU_MARGIN_S = 3
_WAIT_MARGIN_S = 20
"""The time that each test may take in addition to three times its undisturbed time: processor time, and wall time."""


_NO_MUTANT = "control"
"""A value that is no mutant's: the original code runs."""


@dataclass(frozen=True)
class Limits:
    """How much the loop may do for a mutant, and side by side."""

    most_s: float
    """Seconds of processor time that the tests of a mutant take without it."""
    lock: Path | None
    """A file; a shared lock on it is held while a mutant runs."""
    jobs: int
    """Processes that try mutants side by side."""
    controls: int
    """Mutants whose tests run without the mutant first."""


class MutantLoop:
    """A pytest plugin that runs the mutants `names` in place of the tests. `note` gets the fate of each mutant."""

    def __init__(self, names: Sequence[str], note: Callable[[str, str], None], *, reach: Path, limits: Limits) -> None:
        self._names = names
        self._note = note
        self._reach = reach
        self._most_s = limits.most_s
        self._lock = limits.lock
        self._jobs = limits.jobs
        self._controls = limits.controls
        self._failed = False
        self._killers: list[str] = []
        """Tests that failed on earlier mutants, the latest last."""

    def pytest_configure(self) -> None:
        """Make Hypothesis use the same examples each time and skip the search for the smallest: only the failure
        counts.
        """
        import hypothesis  # noqa: PLC0415 - importing it before pytest knows its plugin is an error

        phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
        hypothesis.settings.register_profile("mutation", phases=phases, database=None, derandomize=True)
        hypothesis.settings.load_profile("mutation")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        reach = self._learn(session.items)
        gc.collect()
        gc.freeze()  # otherwise the collector of every fork would visit, and so copy, all objects

        def tests_of(name: str) -> list[_Test]:
            seconds = {test: s for test, s in reach.get(name.partition("__mutmut_")[0], {}).items() if test in items}
            return [_Test(items[test], seconds[test]) for test in self._chosen(name, seconds)]

        def try_share(number: int) -> None:
            if self._controls:
                some = self._names[:: max(1, len(self._names) // self._controls)]
                self._control(some[number :: self._jobs], tests_of)
            for name in self._names[number :: self._jobs]:
                self._note(name, self._fate(name, tests_of(name)))

        self._side_by_side(try_share)
        return True

    def _side_by_side(self, try_share: Callable[[int], None]) -> None:
        """Call `try_share` with each number below `jobs`, in a process each."""
        children = []
        for number in range(self._jobs):
            child = os.fork()
            if child == 0:
                try:
                    try_share(number)
                except BaseException:  # noqa: BLE001 - a fork must not return into pytest's session
                    traceback.print_exc(file=sys.__stdout__)
                    os._exit(_FAILED)
                os._exit(0)
            children.append(child)
        failed = [child for child in children if os.waitpid(child, 0)[1]]
        if failed:
            raise RuntimeError("a share of the mutants ended by the error above; what was tried is kept")

    def _control(self, names: Sequence[str], tests_of: Callable[[str], list[_Test]]) -> None:
        """Run the tests of these mutants without the mutant: a failure would count as a killed mutant."""
        fates = [self._fate(_NO_MUTANT, tests) for name in names if (tests := tests_of(name))]
        wrong = sum(fate != SURVIVED for fate in fates)
        print(f"control: {len(fates)} runs without a mutant, {wrong} failed", file=sys.__stdout__, flush=True)

    def _chosen(self, name: str, seconds: dict[str, float]) -> list[str]:
        """The tests to try within the time limit. The killers of earlier mutants come first, since they often kill the
        next one too; then the fastest, where the tests of another file or room count as slower than they are.
        """
        latest = {test: rank for rank, test in enumerate(self._killers)}
        weights = {test: s * _FAR ** _distance(name, test) for test, s in seconds.items()}
        ordered = sorted(seconds, key=lambda test: (-latest.get(test, -1), weights[test]))
        sums = accumulate(seconds[test] for test in ordered)
        return [test for test, sum_s in zip(ordered, sums, strict=True) if sum_s <= self._most_s]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed |= report.failed

    def _learn(self, items: Sequence[pytest.Item]) -> dict[str, dict[str, float]]:
        """Measure the seconds of each test, by function that the test reaches. Every test runs once, in a fork.

        A test runs again after its file changed, and where it reaches a module with a function that is new. Each fork
        writes what it measured into a separate file, and these are merged here, also those of a run that was ended.
        """
        known = self._merged()
        digests = {item: hashlib.sha256(item.path.read_bytes()).hexdigest()[:16] for item in items}
        new = {name.partition("__mutmut_")[0] for name in self._names} - known["functions"].keys()
        modules = {_module(function) for function in new}
        reaching = {test for name, tests in known["functions"].items() if _module(name) in modules for test in tests}
        fresh = [item for item in items if known["tests"].get(item.nodeid) != digests[item] or item.nodeid in reaching]
        batches = [fresh[start : start + _LEARNT_AT_ONCE] for start in range(0, len(fresh), _LEARNT_AT_ONCE)]

        def learn_share(number: int) -> None:
            for index, some in list(enumerate(batches))[number :: self._jobs]:
                part = self._reach.with_name(f"{self._reach.stem}-{os.getpid()}-{index}.part")
                self._in_fork(lambda _, some=some, part=part: self._learn_in_fork(some, digests, part), _LEARN, [600.0])

        self._side_by_side(learn_share)
        return self._merged(reached_by_none=new)["functions"]

    def _merged(self, reached_by_none: Collection[str] = ()) -> dict[str, Any]:
        """Return what all forks measured so far. `reached_by_none`: functions that no test reaches, unless one did."""
        known = json.loads(self._reach.read_text()) if self._reach.exists() else {"tests": {}, "functions": {}}
        parts = sorted(self._reach.parent.glob(f"{self._reach.stem}-*.part"))
        for part in parts:
            measured = json.loads(part.read_text())
            known["tests"] |= measured["tests"]
            for function, seconds in measured["functions"].items():
                known["functions"].setdefault(function, {}).update(seconds)
        for function in reached_by_none:
            known["functions"].setdefault(function, {})
        if parts or reached_by_none:
            self._reach.write_text(json.dumps(known))
        for part in parts:
            part.unlink()
        return known

    def _learn_in_fork(self, items: Sequence[pytest.Item], digests: dict[pytest.Item, str], part: Path) -> None:
        measured: dict[str, Any] = {"tests": {}, "functions": {}}
        reached = state()._stats  # noqa: SLF001 - mutmut's own runner reads the same
        for item in items:
            reached.clear()
            before_s = time.process_time()
            self._run(item)
            if self._failed:
                self._failed = False
                print(f"skipped, because it fails without any mutant: {item.nodeid}", file=sys.__stdout__, flush=True)
                continue
            for function in reached:
                measured["functions"].setdefault(function, {})[item.nodeid] = time.process_time() - before_s
            measured["tests"][item.nodeid] = digests[item]
        unfinished = part.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(measured))
        unfinished.rename(part)

    def _fate(self, name: str, tests: Sequence[_Test]) -> str:
        if not tests:
            return UNREACHED
        reading, writing = os.pipe()
        with self._allowed(), os.fdopen(reading) as told:
            status = self._in_fork(
                lambda clock: self._run_until_failed(tests, writing, clock), name, [test.seconds for test in tests]
            )
            os.close(writing)
            if killer := told.read():
                self._killers = [*(test for test in self._killers if test != killer), killer]
        if status is None:
            return TIMED_OUT
        return SURVIVED if os.waitstatus_to_exitcode(status) == _PASSED else KILLED

    def _run_until_failed(self, tests: Sequence[_Test], writing: int, clock: _Clock) -> None:
        for number, test in enumerate(tests):
            clock.begin(number)
            self._run(test.item)
            if self._failed:
                os.write(writing, test.item.nodeid.encode())
                return

    def _run(self, item: pytest.Item) -> None:
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)

    def _in_fork(self, work: Callable[[_Clock], None], mutant: str, seconds: Sequence[float]) -> int | None:
        """Do `work` with one mutant active; return the exit status, or None if a part of it took too long.

        `seconds`: the undisturbed time of each part.
        """
        sys.stdout.flush()
        clock = _Clock(seconds)
        child = os.fork()
        if child == 0:
            clock.begin(0)
            os.environ[_CHOSEN] = mutant
            if mutant != _LEARN:
                _silence()
            try:
                work(clock)
            except BaseException:  # noqa: BLE001 - a mutant may break pytest itself, which is a failure
                self._failed = True
            os._exit(_FAILED if self._failed else _PASSED)
        return clock.wait_for(child)

    @contextmanager
    def _allowed(self) -> Iterator[None]:
        """Hold a shared lock, so that a measurement on this machine can pause the mutants with an exclusive lock."""
        if self._lock is None:
            yield
            return
        with self._lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            yield


def _module(function: str) -> str:
    return function.rpartition(".")[0]


def _distance(mutant: str, test: str) -> int:
    """Tell how far a test is from a mutant: 0 if its file names the mutant's module, 1 in its room, 2 elsewhere.

    `mutant` is a name such as `wal_sink.log.terms.x_claim__mutmut_1`.
    """
    rooms, module = mutant.split(".")[1:-2], mutant.split(".")[-2]
    if module in test.partition("::")[0].rpartition("/")[2]:
        return 0
    return 1 if rooms and f"/{rooms[0]}/" in test else 2


def _silence() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


@dataclass(frozen=True)
class _Test:
    item: pytest.Item
    seconds: float
    """The processor time of the test without a mutant."""


class _Clock:
    """Ends a child process if one part of it takes too long, in processor time or in wall time."""

    def __init__(self, seconds: Sequence[float]) -> None:
        self._seconds = seconds
        self._shared = mmap.mmap(-1, 1024)
        """The number of the current part, written by the child."""

    def begin(self, number: int) -> None:
        """Begin a part; the child calls this."""
        self._shared[:4] = number.to_bytes(4, "big")
        limit = int(time.process_time() + 3 * self._seconds[number]) + _CPU_MARGIN_S
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))

    def wait_for(self, child: int) -> int | None:
        """Wait for the child and return its exit status; None if it was killed for taking too long."""
        number, deadline_s, pause_s = -1, 0.0, 0.002
        while True:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                break
            under_way = int.from_bytes(self._shared[:4], "big")
            if under_way != number:
                number = under_way
                deadline_s = time.monotonic() + 3 * self._seconds[number] + _WAIT_MARGIN_S
            if time.monotonic() > deadline_s:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return None
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.1)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) in {signal.SIGXCPU, signal.SIGKILL}:
            return None
        return status
