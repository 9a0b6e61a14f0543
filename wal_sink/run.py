"""One run on one WAL: at most one stager, and a committer for each sink. Knows neither Spark nor threads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from wal_sink import paths
from wal_sink.checkpoint import Checkpoint, CheckpointFiles, Gate
from wal_sink.committer import Committer
from wal_sink.errors import ConfigError, OutcomeUnknownError, StoreError
from wal_sink.history import History
from wal_sink.log import Log
from wal_sink.records import Manifest, SinkRecord
from wal_sink.registry import register
from wal_sink.releasing import Releaser
from wal_sink.retention import Collector
from wal_sink.runtime import SYSTEM, Runtime
from wal_sink.serving import Serving, Surroundings
from wal_sink.settings import Settings
from wal_sink.stager import Attempt, Staged, Stager
from wal_sink.stores.base import Store
from wal_sink.stores.probe import probe
from wal_sink.terms import claim

_logger = logging.getLogger(__name__)


class Run:
    """Everything one process does on one WAL. `open` does the first I/O."""

    def __init__(
        self,
        store: Store,
        checkpoint: CheckpointFiles,
        settings: Settings,
        *,
        runtime: Runtime = SYSTEM,
        pause: Callable[[float], bool] | None = None,
    ) -> None:
        self.settings = settings
        self.log = Log(store, runtime, run_id=runtime.new_id())
        self.checkpoint = Checkpoint(checkpoint)
        self.gate = Gate(self.checkpoint)
        self.history = History(self.log, self.checkpoint)
        releaser = Releaser(self.log, self.checkpoint, self.history)
        self.shared = Surroundings(self.log, self.gate, self.history, releaser, pause or self._just_sleep)
        self.committers: list[Committer] = []
        self._collector = Collector(self.shared, retention_batches=settings.retention_batches)
        self._collecting = threading.Lock()
        self._stager: Stager | None = None

    def open(self, servings: Sequence[Serving] = ()) -> None:
        """Probe the store, make sure whose the WAL is, claim the committers' terms, only then read where they stand."""
        probe(self.log.store, runtime=self.log.runtime, single_writer=self.settings.single_writer)
        self.history.load_owner()
        self.history.load_batches()
        self.gate.search()
        # All are registered before any term is claimed: a start that is refused must fence nobody.
        sinks = [self._register(serving) for serving in servings]
        for serving, sink in zip(servings, sinks, strict=True):
            self.committers.append(self._committer(serving, sink))

    def become_stager(self) -> None:
        """Claim the stager's term: from now on this run's manifests count more than any earlier run's."""
        if self._stager is None:
            self.history.load_owner()
            term = claim(self.log, paths.STAGER_ROLE)
            self.history.load_batches()
            chunk_rows = self.settings.chunk_rows
            self._stager = Stager(self.log, self.checkpoint, self.history, term, chunk_rows=chunk_rows)

    def stage(self, batch_id: int, write: Callable[[Attempt], Staged]) -> Manifest | None:
        """Stage a batch; None if it is a replay, which must be evaluated without being staged."""
        if self._stager is None:
            raise ConfigError("this run does not stage: it was opened to drain only")
        manifest = self._stager.stage(batch_id, write)
        if not self.committers:
            self.history.forget_through(batch_id)
        return manifest

    def deliver_all(self) -> None:
        """Deliver everything that can be delivered now, sink after sink. Raises the first sink's error."""
        for committer in self.committers:
            while self.deliver_next(committer):
                continue

    def deliver_next(self, committer: Committer, *, search: bool = False) -> bool:
        """One step of one committer, and the collection that may be due after it."""
        if not committer.deliver_next(search=search):
            return False
        self._forget_delivered()
        self._collect(committer)
        return True

    def _register(self, serving: Serving) -> SinkRecord:
        return register(
            self.log,
            self.history,
            self.gate,
            name=serving.name,
            delivery=serving.delivery,
            sink_kind=serving.promise.ability.value,
            identity=serving.identity,
        )

    def _committer(self, serving: Serving, sink: SinkRecord) -> Committer:
        committer = Committer(serving, self.shared, claim(self.log, paths.committer_role(serving.name)), sink)
        committer.load()
        return committer

    def _collect(self, committer: Committer) -> None:
        try:
            with self._collecting:
                if self._collector.is_due(committer.marked_through):
                    self._collector.collect(committer.term)
        except (StoreError, OutcomeUnknownError) as error:
            _logger.warning("collecting %s failed and will be repeated: %s", self.log.store.root, error)

    def _forget_delivered(self) -> None:
        through = min(committer.marked_through for committer in self.committers)
        self.history.forget_through(through)
        self.shared.releaser.forget_through(through)

    def _just_sleep(self, seconds: float) -> bool:
        self.log.runtime.sleep_s(seconds)
        return False
