"""A runtime that records the time limit of each call of a sink."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.house.support import DirectCall, Runtime
from wal_sink.testing import simulated_runtime


def noting_limits(limits: dict[str, set[float]]) -> Runtime:
    """Return a runtime that adds the limits of all calls to `limits`, in seconds, by the function's name."""

    class Noting(DirectCall):
        def call(self, function: Any, *args: Any, timeout_s: float) -> Any:
            limits.setdefault(function.__name__, set()).add(timeout_s)
            return super().call(function, *args, timeout_s=timeout_s)

    return replace(simulated_runtime(), new_timed_call=Noting)
