"""A process that kills itself at one exact point: around the link that names an object, or at a request."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Steps:
    """Counts the points that this process passes, and dies at one of them."""

    deadly: int = 0
    """The point at which this process dies. 0: none."""
    passed: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def step(self) -> None:
        with self._lock:
            self.passed += 1
            if self.passed == self.deadly:
                os.kill(os.getpid(), signal.SIGKILL)
                while True:  # the signal needs a moment, and no more of the code under test may run
                    signal.pause()


class HalfSteps(Steps):
    """The half-steps of naming objects in this process: one just before each link, one just after it."""

    def watch(self) -> None:
        """Count every call of `os.link` in this process from now on.

        Before the link, the object's bytes are synced and it has no name. After the link it has a name that may not be
        durable yet, and the call that created it has not returned.
        """
        link = os.link

        def linking(source: Any, target: Any, **more: Any) -> None:
            self.step()
            link(source, target, **more)
            self.step()

        os.link = linking  # type: ignore[assignment]
