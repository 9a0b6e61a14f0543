"""The base of the ready sinks, and of those whose target keeps a ledger: the position of each slot beside the rows.

Settings under which a server loses rows that it acknowledged are a warning, never an error: exactly once still holds
until the server loses something, and a loss of rows together with their position is noticed. The warning names the
setting, the possible loss, and the setting to use.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any, Literal, TypeAlias, TypeVar

from wal_sink.errors import ConfigError
from wal_sink.sinks.base import Sink, TransactionalSink
from wal_sink.sinks.chunk import Chunk, Position
from wal_sink.support.logs import logger_of
from wal_sink.support.texts import Finding, fine

IfRecreated: TypeAlias = Literal["refuse", "accept"]
"""Stop, or go on, if the table or topic was deleted and created again, without the rows delivered before."""
Evolve: TypeAlias = Literal["refuse", "add"]
"""Stop, or add them to the table, if rows have columns that it lacks."""
_T = TypeVar("_T")


class ReadySink(Sink, ABC):
    """A sink that shows its target, without secrets, in `__repr__`."""

    def describe(self) -> str:
        return repr(self)

    def opened(self, part: _T | None) -> _T:
        """A part that `open` made. `RuntimeError` without it."""
        if part is None:
            raise RuntimeError(f"{self!r} is not open: call open() first")
        return part


class LedgerSink(ReadySink, TransactionalSink):
    """A sink whose target keeps a ledger."""

    @abstractmethod
    def positions_in_ledger(self, slots: Sequence[str]) -> Mapping[str, Position]:
        """The positions of some slots, in as few requests as the target permits; slots that never wrote left out."""

    def last(self, slot: str) -> Position | None:
        """The position in the ledger as of now; None if the slot never wrote. Raises what `positions` raises."""
        return self.positions([slot])[slot]

    def positions(self, slots: Sequence[str]) -> Mapping[str, Position | None]:
        """The positions in the ledger as of now.

        Raises `HistoryError` if the rows of one are gone with their table or topic, `PermanentError` if the ledger is
        damaged; anything else may be tried again.
        """
        found = self.positions_in_ledger(slots)
        return {slot: found.get(slot) for slot in slots}


def client_library(name: str, who_needs_it: str, extra: str, package: str) -> Any:
    """The module of a client, an optional dependency. `ConfigError` names the extra if it is missing."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"{who_needs_it}, on the executors too. Install wal-sink with its extra {extra}, or: pip install {package}"
        ) from error


def name_of(chunk: Chunk) -> str:
    """A chunk, for messages."""
    return f"batch {chunk.batch_id}, chunk {chunk.key}"


def reached(target: str, *, has_ledger: bool) -> Finding:
    """A target that answered, and whether it has a ledger."""
    ledger = "the ledger exists" if has_ledger else "the first delivery makes the ledger"
    return fine("target", f"{target} can be reached, and {ledger}")


_logger = logger_of(__name__)


def warn_of(losses: Iterable[str], address: str) -> None:
    """Log each loss once in this process. `address` names the server, without secrets."""
    for loss in losses:
        warn_once(f"{address}: {loss}")


@lru_cache(maxsize=1024)
def warn_once(message: str) -> None:
    """Log a message once in this process, however often a sink is opened."""
    _logger.warning("%s", message)
