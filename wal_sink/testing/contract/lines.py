"""The part of `SinkContract` that disturbs a sink at each line of its own code."""

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
    """Requests that fail, and others that come in between, wherever that may be."""

    def test_a_failure_inside_write_is_not_hidden(self, target: Any) -> None:
        """A write that returns has every row in the target."""
        for _, chunk, added, place, error in self._each_line_failing(target):
            missing = rows_of([chunk]).difference(added).lost
            if error is None and missing:
                self._fail(
                    expected="an exception from write, or every row in the target",
                    found=f"a request failed just before {place}; write returned, and {len(missing)} rows are missing",
                    next_step="let the exception out of write(): the chunk then comes again",
                )

    def test_another_one_may_write_in_the_middle_of_a_write(self, target: Any) -> None:
        """At some of its lines another task delivers another segment: no name, file or buffer may be shared."""
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
                    next_step="put the chunk's key or the segment's id into every name that tasks might share",
                )

    def _each_line_failing(self, target: Any) -> Iterator[tuple[Any, Chunk, Rows, str, BaseException | None]]:
        """Write a chunk again and again, each time with another line of the sink's own code failing.

        Yields the target, the chunk, the rows the write added, the line, and the error that came out of `write`.
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
        """Numbers of lines of the sink's own code, each line once, and not too many."""
        fresh = self.another(target)
        places = lines_of(self._sink(fresh), chunks_of(self.tables()[0].slice(0, 2)))
        first = {place: number for number, place in reversed(list(enumerate(places, 1)))}
        points = [Point("stands still", number, f"inside {place}") for place, number in reversed(first.items())]
        every = max(self.every, -(-len(points) // _MOST_INTERRUPTED))
        return sorted(point.number for point in chosen(points, every=every, each_line=False))

    def _interrupted(
        self, target: Any, mine: list[Chunk], its: list[Chunk], *, at_line: int
    ) -> tuple[str, list[list[Chunk]]]:
        """One task sends, and another one delivers before a line of the first. What fails, since one may well lock the
        other out, comes again. The line, and what came again.
        """
        other = Beside(lambda: deliver(self._sink(target), its), lambda: 0, 0.0)
        place, error = send_meanwhile(self._sink(target), mine, other.goes_through, at_line=at_line)
        if not other.ends():
            self._fail(
                expected="two tasks that end",
                found=f"one waits for ever for another that stood still just before {place}, and has ended since",
                next_step="let go in close() of what write() took",
            )
        again = [chunks for chunks, failed in ((mine, error), (its, other.error)) if failed]
        for chunks in again:
            deliver(self._sink(target), chunks)
        return place, again
