"""The part of `SinkContract` for two-phase sinks: when rows become visible, and which calls may be repeated.

Each prepare, commit and abort is made by a separate sink, as separate tasks make them in a cluster.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

from wal_sink.errors import HandleGoneError
from wal_sink.sinks.base import TwoPhaseSink
from wal_sink.sinks.chunk import Chunk
from wal_sink.testing.contract.base import LinesContract, rows_of
from wal_sink.testing.contract.calls import Held, attempt_at, commit, opened, prepare, shown_error, travelled
from wal_sink.testing.data.rows import Rows


class TwoPhaseContract(LinesContract):
    """See `SinkContract`."""

    def test_nothing_shows_before_it_is_committed(self, target: Any) -> None:
        """Neither prepared rows are visible, nor rows that a dead process wrote before it prepared them."""
        chunks, others = self._two_segments()
        before = self._rows_of(target)
        unfinished = self._two_phase(target)
        with opened(unfinished, others[0]):
            unfinished.begin(attempt_at(others[0]))
            for chunk in others:
                unfinished.write(chunk)
            self._expect_added(target, before, Rows.sent([]), "rows were written", _INVISIBLE)
            held = self._prepared(target, chunks)
            self._expect_added(target, before, Rows.sent([]), "rows were prepared", _INVISIBLE)
        self._expect_added(target, before, Rows.sent([]), "a sink was closed before it prepared", _INVISIBLE)
        self._commit(target, chunks[0], held)
        self._expect_added(target, before, rows_of(chunks), "the rows that were prepared were committed", _COMMITTED)

    def test_begin_and_prepare_return_text(self, target: Any) -> None:
        held = self._prepared(target, self._chunks())
        returned: dict[str, object] = {"begin": held.token, "prepare": held.handle}
        for name, found in returned.items():
            self._expect_handle(name, found, "return an id by which the target can find the rows")

    def test_a_copy_of_it_commits(self, target: Any) -> None:
        """The sink that prepared is gone by then, and the one that commits is often on another machine."""
        chunks = self._chunks()
        held = self._prepared(target, chunks)
        sink = self._two_phase(target)
        with suppress(Exception):  # another test checks that it can be pickled
            copy = travelled(sink)
            sink = copy if isinstance(copy, TwoPhaseSink) else sink
        before = self._rows_of(target)
        with opened(sink, chunks[0]):
            commit(sink, held)
        self._expect_added(target, before, rows_of(chunks), "another sink committed", _COMMITTED)

    def test_a_commit_that_comes_again_changes_nothing(self, target: Any) -> None:
        """The repeat may come at once, from another sink, or after a later commit."""
        first, second = self._two_segments()
        before = self._rows_of(target)
        held, later = self._prepared(target, first), self._prepared(target, second)
        sink = self._two_phase(target)
        with opened(sink, first[0]):
            commit(sink, held)
            self._again(lambda: commit(sink, held), _ONCE)
            commit(sink, later)
            self._again(lambda: commit(sink, held), _ONCE)
        self._again(lambda: self._commit(target, first[0], held), _ONCE)
        wanted = rows_of([*first, *second])
        self._expect_added(target, before, wanted, "a transaction was committed four times", _ONCE)

    def test_what_was_aborted_cannot_be_committed(self, target: Any) -> None:
        chunks = self._chunks()
        before = self._rows_of(target)
        held = self._prepared(target, chunks)
        self._abort(target, chunks[0], held)
        self._expect_gone(target, chunks[0], held, "aborted")
        self._expect_added(target, before, Rows.sent([]), "a transaction was aborted", "see abort()")

    def test_what_never_was_cannot_be_committed(self, target: Any) -> None:
        """An example is a transaction of another target, after the sink's address was changed."""
        chunks, others = self._two_segments()
        held, aborted = self._prepared(target, chunks), self._prepared(target, others)
        self._abort(target, others[0], aborted)
        self._commit(target, chunks[0], held)
        before = self._rows_of(target)
        never = attempt_at(others[0])
        unknown = Held(never, "", str(aborted.handle).replace(aborted.transaction.id, never.id))
        self._expect_gone(target, others[0], unknown, "never begun")
        self._expect_added(target, before, Rows.sent([]), "a commit was refused", "see commit()")

    def test_an_abort_takes_back_nothing_that_was_committed(self, target: Any) -> None:
        chunks = self._chunks()
        before = self._rows_of(target)
        held = self._prepared(target, chunks)
        self._commit(target, chunks[0], held)
        for token in (held.token, ""):
            self._abort(target, chunks[0], replace(held, token=token))
        self._expect_added(target, before, rows_of(chunks), "it was aborted after its commit", _KEPT)
        self._again(lambda: self._commit(target, chunks[0], held), _ONCE)
        self._expect_added(target, before, rows_of(chunks), "it was aborted and committed again", _ONCE)

    def test_an_abort_of_nothing_is_harmless(self, target: Any) -> None:
        """An abort may be repeated, or name a transaction that was never begun: the cleanup cannot know."""
        chunks = self._chunks()
        held = self._prepared(target, chunks)
        never = Held(attempt_at(chunks[0]), "", "")
        for what, one in (("aborted already", held), ("aborted already", held), ("never begun", never)):
            try:
                self._abort(target, chunks[0], one)
            except Exception as error:  # noqa: BLE001 - a user's sink may raise anything
                self._fail(
                    expected=f"no error from abort of what was {what}",
                    found=shown_error(error),
                    next_step="let abort return if the target has nothing of the transaction",
                )

    def test_attempts_at_a_segment_do_not_touch_each_other(self, target: Any) -> None:
        """Spark may run a task twice at the same time; one attempt is committed, the other aborted."""
        chunks = self._chunks()
        before = self._rows_of(target)
        lost, chosen, late = (self._prepared(target, chunks) for _ in range(3))
        self._abort(target, chunks[0], lost)
        self._commit(target, chunks[0], chosen)
        self._abort(target, chunks[0], late)
        self._expect_added(target, before, rows_of(chunks), "one of three attempts was committed", _OWN)

    # Helpers.

    def _prepared(self, target: Any, chunks: list[Chunk]) -> Held:
        sink = self._two_phase(target)
        with opened(sink, chunks[0], on_executor=True):
            return prepare(sink, chunks)

    def _commit(self, target: Any, chunk: Chunk, held: Held) -> None:
        sink = self._two_phase(target)
        with opened(sink, chunk):
            commit(sink, held)

    def _abort(self, target: Any, chunk: Chunk, held: Held) -> None:
        sink = self._two_phase(target)
        with opened(sink, chunk):
            sink.abort(held.transaction, held.token)

    def _expect_gone(self, target: Any, chunk: Chunk, held: Held, why: str) -> None:
        found = "no error"
        try:
            self._commit(target, chunk, held)
        except HandleGoneError:
            return
        except Exception as error:  # noqa: BLE001 - a user's sink may raise anything
            found = shown_error(error)
        self._fail(
            expected=f"HandleGoneError from commit of what was {why}",
            found=found,
            next_step="look up the transaction in the target; raise HandleGoneError if it is neither prepared nor "
            "committed",
        )


_INVISIBLE = "write and prepare where no reader looks: an open upload, a hidden folder, a prepared transaction"
_COMMITTED = "commit in commit() everything that prepare() finished, also if another sink prepared it"
_ONCE = "in commit(), return if the target has already committed this transaction"
_KEPT = "in abort(), drop only prepared rows, never committed ones"
_OWN = "distinguish attempts by transaction.id"
