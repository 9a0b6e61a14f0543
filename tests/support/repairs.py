"""Repairs that are killed at every request to the store."""

from __future__ import annotations

import copy
import copyreg
import itertools
from collections.abc import Callable, Iterator
from typing import TypeVar

from tests.house.log import Log, TermRecord, note_end, paths
from tests.house.stores import MemoryStore, Store
from wal_sink.testing import Crash, FaultyStore, simulated_runtime

P = TypeVar("P")
_seeds = itertools.count(40_000)


def log_on(store: Store, hook: Callable[[str, str], None] | None = None) -> Log:
    """The log of a new process that repairs."""
    return Log(store if hook is None else FaultyStore(store, hook), simulated_runtime(next(_seeds)), "repair")


def end_roles(store: Store) -> None:
    """As if every process that holds a term had ended in order."""
    log = log_on(store)
    for folder in store.list(paths.TERMS):
        role = folder.removesuffix("/")
        newest = max(log.numbers(paths.terms(role)))
        run_id = log.require(TermRecord, paths.term(role, newest)).run_id
        note_end(Log(store, log.runtime, run_id), role, newest)


def remade(make: Callable[[], P]) -> Callable[[], P]:
    """Return a function that makes the same world again, faster: a copy of the first, over the same stores in memory.

    The world holds everything that `make` makes, and only the newest copy is used.
    """
    contents: dict[MemoryStore, dict[str, bytes]] = {}

    def note(store: MemoryStore) -> str:
        contents.setdefault(store, {path: store.read(path) for path in store.list("", recursive=True)})
        return "the same store"  # as `copy` takes a text

    def copied(world: P) -> P:
        copyreg.dispatch_table[MemoryStore] = note
        try:
            return copy.deepcopy(world)
        finally:
            del copyreg.dispatch_table[MemoryStore]

    first = copied(make())
    assert contents, "its stores are in memory"

    def make_again() -> P:
        for store, objects in contents.items():
            store.delete(store.list("", recursive=True))
            for path, data in objects.items():
                store.create(path, data)
        return copied(first)

    return make_again


def killed_everywhere(
    make: Callable[[], P], store_of: Callable[[P], Store], act: Callable[[Log, P], object]
) -> Iterator[P]:
    """Places in which `act` was killed, one for each point before and after a request of an undisturbed `act`.

    The process that was killed is gone for good: its terms have ended.
    """
    points: list[str] = []
    place = make()
    act(log_on(store_of(place), lambda what, where: points.append(f"{what} {where}")), place)
    assert points
    for number in range(len(points)):
        place = make()
        countdown = itertools.count()

        def die(_what: str, _where: str, countdown: Iterator[int] = countdown, number: int = number) -> None:
            if next(countdown) == number:
                raise Crash

        try:
            act(log_on(store_of(place), die), place)
        except Crash:
            end_roles(store_of(place))
            yield place
        else:
            raise AssertionError(f"point {number} ({points[number]}) was not reached")
