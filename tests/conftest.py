"""Fixtures of all tests. `tests.components.require` decides between skipping and failing for a missing component."""

import gc
from pathlib import Path

import pytest

pytest_plugins = [
    "tests.fixtures_dynamodb",
    "tests.fixtures_http",
    "tests.fixtures_kafka",
    "tests.fixtures_redis",
    "tests.fixtures_s3",
    "tests.fixtures_spark",
    "tests.fixtures_sql",
    "tests.simulation.telling",
]

COVERING = ("unit", "simulation")
"""Folders whose tests have to reach every branch of the core; under the others' tests it is not watched, for speed."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.relative_to(here).parts[0] not in COVERING:
            item.add_marker(pytest.mark.no_cover)


def pytest_collection_finish() -> None:
    """What thousands of collected tests and their modules hold, no collection of garbage has to look at again."""
    gc.collect()
    gc.freeze()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """The same for what a module's tests leave behind: crashes that are played collect garbage thousands of times."""
    if nextitem is not None and nextitem.path != item.path:
        gc.collect(1)
        gc.freeze()
