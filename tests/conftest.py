"""Fixtures of all tests.

`tests.support.components.require` decides between skipping and failing for a missing component.
"""

import functools
import gc
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.covering import FOLDERS

pytest_plugins = [
    "tests.support.fixtures.code_blocks",
    "tests.support.fixtures.guard",
    "tests.support.fixtures.real_servers",
    "tests.support.fixtures.servers",
    "tests.support.fixtures.spark",
    "tests.support.fixtures.times",
    "tests.support.fixtures.units",
    "tests.simulation.telling",
]

for _width in (
    "COLUMNS",
    "LINES",
):  # readline sets them for the workers of pytest-xdist, and the command line obeys them
    os.environ.pop(_width, None)

settings.register_profile("busy", deadline=None)  # based on Hypothesis's own profile, which differs in CI
settings.load_profile("busy")  # no example fails because the machine had other work

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # so `nohup make test &` starts it, and its programs inherit that
    signal.signal(signal.SIGINT, signal.default_int_handler)

PROOF_IDS = 60
SLOW_FOLDERS = ("integration", "chaos", "packaging")
"""Their tests start processes."""
SLOW_FIXTURES = tuple(f"tests.support.fixtures.{name}" for name in ("code_blocks", "servers", "spark"))
"""Each fixture of these modules starts a server or a Spark."""
SLOW = Path(__file__).with_name("slow.txt")
"""The functions that take more than a second of a processor: written by `make test-times`, edited by nobody."""


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests that only `make test-all` runs, and those that do not count for the coverage of the core."""
    if is_slow_by_rule(item):
        item.add_marker(pytest.mark.slow)
    elif not _is_proof(item) and item.nodeid.partition("[")[0] in _listed():
        item.add_marker(pytest.mark.slow)
        item.add_marker(pytest.mark.listed)
    folder = item.path.parent.relative_to(Path(__file__).parent).as_posix()
    if not f"{folder}/".startswith(tuple(f"{one}/" for one in FOLDERS)):
        item.add_marker(pytest.mark.no_cover)


def is_slow_by_rule(item: pytest.Item) -> bool:
    """Whether a test is too slow for `make test`, however fast it may be. The tests of tests/proof never are: they were
    chosen by hand.
    """
    folder = item.path.relative_to(Path(__file__).parent).parts[0]
    if folder in SLOW_FOLDERS or item.get_closest_marker("processes") is not None:
        return True
    return not _is_proof(item) and _uses_a_server(item)


def _is_proof(item: pytest.Item) -> bool:
    return item.path.relative_to(Path(__file__).parent).parts[0] == "proof"


def _uses_a_server(item: pytest.Item) -> bool:
    fixtures = getattr(item, "_fixtureinfo").name2fixturedefs.values() if hasattr(item, "_fixtureinfo") else ()  # noqa: B009
    return any(one.func.__module__ in SLOW_FIXTURES for found in fixtures for one in found)


@functools.cache
def _listed() -> frozenset[str]:
    lines = SLOW.read_text().splitlines()
    return frozenset(line.rpartition(" ")[2] for line in lines if not line.startswith("#"))


_IS_THERE = pytest.StashKey[bool]()
"""Whether pyspark was imported before this session began: a test may collect others in its process."""


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[_IS_THERE] = "pyspark" in sys.modules


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the proof small: what is added to it is paid at every run of `make test`."""
    proof = [item.nodeid for item in items if item.nodeid.startswith("tests/proof/")]
    if len(proof) > PROOF_IDS:
        raise pytest.UsageError(f"tests/proof has {len(proof)} ids, and at most {PROOF_IDS} are allowed")
    folders = {item.nodeid.split("/")[1] for item in items}
    if folders <= {"unit", "simulation"} and "pyspark" in sys.modules and not config.stash[_IS_THERE]:
        raise pytest.UsageError(f"a file of {folders}, or a helper of one, imports pyspark: move it to tests/spark")


def pytest_collection_finish() -> None:
    """Keep the objects of thousands of collected tests out of later garbage collections."""
    gc.collect()
    gc.freeze()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Do the same for the objects that a module's tests leave. Simulated crashes collect garbage thousands of times."""
    if nextitem is not None and nextitem.path != item.path:
        gc.collect(1)
        gc.freeze()
