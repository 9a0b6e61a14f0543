"""WALs of the present code that together hold an object of each kind, and copies of them that a test may damage."""

from __future__ import annotations

import itertools
import re
import zlib
from collections.abc import Callable, Sequence
from functools import cache

import msgspec

from tests.support.golden.targets import Plain, Target
from tests.support.golden.wal_writer import WRITERS, _elsewhere
from tests.support.golden.wals import GoldenWal
from wal_sink.checking.against_checkpoint import AgainstCheckpoint
from wal_sink.checking.findings import Finding
from wal_sink.checking.kinds import KINDS, Kind
from wal_sink.checking.verify import Check, Comparison
from wal_sink.repair.resend import plan_resend, resend, resend_order
from wal_sink.repair.skip import plan_skip, skip, skip_order
from wal_sink.replay import DeadLetters
from wal_sink.settings import Delivery
from wal_sink.stores.memory import MemoryStore
from wal_sink.stores.spec import StoreSpec
from wal_sink.testing import simulated_runtime
from wal_sink.wal import paths
from wal_sink.wal.holders import TakeOver
from wal_sink.wal.log import Log
from wal_sink.wal.milestone_records import Milestone
from wal_sink.wal.move_records import CopyRecord
from wal_sink.wal.records import WalRecord, decode, encode

_numbers = itertools.count()


def _letters(world: GoldenWal) -> None:
    """Dead letters of each sort, all sent again."""
    WRITERS["dead_letters"][1](world)
    letters = DeadLetters(Log(world.wal, simulated_runtime(seed=11), "c" * 32), name="once")
    letters.replay(Plain(Target(), world.hook), unknown=True)


def _sharded(world: GoldenWal) -> None:
    """A two-phase sink, and a batch that lies in shards. Its target was unreachable while it was staged."""
    world.partitions = [0, 1_500]
    run = world.process()
    world.targets["vault"].is_away = True
    world.batch(run, 20, 2_100)
    world.targets["vault"].is_away = False
    world.deliver_until("vault", "after commit", "after commit")


def _others(world: GoldenWal) -> None:
    """Objects that other commands make, and those that people make."""
    run = world.process()
    world.batch(run, 2)
    run.deliver_all()
    world.wal.create("sinks/plain/errors/0000000001.json", envelope("error"))
    world.wal.create("repairs/0000000001.json", envelope("repair", number=1, verb="x", who="", run_id="r"))
    world.wal.create("repairs/0000000001.done.json", envelope("repaired", number=1, run_id="r"))
    world.wal.create("leases/plain.json", envelope("lease"))
    world.wal.create("leases/committer-plain/0000000001.json", envelope("lease"))
    wal = decode(WalRecord, world.wal.read(paths.WAL), "")
    world.wal.create(
        paths.COPY,
        encode(
            CopyRecord(wal_id=wal.wal_id, location="memory://b", copied_from="memory://a", who="a", id="x", created="")
        ),
    )
    world.wal.create(
        paths.milestone(1), encode(Milestone(batch_id=1, at_ms=0, since=2, total_bytes=0, id="x", created=""))
    )
    world.wal.create("probe/20260101T000000-0123.json", b"{}")
    world.wal.create("sinks/gone/forgotten", b"")
    world.wal.create("sinks/gone/markers/0000000000000000000.json", b"half of a record")


def _skipped(world: GoldenWal) -> None:
    """A sink passed over a batch of which nothing is left, and another batch was replayed."""
    run = world.process()
    for _ in range(2):
        world.batch(run, 2)
    run.deliver_all()
    for _ in range(2):
        world.batch(run, 2)
    run.end()
    folder = paths.batch(2)
    world.wal.delete(f"{folder}/{name}" for name in world.wal.list(folder, recursive=True))
    log = Log(world.wal, simulated_runtime(seed=12), "d" * 32)
    skip(log, skip_order(log, "plain", 2, why=""), plan_skip(log, "plain", 2), take_over=TakeOver.IF_GONE)
    later = world.process()
    later.gate.search()
    later.deliver_all()
    later.end()
    to, log = Plain(Target(), world.hook), Log(world.wal, simulated_runtime(seed=13), "e" * 32)
    order = resend_order(log, [0, 3], to, name="", again=False, why="")
    plan = plan_resend(log, [0, 3], to, name="", again=False)
    resend(log, order, plan, to, delivery=Delivery(to), take_over=TakeOver.IF_GONE)


_MORE: dict[str, tuple[Sequence[str], Callable[[GoldenWal], None]]] = {
    **WRITERS,
    "dead_letters": (WRITERS["dead_letters"][0], _letters),
    "sharded": (("vault",), _sharded),
    "others": (("plain",), _others),
    "skipped": (("plain",), _skipped),
}
NAMES = tuple(_MORE)


def envelope(kind: str, **body: object) -> bytes:
    """A record of a kind that no class here reads."""
    data = msgspec.json.encode({"id": "0" * 32, "created": "2026-01-01T00:00:00.000+00:00", **body})
    return msgspec.json.encode({"format": 1, "kind": kind, "crc32": zlib.crc32(data), "body": msgspec.Raw(data)})


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
    """The findings of an audit."""
    comparisons = [*([] if checkpoint is None else [AgainstCheckpoint(checkpoint)]), *more]
    return list(Check(wal, comparisons=comparisons).run())


def replaced(store: MemoryStore, path: str, data: bytes) -> None:
    store.delete([path])
    store.create(path, data)
