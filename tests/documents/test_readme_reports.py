"""README tells the same of the specification, chaos and mutation as their reports."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

import pytest

from tests.chaos.__main__ import all_scenarios
from tests.chaos.report import Row, read_rows
from tests.support.processes import CHECKOUT


@pytest.fixture(scope="module")
def rows() -> Mapping[str, Row]:
    return {row.name: row for row in read_rows(CHECKOUT / "benchmarks" / "CHAOS.json")}


def told(command: str) -> str:
    """The line of README's table that says what a command showed."""
    (line,) = re.findall(rf"^\| `make {command}` \|.*$", (CHECKOUT / "README.md").read_text(), flags=re.MULTILINE)
    return str(line)


def count_of(constant: str) -> int:
    """How many entries a table of `specs/check.py` has."""
    for node in ast.parse((CHECKOUT / "specs" / "check.py").read_text()).body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [constant]:
            return len(ast.literal_eval(node.value))
    raise AssertionError(f"specs/check.py has no {constant}")


@pytest.mark.parametrize(
    ("constant", "words"),
    [
        ("MODELS", "{} bounded models"),
        ("WITHOUT_PLAN_MODELS", "{} of them in two variants"),
        ("PLANTED", "{} planted bugs"),
        ("NEEDED", "{} missing repairs"),
    ],
)
def test_readme_counts_what_the_specification_runs(constant: str, words: str) -> None:
    assert words.format(count_of(constant)) in told("spec")


def test_the_chaos_report_is_whole_and_of_full_size(rows: Mapping[str, Row]) -> None:
    assert set(rows) == {scenario.name for scenario in all_scenarios()}, "finish it: make chaos ARGS=--resume"
    assert {row.share for row in rows.values()} == {1}
    assert all(row.holds for row in rows.values())


def test_readme_tells_what_the_chaos_report_has(rows: Mapping[str, Row]) -> None:
    histories = sum(row.rounds for name, row in rows.items() if name.startswith("simulated histories"))
    damaged = sum(row.rounds for name, row in rows.items() if name.startswith("damaged objects"))
    killed = rows["drivers killed"]
    missing = [
        words
        for words in (
            f"{len(rows)} scenarios hold, {sum(row.lost for row in rows.values())} rows lost",
            f"drivers killed {killed.rounds} times",
            f"{killed.repeated} rows twice of {killed.allowed} permitted",
            f"executors {rows['executors killed'].rounds} times",
            f"{rows['two drivers, one WAL'].rounds} pairs of drivers",
            f"{rows['a driver that slept'].rounds} drivers that slept",
            f"{sum(name.startswith('S3: ') for name in rows)} ways to spoil",
            f"{round(damaged, -3):,} damaged objects",
            f"{histories // 1_000_000} million simulated histories",
        )
        if words not in told("chaos")
    ]
    assert not missing, "README's table does not say this of benchmarks/CHAOS.md"


def test_readme_tells_the_score_of_the_mutation_report() -> None:
    report = (CHECKOUT / "benchmarks" / "MUTATION.md").read_text()
    (found,) = re.findall(r"^\| \*\*all\*\* \| (\d+) \|.*\| ([\d.]+ %) \|$", report, flags=re.MULTILINE)
    mutants, score = found
    assert f"{score} of {int(mutants):,} mutants" in told("mutation")
