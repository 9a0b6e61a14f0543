"""Components that tests need in addition to Python packages: a JDK, a broker, a database server.

On a developer's machine, a missing component skips the tests that need it, and the reason says how to install it. In CI
(`WAL_SINK_TEST_ALL=1`) a missing component fails them: nothing may be skipped for that reason, except for the servers
that `make servers` builds (support/go_programs.py). `WHOLE` lists what has to run then. The end of a test run prints
what ran: tests/support/fixtures/real_servers.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import pytest

TEST_ALL = "WAL_SINK_TEST_ALL"
STARTED = "WAL_SINK_TEST_STARTED"
"""The variable that names the file into which a group of tests writes the real products that it started."""
WHOLE = (
    "Apache Kafka",
    "Azurite",
    "DynamoDB Local",
    "HDFS",
    "MariaDB",
    "PgBouncer",
    "PostgreSQL",
    "Prometheus",
    "Redis",
    "SeaweedFS",
    "Spark",
    "Spark standalone cluster",
)
"""The real products that every whole run of the tests starts. In CI, a whole run without one of them fails."""
MOCKED = ("moto (S3, DynamoDB)", "the tests' HTTP service")
"""The servers that are not products: a mock of what cannot run here, and a service that has no product."""

_started: set[str] = set()


def require(component_present: bool, how_to_get_it: str) -> None:
    """Skip the calling test or fixture if its component is missing. Fail it where everything must run."""
    if component_present:
        return
    if os.environ.get(TEST_ALL) == "1":
        pytest.fail(f"{TEST_ALL}=1 allows no skipping: {how_to_get_it}", pytrace=False)
    pytest.skip(how_to_get_it)


def note_started(product: str, release: str) -> None:
    """Note that this process started a real product."""
    _started.add(f"{product} {release}")


def started() -> list[str]:
    """Return what this process started so far, each as "product release"."""
    return sorted(_started)


def missing(started: Iterable[str]) -> list[str]:
    """Return the products of `WHOLE` that are not among those that were started."""
    products = {each.rpartition(" ")[0] for each in started}
    return [product for product in WHOLE if product not in products]
