"""What is taken for granted of the process and its machine, each falsified once: see docs/ASSUMPTIONS.md."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from tests.house.stores import MemoryStore, StoreSpec, open_store, opening
from tests.house.support import SYSTEM, Runtime
from tests.support.processes import CHECKOUT, python_environment
from wal_sink.stores import memory
from wal_sink.support.clock import process_name

WAIT_S = 60


def in_child(work: Callable[[], str]) -> str:
    """The answer of a forked child, which has only the thread that forked it."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = "it raised"
        try:
            said = work()
        finally:
            os.write(writing, said.encode())
            os._exit(0)
    os.close(writing)
    try:
        os.set_blocking(reading, False)
        deadline_s = time.monotonic() + WAIT_S
        while time.monotonic() < deadline_s:
            ended, _ = os.waitpid(pid, os.WNOHANG)
            if ended:
                return os.read(reading, 1 << 16).decode()
            time.sleep(0.01)
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        return "it hangs"
    finally:
        os.close(reading)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_locks_that_were_held_at_a_fork_are_new_in_the_child() -> None:
    """Those of the parent never open there: the thread that holds them was not forked."""
    spec = StoreSpec("memory://held-at-a-fork")
    store = open_store(spec)
    assert isinstance(store, MemoryStore)
    old = (opening._lock, memory._spaces_lock, store._space.lock)

    def work() -> str:
        never = [lock.acquire(timeout=0.05) for lock in old]
        open_store(spec).create("a", b"x")
        return f"{never} {open_store(spec).read('a').decode()}"

    for lock in old:
        lock.acquire()
    try:
        said = in_child(work)
    finally:
        for lock in old:
            lock.release()
    assert said == "[False, False, False] x"


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_store_belongs_to_the_process_that_opened_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Known by the process id. With that of the parent, a child gets the parent's, event loop and sockets included."""
    spec = StoreSpec("memory://of-one-process")
    parents = id(open_store(spec))
    assert in_child(lambda: str(id(open_store(spec)) == parents)) == "False"
    parent = os.getpid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: parent)
        assert in_child(lambda: str(id(open_store(spec)) == parents)) == "True"


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_ids_of_forked_processes_differ() -> None:
    """They name segments and writers. A generator that was made before the fork would give both the same."""
    new_id = SYSTEM.new_id
    assert in_child(new_id) != new_id()
    assert in_child(process_name) != process_name()
    generator = random.Random(14)
    copied = Runtime(new_id=lambda: f"{generator.getrandbits(128):032x}")
    theirs = in_child(copied.new_id)
    assert theirs == copied.new_id()


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="only Linux has a clock that counts a suspension apart")
def test_time_in_which_the_machine_was_suspended_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that slept checks its term again. By the monotonic clock, a suspended machine would not have slept."""
    clocks = {time.CLOCK_BOOTTIME: 1000.0, time.CLOCK_MONOTONIC: 10.0}
    monkeypatch.setattr(time, "clock_gettime", clocks.__getitem__)
    assert SYSTEM.monotonic_s() == 1000.0


ENDING = """
import threading, time, sys
def hang():
    time.sleep(600)
threading.Thread(target=hang, daemon={daemon}).start()
print("end of the program", flush=True)
"""


@pytest.mark.parametrize(("daemon", "ends"), [(True, True), (False, False)])
def test_a_daemon_thread_holds_no_process_back(*, daemon: bool, ends: bool) -> None:
    """Committers and calls of a sink that hangs are such threads; of any other kind, the program would not end."""
    started = subprocess.Popen(
        [sys.executable, "-c", ENDING.format(daemon=daemon)],
        cwd=CHECKOUT, env=python_environment(), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert started.stdout is not None
        assert started.stdout.readline() == "end of the program\n"
        try:
            ended = started.wait(timeout=WAIT_S if ends else 1.0) == 0
        except subprocess.TimeoutExpired:
            ended = False
        assert ended == ends
    finally:
        started.kill()
        started.communicate()
