"""`SinkContract` without a test for each odd value, and its checks as functions that tell what failed.

What becomes of the rows of a ready sink is compared with docs/laws.toml.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from tests.house.sinks import CommitSink
from tests.support.laws import SOURCE, read_laws
from tests.support.wrong_sinks import DIES, FORGETS, LOSES, REQUEST_FAILS, WAKES
from wal_sink.testing import CrashMatrix, SinkContract
from wal_sink.testing.contract.base import ContractBase

DISTURBED = (DIES, REQUEST_FAILS, WAKES)
"""The checks that disturb a sink of any kind at many points."""
LOSSES = (FORGETS, LOSES)
"""The checks in which a target loses rows. They pass for every sink that gets chunks; docs/laws.toml tells the rest."""
VALUES = (
    "a_column_of_this_type_is_taken_or_refused_by_name",
    "columns_with_such_names_are_taken_or_refused_by_name",
    "a_very_long_text_is_taken_or_refused_for_good",
)
"""The checks whose result depends on how a sink writes a value."""


class FoldedContract(SinkContract):
    """The contract with one test for all types, and one for all names. Each reports every case that failed."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """No test for each type and each kind of name."""

    law: ClassVar[str] = ""
    """The name of this sink in docs/laws.toml."""
    is_keyed = False
    """Whether later rows replace earlier ones in the present run."""

    def _may_lose(self, target: Any, way: str) -> None:
        if isinstance(self._sink(target), CommitSink):
            super()._may_lose(target, way)

    def _matrix(self, target: Any, disturb: Sequence[Any], key: Sequence[str] = ()) -> CrashMatrix:
        self.is_keyed = bool(key)
        try:
            return super()._matrix(target, disturb, key)
        finally:
            self.is_keyed = False

    def _judge(self, matrix: CrashMatrix, disturb: Sequence[Any]) -> None:
        recorded = read_laws()[self.law].get(disturb[0]) if self.law and disturb else None
        if recorded is not None and matrix.verdict != recorded:
            pytest.fail(
                f"{SOURCE.name}, {self.law}, {disturb[0]}: {recorded}; found: {matrix.verdict}\n{matrix.report()}"
            )
        if disturb != ("stands still",) or recorded != "cannot be seen":
            super()._judge(matrix, disturb)

    def beside(self, target: Any) -> Any:
        """Return the place for one of the cases."""
        return self.another(target)

    def test_a_column_of_this_type_is_taken_or_refused_by_name(self, target: Any) -> None:  # type: ignore[override]
        self._each(super().test_a_column_of_this_type_is_taken_or_refused_by_name, target, self.column_types)

    def test_columns_with_such_names_are_taken_or_refused_by_name(self, target: Any) -> None:  # type: ignore[override]
        self._each(super().test_columns_with_such_names_are_taken_or_refused_by_name, target, self.column_names)

    def _each(self, check: Callable[[Any, str], None], target: Any, values: Sequence[str]) -> None:
        faults = {value: fault_of(partial(check, self.beside(target), value)) for value in values}
        assert {value: fault for value, fault in faults.items() if fault} == {}


def checks_of(contract: type[ContractBase]) -> list[str]:
    return [name.removeprefix("test_") for name in dir(contract) if name.startswith("test_")]


def cases_of(contract: type[SinkContract], check: str) -> Iterator[Mapping[str, object]]:
    """Yield the arguments of each case, as the contract tells them to pytest."""
    names = list(inspect.signature(getattr(contract, f"test_{check}")).parameters)
    cases: list[tuple[str, Sequence[object]]] = []
    asked: Any = SimpleNamespace(fixturenames=names, parametrize=lambda name, values: cases.append((name, values)))
    contract().pytest_generate_tests(asked)
    if not cases:
        yield {}
    for name, values in cases:
        yield from ({name: value} for value in values)


def fault_of(check: Callable[[], object]) -> str:
    """Return why a check fails, "" if it passes or does not concern this kind of sink."""
    try:
        check()
    except pytest.skip.Exception:
        return ""
    except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - a sink may raise anything
        return str(error) or type(error).__name__
    return ""


def faults(contract: SinkContract, target: Any, *checks: str) -> dict[str, str]:
    """Return what fails of these checks, on one target after the other."""
    found = {check: fault_of(partial(getattr(contract, f"test_{check}"), contract.another(target))) for check in checks}
    return {check: fault for check, fault in found.items() if fault}


@dataclass
class Outcomes:
    """The tests of a contract by their results, each with its name and its arguments."""

    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def run(contract: SinkContract, new_target: Callable[[], Any]) -> Outcomes:
    """Run each test of a contract over a new target, without a second pytest."""
    outcomes = Outcomes()
    for check in checks_of(type(contract)):
        for case in cases_of(type(contract), check):
            told = " ".join([f"test_{check}", *map(str, case.values())])
            fault = fault_of(partial(getattr(contract, f"test_{check}"), new_target(), **case))
            if fault:
                outcomes.failed[told] = fault
            else:
                outcomes.passed.append(told)
    return outcomes
