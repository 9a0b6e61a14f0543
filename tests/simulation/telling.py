"""What the simulation counted, shown at the end of a test run: so many histories, crash points, so fast."""

from __future__ import annotations

from collections.abc import Callable

import pytest

_LINE = "simulation"


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Says a line at the end of the run. It travels with the test's report, out of another process if need be."""

    def say(line: str) -> None:
        request.node.user_properties.append((_LINE, line))

    return say


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.stats.get(outcome, [])]
    lines = [line for report in reports for name, line in report.user_properties if name == _LINE]
    if lines:
        terminalreporter.section("simulation")
        for line in sorted(lines):
            terminalreporter.write_line(line)
