"""Checks of one batch: its manifests, its release, and every segment of the attempt that counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from wal_sink.checking.findings import Fault
from wal_sink.checking.kinds import kind_of
from wal_sink.checking.look import Look
from wal_sink.errors import CorruptError
from wal_sink.stores.base import ObjectMissing
from wal_sink.wal import paths
from wal_sink.wal.paths import ManifestName
from wal_sink.wal.records import Manifest, Marker, Release, SegmentRef, SkippedBatch
from wal_sink.wal.segment_reader import chunk_ends, load_segment


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
    facts = _listed(look, batch_id)
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


def _listed(look: Look, batch_id: int) -> BatchFacts:
    """The objects of a batch, as listings show them."""
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
