"""Rows that a sink refuses for good, kept as dead letters while their chunk is delivered (`on_rejected="dead_letter"`).

The refusals of a chunk are numbered, and each number is created once. So two processes that both hold a chunk, a
succeeded one and its successor, cannot both decide which of its rows the target gets:

- A plain or idempotent sink has taken every other row when it refuses some. Its first refusal tells that the chunk was
  answered: it is not sent again, and whatever another process that sent it too is told changes nothing.
- A transactional sink commits nothing of a chunk of which it refuses rows. They are kept first, then the chunk is sent
  without them. Whoever takes such a chunk over takes over the refusals that are there, and creates an empty one under
  the next number: a predecessor that has not kept its own by then finds that number taken, and stops. (A target that
  changes its mind while two processes hold a chunk, and takes a row that it refused to the other, can still have a row
  that was kept.)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from wal_sink.dead_letters.files import DeadLetter, find_dead_letter, keep_rejected
from wal_sink.redaction import redacted
from wal_sink.reporting.logs import logger_of
from wal_sink.reporting.texts import text_of
from wal_sink.sinks.base import Rejected
from wal_sink.sinks.chunk import Chunk, refusal_key
from wal_sink.sinks.failures import FailureKind, SinkFailedError
from wal_sink.wal import paths
from wal_sink.wal.log import Log

_logger = logger_of(__name__)


def refused_rows(sent: Chunk, indices: Collection[int], number: int) -> Chunk:
    """Some rows of a chunk, as they lie in its n-th refusal."""
    refused = sent.without(set(range(sent.num_rows)).difference(indices))
    return replace(refused, key=refusal_key(refused.position, refused.rows, number))


class Rejections:
    """The refusals of one chunk. `chunk` is the whole chunk as it was staged."""

    def __init__(self, log: Log, sink: str, ordinal: int, chunk: Chunk) -> None:
        self._log = log
        self._sink = sink
        self._ordinal = ordinal
        self._chunk = chunk
        self._next = 0

    def is_kept(self) -> bool:
        """Whether rows of it were kept before. One read."""
        return find_dead_letter(self._log.store, self._path(0)) is not None

    def is_answered(self) -> bool:
        """Whether the sink, when it refused some rows, took all others. One read."""
        first = find_dead_letter(self._log.store, self._path(0))
        return first is not None and first.answered

    def take_over(self) -> Chunk:
        """The chunk without what was kept of it before; from now on no predecessor keeps more. A read for each refusal.

        Raises `SinkFailedError` if somebody else takes it over at the same time.
        """
        kept: set[int] = set()
        is_closed = False
        for letter in self._letters():
            kept.update(letter.chunk.rows)
            self._next += 1
            is_closed = letter.chunk.num_rows == 0 and letter.chunk.term == self._chunk.term
        if not is_closed:  # by an earlier attempt under this very term
            self._create(self._chunk.without(range(self._chunk.num_rows)), [], answered=False)
        return self._chunk.without([index for index, row in enumerate(self._chunk.rows) if row in kept])

    def keep(self, sent: Chunk, rejected: Rejected, *, answered: bool) -> None:
        """Keep rows of what was sent; `answered`: the sink has the others.

        Raises `SinkFailedError` if somebody else has decided of this chunk meanwhile.
        """
        indices = sorted(rejected.reasons)
        refused = refused_rows(sent, indices, self._next)
        reasons = [redacted(text_of(rejected.reasons[index])) for index in indices]
        path = self._create(refused, reasons, answered=answered)
        _logger.warning(
            "sink %s: %d rows refused, kept as %s; the first: %s",
            self._sink,
            len(indices),
            self._log.store.url_of(path),
            reasons[0],
        )

    def _letters(self) -> Iterator[DeadLetter]:
        number = 0
        while (letter := find_dead_letter(self._log.store, self._path(number))) is not None:
            yield letter
            number += 1

    def _create(self, rows: Chunk, reasons: list[str], *, answered: bool) -> str:
        path = self._path(self._next)
        if not keep_rejected(self._log, path, rows, reasons, answered=answered):
            where = self._log.store.url_of(path)
            raise SinkFailedError(FailureKind.UNKNOWN, f"{where} was written by another attempt at the same chunk")
        self._next += 1
        return path

    def _path(self, number: int) -> str:
        first, end = self._chunk.rows[0], self._chunk.rows[-1] + 1
        return paths.dead_letter(self._sink, self._chunk.batch_id, self._ordinal, first, end, number=number)
