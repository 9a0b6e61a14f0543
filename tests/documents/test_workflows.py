"""The workflows of `.github/workflows`, which no host ran yet, are well-formed and run what this repository runs.

Faults that are planted in copies show that each check finds its fault.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.support import workflows
from tests.support.processes import CHECKOUT

TESTS = workflows.FOLDER / "tests.yml"
RUNS_LIMIT_S = 120.0

Change = tuple[str, str]
"""A text of the workflow, and another one in its place."""

OF_THE_RULES: dict[str, Change] = {
    "a target that does not exist": (".ci/run spec demo", "make spec dmeo"),
    "a check that does not exist": (".ci/run spec demo", ".ci/run spec dmeo"),
    "another program": (".ci/run spec demo", "python -m pytest"),
    "a second command": (".ci/run spec demo", "make spec; curl 127.0.0.1"),
    "a second line": ("run: .ci/run spec demo", "run: |\n          make spec\n          ls"),
    "a command of the shell in ARGS": (".ci/run spec demo", 'make spec ARGS="$(ls)"'),
    "an action of a moving branch": ("actions/checkout@v5", "actions/checkout@main"),
    "an action of an abbreviated commit": ("actions/checkout@v5", "actions/checkout@0123abc"),
    "a right to write": ("contents: read", "contents: write"),
    "another right": ("contents: read", "contents: read\n  packages: write"),
    "rights of one job": ("timeout-minutes: 30", "timeout-minutes: 30\n    permissions: write-all"),
    "runs that pile up": ("concurrency:", "env:"),
    "no jobs": ("jobs:", "job:"),
    "no YAML": ("jobs:", "jobs: }"),
}
GOOD = [
    "make spec",
    "make check workflows",
    "make simulation ARGS=--losses",
    'make chaos ARGS="--share 0.05"',
    ".ci/run",
]


def plant(folder: Path, changes: Iterable[Change]) -> Iterator[Path]:
    """Yield a copy of a workflow for each change, with this change in its first such place."""
    text = TESTS.read_text()
    for number, change in enumerate(changes):
        assert change[0] in text
        copy = folder / f"{number}" / ".github" / "workflows" / TESTS.name
        copy.parent.mkdir(parents=True)
        copy.write_text(text.replace(*change, 1))
        yield copy


def test_the_workflows_keep_the_rules_of_the_repository() -> None:
    assert [fault for path in workflows.files() for fault in workflows.own_problems(path)] == []


def test_the_rules_of_the_repository_find_each_fault(tmp_path: Path) -> None:
    found = [workflows.own_problems(path) for path in plant(tmp_path, OF_THE_RULES.values())]
    told = {what: [fault[:11] for fault in faults] for what, faults in zip(OF_THE_RULES, found, strict=True)}
    assert told == {what: ["tests.yml: "] for what in OF_THE_RULES}


def test_the_tests_run_on_every_python_that_the_package_names() -> None:
    classifiers = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["classifiers"]
    named = [name.rpartition(" ")[2] for name in classifiers if re.search(r"Python :: 3\.\d+$", name)]
    assert len(named) > 1
    assert workflows.pythons(TESTS) == [named]


@pytest.mark.processes
def test_ci_refuses_a_check_that_it_does_not_have_before_it_does_anything(tmp_path: Path) -> None:
    for program in ("dirname", "grep"):  # alone: nothing can be installed if the name is not refused
        (tmp_path / program).symlink_to(shutil.which(program) or program)
    command = [shutil.which("bash") or "bash", ".ci/run", "chekc"]
    bare = {"PATH": str(tmp_path)}
    done = subprocess.run(
        command, cwd=CHECKOUT, env=bare, capture_output=True, text=True, check=False, timeout=RUNS_LIMIT_S
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, "", ".ci/run: no check is called 'chekc'\n")
