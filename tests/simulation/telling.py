"""The counts of the simulation, such as histories and crash points, shown at the end of a test run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

_TITLE = "simulation"


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """A function that shows a line at the end of the run. The line travels in the test's report, even from a worker.

    It is a section of the report, not a property: `--junitxml` warns of properties, which its format does not have.
    """

    def add(line: str) -> None:
        request.node.add_report_section("call", _TITLE, line)

    return add


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.stats.get(outcome, [])]
    lines = [line for report in reports for _, line in report.get_sections(f"Captured {_TITLE}")]
    if lines:
        terminalreporter.section(_TITLE)
        for line in sorted(lines):
            terminalreporter.write_line(line)
