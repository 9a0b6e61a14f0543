"""Proof that nothing needs an attempt that no manifest names, or the evidence that its manifest was lost.

A batch has segments before it has a manifest. So segments without one are either what a crash left, or the only copy of
the rows of a batch whose manifest was lost. Spark tells: it runs a batch again until the batch is complete, and a batch
is complete only with a manifest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from wal_sink.checkpoint.formats import CheckpointFiles, planned_at, read_offsets
from wal_sink.checkpoint.reader import Checkpoint
from wal_sink.errors import ConfigError, WalSinkError
from wal_sink.recovery.inventory import marked_through, require_wal, sink_folders
from wal_sink.redaction import redacted
from wal_sink.reporting.texts import text_of
from wal_sink.wal import paths
from wal_sink.wal.log import NOTHING, Log
from wal_sink.wal.records import SinkRecord

DAMAGED = "an object of it is damaged"


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """A batch of which something stays, although no object names it."""

    batch_id: int
    why: str
    is_damaged: bool = True
    """False: it is only not known whether something needs it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether Spark completed a batch, and why this is known or unknown."""

    is_yes: bool | None
    """None: it is not known."""
    because: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Batches that must have been complete or released, by objects that are made after that."""

    newest: int
    """The newest batch of which the WAL holds anything, or a sink has anything."""
    handed: tuple[tuple[int, int], ...]
    """Of each sink: its first batch, and the newest one that it has or began."""

    def was_released(self, batch_id: int) -> bool:
        """Whether a sink has the batch, or began it."""
        return any(first <= batch_id <= through for first, through in self.handed)

    def was_completed(self, batch_id: int) -> Answer:
        """Whether Spark must have completed the batch."""
        if batch_id < self.newest:
            return Answer(is_yes=True, because=f"Spark completed the batch, since batch {self.newest} came after it")
        return Answer(is_yes=None)


def read_evidence(log: Log, held: Sequence[int]) -> Evidence:
    """The evidence about the batches `held` by a WAL. A few listings for each sink, and a read of its newest marker."""
    handed = tuple(_handed(log))
    return Evidence(max([*held, *(through for _, through in handed)], default=NOTHING), handed)


def _handed(log: Log) -> Iterator[tuple[int, int]]:
    for folder in sink_folders(log):
        record = log.find(SinkRecord, paths.sink(folder))
        if record is None or record.is_replay:
            continue  # a sink of a replay gets only some batches, all of which other sinks had
        begun = [
            batch_id
            for root in (paths.progress_batches(folder), paths.dead_letter_batches(folder))
            for batch_id in _batches(log, root)
        ]
        yield record.first_batch, max([marked_through(log, folder), *begun])


def _batches(log: Log, root: str) -> Iterator[int]:
    """The batches in a folder and in its shards."""
    names = log.store.list(root)
    shards = [f"{root}/{name}".removesuffix("/") for name in names if paths.is_shard(name)]
    for found in (names, *map(log.store.list, shards)):
        yield from (number for number in map(paths.parse_number, found) if number is not None)


class SparkSide:
    """The query's checkpoint, opened only if a batch needs it."""

    def __init__(self, open_files: Callable[[], CheckpointFiles]) -> None:
        self._open_files = open_files

    def has_completed(self, log: Log, batch_id: int) -> Answer:
        """Whether Spark completed the newest batch of a WAL. Never raises `WalSinkError`.

        No only if it is proven that Spark runs the batch again. Unknown if the checkpoint cannot be read, for example,
        or if `settle` made it for drains. Five reads at most.
        """
        try:
            wal = require_wal(log, paths.batch(batch_id))
            checkpoint = Checkpoint(self._open_files())
            query_id = checkpoint.query_id()
            if query_id != wal.query_id:
                return Answer(is_yes=None, because=f"{checkpoint.root} is not the checkpoint of the WAL's query")
            newest = checkpoint.newest_commit()
            is_planned = newest < batch_id and _is_planned(checkpoint, batch_id)
        except WalSinkError as error:
            return Answer(is_yes=None, because=redacted(text_of(error)))
        if newest >= batch_id:
            return Answer(is_yes=True, because=f"Spark completed the batch in {checkpoint.root}")
        if newest < batch_id - 1 or not is_planned:
            return Answer(
                is_yes=None,
                because=f"{checkpoint.root} is older than the WAL: batch {newest} is its newest complete one",
            )
        return Answer(is_yes=False)


def _is_planned(checkpoint: Checkpoint, batch_id: int) -> bool:
    """Whether Spark itself planned the batch: then it runs the batch again. Raises `ConfigError` and `CorruptError`."""
    text = checkpoint.offsets_text(batch_id)
    return (
        text is not None
        and planned_at(read_offsets(text, f"{checkpoint.root}/offsets/{batch_id}").metadata) is not None
    )


def _refuse() -> CheckpointFiles:
    raise ConfigError("no checkpoint was given")


NO_CHECKPOINT = SparkSide(_refuse)
