"""Comparison of the newest marked batch with a target that tells whether it has a chunk."""

from __future__ import annotations

from wal_sink.checking.findings import Fault, Finding
from wal_sink.checking.look import Look, SinkFacts
from wal_sink.checking.opened_target import opened_target, released_manifest
from wal_sink.errors import CorruptError
from wal_sink.redaction import redacted
from wal_sink.reporting.texts import name_of
from wal_sink.sinks.base import Lookup, Sink
from wal_sink.sinks.chunk import chunk_key
from wal_sink.sinks.failures import SinkFailedError
from wal_sink.sinks.session import ask_applied
from wal_sink.wal import paths
from wal_sink.wal.records import Manifest, Marker
from wal_sink.wal.segment_reader import chunk_ends

MOST_CHUNKS = 1000
"""Most chunks that are looked up: one request each."""


def compare_keys(look: Look, facts: SinkFacts, sink: Sink, lookup: Lookup, *, timeout_s: float) -> str:
    """Compare the chunks of the newest marked batch. Return what was left out; empty if nothing was.

    A chunk with dead letters is not in the target as a whole, and is left out. `lookup` is the sink, too.
    """
    batch_id = facts.marked_through
    marker = Look(look.known).find(Marker, paths.marker(facts.folder, batch_id)) if batch_id in facts.markers else None
    if marker is not None and marker.skipped:
        return f"the sink passed over batch {batch_id} on purpose"
    manifest = released_manifest(look, batch_id) if batch_id in look.known.held else None
    if manifest is None or facts.record is None or facts.record.sink_kind != "lookup":
        return "the WAL holds no batch that was marked for a target of this kind"
    try:
        chunks = _chunks(look, facts.folder, manifest)
    except CorruptError:
        return f"the manifest of batch {batch_id} contradicts itself"  # and is a finding
    try:
        with opened_target(look, facts, sink, timeout_s) as session:
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
