"""Runs the tests of a cell, and keeps what they told."""

from __future__ import annotations

import hashlib
import json
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree as ET

import msgspec
import psutil
from msgspec.structs import replace

from tests.chaos.report import code_version
from tests.matrix.cells import MEASURED, Cell
from tests.matrix.environment import ASK_S, Environment, NotAvailableError
from tests.support.processes import CHECKOUT, Child, ChildError

LIMIT_S = 12 * 60.0
"""The longest time of the tests of one cell. Fetching and installing packages is not a part of it."""
PLACE = CHECKOUT / ".cache" / "matrix"
SOURCES = ("wal_sink", "backends")
WORKERS = 2
BAD = ("failure", "error")
"""The elements of pytest's XML that tell a failure."""
TOLD = 300
"""Characters of a failure that the report has."""
_ASK = """
import importlib.metadata, json, platform, pyspark, sys
told = {name: importlib.metadata.version(name) for name in sys.argv[1:]}
print(json.dumps({**told, "python": platform.python_version(), "pyspark": pyspark.__version__}))
"""

Outcome = Literal["passed", "failed", "out of time", "not run"]


class Result(msgspec.Struct, frozen=True):
    """The result of one run of a cell."""

    cell: str
    outcome: Outcome
    why: str = ""
    """The reason, unless it passed."""
    versions: dict[str, str] = {}
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    minutes: float = 0.0
    failures: list[str] = []
    skips: dict[str, int] = {}
    """The number of skipped tests, by reason."""
    date: str = ""
    code: str = ""
    """The commit that ran. A `+` says that the code differed from it."""
    sources: str = ""
    """A digest of the packages that ran."""


def sources() -> str:
    """Return a digest of the sources of the packages. A result of other sources does not count for these."""
    digest = hashlib.sha256()
    for path in sorted(file for folder in SOURCES for file in (CHECKOUT / folder).rglob("*.py")):
        digest.update(f"{path.relative_to(CHECKOUT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def read_results(place: Path) -> dict[str, Result]:
    """Return the kept results, by cell."""
    found = [msgspec.json.decode(file.read_bytes(), type=Result) for file in sorted(place.glob("*.json"))]
    return {result.cell: result for result in found}


def keep(result: Result, place: Path) -> None:
    """Keep a result in place of an earlier one of its cell."""
    hidden = place / f".{result.cell}"
    hidden.write_bytes(msgspec.json.format(msgspec.json.encode(result)))
    hidden.replace(place / f"{result.cell}.json")


def run(cell: Cell, place: Path, *, limit_s: float = LIMIT_S) -> Result:
    """Make the environment of a cell and run its tests there. Never raises for what a cell lacks or fails at."""
    found = Result(cell.name, "failed", date=f"{datetime.now(UTC):%Y-%m-%d}", code=code_version(), sources=sources())
    environment = Environment(cell)
    try:
        environment.make()
        found = replace(found, versions=_versions(environment))
    except NotAvailableError as error:
        return replace(found, outcome="not run", why=str(error))
    began = time.monotonic()
    xml = place / f"{cell.name}.xml"
    xml.unlink(missing_ok=True)
    outcome, why = _tests(environment, place, xml, limit_s)
    found = replace(found, outcome=outcome, why=why, minutes=round((time.monotonic() - began) / 60, 1))
    return judged(found, xml) if xml.exists() else found


def judged(found: Result, xml: Path) -> Result:
    """Return the result with what the tests told. A cell in which no test passed has not passed."""
    cases = list(ET.parse(xml).iter("testcase"))  # noqa: S314 - pytest wrote it a moment ago
    failures = [_told(case, part) for case in cases for part in case if part.tag in BAD]
    skips = Counter(part.get("message", "") for case in cases for part in case if part.tag == "skipped")
    passed = sum(not any(part.tag in {*BAD, "skipped"} for part in case) for case in cases)
    found = replace(
        found, passed=passed, failed=len(failures), skipped=skips.total(), failures=failures, skips=dict(skips)
    )
    if found.outcome == "passed" and (failures or not passed):
        return replace(found, outcome="failed", why="tests failed" if failures else "no test passed")
    return found


def _told(case: ET.Element, part: ET.Element) -> str:
    name = f"{case.get('classname', '')}.{case.get('name', '')}"
    return f"{name}: {' '.join(part.get('message', '').split())[:TOLD]}"


def _tests(environment: Environment, place: Path, xml: Path, limit_s: float) -> tuple[Outcome, str]:
    """Run pytest. Return how it ended, and why the cell did not pass."""
    cell = environment.cell
    variables = environment.variables()
    deadline = time.monotonic() + limit_s
    python = str(environment.python)
    pytest = [python, "-m", "pytest", "-q", "-n", str(WORKERS), "--dist", "worksteal", "--junitxml", str(xml)]
    options = ["-p", "no:cacheprovider", "-o", "junit_family=xunit1", "--durations=10"]
    options += [part for warning in cell.warnings for part in ("-W", warning)]
    options += [part for test in cell.deselected for part in ("--deselect", test)]
    programs = {
        "java": [python, "-m", "tests.support.programs.quick_java"],
        "tests": [*pytest, *options, *cell.tests],
    }
    for name, program in programs.items():
        log = place / f"{cell.name}.{name}.log"
        with Child(program, log=log, env=variables, cwd=CHECKOUT) as child:
            try:
                code = child.wait(max(0.0, deadline - time.monotonic()))
            except ChildError:
                _end(child.pid)
                return "out of time", f"{name} still ran after {limit_s / 60:g} minutes; see {log.name}"
        if code:
            last = (child.output.splitlines() or [""])[-1]
            return "failed", f"{name} ended with {code}: {last}"
    return "passed", ""


def _end(pid: int) -> None:
    """Kill a process and all its descendants, by their ids: programs of tests lead separate sessions."""
    try:
        first = psutil.Process(pid)
        family = [first, *first.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for one in family:
        try:
            one.kill()
        except psutil.NoSuchProcess:
            continue  # it ended meanwhile


def _versions(environment: Environment) -> dict[str, str]:
    """Ask the environment what it has. Raise `NotAvailableError` if that is not what the cell is."""
    cell = environment.cell
    asked = subprocess.run(
        [environment.python, "-c", _ASK, *MEASURED],
        env=environment.variables(),
        capture_output=True,
        text=True,
        timeout=ASK_S,
        check=False,
    )
    if asked.returncode != 0:
        raise NotAvailableError(f"the environment does not work: {asked.stderr.strip()[-500:]}")
    told: dict[str, str] = json.loads(asked.stdout)
    for wrong in wrong_versions(cell, told):
        raise NotAvailableError(wrong)
    return told


def wrong_versions(cell: Cell, told: dict[str, str]) -> Iterator[str]:
    """Yield what an environment has that its cell is not."""
    if told["pyspark"] != cell.spark:
        yield f"the environment has PySpark {told['pyspark']}, expected {cell.spark}"
    if not told["python"].startswith(f"{cell.python}."):
        yield f"the environment has Python {told['python']}, expected {cell.python}"


def summary(results: Sequence[Result]) -> str:
    """Return one line per result, for people who wait."""
    return "\n".join(map(_line, results))


def _line(result: Result) -> str:
    counts = f"{result.passed} passed, {result.failed} failed, {result.skipped} skipped, {result.minutes:g} min"
    return f"{result.cell}: {result.outcome}, {counts}" + (f"; {result.why}" if result.why else "")
