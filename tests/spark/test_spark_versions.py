"""Tests run on every Spark that wal-sink allows."""

import os
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pyspark
import pytest

from tests.support import spark_versions
from tests.support.processes import CHECKOUT, Child, ChildError
from tests.support.spark_versions import ALL_VERSIONS, VERSIONS, each_version, environment, packages, run_on
from wal_sink.spark.environment import KNOWN

SHOWS = """
import os, pyspark
print(pyspark.__version__, os.environ["SPARK_HOME"] == os.path.dirname(pyspark.__file__))
"""


def minor(version: str) -> tuple[int, int]:
    major, second = version.split(".")[:2]
    return int(major), int(second)


def test_each_known_minor_version_is_pinned_once_and_the_package_allows_these_alone() -> None:
    wanted = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["spark"]
    requirement = next(line for line in wanted if line.startswith("pyspark"))
    allowed = re.fullmatch(r"pyspark>=(\d+)\.(\d+),<(\d+)\.(\d+)", requirement)
    assert allowed is not None, f"expected a range such as pyspark>=4.0,<4.4, found {requirement}"
    numbers = list(map(int, allowed.groups()))
    newest = max(KNOWN)
    assert (tuple(numbers[:2]), tuple(numbers[2:])) == (min(KNOWN), (newest[0], newest[1] + 1))
    assert [minor(version) for version in ALL_VERSIONS] == sorted(KNOWN)
    assert minor(pyspark.__version__) == newest
    assert set(VERSIONS) == {one for one in ALL_VERSIONS if minor(one) != (3, 5) or sys.version_info < (3, 12)}


@pytest.mark.processes
@each_version
@pytest.mark.no_cover
@pytest.mark.timeout(1200)
def test_a_program_runs_on_the_version_it_asks_for(version: str, tmp_path: Path) -> None:
    assert run_on(version, SHOWS, log=tmp_path / "log") == f"{version} True\n"


def test_the_installed_version_is_not_fetched() -> None:
    assert packages(pyspark.__version__) == Path(pyspark.__file__).parent.parent


@pytest.mark.processes
def test_a_program_that_fails_is_told(tmp_path: Path) -> None:
    with pytest.raises(ChildError, match="ended with 3"):
        run_on(pyspark.__version__, "raise SystemExit(3)", log=tmp_path / "log")


def test_the_chosen_version_comes_before_whatever_the_checkout_has() -> None:
    first, *rest = environment(pyspark.__version__)["PYTHONPATH"].split(os.pathsep)
    assert first == str(Path(pyspark.__file__).parent.parent)
    assert str(CHECKOUT) in rest


class Pip:
    """In pip's place: makes the folder that it was told to make, or fails."""

    def __init__(self, *, succeeds: bool) -> None:
        self.succeeds = succeeds
        self.installed: list[str] = []

    def __call__(self, command: list[str | Path], *, log: Path, limit_s: float) -> Child:
        *_, target, wanted = command
        self.installed.append(str(wanted))
        program = (
            f"import os; os.makedirs({str(Path(target) / 'pyspark')!r})" if self.succeeds else "raise SystemExit(1)"
        )
        return Child.python(program, log=log, limit_s=limit_s)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Pip], Pip]:
    def chosen(pip: Pip) -> Pip:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.setattr(spark_versions, "Child", pip)
        return pip

    return chosen


@pytest.mark.processes
def test_a_version_is_installed_once_and_whole(use: Callable[[Pip], Pip], tmp_path: Path) -> None:
    left = tmp_path / "wal-sink" / "pyspark-4.0.9.unfinished" / "half"
    left.mkdir(parents=True)
    pip = use(Pip(succeeds=True))
    assert packages("4.0.9") == packages("4.0.9") == tmp_path / "wal-sink" / "pyspark-4.0.9"
    assert pip.installed == ["pyspark==4.0.9"]
    assert [entry.name for entry in packages("4.0.9").iterdir()] == ["pyspark"]


@pytest.mark.processes
def test_a_version_that_cannot_be_had_leaves_nothing(
    use: Callable[[Pip], Pip], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(Pip(succeeds=False))
    monkeypatch.setenv("WAL_SINK_TEST_ALL", "1")
    with pytest.raises(pytest.fail.Exception, match="pip could not fetch pyspark 4\\.0\\.9"):
        packages("4.0.9")
    assert not list((tmp_path / "wal-sink").glob("pyspark-4.0.9"))


def test_who_comes_second_waits_for_the_lock(
    use: Callable[[Pip], Pip], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = use(Pip(succeeds=True))
    monkeypatch.setattr(spark_versions, "INSTALL_LIMIT_S", 0.3)
    (tmp_path / "wal-sink").mkdir()
    with spark_versions._held(tmp_path / "wal-sink" / "pyspark-4.0.9.lock"), pytest.raises(TimeoutError, match="held"):
        packages("4.0.9")
    assert pip.installed == []
