"""Servers of a store that are killed amid a run, and runs that die on a server that must not be killed.

A server that keeps what it acknowledged is killed with SIGKILL at a drawn moment of a run, and started again: at once,
so that the run may wait for it, or after the run. Azurite and fake-gcs-server keep their state in memory, so there the
run dies.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import cycle

from tests.chaos.followed_world import FollowedWorld, rows_lost_and_repeated
from tests.chaos.lives import tally
from tests.chaos.scenario import Effort, Outcome, Scenario
from tests.chaos.spoiling import BATCHES, KINDS, LAW, PATIENT, WINDOW_ROWS
from tests.chaos.store_places import HDFS, MINIO, SEAWEEDFS, STORES, WEBHDFS, Mortal, ServedStore, StorePlace, place_at
from tests.simulation.histories.lives import HistoryProcess
from tests.simulation.world import dies_at, effects
from wal_sink.errors import WalSinkError

LATEST_S = 0.05
"""The longest time from a point of a run to the kill, so that it comes amid a request, too."""
_KILL_LIMIT_S = 120.0


class Killer:
    """Kills a server's process soon after a point of a run, on a separate thread, and may start it again."""

    def __init__(self, mortal: Mortal, server: object, at: int, after_s: float, *, start: bool) -> None:
        self._mortal = mortal
        self._server = server
        self._at = at
        self._after_s = after_s
        self._start = start
        self._thread = threading.Thread(target=self._kill, daemon=True)
        self._error: BaseException | None = None

    def meet(self, process: HistoryProcess, *_: str) -> None:
        """Begin at the point. A `Hook`."""
        if process.passed == self._at:
            self._thread.start()

    def finish(self) -> bool:
        """Let the server run again. Return whether it was killed."""
        if self._thread.ident is None:
            return False
        self._thread.join(_KILL_LIMIT_S)
        assert not self._thread.is_alive(), "the server did not come back"
        if self._error is not None:
            raise self._error
        if not self._start:
            self._mortal.start(self._server)
        return True

    def _kill(self) -> None:
        try:
            time.sleep(self._after_s)
            self._mortal.kill(self._server)
            if self._start:
                self._mortal.start(self._server)
        except BaseException as error:  # noqa: BLE001 - `finish` raises it
            self._error = error


def kill(mortal: Mortal, stores: Sequence[ServedStore], rounds: int, effort: Effort) -> Outcome:
    """Kill a process of a new server again and again, each time amid a run."""
    effort.folder.mkdir(parents=True, exist_ok=True)
    with stores[-1].start(effort.folder) as server:
        return kill_at(mortal, stores, server, effort, rounds=effort.times(rounds, least=2))


def kill_at(mortal: Mortal, stores: Sequence[ServedStore], server: object, effort: Effort, *, rounds: int) -> Outcome:
    """Kill a process of a running server. Several stores, which are ways to reach it, take turns."""
    outcome, endings = Outcome(), Counter[str]()
    chance = random.Random(f"{effort.seed} {mortal.name}")
    with ExitStack() as stack:
        places = [stack.enter_context(place_at(store, server)) for store in stores]
        points = [_points(place) for place in places]
        for number, (place, passed) in zip(range(rounds), cycle(zip(places, points, strict=True)), strict=False):
            at, start = chance.randint(1, len(passed)), chance.random() < 0.5
            killer = Killer(mortal, server, at, chance.uniform(0, LATEST_S), start=start)
            name = f"{place.kind.name}, seed {effort.seed}, round {number}, point {at}, start at once: {start}"
            place.hurried, place.mortal = not start, True
            place.connect(PATIENT)
            world = place.world("plain", BATCHES)
            when = "started again at once" if start else "started again after the run"
            with _counted(outcome, world, name, crashes=2):
                endings[f"{place.kind.name}, {when}: {_live(world, killer)}"] += 1
    outcome.detail = tally("how the run ended", endings)
    return outcome


def die(store: ServedStore, effort: Effort) -> Outcome:
    effort.folder.mkdir(parents=True, exist_ok=True)
    with store.start(effort.folder) as server:
        return die_at(store, server, effort)


def die_at(store: ServedStore, server: object, effort: Effort, *, least: int = 1) -> Outcome:
    """Let runs die on a running server, each after another effect. The next run finishes."""
    outcome, died = Outcome(), Counter[str]()
    chance = random.Random(f"{effort.seed} {store.name}")
    with place_at(store, server) as place:
        every = [(kind, point) for kind in KINDS for point in effects(_points(place, kind))]
        for kind, point in chance.sample(every, min(len(every), effort.times(len(every), least=least))):
            world = place.world(kind, BATCHES)
            with _counted(outcome, world, f"{kind}, point {point}", crashes=1):
                life = world.life(dies_at(point))
                assert not life.live(), "it did not die"
                died[life.points[-1].split(" ")[1]] += 1
                assert world.life().live()
    outcome.detail = tally("died before or after", died)
    return outcome


def _points(place: StorePlace, kind: str = "plain") -> list[str]:
    life = place.world(kind, BATCHES).life()
    assert life.live()
    return life.points


def _live(world: FollowedWorld, killer: Killer) -> str:
    """Live while the server is killed, then once more. Return how the first run ended."""
    ending = "finished"
    try:
        assert world.life(hook=killer.meet).live()
    except WalSinkError as error:
        ending = type(error).__name__
    assert killer.finish(), "the server was not killed"
    assert world.life().live()
    return ending


@contextmanager
def _counted(outcome: Outcome, world: FollowedWorld, name: str, *, crashes: int) -> Iterator[None]:
    """Count a round, which the block plays, into `outcome`, with all that it broke."""
    try:
        yield
        world.check_end(crashes=crashes)
    except Exception as error:  # noqa: BLE001 - any error is a finding
        outcome.violations.append(f"{name}: {type(error).__name__}: {error}")
    lost, repeated = rows_lost_and_repeated(world)
    outcome.rounds += 1
    outcome.lost += lost
    outcome.repeated += repeated
    outcome.allowed += 0 if world.facts.kind != "plain" else WINDOW_ROWS * crashes


_KILLED = "if a server is killed and started again, nothing that it acknowledged is gone; "
KILLED: Sequence[tuple[Sequence[ServedStore], int]] = (((SEAWEEDFS,), 6), ((MINIO,), 15), ((WEBHDFS, HDFS), 6))
"""Stores whose server may be killed, and how often. Those of one group are ways to the same server."""
SCENARIOS: Sequence[Scenario] = (
    *(
        Scenario(f"{mortal.name} killed", _KILLED + LAW, "kill", partial(kill, mortal, stores, rounds))
        for stores, rounds in KILLED
        for mortal in stores[0].mortals
    ),
    *(
        Scenario(f"{store.name}: runs die", "I1 to I8 hold; the next start finishes", "death", partial(die, store))
        for store in STORES
        if not store.mortals
    ),
)
