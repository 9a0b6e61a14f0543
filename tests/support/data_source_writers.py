"""Writers of Python data sources, which Spark has since 4.0. Workers import them too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage

from tests.support.writers import Notes

if TYPE_CHECKING:
    from pyspark.sql import Row


@dataclass
class Written(WriterCommitMessage):
    ids: list[int]


@dataclass
class CommittingWriter(DataSourceStreamWriter):
    notes: Notes

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - PySpark's name
        self.notes.note("commit", batch=batchId, messages=_ids(messages))
        self.notes.trouble("commit")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self.notes.note("abort", batch=batchId, messages=_ids(messages))
        self.notes.trouble("abort")

    def written(self, ids: list[int]) -> Written:
        context = TaskContext.get()
        assert context is not None
        self.notes.note("write", ids=ids, batch=context.getLocalProperty("streaming.sql.batchId"))
        for number in ids:
            self.notes.trouble(f"write-{number}")
        return Written(ids)


class RowWriter(CommittingWriter):
    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        return self.written([row.id for row in iterator])


class LateWriter(RowWriter):
    """A writer whose `commit` is async behind a decorator."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        async def later() -> None:
            super(LateWriter, self).commit(messages, batchId)

        return later()  # type: ignore[return-value]  # that is the fault


class SilentWriter(CommittingWriter):
    """A writer that forgets to return a message."""

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        list(iterator)
        return None  # type: ignore[return-value]  # that is the fault


def _ids(messages: list[WriterCommitMessage | None]) -> list[list[int] | None]:
    return [message.ids if isinstance(message, Written) else None for message in messages]
