"""When the demo kills its driver: drawn from a seed, so that a run can be repeated."""

from __future__ import annotations

import random
from dataclasses import dataclass

from wal_sink.cli.demo.watch import Seen
from wal_sink.errors import ConfigError

HELD_BACK = 2
"""Files that arrive only after the last kill, so that there is always something left to do."""
LONGEST_DELAY_S = 1.5
LONGEST_TAKEOVER_DELAY_S = 0.5
_TAKEOVERS = 0.25
"""Share of the kills that hit a driver while it still delivers what its predecessor left."""


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill: what must be seen first, and how long after that."""

    number: int
    """From 1; also the number of the run that is killed."""
    batch: int | None
    """The batch that must have begun; None: the run must have taken over, nothing more."""
    delay_s: float

    def is_due(self, seen: Seen) -> bool:
        """Whether what it waits for is there. The query must have started, or the kill would hit Spark's start only."""
        if self.batch is None:
            return seen.takeovers >= self.number
        return seen.queries >= self.number and seen.started >= self.batch


def planned_kills(kills: int, batches: int, seed: int) -> list[Kill]:
    """The kills, spread over the batches. Raises `ConfigError` for more than there is room for."""
    room = batches - HELD_BACK
    if kills > room:
        raise ConfigError(f"{kills} kills need at least {kills + HELD_BACK} batches, found {batches}; see --batches")
    chance = random.Random(seed)  # noqa: S311 - a demo, not cryptography
    return [_drawn(number, kills, room, chance) for number in range(1, kills + 1)]


def _drawn(number: int, kills: int, room: int, chance: random.Random) -> Kill:
    first, end = (number - 1) * room // kills, number * room // kills
    batch = chance.randrange(first, end)
    takeover, share = chance.random() < _TAKEOVERS, chance.random()
    if takeover and number > 1:
        return Kill(number, None, share * LONGEST_TAKEOVER_DELAY_S)
    return Kill(number, batch, share * LONGEST_DELAY_S)
