"""Checks of one batch: its manifests, its release, each segment of the attempt that counts, and what sinks recorded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from wal_sink.errors import CorruptError
from wal_sink.log import paths
from wal_sink.log.paths import ManifestName
from wal_sink.log.records import (
    Manifest,
    Marker,
    PreparedRecord,
    Progress,
    Release,
    Replayed,
    RollRecord,
    SegmentRef,
    SkippedBatch,
)
from wal_sink.log.segment_reader import chunk_ends, load_segment
from wal_sink.operate.findings import Fault
from wal_sink.operate.kinds import kind_of
from wal_sink.operate.look import Look, SinkFacts
from wal_sink.protocol.letters import DeadLetter, read_dead_letter
from wal_sink.sinks.chunk import refusal_key
from wal_sink.sinks.ledger import slot_name
from wal_sink.stores.base import ObjectMissing


@dataclass(slots=True)
class BatchFacts:
    """The objects of one batch."""

    batch_id: int
    manifests: dict[ManifestName, Manifest | None] = field(default_factory=dict)
    """Every manifest that was listed; None if it is damaged or gone."""
    release: Release | None = None
    is_skipped: bool = False
    """Whether a record says that a sink passed over the batch, of which no other object was left."""
    is_released: bool = False
    """Whether a release was listed, damaged or not."""
    manifest: Manifest | None = None
    """The manifest that counts."""
    segments: set[str] = field(default_factory=set)
    """Paths of files that lie in folders of attempts."""


def check_batch(look: Look, batch_id: int, *, reads_segments: bool) -> BatchFacts:
    """Check one batch. One listing, and a read for each record and segment."""
    facts = _listed_facts(look, batch_id)
    for name in sorted(facts.manifests):
        facts.manifests[name] = look.listed(Manifest, paths.manifest(batch_id, *name))
    if facts.is_released:
        facts.release = look.listed(Release, paths.release(batch_id))
    facts.manifest = _counting(look, facts)
    _check_runs(look, facts)
    if facts.release is not None and facts.manifest is not None:
        _check_release(look, facts.release, facts.manifest)
    if facts.manifest is not None:
        _check_manifest(look, facts.manifest)
        _check_segments(look, facts, facts.manifest, reads=reads_segments)
    _count(look, facts)
    return facts


def _listed_facts(look: Look, batch_id: int) -> BatchFacts:
    """The objects of a batch as one listing shows them. Only the record of a skipped batch is read."""
    facts, folder = BatchFacts(batch_id), paths.batch(batch_id)
    for name in look.log.store.list(folder, recursive=True):
        path = f"{folder}/{name}"
        manifest = paths.parse_manifest(name)
        if kind_of(path) is None:
            look.unknown(path)
        elif manifest is not None:
            facts.manifests[manifest] = None
        elif path == paths.release(batch_id):
            facts.is_released = True
        elif path == paths.skipped(batch_id):
            facts.is_skipped = look.listed(SkippedBatch, path) is not None
        else:
            facts.segments.add(path)
    return facts


def _counting(look: Look, facts: BatchFacts) -> Manifest | None:
    """The manifest that counts: the released one, else the highest."""
    if facts.release is not None:
        name = ManifestName(facts.release.term, facts.release.attempt)
        if name in facts.manifests:
            return facts.manifests[name]
        path = paths.manifest(facts.batch_id, *name)
        if is_passed_over(look, facts):
            return None
        facts.manifests[name] = look.required(Manifest, path, f"{paths.release(facts.batch_id)} names it")
        return facts.manifests[name]
    if facts.manifests:
        return facts.manifests[max(facts.manifests)]
    younger = _made_after(look, facts)
    if younger is None or is_passed_over(look, facts) or look.known.is_collected(facts.batch_id):
        return None
    names = [paths.parse_manifest(name) for name in look.log.store.list(paths.batch(facts.batch_id))]
    if not any(names):
        folder = f"{paths.batch(facts.batch_id)}/"
        look.fault(Fault.LOST, folder, f"this batch has no manifest, but it must have one: {younger} is made after it")
    return None


def is_passed_over(look: Look, facts: BatchFacts) -> bool:
    """Whether a sink passed over the batch on purpose, and no sink needs it any more. Then its loss is known.

    A read for each sink that has a marker of the batch.
    """
    sinks = [sink for sink in look.known.sinks.values() if not sink.has_gaps]
    if any(sink.first_batch <= facts.batch_id > sink.marked_through for sink in sinks):
        return False
    quiet, path = Look(look.known), paths.marker
    markers = (
        quiet.find(Marker, path(sink.folder, facts.batch_id)) for sink in sinks if facts.batch_id in sink.markers
    )
    return facts.is_skipped or any(marker is not None and marker.skipped for marker in markers)


def _made_after(look: Look, facts: BatchFacts) -> str | None:
    """An object that is made only once the batch is complete."""
    if facts.is_released:
        return paths.release(facts.batch_id)
    if facts.batch_id < look.known.batches[-1]:
        return f"{paths.batch(look.known.batches[-1])}/"
    marked = (sink for sink in look.known.sinks.values() if sink.marked_through >= facts.batch_id)
    return next((paths.marker(sink.folder, sink.marked_through) for sink in marked), None)


def _check_runs(look: Look, facts: BatchFacts) -> None:
    """Compare the runs that staged and released the batch with those that claimed the terms."""
    for name, manifest in facts.manifests.items():
        if manifest is None or manifest.passed_over:
            continue
        look.check_term(paths.STAGER_ROLE, manifest, paths.manifest(facts.batch_id, *name))
    release = facts.release
    if release is None or release.sink not in look.known.sinks:
        return
    role = paths.committer_role(release.sink)
    if not look.may_be_holder(role, release.run_id):
        path, folder = paths.release(facts.batch_id), paths.terms(role)
        look.fault(Fault.FOREIGN, path, f"run {release.run_id} made this release, but it claimed no term in {folder}/")


def _check_release(look: Look, release: Release, manifest: Manifest) -> None:
    if release.fingerprint != manifest.fingerprint:
        manifest_path = paths.manifest(manifest.batch_id, manifest.term, manifest.attempt)
        what = f"this release and {manifest_path} name different source offsets"
        look.fault(Fault.CONTRADICTION, paths.release(release.batch_id), what)


def _check_manifest(look: Look, manifest: Manifest) -> None:
    """Compare the parts of a manifest with each other."""
    path = paths.manifest(manifest.batch_id, manifest.term, manifest.attempt)
    wrong = [
        *_wrong_prepared(manifest.prepared, len(manifest.segments)),
        *_wrong_segments(manifest),
        *(["no query ran this batch, but it has segments"] if manifest.passed_over and manifest.segments else []),
    ]
    for what in wrong:
        look.fault(Fault.CONTRADICTION, path, what)


def _wrong_prepared(prepared: Mapping[str, tuple[str | None, ...]], segments: int) -> Iterable[str]:
    for sink, handles in prepared.items():
        if len(handles) != segments:
            yield f"it has {len(handles)} handles of sink {sink!r} for {segments} segments"


def _wrong_segments(manifest: Manifest) -> Iterable[str]:
    folder = paths.attempt_folder(manifest.batch_id, manifest.term, manifest.attempt)
    ids: set[str] = set()
    for ref in manifest.segments:
        name = paths.parse_segment(ref.path)
        if name is None or ref.path != paths.segment(folder, name.partition, name.file_index, ref.id):
            yield f"the segment {ref.path} does not lie in the folder of this attempt"
        if ref.id in ids:
            yield f"it names segment {ref.id} twice"
        ids.add(ref.id)
        try:
            chunk_ends(ref, manifest.chunk_rows)
        except CorruptError as error:
            yield str(error)


def _check_segments(look: Look, facts: BatchFacts, manifest: Manifest, *, reads: bool) -> None:
    """Compare each segment with the manifest: size, checksum, rows, columns. Without `reads`: whether it is there."""
    for ref in manifest.segments:
        if ref.kept and reads:
            _check_segment(look, facts, ref, len(manifest.columns))
        elif ref.kept and ref.path not in facts.segments and not is_passed_over(look, facts):
            look.data(ref.path, "its manifest names it")


def _check_segment(look: Look, facts: BatchFacts, ref: SegmentRef, columns: int) -> None:
    try:
        data = load_segment(look.log.store, ref)
        look.log.segment_reader(data, ref, columns=columns, start=0, where=look.log.store.url_of(ref.path))
    except CorruptError as error:
        is_gone = isinstance(error.__cause__, ObjectMissing)
        if not (is_gone and look.may_be_gone(ref.path)) and not is_passed_over(look, facts):
            look.fault(Fault.LOST if is_gone else Fault.DAMAGED, ref.path, str(error))
        return
    look.seen.segments += 1
    look.seen.rows += ref.rows
    look.seen.bytes += len(data)


def _count(look: Look, facts: BatchFacts) -> None:
    """Count what is normal, and no fault: attempts that are under way, failed or superseded, and their objects."""
    named = {ref.path for ref in facts.manifest.segments} if facts.manifest else set()
    attempts = {attempt for path in facts.segments if (attempt := _attempt_of(path)) is not None}
    look.seen.batches += 1
    look.seen.unreleased_batches += not facts.is_released
    look.seen.superseded_attempts += len(facts.manifests) - (facts.manifest is not None)
    look.seen.unfinished_attempts += len(attempts - facts.manifests.keys())
    look.seen.debris_objects += len(facts.segments - named)


def _attempt_of(path: str) -> ManifestName | None:
    """The attempt in whose folder a segment lies."""
    return paths.parse_attempt(f"{path.split('/')[-2]}/")


def check_deliveries(look: Look, facts: BatchFacts) -> None:
    """Check what each sink recorded of a batch that the WAL holds. One listing for each folder with progress of it, and
    a read for each record.
    """
    if facts.release is not None:
        _check_before(look, facts.release)
    for sink in look.known.sinks.values():
        evidence = check_progress(look, sink, facts.batch_id, facts.manifest)
        evidence = _check_marker(look, sink, facts) or evidence
        if evidence is not None and not (facts.is_released or is_passed_over(look, facts)):
            look.required(Release, paths.release(facts.batch_id), f"{evidence} is made after it")


def check_progress(look: Look, sink: SinkFacts, batch_id: int, manifest: Manifest | None) -> str | None:
    """Check all progress of a batch. Return the path of any record of it."""
    path, folder = None, paths.progress_folder(sink.folder, batch_id)
    for name in look.log.store.list(folder, recursive=True) if batch_id in sink.progress else ():
        path = f"{folder}/{name}"
        if paths.parse_progress(name) is not None:
            _check_progress(look, sink, path, manifest)
        elif paths.parse_prepared(name) is not None:
            _check_prepared(look, sink, path, manifest)
        elif path == paths.roll(sink.folder, batch_id):
            _check_roll(look, sink, path)
        elif paths.parse_segment(path) is None:  # what a roll would have, if its record was not made, is debris
            look.unknown(path)
    return path


def _check_progress(look: Look, sink: SinkFacts, path: str, manifest: Manifest | None) -> None:
    record = look.of_term(Progress, path, paths.committer_role(sink.folder))
    if record is None:
        return
    segment = _segment(look, path, record.ordinal, record.segment_id, manifest)
    if segment is None or manifest is None:
        return
    try:
        ends = chunk_ends(segment, manifest.chunk_rows)
    except CorruptError:
        return  # the manifest itself is wrong, and told
    if record.rows not in ends:
        look.fault(Fault.CONTRADICTION, path, f"no chunk of segment {segment.id} ends at row {record.rows}")


def _check_prepared(look: Look, sink: SinkFacts, path: str, manifest: Manifest | None) -> None:
    record = look.of_term(PreparedRecord, path, paths.committer_role(sink.folder))
    if record is None:
        return
    if sink.record is None or not sink.record.is_rolled:  # else it may be the segment of a roll
        _segment(look, path, record.ordinal, record.segment_id, manifest)
    number = record.number - 1
    if number > 0:
        earlier = f"{path.rpartition('/')[0]}/prepared-{record.ordinal:06d}-{number:06d}.json"
        look.required(PreparedRecord, earlier, f"{path} is the preparation after it")


def _check_roll(look: Look, sink: SinkFacts, path: str) -> None:
    """Check a roll, and its segment if the sink still needs it. It reads the segment: there is one such roll."""
    record = look.of_term(RollRecord, path, paths.committer_role(sink.folder))
    if record is None or record.segment is None or record.through <= sink.marked_through:
        return
    try:
        load_segment(look.log.store, record.segment)
    except CorruptError as error:
        is_gone = isinstance(error.__cause__, ObjectMissing)
        if not (is_gone and look.may_be_gone(record.segment.path)):
            look.fault(Fault.LOST if is_gone else Fault.DAMAGED, record.segment.path, str(error))


def _segment(look: Look, path: str, ordinal: int, segment_id: str, manifest: Manifest | None) -> SegmentRef | None:
    """The segment that a record names, provided that the batch has it."""
    if manifest is None:
        return None
    segment = manifest.segments[ordinal] if ordinal < len(manifest.segments) else None
    if segment is not None and segment.id == segment_id:
        return segment
    expected = segment.id if segment else "none"
    what = f"it names segment {segment_id}, but segment {ordinal} of the batch is {expected}"
    look.fault(Fault.FOREIGN, path, what)
    return None


def _check_marker(look: Look, sink: SinkFacts, facts: BatchFacts) -> str | None:
    """Check the marker of a batch, if there must be one. Return its path if there is one, or one of a later batch: it
    is made only once the batch was released. A marker of a skipped batch is not.
    """
    batch_id, path = facts.batch_id, paths.marker(sink.folder, facts.batch_id)
    if batch_id not in sink.markers:
        return _unmarked(look, sink, batch_id)
    marker = look.of_term(Marker, path, paths.committer_role(sink.folder))
    if marker is not None:
        look.seen.skipped_batches += marker.skipped
        if facts.manifest is not None:
            _compare(look, sink, marker, facts.manifest)
    return None if marker is not None and marker.skipped else path


def _unmarked(look: Look, sink: SinkFacts, batch_id: int) -> str | None:
    """A batch without a marker: its sink may not have it yet, or a later marker stands for it. Return that one."""
    if sink.record is None or sink.has_gaps or not sink.record.first_batch <= batch_id <= sink.marked_through:
        return None
    later = paths.marker(sink.folder, sink.marked_through)
    if not sink.groups:
        look.required(Marker, paths.marker(sink.folder, batch_id), f"{later} is made after it")
    return later


def _check_before(look: Look, release: Release) -> None:
    """A committer releases a batch only once the one before is marked. Of a group of batches, only the last is."""
    sink, before = look.known.sinks.get(release.sink), release.batch_id - 1
    wal = look.known.wal
    if sink is None or sink.record is None or wal is None or sink.groups:
        return
    if max(sink.marked_through + 1, sink.record.first_batch, wal.first_batch) <= before:
        because = f"the committer of the sink made {paths.release(release.batch_id)} after it"
        look.required(Marker, paths.marker(sink.folder, before), because)


def _compare(look: Look, sink: SinkFacts, marker: Marker, manifest: Manifest) -> None:
    path = paths.marker(sink.folder, marker.batch_id)
    if marker.skipped:  # a repair let the sink pass over the batch: the marker counts the rows it had got before
        if marker.rows > manifest.rows:
            what = f"it says that the sink has {marker.rows} rows of the batch, but its manifest has {manifest.rows}"
            look.fault(Fault.CONTRADICTION, path, what)
        return
    if not sink.groups and marker.rows != manifest.rows:
        what = f"it says that the batch has {marker.rows} rows, but its manifest has {manifest.rows}"
        look.fault(Fault.CONTRADICTION, path, what)
    rows = tuple(segment.rows for segment in manifest.segments)
    if sink.record is not None and sink.record.is_rolled:
        return  # its segment may be that of a roll, which is collected with the first of its batches
    if marker.last_delivered_batch == marker.batch_id and marker.last_delivered_rows != rows:
        look.fault(Fault.CONTRADICTION, path, "the rows of its segments are not those of the manifest")


# --- dead letters


def check_letters(look: Look, folder: str, batch_id: int) -> None:
    """Check the dead letters of one batch. One listing, a read for each, and up to two for its manifest."""
    root = paths.dead_letter_folder(folder, batch_id)
    files = look.log.store.list(root, recursive=True)
    letters: list[DeadLetter] = []
    for name in files:
        path = f"{root}/{name}"
        if kind_of(path) is None:
            look.unknown(path)
        elif name.endswith(paths.REPLAYED):
            _check_replayed(look, folder, path, files)
        elif (letter := _letter(look, path)) is not None:
            letters.append(letter)
    manifest = look.released(batch_id) if letters and batch_id > look.known.low_water else None
    for letter in letters:
        _check_letter(look, folder, batch_id, letter, manifest)


def _check_replayed(look: Look, sink: str, path: str, files: Sequence[str]) -> None:
    """Check the record that a dead letter was sent again. The letter itself may have been deleted since."""
    if look.of_term(Replayed, path, paths.replayer_role(sink)) is None:
        return
    letter = path.replace(paths.REPLAYED, ".parquet")
    folder, _, file = letter.rpartition("/")
    if file in files:
        return
    left = look.log.store.list(folder)
    if file not in left and path.rpartition("/")[2] in left:
        look.fault(Fault.DANGLING, path, f"the dead letter {letter} does not exist")


def _letter(look: Look, path: str) -> DeadLetter | None:
    try:
        letter = read_dead_letter(look.log.store, path)
    except ObjectMissing:
        return None  # a user may delete it at any time
    except CorruptError as error:
        look.fault(Fault.DAMAGED, path, str(error))
        return None
    look.seen.dead_letters += 1
    return letter


def _check_letter(look: Look, folder: str, batch_id: int, letter: DeadLetter, manifest: Manifest | None) -> None:
    """Compare what a dead letter says with its path, with the WAL's id, and with the segment of its rows."""
    path, chunk, name, wal = letter.path, letter.chunk, letter.name, look.known.wal
    slot = slot_name(wal.wal_id if wal else "", folder, name.ordinal)
    if wal is not None and chunk.position.slot.partition("/")[0] != wal.wal_id:
        look.fault(Fault.FOREIGN, path, f"its rows are of slot {chunk.position.slot}, not of {slot}")
        return
    is_of_path = (
        (chunk.batch_id, chunk.position.rows) == (batch_id, name.end_row)
        and (wal is None or chunk.position.slot == slot)
        and all(name.first_row <= row < name.end_row for row in chunk.rows)
        and (letter.kept == "unknown") == (name.number is None)
        and (name.number is None or not chunk.rows or _has_key_of(letter, name.number))
    )
    if not is_of_path:
        look.fault(Fault.MISPLACED, path, "this dead letter was written for another path")
    elif manifest is not None:
        segment = manifest.segments[name.ordinal] if name.ordinal < len(manifest.segments) else None
        if segment is None or segment.id != chunk.segment_id:
            what = f"its rows are of segment {chunk.segment_id}, but segment {name.ordinal} of the batch is "
            look.fault(Fault.FOREIGN, path, what + (segment.id if segment else "none"))


def _has_key_of(letter: DeadLetter, number: int) -> bool:
    return letter.chunk.key == refusal_key(letter.chunk.position, letter.chunk.rows, number)
