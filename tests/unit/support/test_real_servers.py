"""A whole run in CI that did without a real server fails, and says which."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.components import TEST_ALL, WHOLE, missing, require
from tests.support.processes import CHECKOUT

_NOTES = """
from tests.support.components import note_started
def test_one(): note_started({product!r}, "1.0")
"""


def run(folder: Path, products: list[str], *options: str, test_all: bool = True) -> subprocess.CompletedProcess[str]:
    """Run tests that start these products, as another project."""
    for number, product in enumerate(products):
        (folder / f"test_{number}.py").write_text(_NOTES.format(product=product))
    (folder / "pytest.ini").write_text("[pytest]\ntestpaths = .\n")
    plain = ["-p", "no:randomly", "-p", "no:cacheprovider", "-p", "tests.support.fixtures.real_servers"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", TEST_ALL))}
    environment |= {"PYTHONPATH": str(CHECKOUT)} | ({TEST_ALL: "1"} if test_all else {})
    command = [sys.executable, "-m", "pytest", *plain, *options]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500, check=False
    )


@pytest.mark.parametrize("workers", [["-n0"], ["-n2"]], ids=["one process", "two workers"])
def test_a_whole_run_without_one_of_the_servers_fails_and_names_it(tmp_path: Path, workers: list[str]) -> None:
    done = run(tmp_path, [product for product in WHOLE if product != "HDFS"], *workers)
    assert done.returncode == 1, done.stdout
    assert "not started: HDFS; see tests/support/components.py" in done.stdout
    assert "started: Apache Kafka 1.0, Azurite 1.0" in done.stdout


def test_a_whole_run_with_all_of_them_passes_and_lists_them(tmp_path: Path) -> None:
    done = run(tmp_path, list(WHOLE), "-n0")
    assert done.returncode == 0, done.stdout
    assert "started: Apache Kafka 1.0, Azurite 1.0" in done.stdout
    assert "not started" not in done.stdout


@pytest.mark.parametrize(("options", "test_all"), [(["-k", "test_one"], True), (["test_0.py"], True), ([], False)])
def test_a_part_of_the_tests_or_a_run_of_a_developer_may_do_without(
    tmp_path: Path, options: list[str], test_all: bool
) -> None:
    assert run(tmp_path, ["Redis"], "-n0", *options, test_all=test_all).returncode == 0


def test_every_product_counts() -> None:
    assert missing([f"{product} 1" for product in WHOLE]) == []
    assert missing([]) == list(WHOLE)


@pytest.mark.parametrize(("test_all", "outcome"), [("1", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_a_missing_component_fails_where_all_must_run_and_skips_elsewhere(
    monkeypatch: pytest.MonkeyPatch, test_all: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setenv(TEST_ALL, test_all)
    require(True, "present")
    with pytest.raises(outcome, match="apt-get install it"):
        require(False, "apt-get install it")
