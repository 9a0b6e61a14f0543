"""The steps of a committer and of its thread are numbered alike in docs/ARCHITECTURE.md and in the code."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path

from tests.house.protocol import Committer, CommitterThread

ARCHITECTURE = Path(__file__).resolve().parents[2] / "docs" / "ARCHITECTURE.md"


def in_code(function: Callable[..., object]) -> list[str]:
    """The steps that comments name, such as "1. Gate"."""
    return re.findall(r"# .*?\b(\d\. [A-Z]\w+)", inspect.getsource(function))


def in_document(after: str) -> list[str]:
    """The steps of the first numbered list after a text."""
    _, _, rest = ARCHITECTURE.read_text().partition(after)
    numbered = re.search(r"(?m)^\d\. .*(?:\n(?:\d\. | ).*)*", rest)
    assert numbered is not None, after
    return re.findall(r"(?m)^(\d\. [A-Z]\w+)", numbered[0])


def test_the_document_numbers_the_steps_as_the_code_does() -> None:
    committer, thread = in_code(Committer.deliver_next), in_code(CommitterThread._drive)
    assert (len(committer), len(thread)) == (6, 5)
    assert in_document("**Commit batch N**") == committer
    assert in_document("**A committer**") == thread
