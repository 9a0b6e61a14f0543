"""Dead letters that a person chooses: by batch, file, reason and age. They are sent again, or deleted.

All dead letters of a chunk are deleted together, the oldest first, since each row belongs to the newest one that holds
it: what an interrupted command left, the same command chooses again. The records that they were sent again go last, so
that none becomes due again. A chunk that holds a dead letter which the plan does not name stays: nobody chose that one.

A live query and a drain beside it: a committer reads the dead letters of batches only that it has not marked yet, and
these are never deleted. A replay of dead letters holds the term that a deletion claims first, so they exclude each
other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby

from wal_sink.log import paths
from wal_sink.log.holders import TakeOver, note_end
from wal_sink.log.log import Log
from wal_sink.log.terms import Term, claim
from wal_sink.operate.replay import DeadLetters, KeptLetter
from wal_sink.protocol.inventory import newest_marked
from wal_sink.protocol.letters import find_dead_letter
from wal_sink.protocol.location import refuse_copy
from wal_sink.protocol.sinks import read_names

MOST_CHUNKS = 10_000
"""Chunks whose dead letters one command deletes, since they are in memory."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which dead letters. Several conditions must all hold; none: every dead letter."""

    batch_id: int | None = None
    file: str = ""
    """Name of a file, as the list of dead letters shows it."""
    reason: str = ""
    """A text that the reason of every row contains."""
    before: str = ""
    """ISO 8601, UTC: only dead letters that were kept before."""

    def holds(self, kept: KeptLetter) -> bool:
        """Whether a dead letter is chosen."""
        letter = kept.letter
        return (
            self.batch_id in {None, letter.chunk.batch_id}
            and (not self.file or letter.path.endswith(f"/{self.file}"))
            and all(self.reason in reason for reason in kept.reasons)
            and (not self.before or (letter.created != "" and _moment(letter.created) < _moment(self.before)))
        )

    @property
    def is_all(self) -> bool:
        """Whether there is no condition."""
        return self == Chosen()


@dataclass(frozen=True, slots=True)
class DeletePlan:
    """The dead letters that will be deleted."""

    chunks: tuple[str, ...]
    """Each as `<batch>/<ordinal>-<first>-<end>`: all dead letters of these rows."""
    letters: int
    rows: int
    undelivered: int
    """Chosen dead letters that stay, since the sink does not have their batch yet."""
    shared: int
    """Chosen dead letters that stay, since others of the same chunk are not chosen."""
    more: bool
    """Whether there are more than one command deletes: then repeat it."""
    named: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Of each chunk, its files with the id of each dead letter. No id: every row of it lies in a newer one too."""


@dataclass(frozen=True, slots=True)
class LettersDeleted:
    """The result of a deletion."""

    files: int
    """Objects that this call deleted."""
    stayed: int
    """Dead letters that stayed, since others of the same chunk came after the plan was made."""


def older_than(log: Log, seconds: float | None) -> str:
    """The moment so many seconds ago, for `Chosen.before`; empty for None."""
    if seconds is None:
        return ""
    return (log.runtime.now() - timedelta(seconds=seconds)).isoformat(timespec="milliseconds")


def plan_delete(log: Log, name: str, chosen: Chosen) -> DeletePlan:
    """The dead letters that a deletion would take. Reads them; deletes nothing."""
    folder = _folder(log, name)
    newest = newest_marked(log, folder)
    named: dict[str, dict[str, str]] = {}
    letters = rows = undelivered = shared = 0
    more = False
    for chunk, kept, files in _by_chunk(log, folder, DeadLetters(log, name=name)):
        held = [each for each in kept if chosen.holds(each)]
        if kept and not held:
            continue
        if kept and kept[0].letter.chunk.batch_id > newest:
            undelivered += len(held)
        elif len(held) < len(kept):
            shared += len(held)
        elif len(named) == MOST_CHUNKS:
            more = True
            break
        else:
            named[chunk] = dict.fromkeys(files, "") | {_file(each): each.letter.id for each in kept}
            letters, rows = letters + len(held), rows + sum(len(each.own) for each in held)
    return DeletePlan(tuple(named), letters, rows, undelivered, shared, more, named)


def delete_letters(log: Log, name: str, plan: DeletePlan, *, take_over: TakeOver) -> LettersDeleted:
    """Delete dead letters as planned. If the command is interrupted, make a plan again: it names what is left.

    Raises `HeldError` if a replay of the sink's dead letters is under way, or may be, that `take_over` does not allow
    to fence, and `FencedError` if one begins.
    """
    folder = _folder(log, name)
    role = paths.replayer_role(folder)
    term = claim(log, role, take_over=take_over)
    try:
        done = [_delete_chunk(log, folder, chunk, plan.named[chunk], term) for chunk in plan.chunks]
    finally:
        note_end(log, role, term.number)
    return LettersDeleted(files=sum(deleted for deleted, _ in done), stayed=sum(stays for _, stays in done))


def _folder(log: Log, name: str) -> str:
    refuse_copy(log)
    return read_names(log).require(name, log.store.root)


def _by_chunk(log: Log, folder: str, letters: DeadLetters) -> Iterator[tuple[str, list[KeptLetter], list[str]]]:
    """The dead letters that rows belong to, those of each chunk together, with the chunk's name and all of its files.
    Without any: a chunk of which an interrupted deletion left the records.

    The files are listed first: one that comes meanwhile may be among the letters, but not among the files.
    """
    for batch_id in log.numbers(paths.dead_letter_batches(folder)):
        at = paths.dead_letter_folder(folder, batch_id)
        names = log.store.list(at)
        files = [name for name in names if name.endswith(".parquet")]
        for stem in sorted({_stem(name) for name in names} - {_stem(name) for name in files}):
            yield f"{at.rpartition('/')[2]}/{stem}", [], []
        for stem, kept in groupby(letters.all(batch_id=batch_id), key=lambda each: _stem(_file(each))):
            yield f"{at.rpartition('/')[2]}/{stem}", list(kept), [name for name in files if _stem(name) == stem]


def _file(kept: KeptLetter) -> str:
    return kept.letter.path.rpartition("/")[2]


def _stem(file: str) -> str:
    """The part of a name that all dead letters of a chunk share."""
    return "-".join(file.partition(".")[0].split("-")[:3])


def _delete_chunk(log: Log, folder: str, chunk: str, named: Mapping[str, str], term: Term) -> tuple[int, int]:
    """Delete all dead letters of a chunk. Returns the number of objects, and of dead letters that stay."""
    batch, _, stem = chunk.partition("/")
    root = f"{paths.dead_letter_batches(folder)}/{batch}"
    names = [name for name in log.store.list(root) if _stem(name) == stem]
    letters = sorted((name for name in names if name.endswith(".parquet")), key=_number)
    if not all(_is_planned(log, f"{root}/{name}", named.get(name)) for name in letters):
        return 0, len(letters)
    records = [name for name in names if name.endswith(paths.REPLAYED)]
    for name in (*letters, *records):
        term.check(log.store)
        log.store.delete([f"{root}/{name}"])
    return len(letters) + len(records), 0


def _is_planned(log: Log, path: str, wanted: str | None) -> bool:
    """Whether a dead letter is the one that the plan names: another may have got its name since. One read."""
    if not wanted:
        return wanted is not None
    found = find_dead_letter(log.store, path)
    return found is None or found.id == wanted


def _number(file: str) -> int:
    """The place of a dead letter among those of its chunk."""
    name = paths.parse_dead_letter(file)
    return -1 if name is None or name.number is None else name.number


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)
