"""`crash_matrix` and `query_into`: what they count, what they permit, and what they say when used wrongly."""

from __future__ import annotations

import math
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.house.kit import What
from tests.house.sinks import BatchSink, ReleasedBatch
from wal_sink import Chunk, ConfigError, Delivery, DeliveryError, Retry, Sink
from wal_sink.testing import CrashMatrix, crash_matrix, query_into
from wal_sink.testing.matrix.verdict import EVERYTHING, chosen, points_of
from wal_sink.testing.simulation.watched import OwnLines

SHORT = [pa.table({"id": [1, 2, 3]}), pa.table({"id": [4]})]
Rows = list[dict[str, Any]]


def plain(rows: list[Any]) -> Callable[[Chunk], None]:
    return lambda chunk: rows.extend(chunk.table.to_pylist())


def test_a_plain_sink_repeats_a_chunk_and_no_more() -> None:
    matrix = crash_matrix(plain, list, list, tables=SHORT).check()

    assert matrix.promise.ability == "plain"
    assert matrix.lost == 0
    assert 0 < matrix.repeated <= matrix.permitted
    assert matrix.verdict == "repeats"
    assert min(matrix.crashes, matrix.failures, matrix.takeovers) > 0


def test_at_most_once_permits_loss_and_no_repetition() -> None:
    matrix = crash_matrix(
        lambda rows: Delivery(plain(rows), guarantee="at_most_once"), list, list, tables=SHORT, disturb=("dies",)
    ).check()

    assert matrix.lost > 0
    assert matrix.repeated == 0


def test_a_target_that_keeps_earlier_runs_is_judged_by_what_a_run_adds() -> None:
    rows: Rows = []

    assert crash_matrix(plain, list, lambda: rows, tables=SHORT, disturb=("stands still",)).check().takeovers


def test_every_takes_fewer_points_and_double_more_crashes() -> None:
    def matrix(**how: Any) -> CrashMatrix:
        return crash_matrix(plain, list, list, tables=SHORT, disturb=("dies",), each_line=False, **how).check()

    whole, some, twice = matrix(), matrix(every=9), matrix(every=9, double=True)

    assert whole.points == whole.known_points
    assert some.points == -(-whole.points // 9)
    assert f"at {some.points} of {whole.points} points" in str(some)
    assert twice.crashes > 2 * some.crashes


class MarksFirst(Sink):
    """Remembers the key in its target before the rows are there: only a death between these lines shows it."""

    idempotent = True

    def __init__(self, target: dict[str, Any]) -> None:
        self.target = target

    def write(self, chunk: Chunk) -> None:
        rows = chunk.table.to_pylist()
        if self.target.setdefault(chunk.key, rows) is not rows:
            return
        self.target["rows"] = [*self.target.get("rows", ()), *rows]


def test_each_line_of_a_sink_is_tried_however_few_points_are() -> None:
    for every in [1, 5, 10, 20, 1000]:
        matrix = crash_matrix(
            MarksFirst, lambda target: target.get("rows", []), dict, tables=SHORT, disturb=("dies",), every=every
        )

        assert any(violation.difference.lost for violation in matrix.violations)


def test_the_choice_does_not_miss_a_point_that_repeats_itself_every_few_points() -> None:
    names = ["before write of rows 0 to 2", *(f"inside line {line}" for line in range(9)), "after write of rows 0 to 2"]
    points = points_of(names * 10, EVERYTHING)

    some = chosen(points, every=len(names), each_line=False)
    each = chosen(points, every=1000, each_line=True)

    assert len({point.kind for point in some}) > len({point.what for point in some}) == len(EVERYTHING)
    assert {(point.what, point.kind) for point in each} == {(point.what, point.kind) for point in points}
    assert len(each) == len({(point.what, point.kind) for point in points})


@dataclass
class Locked:
    """Rows under a lock that a process may hold for as long as it lives."""

    rows: Rows = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class InALock(Sink):
    """Looks and writes while nobody else may."""

    idempotent = True

    def __init__(self, target: Locked) -> None:
        self.target = target

    def write(self, chunk: Chunk) -> None:
        with self.target.lock:
            known = [row["key"] for row in self.target.rows]
            new = [{**row, "key": key} for row, key in zip(chunk.table.to_pylist(), chunk.row_keys(), strict=True)]
            self.target.rows += [row for row in new if row["key"] not in known]


class Puts(Sink):
    """Rows by their business key: a later row replaces an earlier one, and so does an earlier one that comes late."""

    idempotent = True

    def __init__(self, target: dict[int, Any]) -> None:
        self.target = target

    def write(self, chunk: Chunk) -> None:
        self.target.update({row["id"]: row for row in chunk.table.to_pylist()})


class Newest(dict[int, Any]):
    """A target that itself compares the batch of a row with that of the row it holds."""

    def put(self, row: dict[str, Any], batch: int) -> None:
        if self.get(row["id"], {"batch": -1})["batch"] <= batch:
            self[row["id"]] = {**row, "batch": batch}


class PutsNewer(Puts):
    target: Newest

    def write(self, chunk: Chunk) -> None:
        for row in chunk.table.to_pylist():
            self.target.put(row, chunk.batch_id)


class PutsNewerThanItSaw(Puts):
    """Compares before it puts: a process may stand still between these."""

    def write(self, chunk: Chunk) -> None:
        for row in chunk.table.to_pylist():
            held = self.target.get(row["id"])
            if held is None or held["batch"] <= chunk.batch_id:
                self.target[row["id"]] = {**row, "batch": chunk.batch_id}


def test_a_late_call_that_brings_an_old_row_back_is_found() -> None:
    def matrix(sink: type[Puts], what: What, **how: Any) -> CrashMatrix:
        return crash_matrix(sink, lambda target: target.values(), Newest, disturb=(what,), **how)

    matrix(Puts, "dies", key=("id",), every=5).check()
    matrix(Puts, "stands still", every=5).check()
    assert matrix(PutsNewerThanItSaw, "stands still", key=("id",)).violations
    wrong = matrix(Puts, "stands still", key=("id",))
    assert wrong.verdict == "cannot be seen"
    with pytest.raises(AssertionError, match=r"7 old: \{'id': 0, 'name': 'name 0'\}(?s:.*)an old row came back"):
        wrong.check()
    assert matrix(PutsNewer, "stands still", key=("id",)).check().verdict == "holds"


class BeforeALock(InALock):
    """Looks before it holds the lock."""

    def write(self, chunk: Chunk) -> None:
        known = [row["key"] for row in self.target.rows]
        with self.target.lock:
            new = [{**row, "key": key} for row, key in zip(chunk.table.to_pylist(), chunk.row_keys(), strict=True)]
            self.target.rows += [row for row in new if row["key"] not in known]


def test_a_process_that_stands_still_with_a_lock_is_waited_for() -> None:
    matrix = crash_matrix(InALock, lambda target: target.rows, Locked, tables=SHORT, disturb=("stands still",))

    assert matrix.check().waited > 0
    assert f"(the newer process waited in {matrix.waited} of them)" in str(matrix)


def test_a_sink_that_looks_before_it_locks_is_found() -> None:
    matrix = crash_matrix(BeforeALock, lambda target: target.rows, Locked, tables=SHORT, disturb=("stands still",))

    with pytest.raises(AssertionError, match=r"stood still just before BeforeALock.write, .* until a newer process"):
        matrix.check()


class KeepsALock(InALock):
    """From one call to the next."""

    def write(self, chunk: Chunk) -> None:
        if not self.target.lock.locked():
            self.target.lock.acquire()
        self.target.rows += chunk.table.to_pylist()

    def open(self, context: object) -> None:  # noqa: ARG002
        with self.target.lock:
            self.target.rows += []

    def close(self) -> None:
        if self.target.lock.locked():
            self.target.lock.release()


def test_a_process_that_holds_a_lock_between_two_calls_keeps_a_newer_one_out() -> None:
    with pytest.raises(
        AssertionError,
        match="newer process waits for something, such as a lock, that this process holds between two calls",
    ):
        crash_matrix(
            KeepsALock, lambda target: target.rows, Locked, tables=SHORT, disturb=("stands still",), every=7
        ).check()


def test_a_target_of_one_thread_stays_on_it() -> None:
    """As a connection of SQLite that all processes share."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE TABLE rows (id INTEGER)")

        def make_sink(database: sqlite3.Connection) -> Callable[[Chunk], None]:
            def write(chunk: Chunk) -> None:
                for id_ in chunk.table["id"].to_pylist():
                    database.execute("INSERT INTO rows VALUES (?)", (id_,))

            return write

        def rows_in(database: sqlite3.Connection) -> Rows:
            return [{"id": id_} for (id_,) in database.execute("SELECT id FROM rows")]

        matrix = crash_matrix(make_sink, rows_in, lambda: database, tables=SHORT, disturb=("stands still",)).check()

    assert matrix.takeovers > 0
    assert matrix.repeated > 0
    assert matrix.waited == 0


def test_what_is_wrong_without_any_crash_is_all_that_is_told() -> None:
    matrix = crash_matrix(lambda _: lambda chunk: None, list, list, tables=SHORT)  # noqa: ARG005

    assert len(matrix.violations) == 1
    with pytest.raises(AssertionError, match=r"nothing happened: no crash, no failure\n +4 lost: \{'id': 1\}"):
        matrix.check()


def test_rows_that_were_altered_are_told_as_such() -> None:
    def text(rows: Rows) -> Callable[[Chunk], None]:
        return lambda chunk: rows.extend({"id": str(row)} for row in chunk.table["id"].to_pylist())

    with pytest.raises(AssertionError, match=r"never sent: \{'id': '1'\}.*(?s:.*)override tables\(\)"):
        crash_matrix(text, list, list, tables=SHORT).check()


def test_rows_in_must_give_mappings_with_the_columns() -> None:
    with pytest.raises(AssertionError, match=r"rows_in\(target\) returned 1: expected one mapping per row.*\['id'\]"):
        crash_matrix(plain, lambda _: [1], list, tables=SHORT)  # type: ignore[list-item]


def test_a_writer_of_whole_batches_needs_a_way_to_make_data_frames() -> None:
    class Writer(BatchSink):
        def write_batch(self, batch: ReleasedBatch) -> None:
            raise NotImplementedError

    with pytest.raises(ConfigError, match=r"data_frame=spark\.createDataFrame"):
        crash_matrix(lambda _: Writer(), list, list, tables=SHORT)


class InTheMiddle(Sink):
    """Leaves a transaction open for its process to die in."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self, context: object) -> None:  # noqa: ARG002
        self.database = sqlite3.connect(self.path, timeout=0.1)

    def write(self, chunk: Chunk) -> None:
        self.database.executemany("INSERT INTO rows VALUES (?)", [(id_,) for id_ in chunk.table["id"].to_pylist()])
        self.database.commit()

    def close(self) -> None:
        self.database.close()


def test_the_connections_of_a_dead_process_are_gone(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    with sqlite3.connect(path) as looking:
        looking.execute("CREATE TABLE rows (id INTEGER)")

    def rows_in(_: object) -> Rows:
        return [{"id": id_} for (id_,) in looking.execute("SELECT id FROM rows").fetchall()]

    matrix = crash_matrix(lambda _: InTheMiddle(path), rows_in, lambda: None, tables=SHORT, disturb=("dies",))
    looking.close()
    matrix.check()
    assert matrix.lost == 0


ARRIVED: list[int] = []


class Recorder(Sink):
    def write(self, chunk: Chunk) -> None:
        ARRIVED.extend(int(row["id"]) for row in chunk.table.to_pylist())


def test_a_query_that_is_driven_by_hand() -> None:
    ARRIVED.clear()
    with query_into(Recorder()) as query:
        query.batch(*SHORT)
        query.crash_at("before create commits/")
        query.batch(SHORT[1])
        assert not query.alive
        assert ARRIVED == [1, 2, 3, 4], "its batch is not complete"
        query.restart()
        assert "after write of rows 0 to 1 of segment 0 of batch 1" in query.points

    assert ARRIVED == [1, 2, 3, 4, 4]


def test_a_query_says_what_it_cannot_do() -> None:
    query = query_into(Recorder())
    with pytest.raises(RuntimeError, match="use the query in a with block"):
        query.deliver()
    with query:
        with pytest.raises(RuntimeError, match=r"call stage\(table\) first"):
            query.complete()
        with pytest.raises(ValueError, match="at least one table"):
            query.batch()
        query.crash()
        with pytest.raises(RuntimeError, match=r"call restart\(\)"):
            query.batch(*SHORT)


def test_a_point_that_does_not_exist_is_refused() -> None:
    with query_into(Recorder()) as query:
        for point in ("after wrote", "inside write"):
            with pytest.raises(
                ValueError,
                match=r"no crash point has a name that begins like this\. Expected a name that begins with one of "
                r".*'after write'",
            ):
                query.crash_at(point)
        for point in ("before", "before create commits/", "after write of rows 0", ""):
            query.crash_at(point)


def test_a_sink_that_cannot_be_pickled_is_not_used_by_several_processes() -> None:
    class Seen(Sink):
        def __init__(self) -> None:
            self.lock = threading.Lock()

        def write(self, chunk: Chunk) -> None:
            raise NotImplementedError

    for to in (Seen(), Delivery(Seen())):
        with pytest.raises(ConfigError, match=r"it cannot be pickled \(.*SinkQuery\(lambda: MySink"):
            query_into(to)


def test_what_nothing_could_follow_from_is_refused() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        (
            {"disturb": ("crashes",)},
            (
                r"disturb: unknown value \['crashes'\]\. Expected a tuple with one or more of \('dies', 'fails', "
                r"'stands still', 'forgets', 'loses rows'\)"
            ),
        ),
        ({"disturb": "dies"}, r"disturb: unknown value \['dies'\]\. Expected a tuple with one or more of"),
        ({"every": 0}, "every=0; expected 1 for all points"),
        ({"key": "id"}, r"key='id': expected some of the columns \['id', 'name'\], but not all"),
        ({"key": ("id",), "tables": SHORT}, r"key=\('id',\): expected some of the columns \['id'\], but not all"),
        ({"tables": []}, "tables: 0 without a row"),
        ({"tables": [SHORT[0].slice(0, 0)] * 3}, "tables: 3 without a row"),
    ]
    for how, told in cases:
        with pytest.raises(ConfigError, match=told):
            crash_matrix(plain, list, list, **how)


def test_a_value_that_is_no_number_is_one_value() -> None:
    table = pa.table({"x": [math.nan, 1.0], "y": [[math.nan], None]})

    assert crash_matrix(plain, list, list, tables=[table], disturb=("dies",)).check().repeated > 0


def test_only_what_is_repeated_has_an_allowance() -> None:
    matrix = crash_matrix(lambda _: lambda chunk: None, list, list, tables=SHORT)  # noqa: ARG005

    assert "may repeat" not in str(matrix.violations[0])


def test_a_sink_that_fails_fails_the_query() -> None:
    def refuse(_: Chunk) -> None:
        raise ValueError("no room")

    with pytest.raises(DeliveryError, match="no room"), query_into(Delivery(refuse, retry=Retry(attempts=2))) as query:
        query.batch(*SHORT)


class TriesAgain:
    """A sink that goes on in a loop after an error."""

    def write(self) -> None:
        for left in (1, 0):
            try:
                raise ValueError("one")
            except ValueError:
                if left:
                    continue
                return


def test_an_interruption_in_an_except_clause_leaves_no_handled_exception_behind() -> None:
    """Whatever this thread raised later had the sink's error as its context, secrets included."""
    sink, lines = TriesAgain(), list[str]()
    OwnLines(sink).call(sink.write, on_line=lines.append)
    assert len(lines) >= 4
    for number in range(len(lines)):
        moments = iter(range(len(lines)))

        def interrupt(_: str, moments: Iterator[int] = moments, number: int = number) -> None:
            if next(moments) == number:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            OwnLines(sink).call(sink.write, on_line=interrupt)
        assert sys.exc_info() == (None, None, None), lines[number]
