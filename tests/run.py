"""`make test` and `make test-all`: the tests in groups, a few side by side, one pytest for each group.

    python -m tests.run quick    # tests/proof, and every test that is not slow
    python -m tests.run all      # that, unless it passed on these very sources, and then the rest

A group has one Spark, and one server of each kind, for all its tests. A worker of pytest-xdist would have its own, and
would collect every test. The last group of each kind has every file that no other one names: none is forgotten.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import queue
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.components import STARTED, TEST_ALL, missing
from tests.support.covering import FOLDERS
from tests.support.processes import CHECKOUT
from tests.support.servers.ports import LANE

WORK = CHECKOUT / ".cache" / "tests"
PASSED = WORK / "quick.json"
"""Of which sources the quick tests passed."""
SOURCES = (
    *("wal_sink", "backends", "tests", "examples", "docs", "docs_site", "specs", "benchmarks", ".ci", ".github"),
    *("pyproject.toml", "constraints.txt", "mkdocs.yml", "Makefile", "README.md", "CONTRIBUTING.md", "CHANGELOG.md"),
)
LIMIT_S = 3600.0
"""For one group. A test that hangs ends after ten minutes by itself (`timeout` in pyproject.toml)."""
_COUNT = re.compile(r"(\d+) (passed|failed|skipped|error|errors|xfailed)\b")
_DOTS = re.compile(r"[.sxXEF]+ *(\[ *\d+%\])?")


@dataclass(frozen=True, slots=True)
class Group:
    """Tests that run in one process."""

    name: str
    paths: Sequence[str]
    """Below tests/. None: everything that no other group of the same marks names."""
    chosen: str
    """The expression of marks."""
    covers: bool = False
    """Whether its tests count for the coverage of the core."""


QUICK = "not slow"
SLOW = "slow"
QUICK_GROUPS = (
    Group("units", ["unit"], QUICK, covers=True),
    Group("simulation", ["simulation"], QUICK, covers=True),
    Group("proof", ["proof", "spark"], QUICK, covers=True),
    Group("documents and contracts", (), QUICK),
)
"""Those that take longest come first, here and below, so that no lane is left alone at the end."""
SPARK = ("bad_input", "data_source", "inline_rows", "spark_*", "staging", "types", "two_phase", "wrap*", "wrong_calls")
DRIVERS = (
    *("backends_on_spark", "beside_spark", "cloud_stores", "connect", "every_spark"),
    *("forks", "kills", "pipelines"),
)
EXAMPLES = ("code_blocks", "demo", "examples", "malicious_manifest", "readme", "testing_guide")
CLUSTER = ("cluster*", "lost_tasks", "speculation")
SLOW_GROUPS = (
    Group("examples", [f"integration/test_{name}.py" for name in EXAMPLES], SLOW),
    Group("drivers", [f"integration/test_{name}.py" for name in DRIVERS], SLOW),
    Group("Spark", [f"integration/test_{name}.py" for name in SPARK], SLOW),
    Group("cluster", [f"integration/test_{name}.py" for name in CLUSTER], SLOW),
    Group("units that take long", [folder for folder in FOLDERS if "/" not in folder], SLOW, covers=True),
    Group("units with a server", [folder for folder in FOLDERS if "/" in folder], SLOW, covers=True),
    Group("chaos", ["chaos"], SLOW),
    Group("Kafka", ["contract/test_kafka*.py", "integration/test_kafka*.py"], SLOW),
    Group("SQL", ["contract/test_sql*.py", "integration/sql"], SLOW),
    Group("stores", ["contract"], SLOW),
    Group("all others", (), SLOW),
)


def main() -> None:
    """Run the tests, and leave with 1 if one of them failed."""
    parser = argparse.ArgumentParser(description="Run the tests in groups, a few side by side.")
    parser.add_argument("which", choices=["quick", "all"])
    parser.add_argument("--lanes", type=int, help="groups side by side; default: 2 quick ones, 3 slow ones")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32), help="of the order")
    given = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    sys.exit(0 if _run(given.which, given.lanes, given.seed, began) else 1)


def _run(which: str, lanes: int | None, seed: int, began: float) -> bool:
    digest = digest_of_sources()
    run = Run(seed)
    if which == "all" and passed_before(digest):
        run.carry_over([group.name for group in QUICK_GROUPS])
        print("the quick tests passed on these sources before: make test", flush=True)
    else:
        PASSED.unlink(missing_ok=True)
        run.groups(QUICK_GROUPS, lanes or 2)
        if run.green:
            PASSED.write_text(json.dumps({"sources": digest}))
    if which == "all":
        run.groups(SLOW_GROUPS, lanes or 3)
        run.coverage()
        run.products()
    counts = run.counts
    print(f"seed {seed} (the order again: python -m tests.run {which} --seed {seed}), {time.monotonic() - began:.0f} s")
    failed = counts["failed"] + counts["error"] + counts["errors"] + len(run.faults)
    print(f"{counts['passed']} passed, {failed} failed, {counts['skipped']} skipped", flush=True)
    return run.green


def digest_of_sources() -> str:
    """Return a number for all that a test may read of this checkout, and for the interpreter."""
    found = hashlib.sha256(sys.version.encode())
    for top in SOURCES:
        place = CHECKOUT / top
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if path.is_file() and "__pycache__" not in path.parts:
                found.update(f"{path.relative_to(CHECKOUT)}\0{path.stat().st_mode}\0".encode() + path.read_bytes())
    return found.hexdigest()


def passed_before(digest: str) -> bool:
    """Whether the quick tests passed on these sources, and left their coverage."""
    left = all(data_of(group.name).exists() for group in QUICK_GROUPS if group.covers)
    return left and PASSED.exists() and json.loads(PASSED.read_text()) == {"sources": digest}


def data_of(group: str) -> Path:
    """Return the file of a group's coverage."""
    return WORK / f"{group.replace(' ', '-')}.coverage"


def times_of(group: str) -> Path:
    """Return the file of the seconds that a group's functions took."""
    return WORK / f"{group.replace(' ', '-')}.times"


class Run:
    """The groups of one call, what they counted, and what failed."""

    def __init__(self, seed: int, *, also: str = "") -> None:
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self._seed = seed
        self._also = also
        self._names: list[str] = []
        self._lock = threading.Lock()

    @property
    def green(self) -> bool:
        """Whether nothing failed so far."""
        return not self.faults

    def carry_over(self, names: Sequence[str]) -> None:
        """Count what earlier groups left."""
        self._names.extend(names)

    def groups(self, groups: Sequence[Group], lanes: int) -> None:
        """Run groups, `lanes` of them side by side."""
        waiting: queue.SimpleQueue[Group] = queue.SimpleQueue()
        for group in groups:
            waiting.put(group)
        self._names.extend(group.name for group in groups)

        def lane(number: int) -> None:
            while True:
                try:
                    group = waiting.get_nowait()
                except queue.Empty:
                    return
                self._group(group, f"{number}/{lanes}")

        threads = [threading.Thread(target=lane, args=(number,)) for number in range(lanes)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _group(self, group: Group, lane: str) -> None:
        began, log = time.monotonic(), WORK / f"{group.name.replace(' ', '-')}.log"
        data_of(group.name).unlink(missing_ok=True)
        notes = WORK / f"{group.name.replace(' ', '-')}.started"
        notes.unlink(missing_ok=True)
        environment = {**os.environ, LANE: lane, STARTED: str(notes), "COVERAGE_FILE": str(data_of(group.name))}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of Pythons are started: each would compile all
        with log.open("wb") as output:
            child = subprocess.Popen(
                command(group, self._seed, self._also),
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=CHECKOUT,
            )
            code = _ended(child, LIMIT_S)
        self.note(group, code, log.read_text(errors="replace"), time.monotonic() - began)

    def note(self, group: Group, code: int, output: str, seconds: float) -> None:
        """Count what a group told in its last line, and show the rest of its output but for the dots."""
        lines = output.splitlines()
        ending = lines[-1] if lines else ""
        with self._lock:
            for number, outcome in _COUNT.findall(ending):
                self.counts[outcome] += int(number)
            if code:
                self.faults.append(group.name)
            told = "\n".join(line for line in lines[:-1] if not _DOTS.fullmatch(line)).strip()
            print(f"--- {group.name}: {ending.strip('= ')}{f' (exit code {code})' if code else ''}, {seconds:.0f} s")
            print(f"{told}\n" if told else "", end="", flush=True)

    def coverage(self) -> None:
        """Combine what the groups covered, and require every branch of the core."""
        data = [str(data_of(name)) for name in self._names if data_of(name).exists()]
        environment = {**os.environ, "COVERAGE_FILE": str(WORK / "whole.coverage")}
        for arguments in (["combine", "--keep", *data], ["report"]):
            done = subprocess.run(
                [sys.executable, "-m", "coverage", *arguments],
                env=environment,
                cwd=CHECKOUT,
                check=False,
                capture_output=True,
                text=True,
            )
            if done.returncode:
                self.faults.append("coverage")
                print(f"--- coverage of the committing core\n{done.stdout}{done.stderr}", flush=True)
                return
        print("--- branch coverage of the committing core: 100 %", flush=True)

    def products(self) -> None:
        """Tell which real servers ran. In CI, a whole run without one of them fails."""
        notes = [WORK / f"{name.replace(' ', '-')}.started" for name in self._names]
        started = sorted({line for note in notes if note.exists() for line in note.read_text().splitlines()})
        print(f"--- real servers: {', '.join(started)}", flush=True)
        if without := missing(started):
            print(f"--- not started: {', '.join(without)}; see tests/support/components.py", flush=True)
            if os.environ.get(TEST_ALL) == "1":
                self.faults.append("servers")


def command(group: Group, seed: int, also: str = "") -> list[str]:
    """Return the command that runs a group. `also`: a mark whose tests run, too."""
    cover = ["--cov", "--cov-report=", "--cov-fail-under=0"] if group.covers else []
    marks = f"{group.chosen} or {also}" if also else group.chosen
    options = ["-q", "-m", marks, "-p", "no:xdist", f"--randomly-seed={seed}", *cover]
    options += ["--times", str(times_of(group.name))]
    paths = files_of(group)
    if not group.paths:
        others = (one for one in (*QUICK_GROUPS, *SLOW_GROUPS) if one.chosen == group.chosen)
        named = (path for one in others for path in files_of(one) if not path.startswith("--"))
        paths = ["tests", *(f"--ignore={path}" for path in named)]
    return [sys.executable, "-m", "pytest", *options, *paths]


def files_of(group: Group) -> list[str]:
    """Return the files and folders of a group. One that an earlier group of the same marks has is not repeated."""
    earlier: set[str] = set()
    for one in (*QUICK_GROUPS, *SLOW_GROUPS):
        found = {str(path.relative_to(CHECKOUT)) for name in one.paths for path in CHECKOUT.glob(f"tests/{name}")}
        if one == group:
            inside = {f"--ignore={path}" for path in earlier if any(path.startswith(f"{top}/") for top in found)}
            return [*sorted(found - earlier), *sorted(inside)]
        if one.chosen == group.chosen:
            earlier |= found
    return []


def _ended(child: subprocess.Popen[bytes], limit_s: float) -> int:
    """Return the exit code. A child that is not over by then is interrupted, so that its servers end, then killed."""
    steps: tuple[tuple[float, Callable[[], None]], ...] = (
        (limit_s, lambda: child.send_signal(signal.SIGINT)),
        (120.0, child.kill),
    )
    for wait_s, end in steps:
        try:
            return child.wait(wait_s)
        except subprocess.TimeoutExpired:
            end()
    return child.wait() or 1


if __name__ == "__main__":
    main()
