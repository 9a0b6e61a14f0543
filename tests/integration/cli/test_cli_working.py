"""Ctrl-C reaches a process."""

from __future__ import annotations

from pathlib import Path

from tests.support.processes import Child

INTERRUPTED = """
import threading
from wal_sink.cli import drain, working

def hang(work):
    print("reading", flush=True)
    threading.Event().wait()  # a store that does not answer

working.PLAIN_S, working.LEAVE_S = 0.02, 0.2
with working.working("waiting", look=hang):
    threading.Event().wait()
"""


def test_ctrl_c_ends_a_command_whose_report_hangs(tmp_path: Path) -> None:
    with Child.python(INTERRUPTED, log=tmp_path / "log", limit_s=60) as child:
        child.wait_for_output("reading")
        child.interrupt()
        child.wait()
        assert "KeyboardInterrupt" in child.output
