"""Calls side by side in processes that end."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.processes import Child

LATE = """
import threading, time
from wal_sink.support.calls import side_by_side

def work():
    threading.main_thread().join()
    time.sleep(0.2)
    print(side_by_side(lambda number: -number, range(3)), flush=True)

threading.Thread(target=work).start()
"""
HANGING = """
import threading
from wal_sink.support.calls import side_by_side

begun = threading.Barrier(4)

def hang(_):
    begun.wait(60)
    threading.Event().wait()

threading.Thread(target=lambda: side_by_side(hang, range(3)), daemon=True).start()
begun.wait(60)
print("the end", flush=True)
"""


@pytest.mark.parametrize(("program", "says"), [(LATE, "[0, -1, -2]"), (HANGING, "the end")])
def test_neither_the_end_of_the_main_thread_nor_a_call_that_hangs_matters_to_the_other(
    tmp_path: Path, program: str, says: str
) -> None:
    with Child.python(program, log=tmp_path / "log") as child:
        assert says in child.succeed()


INTERRUPTED = """
import threading
from wal_sink.support import calls as module

module.INTERRUPTED_S = 0.2
begun = threading.Barrier(3)
called = []

def call(number):
    called.append(number)
    begun.wait(60)
    if threading.current_thread() is not threading.main_thread():
        threading.Event().wait()  # a store that does not answer
    print("now", flush=True)
    IN_THE_CALL

try:
    module.side_by_side(call, range(3))
except KeyboardInterrupt:
    print("interrupted", len(called), flush=True)
"""


@pytest.mark.parametrize("where", ["threading.Event().wait()", "return"], ids=["in a call", "in the wait for others"])
def test_ctrl_c_ends_the_wait_for_calls_that_hang(tmp_path: Path, where: str) -> None:
    program = INTERRUPTED.replace("IN_THE_CALL", where)
    with Child.python(program, log=tmp_path / "log", limit_s=60) as child:
        child.wait_for_output("now")
        time.sleep(0.1)  # until it waits
        child.interrupt()
        assert "interrupted 3" in child.succeed()
