"""An ability of some sinks: to look at their target and change nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from wal_sink.reporting.findings import Finding


@runtime_checkable
class Examined(Protocol):
    """A sink that can look at its target before anything is delivered. The sink is not open."""

    def examine(self, schema: Any) -> Sequence[Finding]:
        """Findings about the target: whether it can be reached, and whether rows of this Arrow schema fit.

        `schema` is None if no rows are known. It makes nothing, writes nothing and fences no process. Raises what
        `open` and `write` raise about such a target. Runs on the driver.
        """
        ...
