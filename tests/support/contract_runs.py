"""Runs every test of a `SinkContract` without a second pytest, and tells which fail: one test for a whole contract.

`tests/integration/test_testing_guide.py` runs a contract as a user does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from wal_sink.testing import SinkContract


@dataclass
class Outcomes:
    """The tests of a contract by their results, each with its name and its arguments."""

    passed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def run(contract: SinkContract, new_target: Callable[[], Any]) -> Outcomes:
    """Run each test of a contract over a new target."""
    outcomes = Outcomes()
    for name in (name for name in dir(contract) if name.startswith("test_")):
        test = getattr(contract, name)
        for case in _cases_of(contract, test):
            told = " ".join([name, *map(str, case.values())])
            try:
                test(new_target(), **case)
            except pytest.skip.Exception:
                outcomes.skipped.append(told)
            except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - a wrong sink may raise anything
                outcomes.failed[told] = str(error)
            else:
                outcomes.passed.append(told)
    return outcomes


def _cases_of(contract: SinkContract, test: Callable[..., None]) -> Iterator[Mapping[str, object]]:
    """Yield the arguments of each case, as the contract tells them to pytest."""
    cases: list[tuple[str, Sequence[object]]] = []
    names = list(inspect.signature(test).parameters)
    asked: Any = SimpleNamespace(fixturenames=names, parametrize=lambda name, values: cases.append((name, values)))
    contract.pytest_generate_tests(asked)
    if not cases:
        yield {}
    for name, values in cases:
        yield from ({name: value} for value in values)
