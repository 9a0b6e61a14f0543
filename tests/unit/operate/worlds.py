"""WALs of the present code that together hold an object of each kind, and copies of them that a test may damage."""

from __future__ import annotations

import itertools
import re
import zlib
from collections.abc import Callable, Sequence
from functools import cache

import msgspec

from tests.house.log import FORMAT, Log, TakeOver, paths
from tests.house.operate import KINDS, AgainstCheckpoint, Check, Finding, plan_skip, skip, skip_order
from tests.house.stores import MemoryStore, StoreSpec
from tests.support.golden.targets import Plain, Target
from tests.support.golden.wal_writer import WRITERS, _elsewhere
from tests.support.golden.wals import GoldenWal
from wal_sink.operate.kinds import Kind
from wal_sink.operate.replay import DeadLetters
from wal_sink.operate.verify import Comparison
from wal_sink.testing import simulated_runtime

_numbers = itertools.count()


def _letters(world: GoldenWal) -> None:
    """Dead letters of each sort, all sent again."""
    WRITERS["dead_letters"][1](world)
    letters = DeadLetters(Log(world.wal, simulated_runtime(seed=11), "c" * 32), name="once")
    letters.replay(Plain(Target(), world.hook), unknown=True)


def _skipped(world: GoldenWal) -> None:
    """A sink passed over a batch of which nothing was left."""
    run = world.process()
    world.batch(run, 2)
    run.deliver_all()
    for rows in (3, 1):
        world.batch(run, rows)
    world.wal.delete([path for path in world.wal.list("", recursive=True) if path.startswith(paths.batch(1))])
    log = Log(world.wal, simulated_runtime(seed=sum(world.kind.encode())), "b" * 32)
    order = skip_order(log, "plain", 1, why="it is lost")
    skip(log, order, plan_skip(log, "plain", 1), take_over=TakeOver.ALWAYS)
    world.drain()


def _others(world: GoldenWal) -> None:
    """Objects that other commands make, and those that people make."""
    run = world.process()
    world.batch(run, 2)
    run.deliver_all()
    world.wal.create("probe/20260101T000000-0123.json", b"{}")
    world.wal.create("sinks/gone/forgotten", b"")
    world.wal.create("sinks/gone/markers/0000000000000000000.json", b"half of a record")


_MORE: dict[str, tuple[Sequence[str], Callable[[GoldenWal], None]]] = {
    **WRITERS,
    "dead_letters": (WRITERS["dead_letters"][0], _letters),
    "skipped": (("plain",), _skipped),
    "others": (("plain",), _others),
}
NAMES = tuple(_MORE)


def envelope(kind: str, **body: object) -> bytes:
    """A record of a kind that no class here reads."""
    data = msgspec.json.encode({"id": "0" * 32, "created": "2026-01-01T00:00:00.000+00:00", **body})
    return msgspec.json.encode({"format": FORMAT, "kind": kind, "crc32": zlib.crc32(data), "body": msgspec.Raw(data)})


@cache
def world_of(name: str, *, of_another: bool = False) -> GoldenWal:
    """A WAL that no test may change. `of_another`: one with the same content, and other ids."""
    sinks, write = _MORE[name]
    world = GoldenWal(f"{name}{' of another' if of_another else ''}", "checks", list(sinks))
    with _elsewhere():
        write(world)
    return world


def copied(store: MemoryStore) -> MemoryStore:
    """A copy that a test may change."""
    copy = MemoryStore(StoreSpec(f"memory://checks-copy/{next(_numbers)}"))
    for path in store.list("", recursive=True):
        copy.create(path, store.read(path))
    return copy


def paths_of(store: MemoryStore, kind: Kind) -> list[str]:
    """The paths of all objects of a kind."""
    return [path for path in store.list("", recursive=True) if re.fullmatch(kind.compiled, path)]


def kind_named(pattern: str) -> Kind:
    return next(kind for kind in KINDS if kind.pattern == pattern)


def findings(wal: MemoryStore, checkpoint: MemoryStore | None = None, *more: Comparison) -> list[Finding]:
    """The findings of a check with these comparisons."""
    comparisons = [*([] if checkpoint is None else [AgainstCheckpoint(checkpoint)]), *more]
    return Check(wal, comparisons=comparisons).run()


def replaced(store: MemoryStore, path: str, data: bytes) -> None:
    store.delete([path])
    store.create(path, data)
