"""A figure above its budget is told, also where one of the two is not there."""

from __future__ import annotations

import tomllib

from tests.support.budgets import BUDGETS, excesses, text_of

FOUND = {"lines": {"wal_sink": 101, "tests": 200}, "documents": {"pages": 7, "words": 1_001}}


def test_the_budgets_that_are_written_hold_and_are_rounded_up() -> None:
    budgets = tomllib.loads(text_of(FOUND))

    assert budgets == {"lines": {"wal_sink": 200, "tests": 200}, "documents": {"pages": 7, "words": 1_100}}
    assert list(excesses(FOUND, budgets)) == []


def test_a_figure_above_its_budget_or_without_one_is_told() -> None:
    budgets = {"lines": {"wal_sink": 100, "backends": 5}, "documents": {"pages": 7, "words": 1_001}}

    assert list(excesses(FOUND, budgets)) == [
        "lines, backends: a budget of 5 for what is no longer there",
        "lines, tests: 200, and no budget",
        "lines, wal_sink: 101, the budget is 100",
    ]


def test_every_table_of_the_committed_budgets_is_a_table_of_figures() -> None:
    budgets = tomllib.loads(BUDGETS.read_text())

    assert list(excesses(budgets, budgets)) == []
    assert all(isinstance(figure, int) and figure > 0 for table in budgets.values() for figure in table.values())
