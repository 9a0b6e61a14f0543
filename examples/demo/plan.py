"""When the demo kills its driver: drawn from a seed, so that a run can be repeated."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum

from examples.demo.watch import Seen
from wal_sink import ConfigError

HELD_BACK = 2
"""Files that arrive only after the last kill, so that there is always something left to do."""


class Aim(StrEnum):
    """The work of a driver at which its last seconds begin."""

    STAGING = "staging"
    DELIVERY = "delivery"
    TAKEOVER = "takeover"
    """Delivery of the batches that an earlier driver left, before the query starts."""


_LONGEST_DELAY_S = {Aim.STAGING: 1.5, Aim.DELIVERY: 0.4, Aim.TAKEOVER: 0.5}
_MIX = (Aim.STAGING, Aim.DELIVERY, Aim.TAKEOVER, Aim.STAGING, Aim.DELIVERY)


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill: what must be seen first, and how long after that."""

    number: int
    aim: Aim
    file: int
    """The file, counted from 0, that the query must have taken; a take-over waits for none."""
    delay_s: float

    def is_due(self, seen: Seen, before: Seen) -> bool:
        """Whether the store shows the awaited work. `before` is the state in which this driver found the store."""
        if self.aim is Aim.TAKEOVER:
            return seen.takeovers > before.takeovers
        begun = seen.queries > before.queries and seen.files > self.file
        if self.aim is Aim.STAGING:
            return begun
        return begun and seen.delivered_to_all < seen.completed


def planned_kills(kills: int, batches: int, seed: int) -> list[Kill]:
    """The kills, spread over the files. Raises `ConfigError` for more than there is room for."""
    room = batches - HELD_BACK
    if kills > room:
        raise ConfigError(f"{kills} kills need at least {kills + HELD_BACK} batches, found {batches}; see --batches")
    chance = random.Random(seed)  # noqa: S311 - a demo, not cryptography
    aims = [_MIX[number % len(_MIX)] for number in range(kills)]
    chance.shuffle(aims)
    if aims and aims[0] is Aim.TAKEOVER:  # the first driver has nobody to take over from
        aims.append(aims.pop(0))
    return [_drawn(number, aim, kills, room, chance) for number, aim in enumerate(aims)]


def _drawn(index: int, aim: Aim, kills: int, room: int, chance: random.Random) -> Kill:
    file = chance.randrange(index * room // kills, (index + 1) * room // kills)
    return Kill(index + 1, aim, file, chance.random() * _LONGEST_DELAY_S[aim])
