"""Checks of dead letters: rows that a target refused, or may not have. Only a user deletes them."""

from __future__ import annotations

from collections.abc import Sequence

from wal_sink.checking.batch import check_term
from wal_sink.checking.findings import Fault
from wal_sink.checking.kinds import kind_of
from wal_sink.checking.look import Look
from wal_sink.dead_letters.files import DeadLetter, read_dead_letter
from wal_sink.errors import CorruptError
from wal_sink.sinks.chunk import refusal_key
from wal_sink.sinks.positions import slot_name
from wal_sink.stores.base import ObjectMissing
from wal_sink.wal import paths
from wal_sink.wal.records import Manifest, Release, Replayed


def letter_batches(look: Look, folder: str) -> list[int]:
    """The batches of which a sink has dead letters. One listing."""
    numbers = []
    for name in look.log.store.list(paths.dead_letter_batches(folder)):
        number = paths.parse_number(name)
        if number is None or not name.endswith("/"):
            look.unknown(f"{paths.dead_letter_batches(folder)}/{name}")
        else:
            numbers.append(number)
    return sorted(numbers)


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
            _check_replayed(look, folder, f"{root}/{name}", files)
        elif (letter := _letter(look, path)) is not None:
            letters.append(letter)
    manifest = _manifest(look, batch_id) if letters else None
    for letter in letters:
        _check_letter(look, folder, batch_id, letter, manifest)


def _check_replayed(look: Look, sink: str, path: str, files: Sequence[str]) -> None:
    """Check the record that a dead letter was sent again. The letter itself may have been deleted since."""
    record = look.listed(Replayed, path)
    if record is None:
        return
    check_term(look, paths.replayer_role(sink), record.term, record.run_id, path)
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


def _manifest(look: Look, batch_id: int) -> Manifest | None:
    """The released manifest of a batch that the WAL still holds. Faults of both records are told with their batch."""
    if batch_id <= look.known.low_water:
        return None
    quiet = Look(look.known)
    release = quiet.find(Release, paths.release(batch_id))
    path = paths.manifest(batch_id, release.term, release.attempt) if release else None
    return quiet.find(Manifest, path) if path else None


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
