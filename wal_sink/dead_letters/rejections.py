"""Rows that a sink refuses for good, kept as dead letters while their chunk is delivered (`on_rejected="dead_letter"`).

The refusals of a chunk are numbered, and each number is created once. Two processes may hold one chunk: a superseded
one and a newer one. The numbers keep them from both deciding which of its rows the target gets:

- A plain or idempotent sink that refuses some rows has taken every other row. The first refusal records that the chunk
  was answered. So the chunk is not sent again, and later answers of the sink to another process change nothing.
- A transactional sink that refuses rows commits nothing of their chunk. The refused rows are kept first, then the chunk
  is sent without them. A process that takes over such a chunk reads the refusals that exist, and creates an empty one
  under the next number. An older process that has not kept its own by then finds that number taken, and stops. (One
  case is left: two processes hold a chunk, and the target refuses a row to one and takes it from the other. Then the
  row is kept, and the target has it too.)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from wal_sink.dead_letters.files import DeadLetter, find_dead_letter, keep_rejected
from wal_sink.redaction import redacted
from wal_sink.reporting.counts import counted
from wal_sink.reporting.logs import logger_of
from wal_sink.sinks.base import Rejected
from wal_sink.sinks.chunk import Chunk, refusal_key
from wal_sink.sinks.failures import FailureKind, SinkFailedError
from wal_sink.wal import paths
from wal_sink.wal.log import Log

_logger = logger_of(__name__)


def refused_rows(sent: Chunk, indices: Collection[int], number: int) -> Chunk:
    """Some rows of a chunk, with the key that they have in its n-th refusal."""
    refused = sent.without(set(range(sent.num_rows)).difference(indices))
    return replace(refused, key=refusal_key(refused.position, refused.rows, number))


class RefusalTakenError(SinkFailedError):
    """The next refusal of a chunk exists already: another process holds the chunk too."""

    def __init__(self, where: str) -> None:
        super().__init__(FailureKind.UNKNOWN, f"{where} was written by another attempt at the same chunk")
        self.where = where


class Rejections:
    """The refusals of one chunk. `chunk` is the whole chunk as it was staged.

    With `replayed`: the refusals of its chunk that follow this dead letter, whose rows are sent again. `chunk` is then
    what lies in the dead letter. New refusals name it, and keep its position.
    """

    def __init__(self, log: Log, sink: str, ordinal: int, chunk: Chunk, *, replayed: DeadLetter | None = None) -> None:
        self._log = log
        self._sink = sink
        self._ordinal = ordinal
        self._chunk = chunk
        self._replayed = replayed
        self._next = 0 if replayed is None or replayed.name.number is None else replayed.name.number + 1

    def is_kept(self) -> bool:
        """Whether the chunk has any refusal. One read."""
        return find_dead_letter(self._log.store, self._path(0)) is not None

    def is_answered(self) -> bool:
        """Whether the sink, when it refused some rows, took all others: then the chunk is not sent again. One read."""
        first = find_dead_letter(self._log.store, self._path(0))
        return first is not None and first.answered

    def take_over(self) -> Chunk:
        """The chunk without the rows that were kept before. From now on no older process keeps more.

        A read for each refusal. Raises `RefusalTakenError` if another process takes it over at the same time.
        """
        kept: set[int] = set()
        is_closed = False
        for letter in self.read():
            kept.update(letter.chunk.rows)
            is_closed = letter.chunk.num_rows == 0 and letter.chunk.term == self._chunk.term
        if not is_closed:  # else an earlier attempt under this term closed it
            self.close(self._chunk)
        return self._chunk.without([index for index, row in enumerate(self._chunk.rows) if row in kept])

    def read(self) -> Iterator[DeadLetter]:
        """Each refusal that exists, in order. The next one that is kept gets the number after them."""
        while (letter := find_dead_letter(self._log.store, self._path(self._next))) is not None:
            self._next += 1
            yield letter

    def close(self, chunk: Chunk) -> None:
        """Create an empty refusal: an older process that has not kept its own yet finds the number taken, and stops.

        `chunk` holds the term under which this happens. Raises `RefusalTakenError`.
        """
        self._create(chunk.without(range(chunk.num_rows)), [], answered=False)

    def keep(self, sent: Chunk, rejected: Rejected, *, answered: bool) -> None:
        """Keep the refused rows of a chunk that was sent; `answered`: the sink has the others.

        Raises `RefusalTakenError` if another process decided about this chunk meanwhile.
        """
        indices = sorted(rejected.reasons)
        refused = refused_rows(sent, indices, self._next)
        reasons = [redacted(rejected.reasons[index]) for index in indices]
        path = self._create(refused, reasons, answered=answered)
        _logger.warning(
            "sink %s: %s refused, kept as %s; the first: %s",
            self._sink,
            counted(len(indices), "row"),
            self._log.store.url_of(path),
            reasons[0],
        )

    def _create(self, rows: Chunk, reasons: list[str], *, answered: bool) -> str:
        path, replay_of = self._path(self._next), self._replayed.path if self._replayed else ""
        rows = replace(rows, position=self._chunk.position)  # a replay sends under another position
        if not keep_rejected(self._log, path, rows, reasons, answered=answered, replay_of=replay_of):
            raise RefusalTakenError(self._log.store.url_of(path))
        self._next += 1
        return path

    def _path(self, number: int) -> str:
        if self._replayed is None:
            first, end = self._chunk.rows[0], self._chunk.rows[-1] + 1
        else:
            first, end = self._replayed.name.first_row, self._replayed.name.end_row
        return paths.dead_letter(self._sink, self._chunk.batch_id, self._ordinal, first, end, number=number)
