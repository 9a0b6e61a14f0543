"""Components that tests need in addition to Python packages: a JDK, a broker, a database server.

On a developer's machine, a missing component skips the tests that need it, and the reason says how to install it. In CI
(`WAL_SINK_TEST_ALL=1`) a missing component fails them: nothing may be skipped for that reason.
"""

from __future__ import annotations

import os

import pytest

TEST_ALL = "WAL_SINK_TEST_ALL"


def require(component_present: bool, how_to_get_it: str) -> None:
    """Skip the calling test or fixture if its component is missing. Fail it where everything must run."""
    if component_present:
        return
    if os.environ.get(TEST_ALL) == "1":
        pytest.fail(f"{TEST_ALL}=1 allows no skipping: {how_to_get_it}", pytrace=False)
    pytest.skip(how_to_get_it)
