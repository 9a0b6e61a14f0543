"""Comparisons of a WAL with Spark's checkpoint and with a target.

Spark writes `offsets/N`, then the batch is staged, then Spark writes `commits/N`, then the batch is released. So each
comparison with a checkpoint reads the later object first, then the earlier one, and holds although both grow meanwhile.

Positions in a target only rise. So the marker that says what the target must have is read before them, and the objects
that explain a higher position after them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from wal_sink.errors import ConfigError, CorruptError, HistoryError
from wal_sink.log import paths
from wal_sink.log.log import NOTHING
from wal_sink.log.records import Manifest, Marker
from wal_sink.log.segment_reader import chunk_ends
from wal_sink.operate.findings import Fault, Finding
from wal_sink.operate.ledgers import Ledger, opened, owed_slots
from wal_sink.operate.look import Look, SinkFacts
from wal_sink.operate.verify_batch import BatchFacts, is_passed_over
from wal_sink.protocol.checkpoint import Checkpoint
from wal_sink.protocol.checkpoint_formats import CheckpointFiles
from wal_sink.protocol.inventory import newest_marked, newest_marker
from wal_sink.protocol.positions import digest_of, position_of
from wal_sink.protocol.registration import described_elsewhere
from wal_sink.protocol.sinks import read_names
from wal_sink.sinks.base import BatchSink, CommitSink, Lookup, Sink, SinkContext, TransactionalSink
from wal_sink.sinks.calls import SinkSession, ask_applied
from wal_sink.sinks.chunk import Position, chunk_key
from wal_sink.sinks.failures import FailureKind, SinkFailedError
from wal_sink.sinks.guarantees import ability_of
from wal_sink.sinks.held import holding
from wal_sink.sinks.ledger import described, slot_name, stored_position
from wal_sink.support.secrets import redacted
from wal_sink.support.texts import name_of

MOST_CHUNKS = 1000
"""Most chunks that are looked up: one request each."""
_UNREADABLE = "it cannot be read"


class AgainstCheckpoint:
    """The comparison with one checkpoint. Reads only."""

    def __init__(self, files: CheckpointFiles) -> None:
        self._checkpoint = Checkpoint(files)
        self._why_not = _UNREADABLE
        """Why nothing can be compared; empty if it can."""
        self._committed = NOTHING
        self._planned = NOTHING
        """The newest batch of the checkpoint, when it was read first."""
        self._forgotten: set[int] = set()
        """Batches whose offsets Spark has deleted."""
        self._newer: set[int] = set()
        """Batches that the checkpoint does not have yet, or not any more since it was restored."""

    def whole(self, look: Look) -> None:
        """Compare the query, and the newest batches. Three requests, and a listing of the WAL's batches."""
        self._why_not = _UNREADABLE
        wal = look.known.wal
        if wal is None:
            self._why_not = "the WAL has no wal.json, which names its query"
            return
        try:
            query_id = self._checkpoint.query_id()
        except (CorruptError, ConfigError) as error:
            self._damaged(look, "metadata", error)
            return
        if query_id != wal.query_id:
            found = "no query (it is new, or was deleted)" if query_id is None else f"query {query_id}"
            look.fault(Fault.OTHER_QUERY, self._where(""), f"the checkpoint belongs to {found}, but the WAL to "
                       f"query {wal.query_id}")  # fmt: skip
            self._why_not = "the checkpoint belongs to another query"
            return
        self._why_not = ""
        self._refuse_later(look)
        self._refuse_missing(look, wal.first_batch)

    def batch(self, look: Look, facts: BatchFacts) -> None:
        """Compare one batch: Spark completed it if it is released, and its input is the same. One or two reads."""
        if self._why_not:
            return
        batch_id, manifest = facts.batch_id, facts.manifest
        is_complete = self._is_complete(batch_id)
        if facts.is_released and not is_complete and batch_id not in self._newer:
            what = f"the batch was released, but the newest batch that Spark completed is {self._committed}"
            look.fault(Fault.ROLLED_BACK, paths.release(batch_id), what)
        elif is_complete and manifest is None and not any(facts.manifests.values()):
            self._refuse_unstaged(look, facts)
        if manifest is not None and batch_id not in self._newer and (is_complete or facts.is_released):
            self._compare(look, manifest)

    def left_out(self) -> list[str]:
        """Parts that could not be compared, each with the reason."""
        if self._why_not:
            return [f"the checkpoint {self._checkpoint.root}: {self._why_not}"]
        lines = []
        if self._forgotten:
            which = _described(self._forgotten)
            lines = [f"the source offsets of {which}: Spark has deleted these old entries of the checkpoint"]
        if self._newer:
            newest = "has no batch" if self._planned == NOTHING else f"ends with batch {self._planned}"
            lines.append(f"the source offsets of {_described(self._newer)}: the checkpoint is older, and {newest}")
        return lines

    def _refuse_later(self, look: Look) -> None:
        """The WAL holds no batch that the checkpoint has not planned."""
        held = look.known.batches[-1] if look.known.batches else look.known.low_water
        planned = max(self._checkpoint.newest_planned(), self._checkpoint.newest_commit())
        self._planned, self._newer = planned, set()
        if held > planned:
            first = max(planned + 1, look.known.wal.first_batch if look.known.wal else 0)
            self._newer = {batch_id for batch_id in look.known.batches if batch_id > planned}
            which = _described(range(first, held + 1))
            what = f"the newest batch of the checkpoint is {planned}, but the WAL knows {which}"
            look.fault(Fault.ROLLED_BACK, self._where("offsets"), what)

    def _refuse_missing(self, look: Look, first_batch: int) -> None:
        """Every batch that Spark completed is in the WAL, or was collected."""
        self._committed = self._checkpoint.newest_commit()
        known = look.known
        if self._committed < first_batch or self._committed in known.held or known.is_collected(self._committed):
            return
        held = max([*look.log.numbers(paths.BATCHES, after=known.low_water), known.low_water, first_batch - 1])
        missing = [number for number in range(held + 1, self._committed + 1) if not self._was_passed_over(number)]
        if missing:
            what = f"Spark completed {_described(missing)}, but the WAL holds nothing of it"
            look.fault(Fault.MISSING_BATCH, f"{paths.batch(missing[0])}/", what)

    def _refuse_unstaged(self, look: Look, facts: BatchFacts) -> None:
        """A completed batch has a manifest, unless Spark wrote the batch without running it."""
        batch_id = facts.batch_id
        names = [paths.parse_manifest(name) for name in look.log.store.list(paths.batch(batch_id))]
        if (
            any(names)
            or is_passed_over(look, facts)
            or look.known.is_collected(batch_id)
            or self._was_passed_over(batch_id)
        ):
            return
        what = "Spark completed this batch, but it has no manifest"
        look.fault(Fault.MISSING_BATCH, f"{paths.batch(batch_id)}/", what)

    def _compare(self, look: Look, manifest: Manifest) -> None:
        batch_id = manifest.batch_id
        try:
            text = self._checkpoint.offsets_text(batch_id)
            if text is None:
                self._forgotten.add(batch_id)
                return
            if text == manifest.offsets:
                return
            repartition = self._checkpoint.repartition(batch_id)
            if repartition is None and manifest.passed_over:
                self._forgotten.add(batch_id)  # the entry before it is gone, which would prove it
                return
            found = repartition.fingerprint if repartition else self._checkpoint.fingerprint(batch_id, text)
        except HistoryError:
            self._forgotten.add(batch_id)  # the entry before it is gone: the files of a source are not known
        except (CorruptError, ConfigError) as error:
            self._damaged(look, f"offsets/{batch_id}", error)
        else:
            if found != manifest.fingerprint:
                what = f"the WAL has source offsets {manifest.fingerprint[:12]}, the checkpoint {found[:12]}"
                path = paths.manifest(batch_id, manifest.term, manifest.attempt)
                look.fault(Fault.DIVERGED, path, f"{what} under the same batch id")

    def _is_complete(self, batch_id: int) -> bool:
        if batch_id > self._committed:
            self._committed = max(self._committed, self._checkpoint.newest_commit())
        return batch_id <= self._committed

    def _was_passed_over(self, batch_id: int) -> bool:
        try:
            return self._checkpoint.repartition(batch_id) is not None
        except (CorruptError, ConfigError):
            return False

    def _damaged(self, look: Look, path: str, error: Exception) -> None:
        look.fault(Fault.CHECKPOINT, self._where(path), str(error))

    def _where(self, path: str) -> str:
        root = self._checkpoint.root.rstrip("/")
        return f"{root}/{path}" if path else root


def _described(batches: Collection[int]) -> str:
    first, last = min(batches), max(batches)
    return f"batch {first}" if first == last else f"batches {first} to {last}"


class AgainstTarget:
    """The comparison with the target of one sink. It sends no rows. It opens the sink as a delivery does."""

    def __init__(self, sink: Sink | BatchSink, name: str, *, timeout_s: float = 120.0) -> None:
        self._sink = sink
        self._name = name
        self._timeout_s = timeout_s
        self._why_not = ""

    def whole(self, look: Look) -> None:
        """Compare every position. A few reads, and one call of the target. Raises `ConfigError` for an unknown name."""
        try:
            names = read_names(look.log)
        except CorruptError as error:
            self._why_not = f"the names of the sinks cannot be read: {error}"
            return
        sink = look.known.sinks.get(names.require(self._name, look.log.store.root))
        if sink is None:
            self._why_not = "the sink was forgotten, or registered a moment ago"
        elif look.known.wal is None:
            self._why_not = "the WAL has no wal.json, which names its slots"
        else:
            self._why_not = self._compare(look, sink)

    def batch(self, look: Look, facts: BatchFacts) -> None:
        """Do nothing: a slot holds only the newest position."""

    def left_out(self) -> list[str]:
        """A line if the target could not be compared, with the reason."""
        return [f"the target of sink {self._name!r} ({name_of(self._sink)}): {self._why_not}"] if self._why_not else []

    def _compare(self, look: Look, sink: SinkFacts) -> str:
        """Compare the target with the WAL. Returns why it was not compared, or not as a whole; else ""."""
        if isinstance(self._sink, Sink) and isinstance(self._sink, Lookup):
            return _compare_keys(look, sink, self._sink, self._sink, timeout_s=self._timeout_s)
        if not isinstance(self._sink, TransactionalSink | CommitSink):
            kind = ability_of(self._sink).value
            return f"a {kind} target cannot tell which rows it has. Transactional, commit and lookup targets can"
        try:
            marker = newest_marker(look.log, sink.folder)
        except CorruptError as error:
            return f"its newest marker cannot be read: {error}"  # the marker itself is a finding
        if isinstance(self._sink, CommitSink):
            _compare_commit(look, sink, self._sink, marker, self._timeout_s)
            return ""
        _Slots(look, sink, self._sink, marker, self._timeout_s).compare()
        if sink.record and (said := described_elsewhere(sink.record, name_of(self._sink), self._sink)):
            return f"only its ledger was compared, not whether its rows are there: the sink {said}"
        return ""


class _Slots:
    """The slots of one sink, compared once."""

    def __init__(
        self, look: Look, sink: SinkFacts, target: TransactionalSink, marker: Marker | None, timeout_s: float
    ) -> None:
        self._look = look
        self._facts = sink
        self._target = target
        self._marker = marker
        self._timeout_s = timeout_s
        self._owed = owed_slots(marker)

    def compare(self) -> None:
        look, folder = self._look, self._facts.folder
        following = look.released(self._marker.batch_id + 1 if self._marker else max(self._first(), 0))
        count = max(len(self._owed), len(following.segments) if following else 0, 1)
        try:
            found = self._positions(count)
        except SinkFailedError as error:
            self._fault(Fault.TARGET_OTHER, f"the target gave no answer: {redacted(error.failure.message)}")
            return
        through = max(newest_marked(look.log, folder), self._first() - 1)
        behind = Ledger(tuple(found), self._owed).behind
        for number, position in enumerate(found):
            if number in behind:
                batch_id, rows = self._owed[number]
                marked = f"{rows} rows of batch {batch_id} were delivered and marked"
                self._fault(Fault.TARGET_BEHIND, f"slot {number} is at {described(position)}, but {marked}", batch_id)
            if position is not None:
                self._check_known(number, position, through)

    def _first(self) -> int:
        wal = self._look.known.wal
        return max(self._facts.first_batch, wal.first_batch if wal else 0)

    def _check_known(self, number: int, found: Position, through: int) -> None:
        """Compare a position with what the WAL says of its batch."""
        batch_id = found.batch_id
        if batch_id > through + 1:
            what = f"slot {number} is at {described(found)}, but the newest batch that is marked is {through}"
            self._fault(Fault.TARGET_AHEAD, what, batch_id)
            return
        manifest = self._look.released(batch_id)
        if manifest is None:
            if batch_id > through and not self._is_marked(batch_id):
                what = f"slot {number} is at {described(found)}, but the WAL has not released that batch"
                self._fault(Fault.TARGET_AHEAD, what, batch_id)
            return
        segment = manifest.segments[number] if number < len(manifest.segments) else None
        if segment is None or segment.id != found.segment_id:
            expected = segment.id if segment else "none"
            what = (
                f"slot {number} holds segment {found.segment_id} of batch {batch_id}, but the WAL released {expected}"
            )
            self._fault(Fault.TARGET_OTHER, what, batch_id)
        elif found.rows > segment.rows:
            what = f"slot {number} holds {found.rows} rows of segment {segment.id}, which has {segment.rows}"
            self._fault(Fault.TARGET_OTHER, what, batch_id)

    def _is_marked(self, batch_id: int) -> bool:
        """Whether the sink has the batch by now: then it may have been collected, too."""
        return newest_marked(self._look.log, self._facts.folder) >= batch_id

    def _positions(self, count: int) -> list[Position | None]:
        """The positions of the first slots, in order. Raises `SinkFailedError`."""
        wal = self._look.known.wal
        slots = [slot_name(wal.wal_id if wal else "", self._facts.folder, number) for number in range(count)]
        what = f"positions of {count} slots from {slots[0]!r}"
        with _opened(self._look, self._facts, self._target, self._timeout_s) as session:
            found: object = session.call(what, self._target.positions, slots, nothing_sent=True)
        if not isinstance(found, Mapping) or any(slot not in found for slot in slots):
            raise SinkFailedError(
                FailureKind.PERMANENT,
                f"{what}: expected a mapping with every slot, and None for an empty slot",
            )
        return [stored_position(what, slot, found[slot]) for slot in slots]

    def _fault(self, fault: Fault, what: str, batch_id: int | None = None) -> None:
        where = name_of(self._target)
        self._look.found.append(Finding(fault, where, what, batch_id, self._facts.folder))


def _compare_commit(look: Look, facts: SinkFacts, target: CommitSink, marker: Marker | None, timeout_s: float) -> None:
    """Compare the one position that a commit sink has in its target."""

    def fault(kind: Fault, what: str, batch_id: int | None = None) -> None:
        look.found.append(Finding(kind, name_of(target), what, batch_id, facts.folder))

    try:
        with _opened(look, facts, target, timeout_s) as session:
            found = position_of(session, target, "position")
    except SinkFailedError as error:
        fault(Fault.TARGET_OTHER, f"the target gave no answer: {redacted(error.failure.message)}")
        return
    owed = marker.last_delivered_batch if marker else NOTHING
    at = NOTHING if found is None else found.batch_id
    manifest = None if found is None else look.released(at)
    if at < owed:
        is_at = "has no position" if found is None else f"is at batch {at}"
        fault(Fault.TARGET_BEHIND, f"it {is_at}, but batch {owed} was delivered and marked", owed)
    elif found is not None and not found.is_shown and found.held_through < owed:
        fault(Fault.TARGET_BEHIND, f"it is at batch {at}, but was rolled back to a state before that commit", at)
    elif found is not None and manifest is None and at > newest_marked(look.log, facts.folder):  # else it was collected
        fault(Fault.TARGET_AHEAD, f"it is at batch {at}, which the WAL has not released", at)
    elif found is not None and manifest is not None and found.digest != digest_of(manifest):
        what = f"it holds batch {at} with digest {found.digest}, but the WAL released {digest_of(manifest)}"
        fault(Fault.TARGET_OTHER, what, at)


def _compare_keys(look: Look, facts: SinkFacts, sink: Sink, lookup: Lookup, *, timeout_s: float) -> str:
    """Compare the chunks of the newest marked batch. Return what was left out; empty if nothing was.

    A chunk with dead letters is not in the target as a whole, and is left out. `lookup` is the sink, too.
    """
    batch_id = facts.marked_through
    marker = Look(look.known).find(Marker, paths.marker(facts.folder, batch_id)) if batch_id in facts.markers else None
    if marker is not None and marker.skipped:
        return f"the sink skipped batch {batch_id}"
    manifest = look.released(batch_id) if batch_id in look.known.held else None
    if manifest is None or facts.record is None or facts.record.sink_kind != "lookup":
        return "the WAL holds no batch that was marked for a target of this kind"
    try:
        chunks = _chunks(look, facts.folder, manifest)
    except CorruptError:
        return f"the manifest of batch {batch_id} contradicts itself"  # and is a finding
    try:
        with _opened(look, facts, sink, timeout_s) as session:
            missing = [key for key in chunks[-MOST_CHUNKS:] if not ask_applied(session, lookup, key)]
    except SinkFailedError as error:
        what = f"the target gave no answer: {redacted(error.failure.message)}"
        look.found.append(Finding(Fault.TARGET_OTHER, name_of(sink), what, batch_id, facts.folder))
        return ""
    if missing:
        what = f"it lacks {len(missing)} chunks of batch {batch_id}, which is marked; the first: {missing[0]}"
        look.found.append(Finding(Fault.TARGET_BEHIND, name_of(sink), what, batch_id, facts.folder))
    left = len(chunks) - MOST_CHUNKS
    return f"{left} of {len(chunks)} chunks of batch {batch_id}" if left > 0 else ""


def _chunks(look: Look, folder: str, manifest: Manifest) -> list[str]:
    """The keys of a batch's chunks, but for those with dead letters. One listing."""
    letters = map(paths.parse_dead_letter, look.log.store.list(paths.dead_letter_folder(folder, manifest.batch_id)))
    kept = {letter[:3] for letter in letters if letter is not None}
    keys = []
    for ordinal, segment in enumerate(manifest.segments):
        first = 0
        for end in chunk_ends(segment, manifest.chunk_rows):
            if (ordinal, first, end) not in kept:
                keys.append(chunk_key(segment.id, first, end))
            first = end
    return keys


@contextmanager
def _opened(look: Look, facts: SinkFacts, sink: Sink, timeout_s: float) -> Iterator[SinkSession]:
    """A session with the target, as a delivery opens it."""
    wal, terms = look.known.wal, look.terms_of(paths.committer_role(facts.folder))
    what = f"the check of sink {facts.folder!r} of {look.log.store.root}"
    context = SinkContext(
        wal_id=wal.wal_id if wal else "",
        sink=facts.folder,
        term=max(terms.runs, default=0),
        batch_id=max(facts.marked_through, NOTHING + 1),
        columns=(),
        on_executor=False,
    )
    with holding(sink, what), opened(look.log, sink, context, timeout_s) as session:
        yield session
