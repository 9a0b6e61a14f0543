"""Programs that tests start end when the test says so, with everything they started."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.processes import Child, ChildError, is_running
from tests.support.waiting import wait_until

FAMILY = """
import os, subprocess, sys
program = "import os, time; os.setpgid(0, 0); print('ready', flush=True); time.sleep(600)"
grandchild = subprocess.Popen([sys.executable, "-c", program])
print("grandchild", grandchild.pid, flush=True)
grandchild.wait()
"""


def test_output_and_exit_code_are_captured(tmp_path: Path) -> None:
    with Child.python(
        "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)", log=tmp_path / "log"
    ) as child:
        assert child.wait() == 3
        assert sorted(child.output.split()) == ["err", "out"]


def test_kill_ends_a_descendant_in_another_process_group(tmp_path: Path) -> None:
    with Child.python(FAMILY, log=tmp_path / "log") as child:
        child.wait_for_output("ready")
        grandchild = int(child.output.split("grandchild")[1].split()[0])
        assert os.getsid(grandchild) == child.pid
        child.kill()
        assert child.wait() == -signal.SIGKILL
        assert not is_running(grandchild)


def test_leaving_the_block_ends_what_the_process_left_behind(tmp_path: Path) -> None:
    orphan = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid)"
    with Child.python(orphan, log=tmp_path / "log") as child:
        left_behind = int(child.succeed())
        assert is_running(left_behind)
    assert not is_running(left_behind)


def test_waiting_is_bounded_and_shows_the_output(tmp_path: Path) -> None:
    with Child.python("import time; print('here'); time.sleep(600)", log=tmp_path / "log") as child:
        child.wait_for_output("here")
        with pytest.raises(ChildError, match=r"still runs after 0.1 s(.|\n)*here"):
            child.wait(0.1)


def test_waiting_for_output_of_an_ended_process_fails_at_once(tmp_path: Path) -> None:
    expected = pytest.raises(ChildError, match=r"ended with 0 before(.|\n)*something else")
    with Child.python("print('something else')", log=tmp_path / "log") as child, expected:
        child.wait_for_output("never", timeout_s=60)


def test_success_is_exit_code_zero(tmp_path: Path) -> None:
    expected = pytest.raises(ChildError, match=r"ended with 1, expected 0(.|\n)*sorry")
    with Child.python("raise SystemExit('sorry')", log=tmp_path / "log") as child, expected:
        child.succeed()


def test_a_signal_reaches_the_process_and_its_descendants(tmp_path: Path) -> None:
    with Child.python(FAMILY, log=tmp_path / "log") as child:
        child.wait_for_output("ready")
        grandchild = int(child.output.split("grandchild")[1].split()[0])
        child.send_to_all(signal.SIGTERM)
        assert child.wait() == -signal.SIGTERM
        wait_until(lambda: not is_running(grandchild), "the grandchild ended too")
