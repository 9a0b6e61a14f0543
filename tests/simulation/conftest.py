"""A fixture of all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.simulation.histories.playing import one_identity


@pytest.fixture(autouse=True)
def _identity() -> Iterator[None]:
    """Ask the system once for the identity of this process, not at each claim of a term."""
    with one_identity():
        yield
