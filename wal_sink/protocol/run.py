"""One run on one WAL: at most one stager, and a committer for each sink. Knows neither Spark nor threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from wal_sink.errors import ConfigError, CorruptError, DeliveryError, OutcomeUnknownError, StoreError
from wal_sink.log import paths
from wal_sink.log.holders import TakeOver, note_end, refuse_held
from wal_sink.log.log import NOTHING, Log
from wal_sink.log.records import Manifest
from wal_sink.log.segment_reader import SegmentReader, read_parquet
from wal_sink.log.segment_writer import SegmentLimits
from wal_sink.log.terms import Term, claim, claim_above_seen, is_superseded_by_siblings
from wal_sink.protocol.checkpoint import Checkpoint, Gate
from wal_sink.protocol.checkpoint_formats import CheckpointFiles
from wal_sink.protocol.collect import Collector
from wal_sink.protocol.committer import Committer
from wal_sink.protocol.dispatch import ServedSink
from wal_sink.protocol.history import History
from wal_sink.protocol.inventory import check_unserved_sinks, marked_through, refuse_left, sink_folders, take
from wal_sink.protocol.location import GonePlace
from wal_sink.protocol.partitions import StagingContext
from wal_sink.protocol.registration import Registered, Registration, register
from wal_sink.protocol.release import CommitContext, Releaser
from wal_sink.protocol.sinks import SinkNames, describe_unserved, keep_name, read_names, refuse_retired, retire_complete
from wal_sink.protocol.stage import Attempt, Staged, Stager
from wal_sink.settings import Settings
from wal_sink.stores.base import Store
from wal_sink.stores.creation import Leftovers, probe
from wal_sink.support.clock import SYSTEM, Runtime
from wal_sink.support.events import OFF, Began, Collected, Ended, Events
from wal_sink.support.logs import logger_of, logging_about

_logger = logger_of(__name__)


class Run:
    """The work of one process on one WAL. `open` does the first I/O."""

    _listed: dict[str, Sequence[int]]
    """The terms of each role when the WAL was opened; a claim takes its own out."""
    _probes: Leftovers
    """Probe objects that other starts left in the store."""

    def __init__(
        self,
        store: Store,
        checkpoint: CheckpointFiles,
        settings: Settings,
        *,
        runtime: Runtime = SYSTEM,
        pause: Callable[[float], bool] | None = None,
        segment_reader: SegmentReader = read_parquet,
        events: Events = OFF,
    ) -> None:
        self.settings = settings
        self.log = Log(store, runtime, runtime.new_id(), segment_reader, events)
        self.checkpoint = Checkpoint(checkpoint)
        self.gate = Gate(self.checkpoint)
        self.history = History(self.log, self.checkpoint)
        releaser = Releaser(self.log, self.checkpoint, self.gate, self.history)
        self.shared = CommitContext(self.log, self.gate, self.history, releaser, pause or partial(_just_sleep, runtime))
        self.committers: list[Committer] = []
        self._collector = Collector(self.shared, retention_batches=settings.retention_batches)
        self._collecting = threading.Lock()
        self._given_up: set[str] = set()
        self._retired: set[str] = set()
        self.inline_rows = True
        """Whether small partitions may travel to the driver. Spark's limit of a job's result may be too small."""
        self.seen_rows: dict[str, tuple[int, int]] = {}
        """By the running query's run: the largest `StagedPartition.row_bytes`, and the rows of the newest batch."""
        self._stager: Stager | None = None

    def open(
        self,
        served_sinks: Sequence[ServedSink] = (),
        *,
        moved_from: str | GonePlace | None = None,
        take_over: TakeOver = TakeOver.ALWAYS,
    ) -> None:
        """Probe the store, check that the WAL belongs to this query and has lost no object, then claim the committers'
        terms, and only then read how far they came.

        `moved_from`: the place from which the WAL was moved here; see `location.check_location`. `take_over`:
        the processes that may be fenced if they serve one of the sinks; `HeldError` for any other one. Its events are
        queued, since a caller may hold a lock.
        """
        store, runtime = self.log.store, self.log.runtime
        store.begin()
        self._probes = probe(store, runtime=runtime, single_writer=self.settings.single_writer)
        inventory = take(self.log)
        self._listed = dict(inventory.terms)
        self.history.adopt(inventory, moved_from=moved_from, take_over=take_over)
        self.history.load_batches()
        self.gate.search()
        names = read_names(self.log) if inventory.has_sinks else SinkNames()
        served_sinks = [_in_folder(self.log, names, served_sink) for served_sink in served_sinks]
        # All are registered before any term is claimed: a start that is refused must fence no process.
        registrations = [_registration(served_sink) for served_sink in served_sinks]
        others = check_unserved_sinks(self.log, inventory, [each.name for each in registrations])
        if take_over is not TakeOver.ALWAYS:  # before anything is registered
            for each in registrations:
                refuse_held(self.log, paths.committer_role(each.name), take_over=take_over)
        sinks = register(self.log, self.history, self.gate, inventory, registrations)
        for each in registrations:
            keep_name(self.log, names, each.name)
        self._collector.expect(others, served=[sink.record.name for sink in sinks])
        for served_sink, sink in zip(served_sinks, sinks, strict=True):
            self.committers.append(self._committer(served_sink, sink, take_over))
        terms = [committer.term for committer in self.committers]
        refuse_left(self.log, inventory.wal, [(term, inventory.terms.get(term.role)) for term in terms])
        for committer in self.committers:
            committer.abort_abandoned()
        self._warn_of_unserved(names)
        newest = self.history.newest_known
        for committer in self.committers:
            following = committer.next_batch()
            self.log.events.tell_later(Began, sink=committer.name, next_batch=following, newest_batch=newest)

    def open_or_end(
        self, served_sinks: Sequence[ServedSink], *, moved_from: str | GonePlace | None, take_over: TakeOver
    ) -> None:
        """Call `open`. If it raises (Ctrl-C too), records say that no process serves the terms it had claimed."""
        try:
            with logging_about(wal=self.log.store.root):
                self.open(served_sinks, moved_from=moved_from, take_over=take_over)
        except BaseException:  # no thread serves them yet
            self.end()
            raise

    def _warn_of_unserved(self, names: SinkNames) -> None:
        """Warn of sinks that no process serves, since their batches are kept. A listing and three reads per sink."""
        served = {committer.name for committer in self.committers}
        for sink in names.sinks if served else ():
            if not sink.is_retired and sink.folder not in served and (said := describe_unserved(self.log, sink)):
                _logger.warning("%s", said)

    def end(self) -> None:
        """Leave records that this run no longer serves its sinks. One create per sink. Its events are queued, since a
        caller may hold a lock.
        """
        for committer in self.committers:
            note_end(self.log, paths.committer_role(committer.name), committer.term.number)
            self.log.events.tell_later(Ended, sink=committer.name)

    @property
    def is_stager(self) -> bool:
        return self._stager is not None

    def is_superseded_by_siblings(self) -> bool:
        """Whether this run stages, and only processes of the same parent have claimed the stager's role since."""
        return self._stager is not None and is_superseded_by_siblings(self.log, self._stager.term)

    def become_stager(self) -> None:
        """Claim the stager's next term, for a query that starts now.

        From now on its manifests outrank those of any query that started earlier. The owner and the batches are read
        again: the checkpoint may have been restored or replaced since.
        """
        if not self._keeps_segments():
            self._refuse_not_keeping()
        refuse_ends(each.name for each in self.committers if each.through is not None)
        wal, listed = self.history.ask_owner_again(), self._listed.pop(paths.STAGER_ROLE, None)
        term = claim(self.log, paths.STAGER_ROLE, was_held=wal is not None, listed=listed)
        refuse_left(self.log, wal, [(term, listed)])
        self.history.load_batches()
        term = self._above_newest_attempt(term)
        if not self.committers:
            self._note_markers()
        chunk_rows = self.settings.chunk_rows
        self._stager = Stager(self.log, self.checkpoint, self.gate, self.history, term, chunk_rows=chunk_rows)

    def _above_newest_attempt(self, term: Term) -> Term:
        """The stager's term, above that of every attempt of the newest batch. One listing, where there is one."""
        newest = self.history.newest_held
        if newest is None:
            return term
        attempts = [paths.parse_attempt(name) for name in self.log.store.list(paths.batch(newest))]
        seen = max((attempt.term for attempt in attempts if attempt is not None), default=NOTHING)
        return claim_above_seen(self.log, term, seen, f"{paths.BATCHES}/{newest}")

    def _note_markers(self) -> None:
        """Read which batches are surely released, in a run without sinks. One listing, and one or two per sink."""
        for name in sink_folders(self.log):
            self.history.note_marked(marked_through(self.log, name))

    def staging_context(
        self, attempt: Attempt, *, columns: Sequence[str], spark_schema: str, inline_bytes: int = 0
    ) -> StagingContext:
        """The context for the staging tasks of an attempt. `inline_bytes` is the budget of inline rows."""
        settings = self.settings
        served_sinks = [committer.served_sink for committer in self.committers]
        return StagingContext(
            folder=attempt.folder,
            limits=SegmentLimits(settings.chunk_rows, settings.chunk_bytes, settings.segment_bytes),
            run_id=self.log.run_id,
            wal_id=self.history.require_wal().wal_id,
            batch_id=attempt.batch_id,
            term=attempt.term,
            columns=tuple(columns),
            spark_schema=spark_schema,
            keep_segments=self._keeps_segments(),
            measured=self.log.events.measures,
            preparations=tuple(
                served_sink.preparation for served_sink in served_sinks if served_sink.preparation is not None
            ),
            inline_bytes=inline_bytes if self.inline_rows else 0,
        )

    def begin_staging(self, batch_id: int, *, planned_ms: int) -> Attempt | None:
        """Begin an attempt to stage a batch; None if it is a replay. See `Stager.begin`."""
        stager = self._required_stager()
        with logging_about(wal=self.log.store.root, batch=batch_id):
            if not self.committers:
                stager.refuse_superseded()  # with committers, their terms tell of a newer run
            return stager.begin(batch_id, planned_ms=planned_ms)

    def end_staging(self, attempt: Attempt, staged: Staged) -> Manifest:
        """Make an attempt known whose rows are staged. See `Stager.end`."""
        with logging_about(wal=self.log.store.root, batch=attempt.batch_id):
            manifest = self._required_stager().end(attempt, staged)
        if not self.committers:  # then no committer will forget the batch
            self.history.note_delivered(attempt.batch_id, where_alive=attempt.batch_id)
        return manifest

    def _required_stager(self) -> Stager:
        if self._stager is None:
            raise ConfigError("this run does not stage: it was opened to drain only")
        return self._stager

    def deliver_all(self) -> None:
        """Deliver everything that can be delivered now, sink after sink. Raises the first sink's error."""
        for committer in self.committers:
            while self.advance(committer):
                continue

    def advance(self, committer: Committer, *, search: bool = False, closes: bool = True) -> bool:
        """Deliver one batch of one committer, then collect if that is due; False if there is nothing to do now.
        `search` and `closes` as in `Committer.deliver_next`.
        """
        with logging_about(wal=self.log.store.root, sink=committer.name, batch=committer.next_batch()):
            try:
                has_delivered = committer.deliver_with_retries(search=search, closes=closes)
                self._retire_if_complete(committer)
            except (CorruptError, DeliveryError):
                self._given_up.add(committer.name)
                raise
            if has_delivered:
                self._given_up.discard(committer.name)
                self._forget_delivered()
                committer.abort_abandoned()
                self._collect(committer)
            return has_delivered

    def _retire_if_complete(self, committer: Committer) -> None:
        """Retire a sink that has the last batch that it gets. A create, once."""
        if committer.is_complete and committer.name not in self._retired:
            self._collector.let_go(committer.name)
            retire_complete(self.log, committer.name, committer.marked_through)
            self._retired.add(committer.name)

    def _keeps_segments(self) -> bool:
        """Whether rows are kept in the WAL: they are unless every sink of this run allows otherwise."""
        return not self.committers or any(committer.served_sink.keeps_segments for committer in self.committers)

    def _refuse_not_keeping(self) -> None:
        """Refuse sinks that need rows in the WAL: without these, a sink gets only rows it prepares during staging."""
        known = {committer.name: committer.served_sink for committer in self.committers}
        others = [sink.name for sink in read_names(self.log).sinks if not (sink.folder in known or sink.is_retired)]
        cannot = [name for name, served_sink in known.items() if served_sink.preparation is None]
        if others or cannot:
            raise ConfigError(
                f"{self.log.store.root}: keep_segments=False was set, but sinks {sorted([*others, *cannot])} cannot "
                "prepare rows during staging in this run. These sinks are delivered by another process, run on the "
                "driver or cannot be sent to executors. Leave keep_segments=True, or retire the sinks that you no "
                "longer need: wal-sink sinks retire"
            )

    def _committer(self, served_sink: ServedSink, sink: Registered, take_over: TakeOver) -> Committer:
        role = paths.committer_role(served_sink.name)
        listed = self._listed.pop(role, None)
        term = claim(self.log, role, was_held=sink.is_old, take_over=take_over, listed=listed)
        # It may have been retired after this run looked and before it had the term.
        refuse_retired(self.log, served_sink.name, served_sink.name)
        committer = Committer(served_sink, self.shared, term, sink.record)
        committer.load()
        return committer

    def _collect(self, committer: Committer) -> None:
        low_water = None
        try:
            with self._collecting:
                if self._collector.is_due(committer.marked_through):
                    self._collector.put_off(committer.marked_through)
                    low_water = self._collector.collect(committer.term)
                    self._probes.delete_old()
        except (StoreError, OutcomeUnknownError) as error:
            _logger.warning(
                "deleting delivered batches of %s failed and will be repeated: %s", self.log.store.root, error
            )
        if low_water is not None:
            self.log.events.tell(Collected, low_water=low_water)

    def _forget_delivered(self) -> None:
        """Free the memory of delivered batches, after a delivery. At least the sink of that delivery is alive."""
        through = {committer.name: committer.marked_through for committer in self.committers}
        where_alive = min(marked for name, marked in through.items() if name not in self._given_up)
        self.history.note_delivered(min(through.values()), where_alive=where_alive)
        self.shared.releaser.forget_through(where_alive)


def _just_sleep(runtime: Runtime, seconds: float) -> bool:
    """The pause of a run that never ends early."""
    runtime.sleep_s(seconds)
    return False


def _registration(served_sink: ServedSink) -> Registration:
    return Registration(
        name=served_sink.name,
        delivery=served_sink.delivery,
        ability=served_sink.promise.ability,
        at_most_once=served_sink.promise.at_most_once,
        identity=served_sink.identity,
    )


def _in_folder(log: Log, names: SinkNames, served_sink: ServedSink) -> ServedSink:
    """A served sink under its first name. Raises `ConfigError` for an old name and for a retired sink."""
    folder = names.folder_of(served_sink.name) or served_sink.name
    if any(sink.folder == folder and sink.is_retired for sink in names.sinks):
        refuse_retired(log, folder, served_sink.name)
    if folder == served_sink.name:
        return served_sink
    preparation = replace(served_sink.preparation, sink=folder) if served_sink.preparation else None
    return replace(served_sink, name=folder, shown=served_sink.name, preparation=preparation)


def refuse_ends(names: Iterable[str]) -> None:
    """Refuse a query for these sinks, each of which ends with a batch: it would wait for them for ever."""
    for name in names:
        raise ConfigError(
            f"sink {name!r} ends with a batch (through=…), so the query would wait for this sink for ever. Serve it "
            "in a process that does not stage: wal-sink drain, or WalSink.drain()"
        )
