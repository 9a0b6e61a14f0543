"""Whether executors see the driver's WAL, with a cluster that is played: its tasks may use another store."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError

from tests.house.stores import LocalStore, MemoryStore, ObjectMissing, StoreSpec
from tests.house.support import SYSTEM
from wal_sink.errors import ConfigError, StoreError
from wal_sink.spark.cluster import _CreateThere, check_shared_store

Task = Callable[[tuple[str, bytes]], object]


class Cluster:
    """A SparkContext whose machines run a task each, as `on_machine` says."""

    def __init__(self, *on_machine: Callable[[Task, tuple[str, bytes]], object]) -> None:
        self.machines = on_machine
        self.described: list[object] = []
        self._jsc = SimpleNamespace(sc=lambda: self)

    def resourceProfileManager(self) -> Cluster:  # noqa: N802 - Spark's names from here on
        return self

    def defaultResourceProfile(self) -> str:  # noqa: N802
        return "default"

    def maxNumConcurrentTasks(self, profile: str) -> int:  # noqa: N802
        assert profile == "default"
        return len(self.machines)

    def getLocalProperty(self, _: str) -> None:  # noqa: N802
        return

    def setLocalProperty(self, _: str, text: object) -> None:  # noqa: N802
        self.described.append(text)

    def parallelize(self, items: Iterable[tuple[str, bytes]], slices: int) -> Any:
        given = list(items)
        assert len(given) == slices

        def run(task: Task) -> Any:
            answers = [machine(task, item) for machine, item in zip(self.machines, given, strict=False)]
            return SimpleNamespace(collect=lambda: answers)

        return SimpleNamespace(map=run)


def here(task: Task, item: tuple[str, bytes]) -> object:
    return task(item)


def elsewhere(spec: StoreSpec) -> Callable[[Task, tuple[str, bytes]], object]:
    """A machine on which the same address is another place."""
    return lambda _, item: _CreateThere(spec)(item)


def check(spec: StoreSpec, *machines: Callable[[Task, tuple[str, bytes]], object]) -> Cluster:
    cluster = Cluster(*machines)
    spark: Any = SimpleNamespace(sparkContext=cluster)
    check_shared_store(spark, spec, SYSTEM)
    return cluster


@pytest.mark.parametrize("slots", [0, Py4JError("no such method")])
def test_where_the_slots_are_not_known_as_many_tasks_as_ever_try_a_folder(
    tmp_path: Path, slots: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One executor may share the driver's machine: a single task could find that one, and prove nothing."""

    def count(*_: object) -> object:
        if isinstance(slots, Exception):
            raise slots
        return slots

    monkeypatch.setattr(Cluster, "maxNumConcurrentTasks", count)
    other = elsewhere(StoreSpec(f"{tmp_path}/other"))
    with pytest.raises(ConfigError, match="the driver does not find"):
        check(StoreSpec(f"{tmp_path}/wal"), *[here] * 15, other)


class RemembersWhatIsMissing(MemoryStore):
    """As a caching proxy does, and a mount that caches what it did not find."""

    def __init__(self, spec: StoreSpec) -> None:
        super().__init__(spec)
        self.missing: set[str] = set()

    def read(self, path: str) -> bytes:
        try:
            if path in self.missing:
                raise ObjectMissing(path)
            return super().read(path)
        except ObjectMissing:
            self.missing.add(path)
            raise


def test_a_store_that_remembers_what_was_missing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would hide the term of a newer process. Each send first checks that no newer term exists."""
    spec = StoreSpec("memory://behind-a-proxy")
    store = RemembersWhatIsMissing(spec)
    monkeypatch.setattr("wal_sink.spark.cluster.open_store", lambda _: store)
    with pytest.raises(ConfigError, match="a caching proxy or a mount remembers objects as missing"):
        check(spec, elsewhere(spec))


def test_a_store_that_answers_for_what_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryStore, "read", lambda *_: b"<html>not found</html>")
    with pytest.raises(ConfigError, match=r"memory://pages/probe/.*expected no object .*found 22 bytes"):
        check(StoreSpec("memory://pages"), here)


def test_a_folder_that_every_machine_sees_is_left_as_it_was(tmp_path: Path) -> None:
    spec = StoreSpec(f"{tmp_path}/wal")
    cluster = check(spec, here, here, here)
    assert LocalStore(spec).list("", recursive=True) == []
    assert cluster.described == [f"wal-sink {spec.safe_url}: do the executors see it?", None]


def test_a_task_that_spark_repeats_finds_its_own_object(tmp_path: Path) -> None:
    def twice(task: Task, item: tuple[str, bytes]) -> object:
        task(item)
        return task(item)

    spec = StoreSpec(str(tmp_path))
    check(spec, twice)
    assert LocalStore(spec).list("", recursive=True) == []


def test_a_folder_of_each_machines_own_is_refused_wherever_one_is(tmp_path: Path) -> None:
    spec, other = StoreSpec(f"{tmp_path}/wal"), elsewhere(StoreSpec(f"{tmp_path}/other"))
    with pytest.raises(ConfigError, match=rf"{spec.url}: the driver does not find .*or a folder that every machine"):
        check(spec, here, other)
    assert LocalStore(spec).list("", recursive=True) == []


def test_a_folder_that_executors_may_not_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    spec, other = StoreSpec(f"{tmp_path}/wal"), elsewhere(StoreSpec(f"{tmp_path}/file/wal"))
    with pytest.raises(ConfigError, match=rf"executors cannot write to {spec.url}: .*a part of the path is a file"):
        check(spec, other)


def test_the_memory_of_each_process_is_refused() -> None:
    spec = StoreSpec("memory://of-the-driver")
    with pytest.raises(ConfigError, match=r"memory://of-the-driver: the driver does not find .* s3://"):
        check(spec, elsewhere(StoreSpec("memory://of-an-executor")))


def test_an_object_store_is_tried_once_and_what_may_pass_is_no_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise StoreError("cannot create: SlowDown")

    monkeypatch.setattr(MemoryStore, "create", fail)
    with pytest.raises(StoreError, match="executors cannot write to memory://slow: cannot create: SlowDown"):
        check(StoreSpec("memory://slow"), here, lambda *_: pytest.fail("one task is enough"))


def test_whatever_goes_wrong_there_is_told_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("cannot use hush-hush")

    monkeypatch.setattr(MemoryStore, "create", fail)
    spec = StoreSpec("memory://x", {"token": "hush-hush"})
    with pytest.raises(ConfigError, match=r"RuntimeError: cannot use \*\*\*"):
        check(spec, here)
    assert "hush" not in repr(_CreateThere(spec))


def test_a_job_that_fails_is_told(tmp_path: Path) -> None:
    def fail(*_: object) -> None:
        raise Py4JError("no executor")

    with pytest.raises(ConfigError, match=r"a task that tests file://.* failed: no executor"):
        check(StoreSpec(str(tmp_path)), fail)


def test_a_folder_that_the_driver_may_not_write_either_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    spec = StoreSpec(f"{tmp_path}/file/wal")
    with pytest.raises(StoreError, match=r"^cannot write .*a part of the path is a file"):
        check(spec, here)
