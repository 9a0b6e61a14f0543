"""`gc`: deletes objects that nothing can name any more, and that collection would reach late or never.

`debris` says which objects these are, and why no query, drain or other process can need them. So nothing is fenced, and
a live query and a drain may run beside it at any time, also beside one that was interrupted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

from wal_sink.recovery.location import refuse_copy
from wal_sink.repair.debris import find_debris
from wal_sink.repair.journal import Order, begin, finish
from wal_sink.repair.need import NO_CHECKPOINT, LeftAlone, SparkSide
from wal_sink.wal import paths
from wal_sink.wal.log import Log

SHOWN = 20
"""Paths that a plan names for each kind, as examples."""


@dataclass(frozen=True, slots=True)
class DebrisCount:
    """Objects of one kind."""

    objects: int
    bytes: int
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GcPlan:
    """All debris that was found, by kind."""

    kinds: dict[str, DebrisCount]
    damaged: int = 0
    """Batches that are damaged. Nothing of them is deleted."""
    left_alone: tuple[LeftAlone, ...] = ()
    """Some of the batches of which something stays: damaged ones, and others whose state is not known."""

    @property
    def objects(self) -> int:
        return sum(count.objects for count in self.kinds.values())

    @property
    def bytes(self) -> int:
        return sum(count.bytes for count in self.kinds.values())


@dataclass(frozen=True, slots=True)
class Deleted:
    """The result of a gc."""

    repair: int
    objects: dict[str, int]
    """Objects that this call deleted, by kind."""


def gc_order(log: Log, *, why: str) -> Order:
    """The order to delete debris. Raises `ConfigError` if the WAL is a copy."""
    refuse_copy(log)
    return Order("gc", {"--delete": True}, (f"{paths.BATCHES}/",), why)


def plan_gc(
    log: Log, spark: SparkSide = NO_CHECKPOINT, *, on_group: Callable[[int], None] = lambda _objects: None
) -> GcPlan:
    """All debris that is there now. Creates and deletes nothing.

    The requests of `find_debris`, and one for each object of debris, to learn its size.
    """
    objects, size, examples = Counter[str](), Counter[str](), dict[str, list[str]]()
    damaged, left_alone = 0, list[LeftAlone]()

    def note(left: LeftAlone) -> None:
        nonlocal damaged
        damaged += left.is_damaged
        if len(left_alone) < SHOWN:
            left_alone.append(left)

    for found in find_debris(log, spark, on_left_alone=note):
        objects[found.kind] += len(found.paths)
        size[found.kind] += found.bytes(log)
        shown = examples.setdefault(found.kind, [])
        shown += found.paths[: SHOWN - len(shown)]
        on_group(objects.total())
    kinds = {kind: DebrisCount(objects[kind], size[kind], tuple(examples[kind])) for kind in objects}
    return GcPlan(kinds, damaged, tuple(left_alone))


def gc(
    log: Log,
    order: Order,
    plan: GcPlan,
    spark: SparkSide = NO_CHECKPOINT,
    *,
    on_group: Callable[[int], None] = lambda _objects: None,
) -> Deleted:
    """Delete the debris that is there now, which may be more than was planned.

    Raises `HeldError` if another repair of the batches is unfinished.
    """
    facts = {kind: {"objects": count.objects, "bytes": count.bytes} for kind, count in plan.kinds.items()}
    entry = begin(log, order, {"found": facts})
    deleted = Counter[str]()
    for found in find_debris(log, spark):
        for step in found.steps:
            log.store.delete(step)
        deleted[found.kind] += len(found.paths)
        on_group(deleted.total())
    finish(log, entry, {"deleted": dict(deleted)})
    return Deleted(entry.number, dict(deleted))


def examples_of(plan: GcPlan) -> list[str]:
    """Some of the paths that would be deleted."""
    return list(chain.from_iterable(count.examples for count in plan.kinds.values()))
