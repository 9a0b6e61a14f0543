"""Checks of what the sinks recorded of one batch: progress, prepared transactions, and markers."""

from __future__ import annotations

from wal_sink.checking.batch import BatchFacts, check_term, is_passed_over
from wal_sink.checking.findings import Fault
from wal_sink.checking.look import Look, SinkFacts
from wal_sink.errors import CorruptError
from wal_sink.wal import paths
from wal_sink.wal.records import Manifest, Marker, PreparedRecord, Progress, Release, SegmentRef
from wal_sink.wal.segment_reader import chunk_ends


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
    path = None
    for folder in sink.progress.get(batch_id, ()):
        for name in look.log.store.list(folder, recursive=True):
            path = f"{folder}/{name}"
            if paths.parse_progress(name) is not None:
                _check_progress(look, sink, path, manifest)
            elif paths.parse_prepared(name) is not None:
                _check_prepared(look, sink, path, manifest)
            else:
                look.unknown(path)
    return path


def _check_progress(look: Look, sink: SinkFacts, path: str, manifest: Manifest | None) -> None:
    record = look.listed(Progress, path)
    if record is None:
        return
    check_term(look, paths.committer_role(sink.folder), record.term, record.run_id, path)
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
    record = look.listed(PreparedRecord, path)
    if record is None:
        return
    check_term(look, paths.committer_role(sink.folder), record.term, record.run_id, path)
    _segment(look, path, record.ordinal, record.segment_id, manifest)
    number = record.number - 1
    if number > 0:
        earlier = f"{path.rpartition('/')[0]}/prepared-{record.ordinal:06d}-{number:06d}.json"
        look.required(PreparedRecord, earlier, f"{path} is the preparation after it")


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
    marker = look.listed(Marker, path)
    if marker is not None:
        check_term(look, paths.committer_role(sink.folder), marker.term, marker.run_id, path)
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
    if marker.last_delivered_batch == marker.batch_id and marker.last_delivered_rows != rows:
        look.fault(Fault.CONTRADICTION, path, "the rows of its segments are not those of the manifest")
