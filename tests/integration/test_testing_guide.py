"""`docs/testing-your-sink.md` as a reader would follow it: the naive sink fails as shown, the repaired one passes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.code_blocks import blocks_of
from tests.support.processes import CHECKOUT, python_environment

PAGE = "docs/testing-your-sink.md"
GUIDE = (CHECKOUT / PAGE).read_text()
SHOWN = re.findall(r"^```text\n(.*?)^```", GUIDE, flags=re.MULTILINE | re.DOTALL)
LIMIT_S = 280.0


def files(name: str) -> list[str]:
    """Return the blocks that the page shows as the file of this name."""
    above = {number for number, line in enumerate(GUIDE.splitlines(), 1) if line == f"`{name}`"}
    return [block.code for block in blocks_of(PAGE) if block.line - 3 in above]  # a comment and the fence lie between


def run(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *args]
    env = python_environment({"PYTEST_ADDOPTS": ""})  # what this run was given is not for that one
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def contract_of(sink: str, folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    (test,) = files("test_orders_sink.py")
    (folder / "orders_sink.py").write_text(sink)
    (folder / "test_orders_sink.py").write_text(test)
    return run(
        folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *args, "test_orders_sink.py"
    )


def without_counts(text: str) -> str:
    """How many points a run has changes with the log's own requests; what is said of them does not."""
    return re.sub(r"\d+ (?=of \d|crashes|failed|takeovers|points|rows lost|repeated|permitted|runs|more)", "N ", text)


def test_the_naive_sink_fails_with_the_message_that_is_shown(tmp_path: Path) -> None:
    naive, _ = files("orders_sink.py")

    done = contract_of(naive, tmp_path)

    assert done.returncode == 1, done.stdout
    assert without_counts(SHOWN[1]) in without_counts(done.stdout)
    assert re.search(r"^4 failed", done.stdout, flags=re.MULTILINE), done.stdout[-500:]


def test_the_repaired_sink_passes(tmp_path: Path) -> None:
    _, repaired = files("orders_sink.py")

    done = contract_of(repaired, tmp_path)

    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("block", "printed"),
    [(0, SHOWN[0]), (-3, ""), (-2, ""), (-1, "")],
    ids=["five lines", "a target that forgets", "one history", "a store that fails"],
)
def test_a_block_that_stands_alone_runs(block: int, printed: str, tmp_path: Path) -> None:
    (tmp_path / "block.py").write_text(blocks_of(PAGE)[block].code)

    done = run(tmp_path, "block.py")

    assert done.returncode == 0, done.stderr
    assert without_counts(done.stdout) == without_counts(printed)
