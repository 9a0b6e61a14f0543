"""How Python blocks are found on a page, and which comments before them are accepted."""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.code_blocks import blocks_of, pages


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
