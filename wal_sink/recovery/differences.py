"""The difference between two inputs of one batch: that of the WAL, and that of the checkpoint now. For messages.

A WAL keeps a batch's entry of the offset log, verbatim, and its rows. The files that a file source read stand in the
checkpoint alone. So of such a source, only the files that the batch would read now can be named.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from wal_sink.checkpoint.formats import FileEntry, OffsetsEntry, planned_at, read_offsets
from wal_sink.checkpoint.reader import Checkpoint
from wal_sink.errors import WalSinkError
from wal_sink.redaction import redacted
from wal_sink.reporting.counts import counted
from wal_sink.wal import paths
from wal_sink.wal.log import Log
from wal_sink.wal.records import Manifest

_MOST_SOURCES = 3
_LONGEST = 120
"""Longest offset that is shown as a whole."""


def difference(log: Log, checkpoint: Checkpoint, batch_id: int, held: tuple[int, int]) -> str:
    """The difference in sentences. Never raises `WalSinkError`: what cannot be read is told.

    `held`: term and attempt of the WAL's manifest. Two reads, one more if a source reads files, and those of its log.
    """
    try:
        manifest = log.require(Manifest, paths.manifest(batch_id, *held))
        text = checkpoint.offsets_text(batch_id)
        if text is None:
            return f"{_rows(manifest)}. The checkpoint has no entry of the batch any more"
        return redacted(_compared(manifest, text, checkpoint))
    except WalSinkError as error:
        return f"The difference cannot be shown: {redacted(error)}"


def _compared(manifest: Manifest, text: str, checkpoint: Checkpoint) -> str:
    before = read_offsets(manifest.offsets, "the manifest")
    now = read_offsets(text, f"{checkpoint.root}/offsets/{manifest.batch_id}")
    told = [f"{_rows(manifest)}, {_planned(before)}. The batch in the checkpoint was {_planned(now)}"]
    sources = sorted(before.sources.keys() | now.sources.keys())
    differing = [source for source in sources if before.sources.get(source) != now.sources.get(source)]
    told += [
        f"Source {source}: the WAL has {_shown(before.sources.get(source))}, "
        f"the checkpoint {_shown(now.sources.get(source))}"
        for source in differing[:_MOST_SOURCES]
    ]
    if len(differing) > _MOST_SOURCES:
        told.append(f"{counted(len(differing) - _MOST_SOURCES, 'more source')} differ")
    files = checkpoint.files(manifest.batch_id, text)
    told += [_files(source, files[source], differs=source in differing) for source in sorted(files)[:_MOST_SOURCES]]
    return ". ".join(told)


def _rows(manifest: Manifest) -> str:
    if manifest.passed_over:
        return "The WAL has it as a batch that no query ran"
    return f"The WAL has {counted(manifest.rows, 'row')} of it, in {counted(len(manifest.segments), 'segment')}"


def _planned(entry: OffsetsEntry) -> str:
    at_ms = planned_at(entry.metadata)
    if at_ms is None:
        return "planned at an unknown time"
    return f"planned at {datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec='milliseconds')}"


def _shown(offset: str | None) -> str:
    if offset is None:
        return "no offset"
    return offset if len(offset) <= _LONGEST else f"{offset[:_LONGEST]}… ({len(offset):,} characters)"


def _files(source: str, files: Sequence[FileEntry], *, differs: bool) -> str:
    names = [file.path.rpartition("/")[2] for file in files]
    which = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}" if names else "none"
    same = "" if differs else " under the same offset"
    return f"Source {source} reads files: now {counted(len(files), 'file')}{same} ({which})"
