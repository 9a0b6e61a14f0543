"""The Python blocks of README.md and of the pages below docs/: each runs in a test, or says why it does not.

The blocks of a page run in order, in one namespace, as a reader would type them (`programs/run_blocks.py`). They find:

- an empty current folder;
- `spark`, a session, and `orders`, a streaming DataFrame (id long, name string, amount double) of 60 rows in 2 files.
  A query over it with `trigger(availableNow=True)` ends. A query without it runs until the block stops it;
- `URL`, an API on 127.0.0.1 that takes POSTs and ignores an `Idempotency-Key` that it has seen;
- if a block names `s3://lake` or `s3a://lake`: this bucket on moto's server, with credentials in the environment.

A block that does not run has one of these comments directly before it:

    <!-- not run: needs a Kafka broker; tests/integration/test_kafka_sink.py runs the same sink -->
    <!-- run by tests/integration/test_testing_guide.py -->

A reason has at least three words. Each test that a comment names must exist. A test that runs blocks of a page must
name the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.support.documents import check_exists
from tests.support.processes import CHECKOUT

README = "README.md"
PYTHON = ("python", "python3", "py")
BUCKET = "lake"
_MARK = re.compile(r"<!--\s*(not run|run by)\b:?(.*?)-->", re.DOTALL)
_TEST = re.compile(r"tests/[\w/]+\.py(?:::\w+)?")
_LEAST_WORDS = 3


@dataclass(frozen=True, slots=True)
class Block:
    """One Python block of a page."""

    page: str
    """The page's path from the top of the checkout."""
    line: int
    """The line of the page where the code begins, counted from 1."""
    code: str
    not_run: str = ""
    """The reason why no test runs it."""
    run_by: str = ""
    """The test that runs it in another way."""

    @property
    def runs(self) -> bool:
        """Tell whether the block runs with its page."""
        return not self.not_run and not self.run_by

    @property
    def source(self) -> str:
        """The code, with as many empty lines before it as there are lines on the page: errors name the page's line."""
        return "\n" * (self.line - 1) + self.code


def pages() -> list[str]:
    """Return the pages whose blocks have to run."""
    below_docs = (path.relative_to(CHECKOUT).as_posix() for path in (CHECKOUT / "docs").rglob("*.md"))
    return [README, *sorted(below_docs)]


@cache
def blocks_of(page: str) -> Sequence[Block]:
    """Return every Python block of a page of the checkout, in order. A wrong comment is an error."""
    return tuple(blocks_in((CHECKOUT / page).read_text(), page))


def blocks_in(text: str, page: str) -> Iterator[Block]:
    """Yield every Python block of a text."""
    before: Token | None = None
    for token in MarkdownIt().parse(text):
        is_python = token.type == "fence" and token.info.split()[:1] in [[name] for name in PYTHON]
        mark = _MARK.search(before.content) if before is not None and before.type == "html_block" else None
        if is_python:
            yield _block(token, mark, page)
        elif mark is not None:
            raise ValueError(f"{page}: no Python block follows {mark[0]!r}")
        before = token
    if before is not None and before.type == "html_block" and _MARK.search(before.content):
        raise ValueError(f"{page}: no Python block follows {before.content!r}")


def _block(token: Token, mark: re.Match[str] | None, page: str) -> Block:
    assert token.map is not None
    line = token.map[0] + 2  # counted from 1, after the line of the fence
    if mark is None:
        return Block(page, line, token.content)
    kind, told = mark[1], " ".join(mark[2].split())
    tests = _TEST.findall(told)
    if missing := [test for test in tests if not _test_exists(test)]:
        raise ValueError(f"{page}:{line}: no test {missing[0]}, which {mark[0]!r} names")
    if kind == "not run":
        if len(told.split()) < _LEAST_WORDS:
            raise ValueError(f"{page}:{line}: {mark[0]!r} gives no reason")
        return Block(page, line, token.content, not_run=told)
    if tests != [told]:
        raise ValueError(f"{page}:{line}: {mark[0]!r} must name one test and nothing else")
    if page not in (CHECKOUT / told.partition("::")[0]).read_text():
        raise ValueError(f"{page}:{line}: {told} does not name the page")
    return Block(page, line, token.content, run_by=told)


def _test_exists(test: str) -> bool:
    return check_exists(test) if "::" in test else Path(CHECKOUT / test).is_file()
