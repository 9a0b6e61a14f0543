"""The Python blocks of every page below docs/ run, or say why not. `tests/support/code_blocks.py` is the manual.

README's blocks run in `test_readme.py`, which then looks at the targets.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.code_blocks import README, blocks_of, pages
from tests.support.fixtures.code_blocks import PAGE_LIMIT, tell_counts

PAGES = [page for page in pages() if page != README]


def has_blocks_that_run(page: str) -> bool:
    try:
        return any(block.runs for block in blocks_of(page))
    except ValueError:
        return False  # a wrong comment: the second test reports it


RUNNING = [page for page in PAGES if has_blocks_that_run(page)]


@PAGE_LIMIT
@pytest.mark.spark
@pytest.mark.parametrize("page", RUNNING)
def test_the_blocks_of_a_page_run(page: str, run_page: Callable[[str], str]) -> None:
    run_page(page)


def test_every_block_of_the_other_pages_says_why_it_does_not_run(request: pytest.FixtureRequest) -> None:
    others, faults = [page for page in PAGES if page not in RUNNING], []
    for page in others:
        try:
            blocks_of(page)
        except ValueError as error:
            faults.append(str(error))
    assert others
    assert faults == []
    tell_counts(request.node, *others)
