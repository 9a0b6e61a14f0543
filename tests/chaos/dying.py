"""A process that kills itself at exactly one point of the local store: around the link that names an object."""

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
    """The half-step that is this process's last; 0: none."""
    passed: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def watch(self) -> None:
        """From now on, whatever calls `os.link` in this process passes through here.

        Before the link, the object's bytes are synced and it has no name. After it, it has a name that may not be
        durable yet, and whoever created it has not been told.
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
                while True:  # the signal needs a moment, and not one more instruction of the store may run
                    signal.pause()
