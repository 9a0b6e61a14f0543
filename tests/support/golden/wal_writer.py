"""Writes WALs of the present code, each with other kinds of objects."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from unittest import mock

from tests.house.log import Log, TakeOver, paths, terms
from tests.house.operate import plan_skip, rename, retire, skip, skip_order
from tests.house.protocol import Collector
from tests.house.stores import MemoryStore, StoreSpec
from tests.house.support import ProcessIdentity
from tests.support.golden.checkpoints import goldens as golden_checkpoints
from tests.support.golden.targets import Plain
from tests.support.golden.wals import GoldenWal
from wal_sink.errors import DeliveryError
from wal_sink.operate.replay import DeadLetters
from wal_sink.testing import simulated_runtime

_HOST = ProcessIdentity(host="golden", pid=4711, boot_id="a boot that is over", pid_namespace="pid:[1]", started=1)
_numbers = itertools.count()


def _kinds(world: GoldenWal) -> None:
    """Write sinks of each kind: two batches delivered, one half-delivered, one not delivered, one incomplete."""
    run = world.process()
    for rows in ([3, 2], [5]):
        world.batch(run, *rows)
        run.deliver_all()
    world.targets["vault"].is_away = True
    world.batch(run, 5, 3)
    world.targets["vault"].is_away = False
    world.batch(run, 4)
    world.batch(run, 2, 1, is_completed=False)
    for name in ("plain", "once", "looked-up"):
        recorded = f"after create {paths.SINKS}/{name}/progress"
        world.deliver_until(name, recorded, recorded)
    world.deliver_until("keyed", "after write", "after write")
    world.deliver_until("ledger", "after write", "after write", "after write")
    world.deliver_until("vault", "after commit")
    world.deliver_until("lake", "after commit")
    world.deliver_until("segments", f"after create {paths.SINKS}/segments/progress")


def _dead_letters(world: GoldenWal) -> None:
    """Write refused rows, some of them replayed, and rows of unknown outcome."""
    world.targets["refusing"].refused = [1, 4, 10_002]
    world.targets["refusing-ledger"].refused = [0, 10_003]
    run = world.process()
    for rows in ([3, 2], [5]):
        world.batch(run, *rows)
        run.deliver_all()
    world.batch(run, 4)
    world.deliver_until("once", f"after create {paths.SINKS}/once/progress")
    world.process(stages=False, sinks=["once"]).deliver_all()
    refusing = world.targets["refusing"]
    refusing.refused = [4]
    letters = DeadLetters(Log(world.wal, simulated_runtime(seed=5), "e" * 32), name="refusing")
    letters.replay(Plain(refusing, world.hook))
    refusing.refused = []


def _collected(world: GoldenWal) -> None:
    """Write low water, a retired sink, a renamed sink, runs that ended in order, and a WAL that was moved."""
    here, before = world.wal, MemoryStore(StoreSpec(f"{world.url}-before"))
    world.wal = before
    run = world.process()
    for _ in range(6):
        world.batch(run, 2)
        run.deliver_all()
    Collector(run.shared, retention_batches=2).collect(run.committers[0].term)
    run.end()
    for name in before.list("", recursive=True):
        here.create(name, before.read(name))
    world.wal = here
    before.delete([paths.WAL])  # it is out of use
    world.process(stages=False, sinks=["plain"], moved_from=before.root).end()
    log = Log(here, simulated_runtime(seed=7), "d" * 32)
    retire(log, "retired", drop_pending=0, take_over=TakeOver.ALWAYS)
    rename(log, "renamed", "anew", take_over=TakeOver.ALWAYS)
    world.sinks.remove("retired")
    world.sinks[world.sinks.index("renamed")] = "anew"
    world.targets["anew"] = world.targets.pop("renamed")


def _unkept(world: GoldenWal) -> None:
    """Write rows that only the target of a two-phase sink holds."""
    run = world.process()
    world.batch(run, 3, 2)
    run.deliver_all()
    world.batch(run, 5)
    world.batch(run, 1, is_completed=False)


def _packed(world: GoldenWal) -> None:
    """Write packed segments, and a larger partition between them: one batch delivered, one half, one not at all."""
    world.inline_bytes = 2_000
    run = world.process()
    world.batch(run, 1, 2, 0, 200, 1, 1)
    run.deliver_all()
    world.targets["vault"].is_away = True
    world.batch(run, *[1] * 6)
    world.targets["vault"].is_away = False
    world.batch(run, 2, 2)
    world.deliver_until("plain", f"after create {paths.SINKS}/plain/progress")
    world.deliver_until("keyed", "after write")
    world.deliver_until("ledger", "after write")
    world.deliver_until("vault", "after commit")


def _passed_over(world: GoldenWal) -> None:
    """Write a batch that Spark recorded without running it, as 4.2.1 does."""
    (golden,) = golden_checkpoints("repartitioned", version="4.2.1")
    files = golden.store()
    for name in ("metadata", *(path for path in golden.files if path.startswith("sources/"))):
        world.checkpoint.create(name, files.read(name))
    for batch_id in golden.batches:
        world.checkpoint.create(f"offsets/{batch_id}", files.read(f"offsets/{batch_id}"))
        if batch_id in golden.read:
            world.rows[batch_id] = [3]
            world.stage(world.process(), batch_id)
        world.checkpoint.create(f"commits/{batch_id}", files.read(f"commits/{batch_id}"))
        world.drain()


def _failed(world: GoldenWal) -> None:
    """Write the last error of a sink: its target refused a row of batch 1, and would take it by now."""
    run = world.process()
    world.batch(run, 2)
    run.deliver_all()
    world.batch(run, 3)
    world.targets["plain"].refused = world.ids()[-1:]
    with contextlib.suppress(DeliveryError):
        run.deliver_all()
    world.targets["plain"].refused = []


def _skipped(world: GoldenWal) -> None:
    """Write a batch without rows whose objects are lost, and that the sink passes over."""
    run = world.process()
    world.batch(run, 2)
    run.deliver_all()
    world.batch(run, 0)
    world.batch(run, 3)
    world.wal.delete([f"{paths.batch(1)}/{name}" for name in world.wal.list(paths.batch(1), recursive=True)])
    log = Log(world.wal, simulated_runtime(seed=12), "e" * 32)
    order = skip_order(log, "plain", 1, why="its objects were deleted")
    skip(log, order, plan_skip(log, "plain", 1), take_over=TakeOver.ALWAYS)


def _rolled(world: GoldenWal) -> None:
    """Write a roll of three batches that is marked, and one of two that is decided and not committed."""
    run = world.process()
    for rows in ([3, 2], [0], [1]):
        world.batch(run, *rows)
    run.deliver_all()
    for count in (2, 3):
        world.batch(run, count)
    world.deliver_until("rolled", "before commit")


WRITERS: Mapping[str, tuple[Sequence[str], Callable[[GoldenWal], None]]] = {
    "kinds": (("plain", "once", "keyed", "looked-up", "ledger", "vault", "lake", "segments", "batches"), _kinds),
    "dead_letters": (("refusing", "refusing-ledger", "once"), _dead_letters),
    "collected": (("plain", "ledger", "renamed", "retired"), _collected),
    "unkept": (("unkept",), _unkept),
    "packed": (("plain", "keyed", "ledger", "vault"), _packed),
    "passed_over": (("plain",), _passed_over),
    "failed": (("plain",), _failed),
    "skipped": (("plain",), _skipped),
    "rolled": (("rolled",), _rolled),
}


@contextlib.contextmanager
def _elsewhere() -> Iterator[None]:
    """Make the records name an ended process and no real machine."""
    with (
        mock.patch.object(terms, "process_identity", return_value=_HOST),
        mock.patch.object(terms, "process_name", return_value=f"{_HOST.host}:{_HOST.pid}"),
    ):
        yield


def written(kind: str) -> GoldenWal:
    """Return a new WAL, which a test may change."""
    sinks, write = WRITERS[kind]
    world = GoldenWal(kind, f"written-{next(_numbers)}", list(sinks))
    with _elsewhere():
        write(world)
    return world
