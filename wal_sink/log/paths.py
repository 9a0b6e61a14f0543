"""Builds every path inside a WAL; no other module does. All paths are relative to the WAL's root.

Numbers are zero-padded. A number with more digits than its field is written in full and read back. Only batch ids
always have the same width: only for them the order of a listing is the order of the numbers.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from wal_sink.errors import ConfigError

WAL = "wal.json"
BATCHES = "batches"
SINKS = "sinks"
LOW_WATER = "low-water"
MOVES = "moves"
TERMS = "terms"
PROBE = "probe"
STAGER_ROLE = "stager"
FORGOTTEN = "forgotten"
SINK_RECORD = "sink.json"
RETIRED = "retired.json"
RENAMED = "renamed.json"
OWNER = "owner.json"
NAMES = "names"
ERRORS = "errors"
REPLAYED = ".replayed.json"
"""Suffix of the record that a dead letter was sent again."""


_SINK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
BATCH_DIGITS = 19
"""Digits of the largest batch id in Spark (a Java long). All batch ids have this width, because listings start after a
batch.
"""


def _number(digits: int) -> str:
    """Pattern of a number with at least this many digits. A number with more digits has no leading zeros."""
    return rf"(\d{{{digits}}}|[1-9]\d{{{digits},}})"


_MANIFEST = re.compile(rf"manifest-{_number(10)}-{_number(10)}\.json", re.ASCII)
_ATTEMPT = re.compile(rf"{_number(10)}-{_number(10)}/", re.ASCII)
_PROGRESS = re.compile(rf"{_number(6)}-{_number(12)}\.json", re.ASCII)
_SEGMENT = re.compile(rf"(?:.*/)?{_number(6)}-{_number(4)}-[^/]*\.parquet", re.ASCII)
_PREPARED = re.compile(rf"prepared-{_number(6)}-{_number(6)}\.json", re.ASCII)
_BEGUN = re.compile(rf"(\d{{{BATCH_DIGITS}}})-([^/.]+)\.json", re.ASCII)
_DEAD_LETTER = re.compile(rf"{_number(6)}-{_number(12)}-{_number(12)}(?:-{_number(6)})?\.parquet", re.ASCII)


class ManifestName(NamedTuple):
    """Position of a manifest in the order in which the highest counts."""

    term: int
    attempt: int


class PreparedName(NamedTuple):
    """The segment that was prepared at delivery, and the number of this preparation."""

    ordinal: int
    number: int


class ProgressName(NamedTuple):
    """The segment of a progress record, and the number of its rows that the sink has."""

    ordinal: int
    rows: int


class SegmentName(NamedTuple):
    """The partition that wrote a segment, and the segment's file index in it."""

    partition: int
    file_index: int


class BegunName(NamedTuple):
    """Batch and id of a transaction that was begun, and the folder of its record."""

    folder: str
    batch_id: int
    transaction_id: str

    @property
    def path(self) -> str:
        return f"{self.folder}/{batch_name(self.batch_id)}-{self.transaction_id}.json"

    @property
    def token_path(self) -> str:
        return f"{self.folder}/{batch_name(self.batch_id)}-{self.transaction_id}.token.json"


class DeadLetterName(NamedTuple):
    """The chunk whose rows were kept as a dead letter."""

    ordinal: int
    first_row: int
    end_row: int
    number: int | None
    """Number of the rejection of this chunk, counted from 0. None: the outcome of the chunk is unknown, and all of it
    was kept.
    """


def check_sink_name(name: str) -> str:
    """Return `name` if it can stand in a path; otherwise raise `ConfigError`."""
    if not _SINK_NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is not a valid sink name: expected 1 to 64 letters, digits, '_', '.' or '-', the first a letter "
            "or digit"
        )
    return name


def replayer_role(sink: str) -> str:
    return f"replayer-{sink}"


def committer_role(sink: str) -> str:
    return f"committer-{sink}"


def terms(role: str) -> str:
    return f"{TERMS}/{role}"


def term(role: str, number: int) -> str:
    return f"{terms(role)}/{_counted(number, 10)}.json"


def ended(role: str, number: int) -> str:
    """Path of the record that the holder of a term ended in order."""
    return f"{terms(role)}/{number:010d}.ended.json"


def described_role(role: str) -> str:
    """A role in words, for messages."""
    kind, _, name = role.partition("-")
    return {"committer": f"sink {name!r}", "replayer": f"replaying the dead letters of sink {name!r}"}.get(kind, role)


def batch_name(batch_id: int) -> str:
    """The name of a batch. Raises `ConfigError` for a number that is not a batch id: its name would break the order of
    listings.
    """
    if batch_id < 0 or len(str(batch_id)) > BATCH_DIGITS:
        raise ConfigError(
            f"{batch_id} is not a batch id: expected a whole number from 0 on, of {BATCH_DIGITS} digits at most"
        )
    return str(batch_id).zfill(BATCH_DIGITS)


def batch(batch_id: int) -> str:
    return f"{BATCHES}/{batch_name(batch_id)}"


def manifest(batch_id: int, term_number: int, attempt: int) -> str:
    return f"{batch(batch_id)}/manifest-{_counted(term_number, 10)}-{_counted(attempt, 10)}.json"


def release(batch_id: int) -> str:
    return f"{batch(batch_id)}/release.json"


def skipped(batch_id: int) -> str:
    """Path of the record that stands for a batch whose objects were lost, once a sink passed over it."""
    return f"{batch(batch_id)}/skipped.json"


def attempt_folder(batch_id: int, term_number: int, attempt: int) -> str:
    return f"{batch(batch_id)}/{_counted(term_number, 10)}-{_counted(attempt, 10)}"


def segment(folder: str, partition: int, file_index: int, segment_id: str) -> str:
    """Path of a segment in an attempt's folder."""
    return f"{folder}/{_counted(partition, 6)}-{_counted(file_index, 4)}-{segment_id}.parquet"


def sink(name: str) -> str:
    return f"{SINKS}/{name}/sink.json"


def retired(name: str) -> str:
    """Path of the record that a sink was retired."""
    return f"{SINKS}/{name}/{RETIRED}"


def renamed(name: str) -> str:
    """Path of the record that a name was given to a sink whose first name is another."""
    return f"{SINKS}/{name}/{RENAMED}"


def owner(name: str) -> str:
    """Path of the record that names the owner of a name. A rename and a registration may both want the name."""
    return f"{SINKS}/{name}/{OWNER}"


def sink_names(folder: str) -> str:
    """Folder of the records of a sink's names, in the folder of its first name."""
    return f"{SINKS}/{folder}/{NAMES}"


def sink_name(folder: str, number: int) -> str:
    return f"{sink_names(folder)}/{number:010d}.json"


def changes(folder: str) -> str:
    """Folder of the records of changes that persons ordered, in the folder of the sink's first name."""
    return f"{SINKS}/{folder}/changes"


def change(folder: str, number: int) -> str:
    return f"{changes(folder)}/{_counted(number, 10)}.json"


def errors(name: str) -> str:
    """Folder of a committer's last error."""
    return f"{SINKS}/{name}/{ERRORS}"


def error(name: str, number: int) -> str:
    return f"{errors(name)}/{_counted(number, 10)}.json"


def forgotten(name: str) -> str:
    """Path of the object that a user creates to make the WAL forget a sink for ever."""
    return f"{SINKS}/{name}/{FORGOTTEN}"


def progress_folder(name: str, batch_id: int) -> str:
    """Folder of a batch's progress."""
    return f"{progress_batches(name)}/{batch_name(batch_id)}"


def progress(name: str, batch_id: int, ordinal: int, rows: int) -> str:
    return f"{progress_folder(name, batch_id)}/{_counted(ordinal, 6)}-{_counted(rows, 12)}.json"


def markers(name: str) -> str:
    return f"{SINKS}/{name}/markers"


def marker(name: str, batch_id: int) -> str:
    return f"{markers(name)}/{batch_name(batch_id)}.json"


def progress_batches(name: str) -> str:
    return f"{SINKS}/{name}/progress"


def begun_folder(name: str) -> str:
    return f"{SINKS}/{name}/begun"


def begun(name: str, batch_id: int, transaction_id: str) -> str:
    return BegunName(begun_folder(name), batch_id, transaction_id).path


def begun_token(name: str, batch_id: int, transaction_id: str) -> str:
    return BegunName(begun_folder(name), batch_id, transaction_id).token_path


def prepared(name: str, batch_id: int, ordinal: int, number: int) -> str:
    """Path of a `prepared` record: beside the progress of its batch, which is collected together with it."""
    return f"{progress_folder(name, batch_id)}/prepared-{_counted(ordinal, 6)}-{_counted(number, 6)}.json"


def roll(name: str, first_batch: int) -> str:
    """Path of the record of a roll of batches, beside the segment that holds their rows."""
    return f"{progress_folder(name, first_batch)}/roll.json"


def dead_letter_folder(name: str, batch_id: int) -> str:
    return f"{SINKS}/{name}/dead-letters/{batch_name(batch_id)}"


def dead_letter(
    name: str, batch_id: int, ordinal: int, first_row: int, end_row: int, *, number: int | None = None
) -> str:
    refusal = "" if number is None else f"-{_counted(number, 6)}"
    chunk = f"{_counted(ordinal, 6)}-{_counted(first_row, 12)}-{_counted(end_row, 12)}"
    return f"{dead_letter_folder(name, batch_id)}/{chunk}{refusal}.parquet"


def dead_letter_batches(name: str) -> str:
    return f"{SINKS}/{name}/dead-letters"


def replayed(dead_letter_path: str) -> str:
    """Path of the record that a dead letter was sent again."""
    return f"{dead_letter_path.removesuffix('.parquet')}{REPLAYED}"


def sink_of(path: str) -> str:
    """Name of the sink in whose folder a path lies; empty for any other path."""
    head, _, rest = path.partition("/")
    return rest.partition("/")[0] if head == SINKS else ""


def move(number: int) -> str:
    """Path of the record that the WAL was moved."""
    return f"{MOVES}/{_counted(number, 10)}.json"


def low_water(batch_id: int) -> str:
    return f"{LOW_WATER}/{batch_name(batch_id)}.json"


def _counted(number: int, digits: int) -> str:
    """The number with at least this many digits. Raises `ConfigError` below 0: such a name is not read back."""
    if number < 0:
        raise ConfigError(f"{number} cannot be part of an object's name: expected a number from 0 on")
    return str(number).zfill(digits)


def parse_manifest(name: str) -> ManifestName | None:
    """Term and attempt in a manifest's file name; None for any other name."""
    match = _MANIFEST.fullmatch(name)
    return ManifestName(int(match[1]), int(match[2])) if match else None


def parse_attempt(name: str) -> ManifestName | None:
    """Term and attempt in the name of a manifest, or of an attempt's folder within a batch's folder."""
    match = _ATTEMPT.fullmatch(name)
    return ManifestName(int(match[1]), int(match[2])) if match else parse_manifest(name)


def parse_progress(name: str) -> ProgressName | None:
    match = _PROGRESS.fullmatch(name)
    return ProgressName(int(match[1]), int(match[2])) if match else None


def parse_segment(path: str) -> SegmentName | None:
    match = _SEGMENT.fullmatch(path)
    return SegmentName(int(match[1]), int(match[2])) if match else None


def parse_begun(folder: str, name: str) -> BegunName | None:
    match = _BEGUN.fullmatch(name)
    return BegunName(folder, int(match[1]), match[2]) if match else None


def is_prepared(name: str) -> bool:
    return parse_prepared(name) is not None


def parse_prepared(name: str) -> PreparedName | None:
    match = _PREPARED.fullmatch(name)
    return PreparedName(int(match[1]), int(match[2])) if match else None


def parse_dead_letter(name: str) -> DeadLetterName | None:
    match = _DEAD_LETTER.fullmatch(name)
    if match is None:
        return None
    ordinal, first_row, end_row, number = match.groups()
    return DeadLetterName(int(ordinal), int(first_row), int(end_row), None if number is None else int(number))


def parse_number(name: str) -> int | None:
    """The number in names such as `0000000007.json` or `0000000007/`; None for other names."""
    stem = name.removesuffix("/").removesuffix(".json")
    return int(stem) if stem.isascii() and stem.isdigit() else None
