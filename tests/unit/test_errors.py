"""Every error class is in the tree at the top of its file, is public, and reaches the driver as it was raised."""

from __future__ import annotations

import inspect
import pickle
import re
from collections.abc import Iterator

import pytest

import wal_sink
from wal_sink import errors

CLASSES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__]
OPTIONS = {"term": 7, "after_s": 2.5, "never_committed": True}
"""A value for each further argument of an error."""


def tree(text: str) -> Iterator[tuple[str, str]]:
    """Yield each class of the drawn tree with its parent, "" for the roots."""
    above: list[tuple[int, str]] = [(-1, "")]
    for line in text.splitlines():
        if drawn := re.match(r"( {4}[ │├└─]*)(\w+) {2,}\S| {4}(\w+)$", line):
            depth, name = len(drawn[1] or " " * 4), drawn[2] or drawn[3]
            while above[-1][0] >= depth:
                above.pop()
            yield name, above[-1][1]
            above.append((depth, name))


def test_the_tree_at_the_top_shows_every_class_under_its_parent() -> None:
    ours = {kind.__name__ for kind in CLASSES}
    expected = {kind.__name__: kind.__base__.__name__ if kind.__base__ else "" for kind in CLASSES}
    drawn = dict(tree(errors.__doc__ or ""))
    assert drawn == {name: parent if parent in ours else "" for name, parent in expected.items()}


def test_every_class_is_public() -> None:
    assert {kind.__name__ for kind in CLASSES} <= set(wal_sink.__all__)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_an_error_comes_from_an_executor_as_it_was_raised(kind: type[Exception]) -> None:
    arguments = inspect.signature(kind.__init__).parameters.values()
    further = {each.name: OPTIONS[each.name] for each in arguments if each.kind is each.KEYWORD_ONLY}
    raised = kind("batch 7", **further)
    assert (vars(raised) == vars(kind("batch 7"))) is (not further)
    arrived = pickle.loads(pickle.dumps(raised))  # noqa: S301 - made in the line itself
    assert (type(arrived), str(arrived), vars(arrived)) == (kind, "batch 7", vars(raised))
