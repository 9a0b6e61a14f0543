"""The kit sees what it is there to see: each sink planted here breaks its contract at one point, and that is reported.

The contract runs as a user runs it: with pytest, in a separate process.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.support import wrong_sinks, wrong_two_phase
from tests.support.processes import CHECKOUT, python_environment
from tests.support.wrong_sinks import Contract
from wal_sink.testing import SinkContract

MODULES = (wrong_sinks, wrong_two_phase)
SINKS = [CHECKOUT / "tests" / "support" / f"{module.__name__.rpartition('.')[2]}.py" for module in MODULES]
CONTRACTS: list[type[Contract]] = [
    thing
    for module in MODULES
    for name, thing in inspect.getmembers(module, inspect.isclass)
    if name.startswith("Test") and issubclass(thing, Contract)
]
LIMIT_S = 550.0


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The contract's tests that failed, by class of the modules of wrong sinks."""
    report = tmp_path_factory.mktemp("kit") / "report.xml"
    # As pytest has it by itself: a sink may have no column types to refuse.
    options = ["-q", "-p", "no:cacheprovider", "-o", "empty_parameter_set_mark=skip", f"--junitxml={report}"]
    command = [sys.executable, "-m", "pytest", *options, *map(str, SINKS)]
    done = subprocess.run(
        command, cwd=CHECKOUT, env=python_environment(), capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr[-3000:]
    return dict(_failures(report))


def _failures(report: Path) -> Iterator[tuple[str, set[str]]]:
    cases = list(ET.parse(report).iter("testcase"))  # noqa: S314 - pytest's own
    for contract in CONTRACTS:
        own = [case for case in cases if case.attrib["classname"].endswith(f".{contract.__name__}")]
        assert len(own) >= len(_tests()), f"{contract.__name__} did not run"
        bad = [case for case in own if case.find("failure") is not None or case.find("error") is not None]
        yield contract.__name__, {case.attrib["name"].partition("[")[0].removeprefix("test_") for case in bad}


def _tests() -> set[str]:
    return {name.removeprefix("test_") for name in dir(SinkContract) if name.startswith("test_")}


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.__name__)
def test_exactly_what_a_sink_breaks_is_reported(contract: type[Contract], failed: dict[str, set[str]]) -> None:
    assert failed[contract.__name__] == contract.fails


def test_every_test_of_the_contract_has_a_sink_that_fails_it() -> None:
    assert {name for contract in CONTRACTS for name in contract.fails} == _tests()


def test_the_kit_needs_neither_spark_nor_a_backend_nor_until_the_contract_pytest() -> None:
    program = (
        "import sys, wal_sink.testing as kit; kit.query_into(print); "
        "print(sorted({'pytest', 'pyspark', 'wal_sink_backends'} & set(sys.modules))); "
        "print(kit.SinkContract.__name__, 'pytest' in sys.modules, 'pyspark' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=python_environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n")[:2] == ["[]", "SinkContract True False"]
