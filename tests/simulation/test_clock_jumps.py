"""A clock that jumps by hours, forward and back: no row is lost, no row comes twice, no wait changes.

Order comes from batch ids, terms and create-if-absent. Waits come from the monotonic clock. The time of day has five
uses: records and messages for people, ages that people see, the day in a file's name, a comparison with the date of a
`Retry-After`, the age of batches that are kept beyond those of a roll-back, and the age of dead letters
that a person deletes.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count, cycle
from pathlib import Path

import pytest

from tests.house.kit import simulated_runtime
from tests.house.support import SYSTEM, Runtime
from tests.support.processes import CHECKOUT
from wal_sink import Chunk, idempotent
from wal_sink.protocol.retry import AttemptFailedError, Budget
from wal_sink.settings import Retry
from wal_sink.testing import crash_matrix
from wal_sink.testing.data.rows import Row
from wal_sink.testing.simulation import process
from wal_sink_backends import TwoPhaseFilesSink
from wal_sink_backends.common.pacing import NotNowError, Pace, Pacing, Patience, retry_after_s
from wal_sink_backends.files import names as files_names
from wal_sink_backends.files.local import HELD_FOLDER
from wal_sink_backends.sql.sink import SqlSink

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
EVERY = 5
"""The distance between the points of the matrix that are tried."""

ASKING = {
    "wal_sink/stores/creation.py",
    "wal_sink/support/clock.py",
    "wal_sink/protocol/retry.py",
    "wal_sink/operate/health.py",
    "wal_sink/metrics/prometheus.py",
    "backends/wal_sink_backends/http/api.py",
    "backends/wal_sink_backends/files/names.py",
    "wal_sink/operate/letters.py",
    "backends/wal_sink_backends/iceberg/snapshot.py",
}
"""Modules that may read the time of day: for a probe's name, records for people, the date of a `Retry-After`, a day in
a file's name, the message of a failed attempt, the lag that metrics show, the ages that `wal-sink status` shows, the
age of dead letters that a person deletes, and the moment of an Iceberg snapshot, which never goes back."""


def jumping(process: int = 0) -> Callable[[], datetime]:
    """A clock that jumps by hours or days, forward and back, at each reading. Each process has other times."""
    hours = cycle([0, 9, -14, 30, -3, -50, 2])
    return lambda: NOON + timedelta(hours=next(hours) - 40 * (process % 5))


@pytest.fixture
def jumps(monkeypatch: pytest.MonkeyPatch) -> None:
    def runtime(seed: int) -> Runtime:
        return replace(simulated_runtime(seed), now=jumping(seed))

    monkeypatch.setattr(process, "simulated_runtime", runtime)
    monkeypatch.setattr(files_names, "SYSTEM", replace(SYSTEM, now=jumping()))


@pytest.fixture
def new_folder(tmp_path: Path) -> Callable[[], Path]:
    numbers = count()

    def make() -> Path:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        return folder

    return make


@pytest.mark.usefixtures("jumps")
def test_keys_stay_the_same() -> None:
    def make_sink(target: dict[str, list[Row]]) -> Callable[[Chunk], None]:
        @idempotent
        def write(chunk: Chunk) -> None:
            target[chunk.key] = list(chunk.table.to_pylist())

        return write

    matrix = crash_matrix(
        make_sink, lambda target: [row for rows in target.values() for row in rows], dict, every=EVERY, each_line=False
    )
    matrix.check()
    assert (matrix.lost, matrix.repeated) == (0, 0)


@pytest.mark.usefixtures("jumps")
def test_rows_and_position_stay_together(new_folder: Callable[[], Path]) -> None:
    def rows_in(folder: Path) -> Iterator[Row]:
        connection = sqlite3.connect(folder / "t.db")
        try:
            yield from ({"id": id_, "name": name} for id_, name in connection.execute("SELECT id, name FROM t"))
        finally:
            connection.close()

    def new_target() -> Path:
        folder = new_folder()
        connection = sqlite3.connect(folder / "t.db")
        connection.execute("CREATE TABLE t (id INTEGER, name TEXT)")
        connection.close()
        return folder

    matrix = crash_matrix(
        lambda folder: SqlSink(f"sqlite:///{folder}/t.db", "t"), rows_in, new_target, every=3 * EVERY, each_line=False
    )
    matrix.check()
    assert (matrix.lost, matrix.repeated) == (0, 0)


@pytest.mark.usefixtures("jumps")
def test_files_named_by_the_day_appear_once_whatever_day_it_is(new_folder: Callable[[], Path]) -> None:
    """A file that is prepared again on another day must not be committed under both names."""

    def make_sink(folder: Path) -> TwoPhaseFilesSink:
        return TwoPhaseFilesSink(str(folder), name_template="{date}/{batch_id}/{partition}-{file_index}.{ext}")

    def rows_in(folder: Path) -> list[Row]:
        files = [path for path in folder.rglob("*") if path.is_file() and HELD_FOLDER not in path.parts]
        return [json.loads(line) for path in files for line in path.read_text().splitlines()]

    matrix = crash_matrix(make_sink, rows_in, new_folder, every=3 * EVERY, each_line=False)
    matrix.check()
    assert (matrix.lost, matrix.repeated) == (0, 0)


def test_budgets_are_not_spent_by_the_clock() -> None:
    def attempts(runtime: Runtime) -> tuple[int, float]:
        tried = []

        def fail() -> None:
            tried.append(1)
            raise AttemptFailedError("down")

        budget = Budget.of(Retry(attempts=50, budget_s=100), runtime)
        with pytest.raises(AttemptFailedError):
            budget.call(fail, AttemptFailedError, sleep=runtime.sleep_s, what="batch 0")
        return len(tried), budget.spent_s()

    still = simulated_runtime(1)
    assert attempts(still) == attempts(replace(simulated_runtime(1), now=jumping()))


def test_rate_and_breaker_do_not_look_at_the_wall_clock() -> None:
    def waits(runtime: Runtime) -> list[float]:
        pace = Pace("https://api", Pacing(rows_per_s=10, breaker_failures=2, breaker_pause_s=5), runtime)
        ends = []
        for _ in range(5):
            pace.admit(10, Patience(60, runtime))
            ends.append(runtime.monotonic_s())
        for _ in range(2):
            pace.note(alive=False)
        with pytest.raises(NotNowError) as told:
            pace.admit(1, Patience(60, runtime))
        return [*ends, told.value.after_s]

    still = waits(simulated_runtime(1))
    assert still == waits(replace(simulated_runtime(1), now=jumping()))
    assert still[-1] == 5


@pytest.mark.parametrize("hours", [-20, 20])
def test_a_date_to_come_back_at_is_waited_for_no_longer_than_the_budget(hours: int) -> None:
    """The target's clock is right, and this machine's clock is 20 hours off."""
    runtime = simulated_runtime(1)
    asked_s = retry_after_s("Sun, 01 Mar 2026 12:00:10 GMT", NOON + timedelta(hours=hours))
    assert asked_s is not None
    assert asked_s == max(0, 10 - hours * 3600)
    budget = Budget.of(Retry(attempts=3, budget_s=100), runtime)

    def fail() -> None:
        raise AttemptFailedError("later", retry_after_s=asked_s)

    with pytest.raises(AttemptFailedError):
        budget.call(fail, AttemptFailedError, sleep=runtime.sleep_s, what="batch 0")
    assert budget.spent_s() <= 100


def test_nobody_else_asks_for_the_time_of_day() -> None:
    sources = [path for folder in ("wal_sink", "backends") for path in (CHECKOUT / folder).rglob("*.py")]
    asking = {
        path.relative_to(CHECKOUT).as_posix()
        for path in sources
        if re.search(r"\b(runtime|SYSTEM|datetime)\.now\(|self\.now\(|\btime\.time(_ns)?\(|utcnow", path.read_text())
    }
    assert {path for path in asking if not path.startswith(("wal_sink/cli/", "wal_sink/testing/"))} == ASKING
