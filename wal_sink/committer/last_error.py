"""The last error of a committer, as an object in the WAL where `wal-sink status` finds it.

A delivery that succeeds at once, or at its first retry, writes nothing. A failure that lasts is one object, however
often it is repeated. It is over as soon as the sink has its batch, and nothing is written then either.
"""

from __future__ import annotations

import re

from wal_sink.delivery.retry import AttemptFailedError
from wal_sink.errors import ConfigError, CorruptError, FencedError, WalSinkError
from wal_sink.redaction import redacted
from wal_sink.reporting.logs import logger_of
from wal_sink.stores.base import ObjectExists
from wal_sink.wal import paths
from wal_sink.wal.log import NOTHING, Log
from wal_sink.wal.records import encode
from wal_sink.wal.sink_records import ErrorRecord

LONGEST_TEXT = 2000
FIRST_ATTEMPT = 2
"""The attempt whose failure is recorded: the first retry repairs most failures."""

_CHANGING = re.compile(r"[0-9a-fA-F-]{8,}|\d+")
"""Parts of a text that differ at every attempt, such as times, ports and ids."""
_LOOKS = 2
"""How often the next number is looked for: another process may write one at the same time."""

_logger = logger_of(__name__)


class LastError:
    """Records the failures of one committer. A failure to record one is a warning."""

    def __init__(self, log: Log, sink: str) -> None:
        self._log = log
        self._sink = sink
        self._told: tuple[str, str, int] | None = None
        self._since = ""
        self._failing = NOTHING  # the batch whose first failure was at `_since`
        self._attempts = 0  # the failures in a row since then
        self._kept: list[str] | None = None  # paths of the records; None: not looked for yet

    def retried(self, error: BaseException, *, batch_id: int, attempts: int, term: int) -> None:
        """Note a failure after which another attempt may follow. `attempts`: in a row, this one included."""
        if attempts == 1 or batch_id != self._failing:
            self._begin(batch_id)
        self._attempts = attempts
        if attempts >= FIRST_ATTEMPT:
            self._note(error, term)

    def gave_up(self, error: BaseException, *, batch_id: int, term: int) -> None:
        """Note the error that ends the delivery. One of a superseded process is not recorded: another one delivers."""
        if isinstance(error, FencedError):
            return
        if batch_id != self._failing:
            self._begin(batch_id)
        self._attempts += 1
        self._note(error, term)

    def _begin(self, batch_id: int) -> None:
        self._failing, self._since, self._attempts = batch_id, self._log.runtime.timestamp(), 0

    def _note(self, error: BaseException, term: int) -> None:
        name = error.kind if isinstance(error, AttemptFailedError) else type(error).__name__
        text = redacted(error)
        text = text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…"
        told = (name, _CHANGING.sub("#", text), self._failing)
        if told == self._told:
            return
        self._told = told  # also if it cannot be written: a store that does not answer must not delay each attempt
        try:
            self._replace(name, text, term)
        except (WalSinkError, RuntimeError) as problem:  # a client may refuse to connect at the interpreter's end
            _logger.warning("sink %s: its last error was not recorded: %s", self._sink, problem)

    def _replace(self, name: str, text: str, term: int) -> None:
        """Create the next record, then delete those before it. A listing at first, with a read if there is one, then a
        create and a delete. Does nothing if a process with a higher term left the newest one.
        """
        for _ in range(_LOOKS):
            if self._kept is None:
                self._kept = [paths.error(self._sink, each) for each in self._log.numbers(paths.errors(self._sink))]
                if self._kept and self._is_of_newer(self._kept[-1], term):
                    self._kept = None
                    return
            number = 1 + max((paths.parse_number(path.rpartition("/")[2]) or 0 for path in self._kept), default=0)
            record = ErrorRecord(
                number=number,
                batch_id=self._failing,
                attempts=self._attempts,
                error_class=name,
                text=text,
                since=self._since,
                run_id=self._log.run_id,
                term=term,
                **self._log.stamp(),
            )
            path, older = paths.error(self._sink, number), self._kept
            self._kept = None  # unless the answer is clear
            try:
                self._log.store.create(path, encode(record))  # once: a repetition would delay the delivery
            except ObjectExists:
                continue  # of another process, which wrote at the same time
            self._kept = [path]
            if older:
                self._log.store.delete(older)
            return

    def _is_of_newer(self, path: str, term: int) -> bool:
        """Whether a process that took over left a record. One that cannot be read is replaced."""
        try:
            newest = self._log.find(ErrorRecord, path)
        except (CorruptError, ConfigError):
            return False
        return newest is not None and newest.term > term
