"""What a store shows of a driver's work: how far it is, and what it was about when it was killed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from wal_sink.checkpoint.formats import CheckpointFiles
from wal_sink.cli.demo.job import EXACT, PLAIN
from wal_sink.inspection import read_manifest
from wal_sink.runtime.clock import SYSTEM
from wal_sink.stores.base import Store
from wal_sink.wal import paths
from wal_sink.wal.log import NOTHING, Log

SINKS = (EXACT, PLAIN)


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
    """Runs that began to deliver what their predecessors left."""
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

    def __init__(self, store: Store, checkpoint: CheckpointFiles) -> None:
        self._log = Log(store, SYSTEM, run_id="")
        self._checkpoint = checkpoint

    def look(self) -> Seen:
        """One listing for each number. Raises `StoreError`."""
        return Seen(
            files=self._newest("sources/0") + 1,
            started=self._newest("offsets"),
            staged=self._staged(),
            completed=self._newest("commits"),
            delivered={name: max(self._log.numbers(paths.markers(name)), default=NOTHING) for name in SINKS},
            takeovers=self._term(paths.committer_role(PLAIN)),
            queries=self._term(paths.STAGER_ROLE),
        )

    def moment(self, seen: Seen) -> str:
        """What a driver was doing that ended at this point, in words."""
        found = [self._query_moment(seen), *(self._delivery_moment(seen, name) for name in SINKS)]
        return "; ".join(words for words in found if words) or "between two batches"

    def segments_in_delivery(self, seen: Seen, name: str) -> int:
        """Segments of the batch that a driver which ended at this point may have been delivering: a chunk of each."""
        batch_id = seen.delivered[name] + 1
        manifest = read_manifest(self._log.store, batch_id) if batch_id <= seen.completed else None
        return len(manifest.segments) if manifest else 0

    def _query_moment(self, seen: Seen) -> str:
        if seen.started == seen.completed:
            return ""
        if seen.staged < seen.started:
            return f"staging batch {seen.started}"
        return f"batch {seen.started} staged, its checkpoint not complete"

    def _delivery_moment(self, seen: Seen, name: str) -> str:
        batch_id = seen.delivered[name] + 1
        if batch_id > seen.completed:
            return ""
        if "release.json" not in self._log.store.list(paths.batch(batch_id)):
            return f"batch {batch_id} complete, its delivery not begun" if name == EXACT else ""
        if name == EXACT:
            return f"delivering batch {batch_id} to SQLite"
        records = len(self._log.store.list(paths.progress_folder(name, batch_id)))
        return f"delivering batch {batch_id} to the plain folder, chunks recorded: {records}"

    def _newest(self, folder: str) -> int:
        names = [name.removesuffix(".compact") for name in self._checkpoint.list(folder)]
        return max((int(name) for name in names if name.isascii() and name.isdigit()), default=NOTHING)

    def _staged(self) -> int:
        for batch_id in reversed(self._log.numbers(paths.BATCHES)):
            if any(paths.parse_manifest(name) for name in self._log.store.list(paths.batch(batch_id))):
                return batch_id
        return NOTHING

    def _term(self, role: str) -> int:
        return max(self._log.numbers(paths.terms(role)), default=0)
