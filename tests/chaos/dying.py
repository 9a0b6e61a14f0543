"""A process that kills itself at one exact point of the local store: around the link that names an object."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class HalfSteps:
    """Counts the half-steps of naming objects in this process: one just before each link, one just after it."""

    deadly: int = 0
    """The half-step at which this process dies. 0: none."""
    passed: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def watch(self) -> None:
        """Count every call of `os.link` in this process from now on.

        Before the link, the object's bytes are synced and it has no name. After the link it has a name that may not be
        durable yet, and the call that created it has not returned.
        """
        link = os.link

        def linking(source: Any, target: Any, **more: Any) -> None:
            self._step()
            link(source, target, **more)
            self._step()

        os.link = linking  # type: ignore[assignment]

    def _step(self) -> None:
        with self._lock:
            self.passed += 1
            if self.passed == self.deadly:
                os.kill(os.getpid(), signal.SIGKILL)
                while True:  # the signal needs a moment, and no more of the store's code may run
                    signal.pause()
