"""Comparison of a WAL with a target: positions of a transactional one, or the chunks that a target with look-ups has.

Positions only rise. So the marker that says what the target must have is read before them, and the objects that explain
a higher position after them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from wal_sink.checking.batch import BatchFacts
from wal_sink.checking.findings import Fault, Finding
from wal_sink.checking.look import Look, SinkFacts
from wal_sink.errors import ConfigError, CorruptError
from wal_sink.messages import LastDelivered
from wal_sink.recovery.inventory import newest_marked, newest_marker
from wal_sink.recovery.registration import described_elsewhere
from wal_sink.recovery.sink_names import read_names
from wal_sink.redaction import redacted
from wal_sink.reporting.texts import name_of
from wal_sink.sinks.base import BatchSink, Lookup, Sink, SinkContext, TransactionalSink
from wal_sink.sinks.chunk import Position, chunk_key
from wal_sink.sinks.failures import FailureKind, SinkFailedError
from wal_sink.sinks.guarantees import ability_of
from wal_sink.sinks.held import holding
from wal_sink.sinks.ledger import described
from wal_sink.sinks.positions import slot_name, stored_position
from wal_sink.sinks.session import SinkSession, ask_applied
from wal_sink.wal import paths
from wal_sink.wal.log import NOTHING
from wal_sink.wal.records import Manifest, Marker
from wal_sink.wal.segment_reader import chunk_ends

MOST_CHUNKS = 1000
"""Most chunks that are looked up: one request each."""


class AgainstTarget:
    """The comparison with the target of one sink. It sends no rows. It opens the sink as a delivery does."""

    def __init__(self, sink: Sink | BatchSink, name: str, *, timeout_s: float = 120.0) -> None:
        self._sink = sink
        self._name = name
        self._timeout_s = timeout_s
        self._why_not = ""

    def whole(self, look: Look) -> None:
        """Compare every position. A few reads, and one call of the target. Raises `ConfigError` for an unknown name."""
        self._why_not = ""
        sink = self._facts(look)
        if sink is None or look.known.wal is None:
            self._why_not = self._why_not or "the WAL has no wal.json, which names its slots"
            return
        if isinstance(self._sink, Sink) and isinstance(self._sink, Lookup):
            self._why_not = _compare_keys(look, sink, self._sink, self._sink, timeout_s=self._timeout_s)
            return
        if not isinstance(self._sink, TransactionalSink):
            kind = ability_of(self._sink).value
            self._why_not = f"a {kind} target cannot tell which rows it has. Transactional and lookup targets can"
            return
        try:
            marker = newest_marker(look.log, sink.folder)
        except CorruptError as error:
            self._why_not = f"its newest marker cannot be read: {error}"  # the marker itself is a finding
            return
        _Slots(look, sink, self._sink, marker, self._timeout_s).compare()
        if sink.record and (said := described_elsewhere(sink.record, name_of(self._sink), self._sink)):
            self._why_not = f"only its ledger was compared, not whether its rows are there: the sink {said}"

    def batch(self, look: Look, facts: BatchFacts) -> None:
        """Do nothing: a slot holds only the newest position."""

    def left_out(self) -> list[str]:
        """A line if the target could not be compared, with the reason."""
        return [f"the target of sink {self._name!r} ({name_of(self._sink)}): {self._why_not}"] if self._why_not else []

    def _facts(self, look: Look) -> SinkFacts | None:
        try:
            names = read_names(look.log)
        except CorruptError as error:
            self._why_not = f"the names of the sinks cannot be read: {error}"
            return None
        folder = names.folder_of(self._name)
        if folder is None:
            raise ConfigError(f"{look.log.store.root} has no sink {self._name!r}; it has {names.present}")
        if folder not in look.known.sinks:
            self._why_not = "the sink was forgotten, or registered a moment ago"
        return look.known.sinks.get(folder)


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
        owed = LastDelivered.of(marker)
        self._owed = owed.slots if owed else ()

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
        for number in range(count):
            position = found[number]
            self._check_owed(number, position)
            if position is not None:
                self._check_known(number, position, through)

    def _first(self) -> int:
        wal = self._look.known.wal
        return max(self._facts.first_batch, wal.first_batch if wal else 0)

    def _check_owed(self, number: int, found: Position | None) -> None:
        if number >= len(self._owed):
            return
        batch_id, rows = self._owed[number]
        if found is None or (found.batch_id, found.rows) < (batch_id, rows):
            what = (
                f"slot {number} is at {described(found)}, but {rows} rows of batch {batch_id} were delivered and marked"
            )
            self._fault(Fault.TARGET_BEHIND, what, batch_id)

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
                f"{what}: expected a mapping with every slot, and None for a slot that holds nothing",
            )
        return [stored_position(what, slot, found[slot]) for slot in slots]

    def _fault(self, fault: Fault, what: str, batch_id: int | None = None) -> None:
        where = name_of(self._target)
        self._look.found.append(Finding(fault, where, what, batch_id, self._facts.folder))


def _compare_keys(look: Look, facts: SinkFacts, sink: Sink, lookup: Lookup, *, timeout_s: float) -> str:
    """Compare the chunks of the newest marked batch. Return what was left out; empty if nothing was.

    A chunk with dead letters is not in the target as a whole, and is left out. `lookup` is the sink, too.
    """
    batch_id = facts.marked_through
    marker = Look(look.known).find(Marker, paths.marker(facts.folder, batch_id)) if batch_id in facts.markers else None
    if marker is not None and marker.skipped:
        return f"the sink passed over batch {batch_id} on purpose"
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
    """A session with an open sink. Its calls raise `SinkFailedError`, and so does opening it."""
    wal, terms = look.known.wal, look.terms_of(paths.committer_role(facts.folder))
    context = SinkContext(
        wal_id=wal.wal_id if wal else "",
        sink=facts.folder,
        term=max(terms.runs, default=0),
        batch_id=max(facts.marked_through, NOTHING + 1),
        columns=(),
        on_executor=False,
    )
    with holding(sink, f"the check of sink {facts.folder!r} of {look.log.store.root}"):
        session = SinkSession(sink, look.log.runtime.new_timed_call(), context, timeout_s=timeout_s)
        try:
            session.open()
            yield session
        finally:
            session.close()
