"""The archives that the tests of this folder look into are built once."""

from __future__ import annotations

import pytest

from tests.packaging.archives import Archives, build_here
from tests.support.processes import CHECKOUT


@pytest.fixture(scope="session")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Archives:
    """Build wheel and sdist of the checkout. A test that uses them starts a process, and has the mark for it."""
    folder = tmp_path_factory.mktemp("dist")
    build_here(CHECKOUT, folder, "sdist", "wheel")
    return Archives.in_folder(folder)
