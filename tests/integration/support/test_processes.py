"""Programs that tests start end when the test says so, with everything they started."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.support.processes import Child, is_running

FAMILY = """
import os, subprocess, sys
program = "import os, time; os.setpgid(0, 0); print('ready', flush=True); time.sleep(600)"
grandchild = subprocess.Popen([sys.executable, "-c", program])
print("grandchild", grandchild.pid, flush=True)
grandchild.wait()
"""


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
