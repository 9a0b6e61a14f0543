"""The pages of the ready sinks have one pattern."""

from __future__ import annotations

import re

import pytest

from tests.support.processes import CHECKOUT

PAGES = ("sql", "kafka", "redis", "http", "dynamodb", "delta", "iceberg", "files")
PATTERN = "Set on the target, Example, Options, Limits, What no ledger can see, Sizes"


@pytest.mark.parametrize("page", PAGES)
def test_a_page_begins_with_its_promise_and_has_the_headings_of_all(page: str) -> None:
    text = re.sub(r"```.*?```", "", (CHECKOUT / f"docs/sinks/{page}.md").read_text(), flags=re.DOTALL)
    _, promise, *_ = text.split("\n\n")
    assert re.fullmatch(r"[^.]*\bexactly once\b[^.]*\.", promise), promise
    assert ", ".join(re.findall(r"^## (.+)", text, flags=re.MULTILINE)) == PATTERN
