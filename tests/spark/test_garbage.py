"""Objects that a worker holds for long are searched for garbage once."""

from __future__ import annotations

import gc
import os
import pickle
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.stores import StoreSpec
from wal_sink.spark.tasks import MOST_STORES, settle


class Node:
    """An object that keeps itself alive until garbage is collected."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _reused_worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that PySpark uses for further tasks, and that has settled nothing yet. It collects only when told."""
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    monkeypatch.setattr("wal_sink.spark.tasks._settled", set())
    gc.disable()
    yield
    gc.enable()


def test_what_lives_after_the_first_task_of_a_store_is_not_searched_again(tmp_path: Path) -> None:
    held = [[number] for number in range(1_000)]
    settle(StoreSpec(str(tmp_path / "wal")))
    assert not [each for each in gc.get_objects() if each in (held[0], held[-1])]


def test_later_tasks_of_a_store_leave_their_objects_to_the_collector(tmp_path: Path) -> None:
    settle(StoreSpec(str(tmp_path / "wal")))
    before = gc.get_freeze_count()
    held = [[number] for number in range(1_000)]
    settle(StoreSpec(str(tmp_path / "wal")))
    assert gc.get_freeze_count() <= before
    settle(StoreSpec(str(tmp_path / "other")))
    assert gc.get_freeze_count() >= before + len(held)


def test_garbage_of_the_first_task_does_not_stay(tmp_path: Path) -> None:
    garbage = weakref.ref(Node())
    settle(StoreSpec(str(tmp_path / "wal")))
    assert garbage() is None


def test_a_worker_that_ends_with_its_task_collects_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_REUSE_WORKER")
    gc.collect()
    before = gc.get_freeze_count()
    garbage = weakref.ref(Node())
    settle(StoreSpec(str(tmp_path / "wal")))
    settle(None)
    assert gc.get_freeze_count() <= before
    assert garbage() is not None


class Credentials:
    """An option that equals only itself, as the credentials of a library do."""


def test_options_that_equal_only_themselves_settle_once(tmp_path: Path) -> None:
    sent = pickle.dumps(StoreSpec(str(tmp_path / "wal"), {"token": Credentials()}))
    settle(pickle.loads(sent))  # noqa: S301
    before = gc.get_freeze_count()
    held = [[number] for number in range(1_000)]
    settle(pickle.loads(sent))  # noqa: S301
    assert gc.get_freeze_count() <= before, len(held)


def test_a_worker_that_opens_ever_more_stores_settles_a_few_times(tmp_path: Path) -> None:
    settle(None)
    for number in range(MOST_STORES):
        settle(StoreSpec(str(tmp_path / f"wal-{number}")))
    before = gc.get_freeze_count()
    garbage = weakref.ref(Node())
    settle(StoreSpec(str(tmp_path / "one more")))
    assert gc.get_freeze_count() <= before
    assert garbage() is not None


@pytest.mark.processes
def test_a_forked_process_settles_for_itself(tmp_path: Path) -> None:
    """Spark forks its workers; the code of a user may fork one of them."""
    settle(StoreSpec(str(tmp_path / "wal")))
    child = os.fork()
    if not child:
        held = [[number] for number in range(1_000)]
        before = gc.get_freeze_count()
        settle(StoreSpec(str(tmp_path / "wal")))
        os._exit(0 if gc.get_freeze_count() >= before + len(held) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
