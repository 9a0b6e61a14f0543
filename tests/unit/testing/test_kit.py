"""The kit sees what it is there to see: each sink planted here breaks its contract at one point, and that is reported.

The tests of the contract are called one by one, without a second pytest. `tests/integration/test_testing_guide.py` runs
a contract as a user does.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest

from tests.support import wrong_sinks, wrong_two_phase
from tests.support.contracts import cases_of, checks_of, fault_of
from tests.support.wrong_sinks import Contract
from tests.unit.testing.test_commit_matrix import BROKEN
from wal_sink.testing import SinkContract

FEW = 40
"""One of so many points of failure is tried where a wrong sink must not fail. The correct sinks are tried at each."""


def contracts_of(module: ModuleType) -> list[type[Contract]]:
    kinds = (kind for name, kind in inspect.getmembers(module, inspect.isclass) if name.startswith("Test"))
    return [kind for kind in kinds if issubclass(kind, Contract)]


def fails(contract: type[Contract], check: str, folder: Path) -> bool:
    return any(_fails(contract, check, case, folder) for case in cases_of(contract, check))


def _fails(contract: type[Contract], check: str, case: Mapping[str, object], folder: Path) -> bool:
    one = contract()
    if contract.fails and check not in contract.fails:
        one.every, one.each_line = FEW, False  # type: ignore[misc]
    with one.new_target(folder) as target:
        return fault_of(lambda: getattr(one, f"test_{check}")(target, **case)) != ""


@pytest.mark.processes  # the kit tries to pickle a sink as Spark does, and imports pyspark for it
@pytest.mark.parametrize("module", [wrong_sinks, wrong_two_phase], ids=["all kinds", "two-phase"])
def test_exactly_what_a_sink_breaks_is_reported(module: ModuleType, tmp_path: Path) -> None:
    faults = {}
    for contract in contracts_of(module):
        failed = {check for check in checks_of(SinkContract) if fails(contract, check, tmp_path)}
        if failed != contract.fails:
            faults[contract.__name__] = {"not found": contract.fails - failed, "not broken": failed - contract.fails}
    assert faults == {}


def test_every_test_of_the_contract_has_a_sink_that_fails_it() -> None:
    contracts = [*contracts_of(wrong_sinks), *contracts_of(wrong_two_phase)]
    found = {name for contract in contracts for name in contract.fails} | {check for _, check, _ in BROKEN}
    assert found == set(checks_of(SinkContract))
