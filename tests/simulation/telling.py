"""The counts of the simulation, such as histories and crash points, shown at the end of a test run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

_LINE = "simulation"


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Callable[[object], None]:
    """A function that shows a line at the end of the run. The line travels in the test's report, even from a worker."""
    return partial(record_property, _LINE)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.stats.get(outcome, [])]
    lines = [line for report in reports for name, line in report.user_properties if name == _LINE]
    if lines:
        terminalreporter.section("simulation")
        for line in sorted(lines):
            terminalreporter.write_line(line)
