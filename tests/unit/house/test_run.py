"""`make test` and `make test-all`: every test belongs to a group, and nothing passes because it was not looked at."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import run as runner
from tests.run import QUICK_GROUPS, SLOW_GROUPS, Group, Run, command, data_of, digest_of_sources, passed_before
from tests.support.components import TEST_ALL, WHOLE, missing
from tests.support.processes import CHECKOUT

TESTS = CHECKOUT / "tests"


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(runner, "WORK", tmp_path)
    monkeypatch.setattr(runner, "PASSED", tmp_path / "quick.json")
    return tmp_path


@pytest.mark.parametrize("groups", [QUICK_GROUPS, SLOW_GROUPS], ids=["quick", "slow"])
def test_every_file_of_tests_belongs_to_one_group(groups: tuple[Group, ...]) -> None:
    commands = [command(group, 1) for group in groups]
    files = [path.relative_to(CHECKOUT).as_posix() for path in TESTS.rglob("test_*.py")]
    assert len(files) > 100
    assert [file for file in files if sum(collects(arguments, file) for arguments in commands) != 1] == []
    assert [path for group in groups for path in group.paths if not list(TESTS.glob(path))] == []


def collects(arguments: list[str], file: str) -> bool:
    """Whether a pytest with these arguments collects a file."""
    ignored = [argument.removeprefix("--ignore=") for argument in arguments if argument.startswith("--ignore=")]
    taken = [argument for argument in arguments if argument.startswith("tests")]
    return _below(file, taken) and not _below(file, ignored)


def _below(file: str, places: list[str]) -> bool:
    return any(file == place or file.startswith(f"{place}/") for place in places)


@pytest.mark.usefixtures("work")
def test_a_changed_source_is_tested_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "CHECKOUT", tmp_path)
    monkeypatch.setattr(runner, "SOURCES", ("wal_sink", "Makefile"))
    (tmp_path / "wal_sink").mkdir()
    (tmp_path / "wal_sink" / "one.py").write_text("1")
    (tmp_path / "Makefile").write_text("all:")
    before = digest_of_sources()
    assert digest_of_sources() == before
    runner.PASSED.write_text(json.dumps({"sources": before}))
    assert not passed_before(before), "their coverage is gone"
    for group in QUICK_GROUPS:
        data_of(group.name).touch()
    assert passed_before(before)
    (tmp_path / "wal_sink" / "two.py").write_text("")
    assert not passed_before(digest_of_sources())


def test_a_group_that_ends_badly_fails_the_run_whatever_it_counted() -> None:
    run = Run(1)
    run.note(Group("units", ["unit"], "not slow"), 0, "..\n7 passed, 2 skipped, 4 deselected in 1.0s\n", 1.0)
    assert (run.green, run.counts["passed"], run.counts["skipped"]) == (True, 7, 2)
    run.note(Group("proof", ["proof"], "not slow"), -9, "....", 1.0)
    assert not run.green


def test_a_whole_run_in_ci_without_one_of_the_servers_fails_and_names_it(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert missing([f"{product} 1" for product in WHOLE]) == []
    (work / "rest.started").write_text("\n".join(f"{product} 1.0" for product in WHOLE if product != "HDFS"))
    for in_ci, green in (("1", False), ("", True)):
        monkeypatch.setenv(TEST_ALL, in_ci)
        run = Run(1)
        run.carry_over(["rest"])
        run.products()
        assert run.green is green
        assert "not started: HDFS; see tests/support/components.py" in capsys.readouterr().out
