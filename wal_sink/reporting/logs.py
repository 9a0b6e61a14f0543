"""Loggers of this package. A handler or filter that raises never ends the thread that logs.

A committer logs that its sink gave up, and then stops the query. If the handler's exception escaped, the query would
continue, and its staged batches would not be delivered.
"""

from __future__ import annotations

import contextlib
import logging
import sys

from wal_sink.reporting.texts import told


class SafeLogger(logging.LoggerAdapter[logging.Logger]):
    """Logs as `logging.Logger` does. An exception of a handler or filter goes to stderr, as in `Handler.handleError`.

    Only Ctrl-C passes: it is meant for the program, and may arrive in any handler.
    """

    def log(self, level: int, msg: object, *args: object, **kwargs: object) -> None:
        """Log as `Logger.log` does, with the caller's place in the record."""
        try:
            super().log(level, msg, *args, **{"stacklevel": 2, **kwargs})  # type: ignore[arg-type]
        except (Exception, SystemExit) as error:  # noqa: BLE001 - raised by a user's handler
            self._tell(msg, error)

    def _tell(self, msg: object, error: BaseException) -> None:
        if logging.raiseExceptions and sys.stderr is not None:
            with contextlib.suppress(Exception):  # there is no other place to report it
                sys.stderr.write(f"{self.logger.name}: the log could not write {msg!r}: {told(error)}\n")


def logger_of(name: str) -> SafeLogger:
    """The logger of a module, by its `__name__`."""
    return SafeLogger(logging.getLogger(name))
