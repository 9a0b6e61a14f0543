"""The kit sees what it is there to see: each sink planted here breaks its contract at one point, and that is reported.

The tests of the contract are called one by one, without a second pytest. `tests/integration/test_testing_guide.py` runs
a contract as a user does.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.support import wrong_sinks, wrong_two_phase
from tests.support.wrong_sinks import Contract
from wal_sink.testing import SinkContract

FEW = 40
"""One of so many points of failure is tried where a wrong sink must not fail. The correct sinks are tried at each."""


def contracts_of(module: ModuleType) -> list[type[Contract]]:
    kinds = (kind for name, kind in inspect.getmembers(module, inspect.isclass) if name.startswith("Test"))
    return [kind for kind in kinds if issubclass(kind, Contract)]


def checks_of_the_contract() -> list[str]:
    return [name.removeprefix("test_") for name in dir(SinkContract) if name.startswith("test_")]


def cases_of(contract: type[Contract], test: str) -> Iterator[Mapping[str, object]]:
    """Yield the arguments of each case, as the contract tells them to pytest."""
    names = list(inspect.signature(getattr(contract, f"test_{test}")).parameters)
    cases: list[tuple[str, Sequence[object]]] = []
    asked: Any = SimpleNamespace(fixturenames=names, parametrize=lambda name, values: cases.append((name, values)))
    contract().pytest_generate_tests(asked)
    if not cases:
        yield {}
    for name, values in cases:
        yield from ({name: value} for value in values)


def fails(contract: type[Contract], test: str, folder: Path) -> bool:
    return any([_fails(contract, test, case, folder) for case in cases_of(contract, test)])


def _fails(contract: type[Contract], test: str, case: Mapping[str, object], folder: Path) -> bool:
    one = contract()
    if contract.fails and test not in contract.fails:
        one.every, one.each_line = FEW, False  # type: ignore[misc]
    with one.new_target(folder) as target:
        try:
            getattr(one, f"test_{test}")(target, **case)
        except pytest.skip.Exception:
            return False
        except (Exception, pytest.fail.Exception):
            return True
    return False


@pytest.mark.parametrize("module", [wrong_sinks, wrong_two_phase], ids=["all kinds", "two-phase"])
def test_exactly_what_a_sink_breaks_is_reported(module: ModuleType, tmp_path: Path) -> None:
    faults = {}
    for contract in contracts_of(module):
        failed = {test for test in checks_of_the_contract() if fails(contract, test, tmp_path)}
        if failed != contract.fails:
            faults[contract.__name__] = {"not found": contract.fails - failed, "not broken": failed - contract.fails}
    assert faults == {}


def test_every_test_of_the_contract_has_a_sink_that_fails_it() -> None:
    contracts = [*contracts_of(wrong_sinks), *contracts_of(wrong_two_phase)]
    assert {name for contract in contracts for name in contract.fails} == set(checks_of_the_contract())
