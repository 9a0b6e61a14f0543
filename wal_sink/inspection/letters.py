"""How many rows of a sink wait in dead letters, and since when."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import dropwhile, groupby, islice
from operator import itemgetter
from typing import TypeAlias

from wal_sink.dead_letters.files import find_dead_letter
from wal_sink.errors import ConfigError, CorruptError
from wal_sink.reporting.texts import text_of
from wal_sink.runtime.side_by_side import SideBySide
from wal_sink.stores.base import Store
from wal_sink.wal import paths

MOST_LETTERS = 16
"""Dead letters of a sink that one look reads, so that its cost does not grow without a bound."""
MOST_BYTES = 16 * 1024 * 1024
"""After so many bytes of rows a look begins to read no more letters."""
_AT_ONCE = 4
NOT_COUNTED = "the sink is retired: its dead letters are not counted"


@dataclass(frozen=True, slots=True)
class Letters:
    """The dead letters of one sink. A file without rows is none: it only tells that a process took a chunk over."""

    due: int = 0
    """Those with rows that were not sent again."""
    rows: int = 0
    """Their rows. A row that was refused several times counts once."""
    since: str | None = None
    """When the oldest of them was kept; None if there is none."""
    replayed: int = 0
    """Dead letters that were sent again and not deleted."""
    is_exact: bool = True
    """False: some were not read, or cannot be read. These are not counted, so there are at least as many."""
    files: int = 0
    """Files that were not sent again, as listed. There are at most so many dead letters. A file may have no rows."""
    note: str = ""
    """Why the numbers are not exact; empty if they are."""

    def may_exceed(self, most: int) -> bool:
        """Whether more wait than allowed, or it cannot be excluded."""
        return self.due > most or (not self.is_exact and self.files > most)


@dataclass(frozen=True, slots=True)
class _Content:
    rows: frozenset[int]
    created: str
    bytes: int


_File: TypeAlias = tuple[str, bool]
"""A file's path, and whether it was sent again. Which of its rows count depends on the newer files of its chunk."""
_Seen: TypeAlias = "Mapping[str, _Content | str | None]"
"""Of each file that was read its content, or why it cannot be read. None: it was deleted meanwhile."""


def read_letters(store: Store, folder: str, side_by_side: SideBySide, *, most: int = MOST_LETTERS) -> Letters:
    """Count the dead letters of a sink. One listing, and a read for each file that was not sent again: those of the
    oldest batches, `most` at most. One that is damaged is told and not counted.
    """
    root = paths.dead_letter_batches(folder)
    names = store.list(root, recursive=True)
    replayed = {name.removesuffix(paths.REPLAYED) for name in names if name.endswith(paths.REPLAYED)}
    chunks: list[list[_File]] = []
    for files in _by_chunk(names):
        found = [(f"{root}/{file}", file.removesuffix(".parquet") in replayed) for file in files]
        chunks.append(list(dropwhile(itemgetter(1), found))[::-1])
    seen = _seen(store, [path for files in chunks for path, _ in files], side_by_side, most)
    counted = [each for files in chunks for each in _due(files, seen)]
    note = _note(seen, sum(map(len, chunks)))
    return Letters(
        due=len(counted),
        rows=sum(rows for rows, _ in counted),
        since=min((created for _, created in counted), default=None),
        replayed=len(replayed),
        is_exact=not note,
        files=sum(not was_sent and seen.get(path, "") is not None for files in chunks for path, was_sent in files),
        note=note,
    )


def _seen(store: Store, files: Sequence[str], side_by_side: SideBySide, most: int) -> _Seen:
    """Read the first files, a few at once, until they are many or large."""
    seen: dict[str, _Content | str | None] = {}
    remaining = iter(files[:most])
    while some := list(islice(remaining, _AT_ONCE)):
        seen |= zip(some, side_by_side(partial(_content, store), some), strict=True)
        if sum(each.bytes for each in seen.values() if isinstance(each, _Content)) >= MOST_BYTES:
            break
    return seen


def _content(store: Store, path: str) -> _Content | str | None:
    try:
        letter = find_dead_letter(store, path)
    except (CorruptError, ConfigError) as error:
        return text_of(error)
    if letter is None:
        return None
    return _Content(frozenset(letter.chunk.rows), letter.created, letter.chunk.table.nbytes)


def _due(files: Sequence[_File], seen: _Seen) -> Iterator[tuple[int, str]]:
    """The rows of each dead letter of a chunk, and when it was kept; newest first. They end at the first file whose
    content is not known: it may have the same rows as the older ones.
    """
    newer: frozenset[int] = frozenset()
    for path, was_sent in files:
        content = seen.get(path, "not read")
        if isinstance(content, str):
            return
        if content is not None:
            own = content.rows - newer
            newer |= own
            if own and not was_sent:
                yield len(own), content.created


def _note(seen: _Seen, files: int) -> str:
    damaged = [content for content in seen.values() if isinstance(content, str)]
    parts = [f"cannot be read: {len(damaged)}, the first: {damaged[0]}"] if damaged else []
    if len(seen) < files:
        parts.append(f"read: {len(seen)} of {files} files")
    return "; ".join(parts)


def _by_chunk(names: Sequence[str]) -> Iterator[list[str]]:
    """The dead letters of each chunk, oldest first. One of unknown outcome has no number, and comes before all."""
    found = []
    for name in names:
        batch, _, file = name.rpartition("/")
        parsed = paths.parse_dead_letter(file)
        if parsed is not None:
            found.append(((batch, *parsed[:3]), -1 if parsed.number is None else parsed.number, name))
    for _, files in groupby(sorted(found), key=lambda each: each[0]):
        yield [name for *_, name in files]
