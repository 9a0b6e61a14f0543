"""A WAL is copied to S3 and back."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.small_run import Place, Recorder
from wal_sink.errors import WalSinkError
from wal_sink.lifecycle.run import Run
from wal_sink.moving.copy import Copied, CopyPlan, copy_wal, plan_copy
from wal_sink.settings import Delivery
from wal_sink.sinks.base import Rejected
from wal_sink.sinks.chunk import Chunk
from wal_sink.stores.base import Store
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import StoreSpec
from wal_sink.testing import FaultyStore, simulated_runtime
from wal_sink.wal import paths
from wal_sink.wal.holders import TakeOver, note_end
from wal_sink.wal.log import Log

if TYPE_CHECKING:
    from tests.support.servers.s3_server import S3Server

_numbers = itertools.count()
Hook = Callable[[str, str], None]


def refuse_first(chunk: Chunk) -> Rejected | None:
    return Rejected({0: "none"}) if chunk.batch_id == 0 else None


def a_place(batches: int = 3, rows: Callable[[int], list[int]] = lambda _: [3, 0, 2]) -> Place:
    """A WAL of some batches for two sinks, one with a dead letter; the last batch is pending for both."""
    place = Place(rows=rows)
    run = place.open({"a": Delivery(refuse_first, on_rejected="dead_letter"), "b": Recorder()})
    staged = place.query().batches(run, batches)
    for _ in range(batches - 1):
        next(staged)
        run.deliver_all()
    next(staged)
    end(run)
    return place


def end(run: Run) -> None:
    """The end of a query and of its process: this process runs on."""
    run.end()
    note_end(run.log, paths.STAGER_ROLE, max(run.log.numbers(paths.terms(paths.STAGER_ROLE))))


def log_of(store: Store, hook: Hook | None = None) -> Log:
    return Log(store if hook is None else FaultyStore(store, hook), simulated_runtime(next(_numbers)), "copy")


def plan(source: Log, target: Log, take_over: TakeOver = TakeOver.IF_GONE) -> CopyPlan:
    return plan_copy(source, target, take_over=take_over)


def copied(wal: Store, there: Store, *, source: Hook | None = None, target: Hook | None = None) -> Copied:
    """Copy a WAL. The hooks see the requests to it and to the copy."""
    whence, to = log_of(wal, source), log_of(there, target)
    return copy_wal(whence, to, plan(whence, to))


def content(store: Store) -> dict[str, bytes]:
    names = [name for name in store.list("", recursive=True) if not name.startswith("probe/")]
    return {name: store.read(name) for name in names if name not in (paths.COPY, paths.COPIED)}


@pytest.mark.s3
def test_local_to_s3_and_back(s3_server: S3Server, s3_url: str, tmp_path: Path) -> None:
    place = a_place()
    local = open_store(StoreSpec(str(tmp_path / "wal")))
    bucket = open_store(StoreSpec(f"{s3_url}/wal", s3_server.storage_options))
    back = open_store(StoreSpec(str(tmp_path / "back")))

    for source, target in itertools.pairwise((place.wal, local, bucket, back)):
        copied(source, target)
        assert content(target) == content(place.wal)

    assert [error for error in (refused(bucket, back), refused(local, bucket)) if error] == []


def refused(source: Store, target: Store) -> str:
    """Repeat a copy that is complete."""
    try:
        copied(source, target)
    except WalSinkError as error:
        return str(error)
    return ""
