"""A driver's work, as the store shows it: how far the driver is, and what it was doing when it was killed.

docs/FORMAT.md describes the names and the records of the log. The folders of a checkpoint are Spark's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from examples.demo.folder import Folder
from examples.demo.job import EXACT, PLAIN

SINKS = (EXACT, PLAIN)
NOTHING = -1
_BATCH_DIGITS = 19


@dataclass(frozen=True, slots=True)
class Seen:
    """The newest batch in each state, -1 for none; and how many runs got how far."""

    files: int
    """Files the query has taken. One a batch; but after a kill between Spark's noting a file and its noting the
    batch, the next batch holds two.
    """
    started: int
    staged: int
    completed: int
    delivered: Mapping[str, int]
    takeovers: int
    """Runs that began to deliver the batches that earlier runs left."""
    queries: int
    """Runs that started the query."""

    @property
    def delivered_to_all(self) -> int:
        return min(self.delivered.values())

    @property
    def merged(self) -> int:
        """Files that share a batch with another, as far as one can tell while nothing runs."""
        return self.files - (self.started + 1)

    @property
    def is_idle(self) -> bool:
        """Whether everything begun is delivered."""
        return self.started == self.completed == self.delivered_to_all


class Watch:
    """Looks at a WAL and a checkpoint from outside, through the store alone."""

    def __init__(self, wal: Folder, checkpoint: Folder) -> None:
        self._wal = wal
        self._checkpoint = checkpoint

    def look(self) -> Seen:
        """One listing for each number. Raises `OSError`."""
        return Seen(
            files=_newest(self._checkpoint.names("sources/0")) + 1,
            started=_newest(self._checkpoint.names("offsets")),
            staged=self._staged(),
            completed=_newest(self._checkpoint.names("commits")),
            delivered={name: _newest(self._wal.names(f"sinks/{name}/markers")) for name in SINKS},
            takeovers=self._newest_term(f"committer-{PLAIN}"),
            queries=self._newest_term("stager"),
        )

    def moment(self, seen: Seen) -> str:
        """The work at which a driver ended, in words."""
        found = [_query_moment(seen), *(self._delivery_moment(seen, name) for name in SINKS)]
        return "; ".join(words for words in found if words) or "between two batches"

    def segments_in_delivery(self, seen: Seen, name: str) -> int:
        """Segments of the batch that a driver which ended at this point may have been delivering: a chunk of each."""
        batch_id = seen.delivered[name] + 1
        return self._segments(batch_id) if batch_id <= seen.completed else 0

    def attempts(self) -> dict[int, int]:
        """By batch, how often it was staged whole."""
        return {batch_id: len(self._manifests(batch_id)) for batch_id in self._batches()}

    def _segments(self, batch_id: int) -> int:
        """The segments of the manifest that counts: the released one, else the newest."""
        manifests = self._manifests(batch_id)
        if not manifests:
            return 0
        counting = manifests[-1]
        if "release.json" in self._wal.names(_batch(batch_id)):
            release = self._record(f"{_batch(batch_id)}/release.json")
            counting = f"manifest-{release['term']:010}-{release['attempt']:010}.json"
        return len(self._record(f"{_batch(batch_id)}/{counting}")["segments"])

    def _record(self, name: str) -> Any:
        return msgspec.json.decode(self._wal.read(name))["body"]

    def _delivery_moment(self, seen: Seen, name: str) -> str:
        batch_id = seen.delivered[name] + 1
        if batch_id > seen.completed:
            return ""
        if "release.json" not in self._wal.names(_batch(batch_id)):
            return f"batch {batch_id} complete, its delivery not begun" if name == EXACT else ""
        if name == EXACT:
            return f"delivering batch {batch_id} to SQLite"
        records = len(self._wal.names(f"sinks/{name}/progress/{batch_id:0{_BATCH_DIGITS}}"))
        return f"delivering batch {batch_id} to the plain folder, chunks recorded: {records}"

    def _staged(self) -> int:
        return next((batch_id for batch_id in reversed(self._batches()) if self._manifests(batch_id)), NOTHING)

    def _batches(self) -> list[int]:
        return sorted(_numbers(self._wal.names("batches")))

    def _manifests(self, batch_id: int) -> list[str]:
        """Oldest first: their names hold term and attempt, both with zeros in front."""
        return sorted(name for name in self._wal.names(_batch(batch_id)) if name.startswith("manifest-"))

    def _newest_term(self, role: str) -> int:
        return max(0, _newest(self._wal.names(f"terms/{role}")))


def _query_moment(seen: Seen) -> str:
    if seen.started == seen.completed:
        return ""
    if seen.staged < seen.started:
        return f"staging batch {seen.started}"
    return f"batch {seen.started} staged, its checkpoint not complete"


def _batch(batch_id: int) -> str:
    return f"batches/{batch_id:0{_BATCH_DIGITS}}"


def _newest(names: Iterable[str]) -> int:
    return max(_numbers(names), default=NOTHING)


def _numbers(names: Iterable[str]) -> list[int]:
    """The numbers that names begin with, as `7`, `7.json` and `7.compact` do."""
    heads = (name.partition(".")[0] for name in names)
    return [int(head) for head in heads if head.isascii() and head.isdigit()]
