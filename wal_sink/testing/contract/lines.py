"""The part of `SinkContract` that disturbs a sink at each line of the sink's code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from wal_sink.sinks.chunk import Chunk
from wal_sink.testing.contract.base import ContractBase, rows_of
from wal_sink.testing.contract.calls import chunks_of, deliver, lines_of, send_failing, send_meanwhile
from wal_sink.testing.data.rows import Rows
from wal_sink.testing.matrix.beside import Beside
from wal_sink.testing.matrix.points import chosen
from wal_sink.testing.matrix.verdict import Point
from wal_sink.testing.simulation.process import promise_of

_MOST_LINES = 200
_MOST_INTERRUPTED = 12


class LinesContract(ContractBase):
    """Tests with failing requests and with interfering tasks, at each line of the sink's own code."""

    def test_a_failure_inside_write_is_not_hidden(self, target: Any) -> None:
        """If write returns, every row is in the target."""
        for _, chunk, added, place, error in self._each_line_failing(target):
            missing = rows_of([chunk]).difference(added).lost
            if error is None and missing:
                self._fail(
                    expected="an exception from write, or every row in the target",
                    found=f"a request failed just before {place}; write returned, and {len(missing)} rows are missing",
                    next_step="do not catch the exception in write(): the chunk is then sent again",
                )

    def test_another_one_may_write_in_the_middle_of_a_write(self, target: Any) -> None:
        """Another task delivers another segment at some lines of the sink: they may share no name, file or buffer."""
        for line in self._some_lines(target):
            fresh = self.another(target)
            mine, its = (chunks_of(table.slice(0, 2), batch_id=line, ordinal=n) for n, table in enumerate(self._two()))
            before = self._rows_of(fresh)
            place, again = self._interrupted(fresh, mine, its, at_line=line)
            difference = rows_of([*mine, *its]).difference(self._rows_of(fresh).added_since(before))
            exact = promise_of(self.make_sink(fresh)).guarantee == "exactly_once"
            if difference.lost or difference.foreign or (difference.repeated and (exact or not again)):
                self._fail(
                    expected=f"every row, when another task delivers its segment just before {place}",
                    found=str(difference),
                    next_step="put the chunk's key or the segment's id into every name that tasks could share",
                )

    def _each_line_failing(self, target: Any) -> Iterator[tuple[Any, Chunk, Rows, str, BaseException | None]]:
        """Write a chunk repeatedly; each time another line of the sink's own code fails.

        Yields the target, the chunk, the rows that the write added, the line, and the error that `write` raised, if
        any.
        """
        for number in range(1, _MOST_LINES):
            fresh = self.another(target)
            before = self._rows_of(fresh)
            (chunk,) = chunks_of(self.tables()[0].slice(0, 2), batch_id=number)
            place, error = send_failing(self._sink(fresh), chunk, at_line=number)
            if not place:
                return
            yield fresh, chunk, self._rows_of(fresh).added_since(before), place, error

    def _some_lines(self, target: Any) -> list[int]:
        """Numbers of executed lines of the sink's own code, each line once, limited in count."""
        fresh = self.another(target)
        places = lines_of(self._sink(fresh), chunks_of(self.tables()[0].slice(0, 2)))
        first = {place: number for number, place in reversed(list(enumerate(places, 1)))}
        points = [Point("stands still", number, f"inside {place}") for place, number in reversed(first.items())]
        every = max(self.every, -(-len(points) // _MOST_INTERRUPTED))
        return sorted(point.number for point in chosen(points, every=every, each_line=False))

    def _interrupted(
        self, target: Any, mine: list[Chunk], its: list[Chunk], *, at_line: int
    ) -> tuple[str, list[list[Chunk]]]:
        """Let one task send, and another one deliver before a line of the first.

        A task that fails delivers again, because one may lock out the other. Returns the line, and the chunks that were
        delivered again.
        """
        other = Beside(lambda: deliver(self._sink(target), its), lambda: 0, 0.0)
        place, error = send_meanwhile(self._sink(target), mine, other.goes_through, at_line=at_line)
        if not other.ends():
            self._fail(
                expected="two tasks that end",
                found=f"one waits for ever for the other, which paused just before {place} and has ended since",
                next_step="release in close() everything that write() locked",
            )
        again = [chunks for chunks, failed in ((mine, error), (its, other.error)) if failed]
        for chunks in again:
            deliver(self._sink(target), chunks)
        return place, again
