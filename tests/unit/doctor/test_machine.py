"""Python and packages against the ranges of the installation."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from wal_sink.doctor import machine
from wal_sink.doctor.machine import machine_findings, package_findings, parsed, python_finding
from wal_sink.reporting.findings import Level

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
TESTED = ["3", "3 :: Only", "3.11", "3.12", "3.13"]


def test_every_bound_of_the_project_is_understood() -> None:
    extras = PROJECT["optional-dependencies"].items()
    written = [*PROJECT["dependencies"], *(f'{text}; extra == "{extra}"' for extra, some in extras for text in some)]
    for text in written:
        requirement = parsed(text)
        bounds = text.partition(";")[0].removeprefix(requirement.name)
        shown = [f">={requirement.least}"] * bool(requirement.least) + [f"<{requirement.below}"] * bool(
            requirement.below
        )
        assert bounds.endswith(",".join(shown)), text
        assert requirement.least
        assert bool(requirement.extra) is ("extra" in text)


def test_what_is_no_requirement_is_refused() -> None:
    with pytest.raises(ValueError, match="is not a requirement"):
        parsed("@nothing")


@pytest.mark.parametrize(
    ("version", "level", "says"),
    [("2.2.5", Level.OK, "pandas 2.2.5"), ("2.1.9", Level.ERROR, "too old"), ("3.0", Level.WARNING, "not tested")],
)
def test_a_version_outside_its_range_is_told(version: str, level: Level, says: str) -> None:
    *_, last = package_findings([parsed('pandas<3,>=2.2; extra == "spark"')], {"pandas": version})
    assert last.level is level
    assert says in last.found
    assert level is Level.OK or "pip install --upgrade wal-sink[spark]" in last.next_step
    assert level is Level.OK or "at least 2.2 and below 3" in last.found


def test_a_missing_package_is_an_error_unless_only_an_extra_needs_it() -> None:
    first, second = package_findings([parsed("pyarrow>=18")], {})
    assert (first.found, second.level) == ("none", Level.ERROR)
    assert "pyarrow is missing; expected at least 18" in second.found
    assert [one.level for one in package_findings([parsed('redis<8,>=5; extra == "redis"')], {})] == [Level.OK]
    assert "any version" in package_findings([parsed("something")], {})[1].found


def test_a_package_of_two_extras_is_named_once() -> None:
    needed = [parsed('requests>=2; extra == "hdfs"'), parsed('requests>=2; extra == "http"')]
    assert package_findings(needed, {"requests": "dev"})[1].level is Level.ERROR
    assert package_findings(needed, {"requests": "2.1"})[0].found == "requests 2.1"


@pytest.mark.parametrize(
    ("version", "level"), [((3, 10, 1), Level.ERROR), ((3, 11, 7), Level.OK), ((3, 99, 0), Level.WARNING)]
)
def test_a_python_that_was_not_tested_is_told(version: tuple[int, ...], level: Level) -> None:
    finding = python_finding(version, ">=3.11", TESTED)
    assert finding.level is level
    assert level is not Level.WARNING or "3.11, 3.12, 3.13" in finding.next_step
    assert python_finding((3, 11), "", TESTED).level is Level.OK


def test_this_machine_is_fine() -> None:
    assert {one.level for one in machine_findings()} == {Level.OK}


def test_a_copy_that_was_not_installed_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "DISTRIBUTION", "wal-sink-that-nobody-installed")
    (finding,) = machine_findings()
    assert finding.level is Level.WARNING
    assert machine.versions_of(["wal-sink-that-nobody-installed", "pyarrow"]) == {
        "pyarrow": metadata.version("pyarrow")
    }


def test_metadata_without_a_bound_of_python_is_read() -> None:
    assert machine._first(None) == ""
    assert machine._first([">=3.11"]) == ">=3.11"
