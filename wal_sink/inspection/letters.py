"""How many rows of a sink wait in dead letters, and since when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from wal_sink.dead_letters.files import find_dead_letter
from wal_sink.stores.base import Store
from wal_sink.wal import paths

MOST_LETTERS = 256
"""Dead letters of a sink that one look reads, so that its cost does not grow without a bound."""


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
    """False: there are more files than one look reads, and those that were not read are not counted."""


def read_letters(store: Store, folder: str, *, most: int = MOST_LETTERS) -> Letters:
    """Count the dead letters of a sink. One listing, and a read for each file that was not sent again, `most` at most.

    Raises `CorruptError` if one cannot be read.
    """
    root = paths.dead_letter_batches(folder)
    names = store.list(root, recursive=True)
    replayed = {name.removesuffix(paths.REPLAYED) for name in names if name.endswith(paths.REPLAYED)}
    due, rows, since, read = 0, 0, None, 0
    for files in _by_chunk(names):
        is_sent = [file.removesuffix(_LETTER) in replayed for file in files]
        newer: set[int] = set()
        for file, was_sent in reversed(list(zip(files, is_sent, strict=True))[_first_due(is_sent) :]):
            if read == most:
                return Letters(due, rows, since, len(replayed), is_exact=False)
            read += 1
            letter = find_dead_letter(store, f"{root}/{file}")
            if letter is None:
                continue  # it was deleted meanwhile
            own = set(letter.chunk.rows) - newer
            newer |= own
            if own and not was_sent:
                due, rows = due + 1, rows + len(own)
                since = letter.created if since is None else min(since, letter.created)
    return Letters(due, rows, since, len(replayed))


_LETTER = ".parquet"


def _first_due(is_sent: Sequence[bool]) -> int:
    """The index of the first file that was not sent again: which rows it has depends on the files after it alone."""
    return is_sent.index(False) if False in is_sent else len(is_sent)


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
