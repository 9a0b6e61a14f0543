"""How Python blocks are found on a page, and which comments before them are accepted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.code_blocks import Block, blocks_in, blocks_of, pages

PAGE = "docs/writing-a-sink.md"
TEST = "tests/documents/test_writing_a_sink.py"


def page_with(mark: str) -> str:
    return f"# A page\n\n{mark}\n```python\nx = 1\n```\n\n- and\n\n  ```py\n  y = 2\n  ```\n\n```toml\nz = 3\n```\n"


def test_blocks_are_found_and_run_with_the_lines_of_the_page() -> None:
    assert list(blocks_in(page_with("so"), PAGE)) == [Block(PAGE, 5, "x = 1\n"), Block(PAGE, 11, "y = 2\n")]
    _, block = blocks_in(page_with(""), PAGE)
    assert block.source.splitlines().index("y = 2") + 1 == block.line


def test_a_block_says_why_it_does_not_run_or_names_the_test_that_runs_it() -> None:
    for space in ("", "\n"):
        first, second = blocks_in(page_with(f"<!-- not run: needs a broker,\n     see {TEST} -->{space}"), PAGE)
        assert (first.runs, first.not_run) == (False, f"needs a broker, see {TEST}")
        assert second.runs
    first, second = blocks_in(page_with(f"<!-- run by {TEST} -->"), PAGE)
    assert (first.runs, first.run_by) == (False, TEST)
    assert second.runs


def test_a_wrong_comment_is_an_error() -> None:
    for mark, why in [
        ("<!-- not run -->", "gives no reason"),
        ("<!-- not run: too slow -->", "gives no reason"),
        ("<!-- not run: see tests/documents/test_gone.py there -->", "no test tests/documents/test_gone.py"),
        (f"<!-- not run: see {TEST}::test_gone there -->", "no test tests/documents/test_writing_a_sink.py::test_gone"),
        ("<!-- run by somebody -->", "must name one test"),
        (f"<!-- run by {TEST} and others -->", "must name one test"),
        ("<!-- run by tests/documents/test_links.py -->", "does not name the page"),
        ("<!-- not run: for no block at all -->\n\nText\n", "no Python block follows"),
    ]:
        with pytest.raises(ValueError, match=why):
            list(blocks_in(page_with(mark), PAGE))
    with pytest.raises(ValueError, match="no Python block follows"):
        list(blocks_in("<!-- not run: for no block at all -->\n", PAGE))


def test_the_comments_of_every_page_are_right_and_its_code_can_be_compiled() -> None:
    assert [fault for page in pages() for fault in faults(page)] == []


def faults(page: str) -> Iterator[str]:
    try:
        blocks = blocks_of(page)
    except ValueError as error:  # a wrong comment
        yield str(error)
        return
    for block in blocks:
        try:
            compile(block.source, page, "exec")
        except SyntaxError as error:
            yield f"{page}:{error.lineno}: {error.msg}"
