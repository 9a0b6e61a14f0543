"""The state of a driver at its end, read from WAL, checkpoint and plain target once all its processes have ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.driver import CHUNK_ROWS
from tests.chaos.targets import EXACT, PLAIN, Sent, Targets
from tests.house.log import paths
from tests.house.operate import WalFacts
from tests.house.stores import StoreSpec, open_store
from tests.support.streams import Home
from wal_sink.operate.look import find_staged


@dataclass(frozen=True, slots=True)
class Seen:
    """The progress of a query, read from names of files alone: cheap enough to look many times a second."""

    files: int
    """The newest entry of the file source's log. After a crash between log and plan, a batch may hold two entries."""
    planned: int
    completed: int
    stager_term: int
    committer_term: int
    marked: int
    """The newest batch that the sink has completely. The sink is the plain one if no other is named."""

    @classmethod
    def of(cls, place: Home, sink: str = PLAIN) -> Seen:
        wal, checkpoint = place.wal, place.checkpoint
        return cls(
            files=_newest(checkpoint / "sources" / "0"),
            planned=_newest(checkpoint / "offsets"),
            completed=_newest(checkpoint / "commits"),
            stager_term=_newest(wal / paths.terms(paths.STAGER_ROLE)),
            committer_term=_newest(wal / paths.terms(paths.committer_role(sink))),
            marked=_newest(wal / paths.markers(sink)),
        )


@dataclass(frozen=True, slots=True)
class Moment:
    """The state of an ended driver."""

    query: str
    delivery: str
    """The state of delivery to the plain target."""
    exact: str
    """The same for the target that keeps a position."""
    batch: int
    """The batch that the plain target was getting, or was to get next."""
    window_rows: int
    """The rows that the plain target may get again: one chunk of each segment whose delivery had begun."""
    open_rows: int
    """The rows that the plain target has without a progress record."""


def moment(place: Home, before: Seen) -> Moment:
    """Return the state of an ended driver. `before` is the progress before its start."""
    seen = Seen.of(place)
    delivery, window, left_open = _delivery(place, seen)
    return Moment(query_met(place, seen, before), delivery, _exact(place), seen.marked + 1, window, left_open)


def _exact(place: Home) -> str:
    seen = Seen.of(place, EXACT)
    if seen.marked == seen.completed:
        return "nothing to deliver"
    released = (place.wal / paths.release(seen.marked + 1)).exists()
    return "released, no marker" if released else "complete, not released"


def too_early(place: Home) -> list[int]:
    """Return the batches of which the plain target has rows although Spark never completed their checkpoint."""
    completed = Seen.of(place).completed
    return sorted({sent.batch for sent in Targets(place.root).sent() if sent.batch > completed})


def query_met(place: Home, seen: Seen, before: Seen) -> str:
    """Return the state of an ended process's query, apart from delivery."""
    if seen.stager_term == before.stager_term:
        return "taking over" if seen.committer_term > before.committer_term else "starting"
    if seen.planned == seen.completed:
        return "between two batches"
    names = _files(place.wal / paths.batch(seen.planned))
    own = [name for name in names if f"{seen.stager_term:010d}-" in name]
    if any(paths.parse_manifest(name) for name in own):
        return "between stage and commit"
    return "staging, a segment whole" if any(name.endswith(".parquet") for name in own) else "staging"


def _delivery(place: Home, seen: Seen) -> tuple[str, int, int]:
    batch_id = seen.marked + 1
    if batch_id > seen.completed:
        return "nothing to deliver", 0, 0
    if not (place.wal / paths.release(batch_id)).exists():
        return "complete, not released", 0, 0
    manifest = find_staged(WalFacts(open_store(StoreSpec(str(place.wal)))).log, batch_id).manifest
    if manifest is None:
        return "released, its manifest gone", 0, 0
    rows = [segment.rows for segment in manifest.segments]
    recorded = _recorded(place, batch_id, len(rows))
    held = _held((sent for sent in Targets(place.root).sent() if sent.batch == batch_id), len(rows))
    window = sum(min(CHUNK_ROWS, all_rows - known) for all_rows, known in zip(rows, recorded, strict=True))
    left_open = sum(max(0, has - known) for has, known in zip(held, recorded, strict=True))
    if left_open:
        return "chunk sent, not recorded", window, left_open
    if sum(recorded) == sum(rows):
        return "all recorded, no marker", window, 0
    return ("between two chunks" if sum(recorded) else "released, nothing sent"), window, 0


def _recorded(place: Home, batch_id: int, segments: int) -> list[int]:
    found = [0] * segments
    for name in _files(place.wal / paths.progress_folder(PLAIN, batch_id)):
        progress = paths.parse_progress(name)
        if progress is not None:
            found[progress.ordinal] = max(progress.rows, found[progress.ordinal])
    return found


def _held(sent: Iterable[Sent], segments: int) -> list[int]:
    found = [0] * segments
    for call in sent:
        found[call.ordinal] = max(call.end, found[call.ordinal])
    return found


def _newest(folder: Path) -> int:
    stems = (name.partition(".")[0] for name in _files(folder))
    return max((int(stem) for stem in stems if stem.isascii() and stem.isdigit()), default=-1)


def _files(folder: Path) -> list[str]:
    """List the names below a folder, relative to it. Hidden files are temporary and are left out."""
    found = (path.relative_to(folder) for path in folder.rglob("*"))
    return [str(path) for path in found if not path.name.startswith(".")]
