"""A runtime without real time and randomness: the same seed gives the same ids, waits and instants."""

from __future__ import annotations

import random  # noqa: TID251 - seeded
from datetime import UTC, datetime, timedelta

from wal_sink.support.calls import DirectCall, in_turn
from wal_sink.support.clock import Runtime


def simulated_runtime(seed: int = 0) -> Runtime:
    """Make a `Runtime` whose clock moves only during sleeps. Sinks are called directly, without a time limit."""
    chance = random.Random(seed)  # noqa: S311 - a simulation's, not cryptography
    elapsed_s = [0.0]

    def sleep_s(seconds: float) -> None:
        elapsed_s[0] += seconds

    return Runtime(
        now=lambda: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=elapsed_s[0]),
        monotonic_s=lambda: elapsed_s[0],
        sleep_s=sleep_s,
        new_id=lambda: f"{chance.getrandbits(128):032x}",
        new_random=lambda: chance,
        new_timed_call=DirectCall,
        side_by_side=in_turn,
    )
