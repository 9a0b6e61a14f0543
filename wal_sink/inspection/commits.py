"""Spark's newest commit, as far as the checkpoint can be read. Nothing here fails: the unknown is told as unknown."""

from __future__ import annotations

from dataclasses import dataclass

from wal_sink.checkpoint.formats import CheckpointFiles
from wal_sink.checkpoint.reader import Checkpoint
from wal_sink.errors import WalSinkError
from wal_sink.redaction import redacted


@dataclass(frozen=True, slots=True)
class SparkCommit:
    """The newest batch that Spark completed."""

    newest: int | None
    """-1 if Spark completed none; None if it is unknown."""
    unknown_because: str = ""


def older_checkpoint(spark: SparkCommit, *, newest_batch: int, delivered_through: int) -> str:
    """Why the checkpoint is older than the WAL; empty if it is not, or if Spark's newest commit is unknown.

    `newest_batch`, `delivered_through`: of the WAL, read before the commit. A batch is delivered only after Spark
    completed it, and only the batch after the newest complete one can be staged.
    """
    if spark.newest is None or (delivered_through <= spark.newest and newest_batch <= spark.newest + 1):
        return ""
    completed = "no batch" if spark.newest < 0 else f"batches through {spark.newest} only"
    known = f"was delivered through {delivered_through}"
    if delivered_through <= spark.newest:
        known = f"holds batches through {newest_batch}"
    return (
        f"the checkpoint is older than the WAL, which {known}, while Spark completed {completed}. It was restored to "
        "an older state, or is another copy. Before the query starts, run wal-sink verify WAL --checkpoint URL, and "
        "restore a newer checkpoint if you can. If the query reads the same input under the same batch ids as before, "
        "wal-sink recognises these batches. An option such as maxFilesPerTrigger that was changed since makes it read "
        "other input (HistoryError)"
    )


def read_commit(files: CheckpointFiles, query_id: str | None) -> SparkCommit:
    """Spark's newest commit in a checkpoint of the given query. One read and one listing; never raises `WalSinkError`.

    The entries of another query say nothing about this WAL.
    """
    checkpoint = Checkpoint(files)
    try:
        found = checkpoint.query_id()
        if found is None:
            return SparkCommit(None, f"{checkpoint.root} holds no query id")
        if found != query_id:
            return SparkCommit(None, f"{checkpoint.root} belongs to another query ({found})")
        return SparkCommit(checkpoint.newest_commit())
    except WalSinkError as error:
        return SparkCommit(None, redacted(error))
