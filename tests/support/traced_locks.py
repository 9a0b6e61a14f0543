"""Locks of the package that know which thread holds them."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest

_REAL_LOCK, _REAL_RLOCK, _REAL_CONDITION = threading.Lock, threading.RLock, threading.Condition


class TracedLocks:
    """While a `MonkeyPatch` lasts, every lock that a module of wal_sink makes is counted where it is held."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.made = 0
        self._here = threading.local()
        patch.setattr(threading, "Lock", lambda: self._made(_REAL_LOCK))
        patch.setattr(threading, "RLock", lambda: self._made(_REAL_RLOCK))
        patch.setattr(threading, "Condition", self._condition)

    @property
    def held(self) -> list[str]:
        """Makers of the locks that this thread holds."""
        return [*self._list()]

    def _list(self) -> list[str]:
        if not hasattr(self._here, "held"):
            self._here.held = []
        held: list[str] = self._here.held
        return held

    def _made(self, make: Any, lock: Any = None) -> Any:
        frame = sys._getframe(2)
        maker = f"{frame.f_globals.get('__name__', '')}:{frame.f_lineno}"
        if not maker.startswith("wal_sink."):
            return make() if lock is None else make(lock)
        self.made += 1
        return _Traced(make() if lock is None else make(lock), maker, self._list)

    def _condition(self, lock: Any = None) -> Any:
        return self._made(_REAL_CONDITION, lock)


class _Traced:
    def __init__(self, inner: Any, maker: str, held: Any) -> None:
        self._inner, self._maker, self._held = inner, maker, held

    def acquire(self, *args: Any, **kwargs: Any) -> bool:
        got: bool = self._inner.acquire(*args, **kwargs)
        if got:
            self._held().append(self._maker)
        return got

    def release(self) -> None:
        self._inner.release()
        self._held().remove(self._maker)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)  # `wait_for` of a condition: its caller holds it before and after
