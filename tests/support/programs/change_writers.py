"""A process that writes a generated change stream by `SqlSink`, for tests that kill it."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.change_history import KEY, NEWER_BY, deliveries, history
from tests.support.chunks import CONTEXT
from tests.support.forked import ForkedChild
from tests.support.waiting import PATIENCE_S
from wal_sink.errors import PermanentError
from wal_sink_backends.sql.sink import SqlSink

KEYS, CHANGES = 40, 300


def change_writer(url: str, log: Path, *, seed: int) -> ForkedChild:
    """Start a process that writes the stream from its beginning: what is there already is known to the ledger."""
    return ForkedChild(_live, url, seed, log=log, limit_s=180.0)


def _live(url: str, seed: int) -> None:
    options: dict[str, Any] = {"mode": "upsert", "key": KEY, "newer_by": NEWER_BY, "operation": "op"}
    sink = SqlSink(url, "flights", busy_timeout_s=1, connect_timeout_s=PATIENCE_S, **options)
    _patiently(partial(sink.open, CONTEXT))
    for one, _ in deliveries(seed, history(seed, keys=KEYS, changes=CHANGES)):
        assert _patiently(partial(sink.write, one)) is None
        print("wrote", one.key)  # noqa: T201 - read by the test
    sink.close()


def _patiently(call: Callable[[], Any]) -> Any:
    """Retry what may pass: a killed process keeps its locks until the server has noticed."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return call()
        except PermanentError:
            raise
        except Exception:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.1)
