"""For targets of a command in a separate process: a chunk that is in hand until the end of its run has begun.

Importing it changes the committers of the process, so it refuses to be imported by pytest.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import wal_sink.cli.drain
import wal_sink.stores.measured
from tests.house.protocol import CommitterPool
from tests.support.waiting import PATIENCE_S

_stoppings: list[threading.Event] = []
_make: Any = CommitterPool.__init__


def _made(pool: CommitterPool, run: object, *, stopping: threading.Event, **more: object) -> None:
    _stoppings.append(stopping)
    _make(pool, run, stopping=stopping, **more)


def wait_for_the_end() -> None:
    """Return once the run of this process was told to stop. A replay is never told: it lasts until its process ends."""
    stopping = _stoppings[-1] if _stoppings else threading.Event()
    assert stopping.wait(PATIENCE_S)


assert "pytest" not in sys.modules, "its committers would be changed for the tests that follow"
CommitterPool.__init__ = _made  # type: ignore[method-assign,assignment]
wal_sink.cli.drain.STATUS_S = PATIENCE_S
wal_sink.stores.measured.SLOW_S = PATIENCE_S  # what these commands say on stderr is compared in full
