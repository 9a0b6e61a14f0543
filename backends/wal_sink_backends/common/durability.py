"""Warnings about settings under which a server loses rows that it acknowledged.

Such a setting is a warning, never an error: exactly once still holds until the server loses something, and a loss of
rows together with their position is noticed. The warning names the setting, the possible loss, and the setting to use.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from wal_sink.support.logs import logger_of

if TYPE_CHECKING:
    from collections.abc import Iterable

_logger = logger_of(__name__)


def warn_of(losses: Iterable[str], address: str) -> None:
    """Log each loss once in this process. `address` names the server, without secrets."""
    for loss in losses:
        warn_once(f"{address}: {loss}")


@lru_cache(maxsize=1024)
def warn_once(message: str) -> None:
    """Log a message once in this process, however often a sink is opened."""
    _logger.warning("%s", message)
