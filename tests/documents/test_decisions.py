"""`docs/decisions.md`: each decision is a short block with its reason, and its figures are those of the code."""

from __future__ import annotations

import importlib
import re

from tests.documents.test_contributing import wrong
from tests.support.processes import CHECKOUT

PAGE = (CHECKOUT / "docs" / "decisions.md").read_text()
MOST_WORDS = 120
FIGURES = {
    "the newest {} stay": "wal_sink.protocol.collect.KEPT_LOW_WATERS",
    "the nearest {} missing numbers": "wal_sink.log.terms.MOST_FILLED",
    "jumps {} beyond the evidence": "wal_sink.log.terms.MARGIN",
    "after {:.0f} s,": "wal_sink.protocol.committer.RELEASE_S",
    "up to {} batches": "wal_sink.protocol.progress.GROUP_BATCHES",
    "slot {:,}": "wal_sink.protocol.progress.MOST_LAST_DELIVERED_SLOTS",
    "at most {} KiB": "wal_sink.protocol.partitions.MOST_INLINE_BYTES",
    "less than {} MiB": "wal_sink.protocol.messages.SMALL_BATCH_BYTES",
    "{} at a time": "wal_sink.support.calls.MOST",
    "comes after {} ms": "wal_sink.protocol.committer_thread.FIRST_POLL_S",
}
"""The words of a figure, and the constant that it tells."""
UNITS = {" KiB": 1 / (1 << 10), " MiB": 1 / (1 << 20), " ms": 1000}


def blocks(text: str) -> dict[str, str]:
    """Return the text under each heading of a decision."""
    found = re.findall(r"^### (.+)\n((?:(?!#).*\n?)*)", text, flags=re.MULTILINE)
    assert len(dict(found)) == len(found), "two decisions have one heading"
    return dict(found)


def told(words: str, constant: str) -> str:
    module, _, name = constant.rpartition(".")
    value = getattr(importlib.import_module(module), name)
    factor = next((factor for unit, factor in UNITS.items() if f"{unit}" in words), None)
    return words.format(value if factor is None else round(value * factor))


def test_each_decision_is_short_tells_why_or_what_was_refused_and_names_files_that_exist() -> None:
    found = blocks(PAGE)
    assert found
    assert [title for title, text in found.items() if "**Why:**" not in text and "**Refused:**" not in text] == []
    assert [title for title, text in found.items() if len(text.split()) > MOST_WORDS] == []
    assert wrong(PAGE) == []


def test_the_figures_are_those_of_the_code() -> None:
    text = " ".join(PAGE.split())
    assert [sentence for words, of in FIGURES.items() if (sentence := told(words, of)) not in text] == []
