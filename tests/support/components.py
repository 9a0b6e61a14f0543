"""What a test needs besides Python packages: a JDK, a broker, a database server.

On a developer's machine a missing component skips the tests that need it, with the line that tells how to get it. In CI
(`WAL_SINK_TEST_ALL=1`) nothing may be skipped for that reason: there a missing component fails.
"""

from __future__ import annotations

import os

import pytest

TEST_ALL = "WAL_SINK_TEST_ALL"


def require(component_present: bool, how_to_get_it: str) -> None:
    """Skip the calling test or fixture when what it needs is missing; fail it instead where everything must run."""
    if component_present:
        return
    if os.environ.get(TEST_ALL) == "1":
        pytest.fail(f"{TEST_ALL}=1 allows no skipping: {how_to_get_it}", pytrace=False)
    pytest.skip(how_to_get_it)
