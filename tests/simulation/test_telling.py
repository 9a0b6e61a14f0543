"""Lines that tests tell: they come at the end of a run, and do not stop it from writing its report as XML."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import CHECKOUT

TELLING = "tests/simulation/test_histories.py::test_every_law_holds_in_histories_0_to_199"


@pytest.mark.processes
@pytest.mark.no_cover
def test_a_run_that_tells_lines_also_writes_a_report_as_xml(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", TELLING, "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    ended = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False, timeout=300)

    assert ended.returncode == 0, ended.stdout
    assert "\n200 histories, " in ended.stdout
    assert 'errors="0" failures="0"' in report.read_text()
