"""The Python blocks of every page below docs/ run, or say why not. `tests/support/code_blocks.py` is the manual.

README's blocks run in `test_readme.py`, which then looks at the targets.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.code_blocks import README, pages
from tests.support.fixtures.code_blocks import PAGE_LIMIT


@PAGE_LIMIT
@pytest.mark.spark
@pytest.mark.parametrize("page", [page for page in pages() if page != README])
def test_the_blocks_of_a_page_run(page: str, run_page: Callable[[str], str]) -> None:
    run_page(page)
