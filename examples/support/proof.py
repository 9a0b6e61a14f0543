"""Compare the rows of a target with those of a batch computation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from support.home import Home

__all__ = ["assert_same_rows", "tell_of_changelogs"]


def assert_same_rows(found: Iterable[tuple[Any, ...]], expected: Iterable[tuple[Any, ...]], what: str) -> int:
    """Print and assert that both have the same rows, each as often. Returns their number."""
    ours, theirs = Counter(found), Counter(expected)
    lost, extra = theirs - ours, ours - theirs
    print(f"{what}: {theirs.total()} rows expected, {lost.total()} lost, {extra.total()} too many or wrong")
    for name, rows in (("lost", lost), ("too many or wrong", extra)):
        for row, times in sorted(rows.items(), key=repr)[:5]:
            print(f"  {name}: {row}, {times} times")
    assert ours == theirs, "the target differs from the batch computation"
    assert theirs, "nothing was expected, so this proves nothing"
    return theirs.total()


def tell_of_changelogs(home: Home) -> None:
    """Print what RocksDB's changelog checkpointing left in the checkpoint."""
    found = home.changelogs()
    assert found, "no changelog in the checkpoint: is the state in RocksDB?"
    print(f"state: {len(found)} changelogs of RocksDB in the checkpoint, such as {found[-1].relative_to(home.root)}")
