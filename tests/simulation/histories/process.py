"""The process of a history, as stores, targets and dispatchers see it. `lives` holds the process itself."""

from __future__ import annotations

from typing import Protocol

from tests.simulation.histories.coroutines import Coroutine
from tests.simulation.histories.plans import Deed


class Process(Protocol):
    """One process. `HistoryProcess` is one."""

    number: int
    """Its number among the processes of the history."""
    full_for: int
    """Number of creates that still find the disk full."""
    reconnections: int
    """How often its connections to targets were replaced without its notice."""
    in_job: bool
    """Whether a delivery job of it is under way."""
    left: list[Coroutine]
    """Tasks that outlived their job."""

    def point(self, what: str, where: str) -> None: ...
    def met(self, what: str) -> None: ...
    def take_time(self) -> None: ...
    def refuse_create(self, path: str) -> None: ...
    def will(self, deed: Deed) -> bool: ...
