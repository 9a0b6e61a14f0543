"""The budget of inline rows, and what follows if the result of a job is too large. Spark is played here."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.errors import PySparkException

from tests.house.spark import staging, surfaced_errors
from tests.support.logged import said_here
from wal_sink.errors import ConfigError
from wal_sink.spark.cluster import inline_budget, size_of
from wal_sink.spark.tasks import ResultTooLargeError

TOO_LARGE = (
    "Job aborted due to stage failure: Total size of serialized results of 5 tasks (1280.0 KiB) is bigger than "
    "spark.driver.maxResultSize (1024.0 KiB)"
)


class Context(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]


def context(result_size: str, heap: int) -> Any:
    runtime = SimpleNamespace(getRuntime=lambda: SimpleNamespace(maxMemory=lambda: heap))
    jvm = SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(Runtime=runtime)))
    conf = {"spark.driver.maxResultSize": result_size} if result_size else {}
    return Context(_jvm=jvm, version="4.3.0", _jsc=SimpleNamespace(getConf=lambda: conf))


@pytest.mark.parametrize(
    ("result_size", "heap", "budget"),
    [
        ("", 4 << 30, 16 << 20),  # 1g by default
        ("1g", 1 << 30, 16 << 20),
        ("100g", 1 << 40, 16 << 20),
        ("512m", 4 << 30, 8 << 20),
        ("1g", 256 << 20, 4 << 20),
        ("0", 256 << 20, 4 << 20),
        ("0", 1 << 40, 16 << 20),
        ("63b", 1 << 40, 0),
    ],
)
def test_the_inline_budget_is_a_64th_of_the_least_limit(result_size: str, heap: int, budget: int) -> None:
    assert inline_budget(context(result_size, heap)) == budget


def test_a_limit_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"how much a job may return to the driver.*maxResultSize is 'much'"):
        inline_budget(context("much", 1 << 30))


def test_a_pyspark_without_the_context_of_java_is_refused() -> None:
    given = context("1g", 1 << 30)
    del given._jsc
    with pytest.raises(ConfigError, match="has no _jsc in PySpark"):
        inline_budget(given)


@pytest.mark.parametrize(
    ("setting", "size"),
    [("64m", 64 << 20), ("10b", 10), ("10", 10), (" 2K ", 2048), ("1gb", 1 << 30), ("x", None), (None, None)],
)
def test_sizes_as_spark_writes_them(setting: str | None, size: int | None) -> None:
    assert size_of(setting) == size


def test_sparks_error_of_a_result_that_is_too_large_is_known() -> None:
    with pytest.raises(ResultTooLargeError, match=r"batch 7: .*maxResultSize"), surfaced_errors("batch 7"):
        raise PySparkException(TOO_LARGE)


class Run:
    """A run whose staging job returns too much, as often as it is told."""

    def __init__(self, times: int, *, inline_rows: bool = True) -> None:
        self.times = times
        self.inline_rows = inline_rows
        self.attempts: list[bool] = []
        self.staged: list[object] = []

    def begin_staging(self, batch_id: int, *, planned_ms: int) -> str:
        return f"batch {batch_id} planned at {planned_ms}"

    def end_staging(self, _: str, staged: object) -> None:
        self.staged.append(staged)

    def write(self, attempt: str) -> str:
        self.attempts.append(self.inline_rows)
        if self.times:
            self.times -= 1
            raise ResultTooLargeError(f"{attempt}: {TOO_LARGE}")
        return "staged"


def stage(run: Run) -> bool:
    identity = cast("Any", SimpleNamespace(batch_id=7, planned_ms=17))
    return staging._stage(cast("Any", run), identity, cast("Any", run.write))


def test_the_batch_is_staged_again_without_inline_rows(caplog: pytest.LogCaptureFixture) -> None:
    run = Run(1)
    with caplog.at_level(logging.WARNING):
        assert stage(run)
    assert (run.attempts, run.staged, run.inline_rows) == ([True, False], ["staged"], False)
    (said,) = said_here(caplog)
    assert said.startswith("batch 7 planned at 17: Job aborted")
    assert said.endswith("so that batches cost fewer requests")


def test_a_result_that_is_too_large_without_inline_rows_ends_the_query() -> None:
    for run in (Run(2), Run(1, inline_rows=False)):
        with pytest.raises(ResultTooLargeError, match="bigger than"):
            stage(run)
        assert not run.staged
