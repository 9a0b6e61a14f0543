"""What all targets share that tell of settings under which a server loses what it acknowledged.

Such a setting is a warning, never an error: exactly once still holds until the server loses something, and what it
loses together with its position is noticed. The warning names the setting, what it may lose, and what to set.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from wal_sink.reporting.logs import logger_of

if TYPE_CHECKING:
    from collections.abc import Iterable

_logger = logger_of(__name__)


def warn_of(losses: Iterable[str], address: str) -> None:
    """Log each loss once in this process. `address` names the server, without secrets."""
    for loss in losses:
        warn_once(f"{address}: {loss}")


@lru_cache(maxsize=1024)
def warn_once(message: str) -> None:
    """The same message is logged once, however often a sink is opened."""
    _logger.warning("%s", message)
