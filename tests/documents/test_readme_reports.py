"""README and docs/tested.md tell the same of the specification, chaos, mutation and the tests as their sources."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterable, Mapping

import pytest

from tests.chaos import store_faults, store_kills
from tests.chaos.__main__ import all_scenarios
from tests.chaos.report import Row, read_rows
from tests.chaos.scenario import Scenario
from tests.documents.test_guarantees_document import sentences
from tests.support.processes import CHECKOUT

README, PAGE = "README.md", "docs/tested.md"


@pytest.fixture(scope="module")
def rows() -> Mapping[str, Row]:
    return {row.name: row for row in read_rows(CHECKOUT / "benchmarks" / "CHAOS.json")}


def told(document: str, command: str) -> str:
    """The part of a document that says what a command showed: README's section, or a line of the page's table."""
    if document == README:
        return section_of_readme()
    (line,) = re.findall(rf"^{re.escape(f'| `make {command}` |')}.*$", (CHECKOUT / document).read_text(), re.MULTILINE)
    return str(line)


def section_of_readme() -> str:
    return (CHECKOUT / README).read_text().partition("## How it is tested\n")[2].partition("\n## ")[0]


def count_of(constant: str) -> int:
    """How many entries a table of `specs/check.py` has."""
    for node in ast.parse((CHECKOUT / "specs" / "check.py").read_text()).body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [constant]:
            return len(ast.literal_eval(node.value))
    raise AssertionError(f"specs/check.py has no {constant}")


def test_a_document_counts_what_the_specification_runs() -> None:
    for document, constant, words in [
        (README, "MODELS", "{} bounded models"),
        (README, "PLANTED", "each of {} planted bugs"),
        (PAGE, "MODELS", "{} bounded models"),
        (PAGE, "WITHOUT_PLAN_MODELS", "{} of them in two variants"),
        (PAGE, "PLANTED", "each of {} planted bugs"),
        (PAGE, "NEEDED", "{} missing repairs"),
    ]:
        assert words.format(count_of(constant)) in told(document, "spec")


def test_the_chaos_report_is_whole_and_of_full_size(rows: Mapping[str, Row]) -> None:
    assert set(rows) == {scenario.name for scenario in all_scenarios()}, "finish it: make chaos ARGS=--resume"
    assert {row.share for row in rows.values()} == {1}
    assert all(row.holds for row in rows.values())


def histories(rows: Mapping[str, Row]) -> str:
    rounds = sum(row.rounds for name, row in rows.items() if name.startswith("simulated histories"))
    return f"{rounds // 1_000_000} million simulated histories"


def rounds_of(scenarios: Iterable[Scenario], rows: Mapping[str, Row], unit: str) -> int:
    return sum(rows[scenario.name].rounds for scenario in scenarios if scenario.unit == unit)


def test_readme_tells_what_the_chaos_report_has(rows: Mapping[str, Row]) -> None:
    missing = [
        words
        for words in (
            f"{len(rows)} scenarios, {sum(row.lost for row in rows.values())} rows lost",
            f"drivers killed {rows['drivers killed'].rounds} times",
            histories(rows),
        )
        if words not in told(README, "chaos")
    ]
    assert not missing, "README does not say this of benchmarks/CHAOS.md"


def test_the_page_tells_what_the_chaos_report_has(rows: Mapping[str, Row]) -> None:
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
            f"{rounds_of(store_faults.SCENARIOS, rows, 'spoilt request')} more spoilt requests",
            f"{rounds_of(store_kills.SCENARIOS, rows, 'kill')} kills of their servers",
            f"{rounds_of(store_kills.SCENARIOS, rows, 'death')} deaths",
            f"{round(damaged, -3):,} damaged objects",
            histories(rows),
        )
        if words not in told(PAGE, "chaos")
    ]
    assert not missing, "the page's table does not say this of benchmarks/CHAOS.md"


def test_both_documents_tell_the_score_of_the_mutation_report() -> None:
    report = (CHECKOUT / "benchmarks" / "MUTATION.md").read_text()
    row = r"^\| \*\*all\*\* \| (\d+) \|.*\| (\d+) \| ([\d.]+ %) \|  \|$"
    ((mutants, not_tried, score),) = re.findall(row, report, flags=re.MULTILINE)
    tried = int(mutants) - int(not_tried)
    drawn = f", drawn from {int(mutants):,}" if int(not_tried) else ""
    for document in (README, PAGE):
        assert f"{score} of {tried:,} mutants{drawn}" in told(document, "mutation")


def test_readme_tells_what_the_tests_ask_for() -> None:
    coverage = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["tool"]["coverage"]
    assert coverage["run"]["branch"]
    assert f"{coverage['report']['fail_under']} % of the branches" in told(README, "test-all")


def test_readme_has_two_lines_of_testing_and_counts_the_sentences_of_the_guarantees() -> None:
    assert f"- Each of {len(sentences())} sentences of [the guarantees]" in section_of_readme()
    assert [line[:2] for line in section_of_readme().strip().splitlines()] == ["- "] * 2
