"""`SinkContract` explains wrong uses, and a user may set some of its attributes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from tests.support.contracts import FoldedContract, faults
from tests.support.wrong_sinks import FORGETS, WAKES
from wal_sink import Chunk, Sink
from wal_sink.testing import SinkContract


class Rounding(Sink):
    """Into a target that keeps whole seconds."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def write(self, chunk: Chunk) -> None:
        self.rows += [
            {
                name: value.replace(microsecond=0) if hasattr(value, "microsecond") else value
                for name, value in row.items()
            }
            for row in chunk.table.to_pylist()
        ]


class Contract(SinkContract):
    def make_sink(self, target: list[dict[str, Any]]) -> object:
        return Rounding(target)

    def rows_in(self, target: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return target


def test_one_table_is_too_few() -> None:
    class OneTable(Contract):
        def tables(self) -> list[pa.Table]:
            return [pa.table({"id": [1, 2]})]

    with pytest.raises(
        pytest.fail.Exception, match=r"expected: two tables with rows(?s:.*)tables\(\) returned tables of \[2\] rows"
    ):
        OneTable().test_a_second_one_works_beside_it([])


@pytest.mark.parametrize(("argument", "attribute"), [("column_type", "column_types"), ("names", "column_names")])
def test_an_unknown_column_is_refused_by_name(argument: str, attribute: str) -> None:
    contract = type("Typo", (Contract,), {attribute: ("varchar",)})()
    metafunc: Any = SimpleNamespace(fixturenames=[argument])

    with pytest.raises(pytest.UsageError, match=rf"Typo\.{attribute}: \['varchar'\] are not in \["):
        contract.pytest_generate_tests(metafunc)


def test_what_a_target_alters_is_told_unless_it_is_expected() -> None:
    class Expected(Contract):
        def same_value(self, sent: Any, found: Any) -> bool:
            whole = sent.replace(microsecond=0) if hasattr(sent, "microsecond") else sent
            return super().same_value(whole, found)

    with pytest.raises(pytest.fail.Exception, match=r"as they were sent(?s:.*)override same_value\(sent, found\)"):
        Contract().test_a_column_of_this_type_is_taken_or_refused_by_name([], "timestamp")
    Expected().test_a_column_of_this_type_is_taken_or_refused_by_name([], "timestamp")


def test_what_goes_wrong_already_is_no_reason_to_skip() -> None:
    class Nothing(Contract):
        def make_sink(self, target: list[dict[str, Any]]) -> object:  # noqa: ARG002
            return lambda chunk: None  # noqa: ARG005

    with pytest.raises(pytest.fail.Exception, match="the undisturbed run fails: nothing happened"):
        Nothing().test_a_process_may_die_at_any_point([])


@pytest.mark.parametrize(("check", "found"), [(WAKES, "holds; found: repeats"), (FORGETS, "found: cannot be seen")])
def test_a_ready_sink_with_another_verdict_than_the_recorded_one_fails(check: str, found: str) -> None:
    class Ready(FoldedContract):
        law = "[Kafka](sinks/kafka.md)"

        def make_sink(self, target: list[dict[str, Any]]) -> object:
            return Rounding(target)

        def rows_in(self, target: list[dict[str, Any]]) -> list[dict[str, Any]]:
            return target

        def tables(self) -> list[pa.Table]:
            return [pa.table({"id": [1, 2, 3]}), pa.table({"id": [4]})]

    fault = faults(Ready(), [], check)[check]
    assert fault.startswith("laws.toml, [Kafka](sinks/kafka.md), ")
    assert found in fault
