"""Spark's tables tell of repeated shuffles. Spark is played here; test_cluster_losses has a real one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

import wal_sink.spark.staging
from tests.house.spark import staging
from wal_sink.errors import ConfigError
from wal_sink.spark.staging import RepeatedShuffles
from wal_sink.spark.tasks import RepeatedShuffleError


class Sequence(list[Any]):
    """As Scala has it."""

    apply = list.__getitem__

    def size(self) -> int:
        return len(self)


class Rdd:
    """Reads shuffles, and another one of which it is a narrow part."""

    def __init__(self, *dependencies: Any) -> None:
        self.dependencies = lambda: Sequence(dependencies)
        self.id = lambda: id(self)
        self.getNumPartitions = lambda: 2
        self.toDebugString = lambda: "(2) MapPartitionsRDD" + "\n +-(2) MapPartitionsRDD" * bool(dependencies)


def shuffle(number: int, below: Rdd) -> Any:
    return SimpleNamespace(shuffleId=lambda: number, rdd=lambda: below)


def narrow(below: Rdd) -> Any:
    return SimpleNamespace(rdd=lambda: below)


class Played(RepeatedShuffles):
    """Spark, whose shuffles 0 and 1 were written by these tasks; the job read shuffle 1, made of shuffle 0."""

    def __init__(self, written: dict[int, list[int | None]], *, rdd: Rdd | None = None) -> None:
        self.forgotten: list[int] = []
        context = SimpleNamespace(_gateway=None, version="4.0.5")
        session = SimpleNamespace(sparkContext=context)
        super().__init__(cast("Any", SimpleNamespace(sparkSession=session)))
        twice = Rdd(shuffle(1, Rdd(shuffle(0, Rdd()))))
        self._played = rdd or Rdd(narrow(twice), narrow(twice))
        self._written = written

    def _rdd(self) -> Any:
        return self._played

    def _tracker(self) -> Any:
        def status(task: int | None) -> Any:
            return None if task is None else SimpleNamespace(mapId=lambda: task)

        outputs = {
            number: SimpleNamespace(mapStatuses=lambda tasks=tasks: [*map(status, tasks)])
            for number, tasks in self._written.items()
        }
        statuses = SimpleNamespace(apply=outputs.__getitem__)
        return SimpleNamespace(shuffleStatuses=lambda: statuses, unregisterAllMapAndMergeOutput=self.forgotten.append)


@pytest.fixture(autouse=True)
def _kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_shuffle(_gateway: object, dependency: object, _kind: str) -> bool:
        return hasattr(dependency, "shuffleId")

    monkeypatch.setattr(wal_sink.spark.staging, "is_instance_of", is_shuffle)


def test_shuffles_that_were_whole_before_the_first_task_read_them_are_fine() -> None:
    assert Played({0: [0, 1], 1: [3, 2]}).found([5, 4]) is None
    assert Played({0: [], 1: []}).found([5, 4]) is None
    assert Played({}, rdd=Rdd()).found([]) is None


@pytest.mark.parametrize(
    ("written", "tasks", "said"),
    [
        ({0: [0, 1], 1: [2, 6]}, [4, 7], "1 of 2 outputs of shuffle 1 were written after task 4 began"),
        ({0: [0, 4], 1: [2, 5]}, [7, 8], "1 of 2 outputs of shuffle 0 were written after task 2 began"),
        ({0: [0, 1], 1: [None, 2]}, [4, 5], "1 of 2 outputs of shuffle 1 are gone"),
        ({0: [None, 1], 1: [2, 3]}, [4, 5], "1 of 2 outputs of shuffle 0 are gone"),
        ({0: [0, 1], 1: [2, 3]}, [4], "only 1 of 2 tasks reported their ids"),
    ],
)
def test_what_a_later_task_wrote_or_nobody_tells_is_no_shuffle_that_all_read(
    written: dict[int, list[int | None]], tasks: list[int], said: str
) -> None:
    assert Played(written).found(tasks) == said


def test_every_shuffle_is_forgotten_once() -> None:
    played = Played({})
    played.forget()
    assert played.forgotten == [1, 0]


def test_a_spark_that_tells_nothing_is_an_error() -> None:
    untold: Any = SimpleNamespace()
    with pytest.raises(ConfigError, match=r"Spark 4\.0\.5 does not let wal-sink read whether it repeated a shuffle"):
        Played({}, rdd=untold).found([4, 5])


class Staging:
    """A run whose first attempts to stage a batch meet repeated shuffles."""

    def __init__(self, repeated: int) -> None:
        self.attempts = 0
        self.ended: list[tuple[object, object]] = []
        self._repeated = repeated

    def begin_staging(self, batch_id: int, *, planned_ms: int) -> str:
        self.attempts += 1
        return f"batch {batch_id} planned at {planned_ms}"

    def write(self, attempt: object) -> str:
        if self.attempts <= self._repeated:
            raise RepeatedShuffleError(f"{attempt}: seen by attempt {self.attempts}")
        return f"the rows of attempt {self.attempts}"

    def end_staging(self, attempt: object, staged: object) -> None:
        self.ended.append((attempt, staged))


def staged(run: Staging) -> bool:
    return staging._stage(
        cast("Any", run), cast("Any", SimpleNamespace(batch_id=7, planned_ms=17)), cast("Any", run.write)
    )


@pytest.mark.parametrize("repeated", [0, 1, 2])
def test_a_batch_whose_shuffles_were_repeated_is_staged_again(repeated: int, caplog: pytest.LogCaptureFixture) -> None:
    run = Staging(repeated)
    assert staged(run)
    assert run.attempts == repeated + 1
    assert run.ended == [("batch 7 planned at 17", f"the rows of attempt {repeated + 1}")]
    assert caplog.text.count("no row of this attempt is used") == repeated


def test_after_three_such_attempts_in_a_row_the_batch_fails_and_the_error_tells_the_ways_out() -> None:
    run = Staging(3)
    with pytest.raises(
        RepeatedShuffleError, match=r"^batch 7 planned at 17: seen by attempt 3; 3 attempts in a row.*why"
    ):
        staged(run)
    assert run.attempts == 3
    assert run.ended == []
