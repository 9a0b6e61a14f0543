"""Spark's newest commit, as far as the checkpoint can be read. Nothing here fails: the unknown is told as unknown."""

from __future__ import annotations

from dataclasses import dataclass

from wal_sink.checkpoint.formats import CheckpointFiles
from wal_sink.checkpoint.reader import Checkpoint
from wal_sink.errors import WalSinkError
from wal_sink.redaction import redacted
from wal_sink.reporting.texts import text_of


@dataclass(frozen=True, slots=True)
class SparkCommit:
    """The newest batch that Spark completed."""

    newest: int | None
    """-1 if Spark completed none; None if it is unknown."""
    unknown_because: str = ""


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
        return SparkCommit(None, redacted(text_of(error)))
