"""The part of `SinkContract` for commit sinks: when rows become visible, and which commits are refused.

Prepared segments are committed by a separate sink, as another process does.
"""

from __future__ import annotations

from typing import Any

from wal_sink.sinks.base import BatchCommit
from wal_sink.sinks.chunk import Chunk
from wal_sink.testing.contract.base import LinesContract, rows_of
from wal_sink.testing.contract.calls import next_batch, opened
from wal_sink.testing.data.rows import Rows


class CommitContract(LinesContract):
    """See `SinkContract`."""

    def test_a_batch_shows_with_its_position_in_one_commit(self, target: Any) -> None:
        first, second = self._two_segments()
        before = self._rows_of(target)
        batch = self._prepared_batch(target, first, second)
        for handle in batch.handles:
            self._expect_handle("prepare", handle, "return a name by which commit finds the rows")
        self._expect_added(target, before, Rows.sent([]), "rows were prepared", _INVISIBLE)
        self._commit_batch(target, first[0], batch)
        self._expect_added(target, before, rows_of([*first, *second]), "another sink committed them", _COMMITTED)
        self._expect_position(target, first[0], batch)

    def test_a_batch_that_was_committed_may_be_prepared_and_committed_again(self, target: Any) -> None:
        (chunks, _), before = self._two_segments(), self._rows_of(target)
        batch = self._prepared_batch(target, chunks)
        self._commit_batch(target, chunks[0], batch)
        sink = self._commit_sink(target)
        with opened(sink, chunks[0]):
            self._again(lambda: sink.commit(batch), _ONCE)
            self._again(lambda: sink.commit(batch), _ONCE)
        self._prepared_batch(target, chunks, after=batch)
        self._expect_added(target, before, rows_of(chunks), "it was prepared twice and committed three times", _ONCE)
        self._expect_position(target, chunks[0], batch)

    def test_a_commit_that_comes_late_is_refused(self, target: Any) -> None:
        """Another process has committed another batch since, or the same one with other rows."""
        (chunks, others), before = self._two_segments(), self._rows_of(target)
        late = self._prepared_batch(target, chunks)
        newer = self._prepared_batch(target, others)
        self._commit_batch(target, chunks[0], newer)
        try:
            self._commit_batch(target, chunks[0], late)
        except Exception:  # noqa: BLE001 - a user's sink may raise anything
            error = True
        else:
            error = False
        self._expect_added(target, before, rows_of(others), "a commit came late", _ASSERTED)
        self._expect_position(target, chunks[0], newer)
        if not error:
            self._fail(expected="an exception from a commit that comes late", found="no error", next_step=_ASSERTED)

    def test_another_sink_has_a_position_of_its_own(self, target: Any) -> None:
        chunks = self._chunks()
        sink = self._commit_sink(target)
        with opened(sink, chunks[0], name="other"):
            before = sink.position()
        self._commit_batch(target, chunks[0], self._prepared_batch(target, chunks))
        with opened(sink, chunks[0], name="other"):
            found = sink.position()
        if found != before:
            self._fail(
                expected=f"position() of another sink is still {before}",
                found=str(found),
                next_step="store the position under context.wal_id and context.sink",
            )

    # Helpers.

    def _prepared_batch(self, target: Any, *segments: list[Chunk], after: BatchCommit | None = None) -> BatchCommit:
        """Prepare a batch, or the same one again (`after`)."""
        sink = self._commit_sink(target)
        with opened(sink, segments[0][0], on_executor=True):
            return next_batch(sink, *segments, follows=after.follows if after else sink.position())

    def _commit_batch(self, target: Any, chunk: Chunk, batch: BatchCommit) -> None:
        sink = self._commit_sink(target)
        with opened(sink, chunk):
            sink.commit(batch)

    def _expect_position(self, target: Any, chunk: Chunk, batch: BatchCommit) -> None:
        sink = self._commit_sink(target)
        with opened(sink, chunk):
            found = sink.position()
        if found != batch.position:
            self._fail(
                expected=f"position() is {batch.position}",
                found=str(found),
                next_step="store batch.position in the commit of the rows, and read the target in position()",
            )


_INVISIBLE = "write in prepare() where no reader looks: only commit() names the files to the table"
_COMMITTED = "commit in commit() the rows of every handle, also if another sink prepared them"
_ONCE = "give the same rows the same name (segment.id) in prepare(); return from commit() if the target has the batch"
_ASSERTED = (
    "let commit() raise if the position is not batch.follows, and let the target itself refuse a commit on top of "
    "another state than the one that was compared"
)
