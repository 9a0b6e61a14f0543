"""Change streams in DynamoDB: newest wins in a transaction, with its memory of deletes, and by conditional puts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from boto3.dynamodb.types import TypeDeserializer

from tests.house.sinks import Rejected
from tests.support.change_history import (
    CHANGES,
    MARKS,
    NEWER_BY,
    Change,
    Model,
    Row,
    as_sent,
    batches_of,
    change,
    history,
    rows_of,
    table_of,
)
from tests.support.chunks import SLOT, chunk
from tests.support.dynamodb_tools import opened
from tests.support.servers.dynamodb_local import DynamoDbLocal
from tests.support.servers.dynamodb_server import REGION
from wal_sink.errors import ConfigError, PermanentError
from wal_sink.testing import crash_matrix
from wal_sink_backends.dynamodb.sink import DynamoDbPutSink, DynamoDbSink

SINK = SLOT.rpartition("/")[0]
READ = TypeDeserializer().deserialize


@pytest.fixture
def server(dynamodb_local: DynamoDbLocal) -> DynamoDbLocal:
    return dynamodb_local


def rows_in(server: DynamoDbLocal, table: str) -> list[Row]:
    return rows_of({name: READ(value) for name, value in item.items()} for item in server.items(table))


def remembered(server: DynamoDbLocal, table: str) -> tuple[int, int, int]:
    """Return how many deletes are remembered, in how many lists, and since which batch."""
    items = {item["slot"]["S"]: item for item in server.items(f"{table}-ledger")}
    lists = items.get(f"{SINK}/deletes", {})
    deleted = sum(slot.startswith(f"{SINK}/deleted/") for slot in items)
    return deleted, sum(slot.startswith(f"{SINK}/deletes/") for slot in items), int(lists["covered"]["N"])


def write(sink: Any, changes: Sequence[Change], batch: int, **more: Any) -> Rejected | None:
    flag = "gone" if sink._rule.mark else ""
    after = sink.last(SLOT) if isinstance(sink, DynamoDbSink) else None
    found: Rejected | None = sink.write(chunk(table_of(changes, flag=flag), batch=batch, after=after, **more))
    return found


@pytest.mark.parametrize(
    ("kind", "options"), [(DynamoDbSink, CHANGES), (DynamoDbSink, MARKS), (DynamoDbPutSink, MARKS)]
)
def test_a_history_of_changes_ends_as_its_model(server: DynamoDbLocal, kind: Any, options: dict[str, Any]) -> None:
    changes, table, model = (
        history(7, changes=1_200, keys=120),
        server.new_table(),
        Model(mark=options is MARKS, folds=False),
    )
    with opened(server, table, kind, **options) as sink:
        for batch, some in enumerate(batches_of(changes, 48)):
            assert write(sink, some, batch) is None
            assert rows_in(server, table) == model.apply(some).rows


@pytest.mark.parametrize("kind", [DynamoDbSink, DynamoDbPutSink])
def test_a_kill_at_every_call_ends_as_the_model(server: DynamoDbLocal, kind: Any) -> None:
    changes, flag = history(3, changes=24, keys=4, lateness=6), "" if kind is DynamoDbSink else "gone"
    tables = [table_of(some, flag=flag) for some in batches_of(changes, len(changes) // 3 + 1)]
    made: list[Any] = []

    def make_sink(table: str) -> Any:
        own = {"ledger_table": f"{table}-ledger", **CHANGES} if kind is DynamoDbSink else MARKS
        made.append(kind(table, region=REGION, endpoint_url=server.endpoint, **own))
        return made[-1]

    matrix = crash_matrix(
        make_sink,
        lambda table: as_sent(changes, rows_in(server, table), flag=flag),
        server.new_table,
        tables=tables,
        disturb=("dies", "fails", "stands still"),
        every=25,
        each_line=False,
    )
    for sink in made:
        sink.close()
    matrix.check()
    assert min(matrix.crashes, matrix.failures, matrix.takeovers) > 0


def test_at_equal_versions_a_delete_wins_and_else_the_stored_row_stays(server: DynamoDbLocal) -> None:
    table = server.new_table()
    with opened(server, table, **CHANGES) as sink:
        write(sink, [change(1, "c", 1, "first"), change(2, "c", 1), change(3, "d", 1), change(4, "d", 1)], 0)
        write(sink, [change(1, "u", 1, "again"), change(2, "d", 1), change(3, "u", 1), change(4, "u", 2)], 1)
        write(sink, [change(2, "u", 1), change(3, "c", 0, file="b"), change(4, "d", 1)], 2)
    assert {row.id: row.note for row in rows_in(server, table)} == {1: "first", 3: "", 4: ""}


@pytest.mark.parametrize("kind", [DynamoDbSink, DynamoDbPutSink])
def test_a_mark_at_an_equal_version_wins_and_keeps_the_rest_of_the_row(server: DynamoDbLocal, kind: Any) -> None:
    table = server.new_table()
    with opened(server, table, kind, **MARKS) as sink:
        write(sink, [change(1, "c", 1, "kept"), change(2, "d", 1, "as it came"), change(3, "c", 2, "newer")], 0)
        write(sink, [change(1, "d", 1, None), change(2, "u", 1, "late"), change(3, "d", 1, None)], 1)
    assert [row[-2:] for row in rows_in(server, table)] == [("kept", True), ("as it came", True), ("newer", False)]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_equal_versions_in_two_segments_end_the_same_in_either_order(
    server: DynamoDbLocal, order: Sequence[int]
) -> None:
    table, segments = (
        server.new_table(),
        [[change(1, "c", 1), change(2, "d", 1)], [change(1, "d", 1), change(2, "u", 1)]],
    )
    with opened(server, table, **CHANGES) as sink:
        for number in order:
            assert sink.write(chunk(table_of(segments[number]), slot=f"{SINK}/{number}")) is None
    assert rows_in(server, table) == []


def test_columns_that_a_change_stream_lacks_are_told_before_a_start(server: DynamoDbLocal) -> None:
    for kind, options in ((DynamoDbSink, CHANGES), (DynamoDbPutSink, MARKS)):
        sink = kind(server.new_table(), region=REGION, endpoint_url=server.endpoint, **options)
        with pytest.raises(PermanentError, match="column 'file' of the change stream is not among"):
            sink.examine(pa.schema({"id": pa.int64()}))


def test_deletes_are_remembered_for_some_batches_and_older_ones_are_refused(server: DynamoDbLocal) -> None:
    table = server.new_table()
    with opened(server, table, **CHANGES, deletes_kept=2) as sink:
        write(sink, [change(1, "d", 5), change(2, "d", 5), change(3, "c", 1)], 0)
        write(sink, [change(1, "u", 4), change(2, "d", 6)], 1)
        assert remembered(server, table) == (2, 2, 0)
        write(sink, [], 2)
        assert remembered(server, table) == (1, 1, 1)  # the second delete of key 2 is younger
        write(sink, [change(1, "u", 4), change(2, "u", 5)], 3)  # the delete of key 1 is forgotten
        assert remembered(server, table) == (0, 0, 2)
        letter = chunk(table_of([change(9, "c", 1)]), batch=0, slot=f"{SLOT}/0/letter")
        with pytest.raises(PermanentError, match="remembered from batch 2 on, so rows of batch 0 might"):
            sink.write(letter)
        assert sink.last(letter.position.slot) is None
    assert [row.id for row in rows_in(server, table)] == [1, 3]


def test_another_newer_by_is_refused_while_deletes_are_remembered(server: DynamoDbLocal) -> None:
    table = server.new_table()
    with opened(server, table, **CHANGES, deletes_kept=2) as sink:
        write(sink, [change(1, "d", 5)], 0)
    for newer_by in (["pos"], ["pos", "file"]):
        with opened(server, table, **CHANGES | {"newer_by": newer_by}) as sink:
            with pytest.raises(PermanentError, match="another name of the sink") as refused:
                write(sink, [change(1, "c", 6)], 1)
            assert f"newer_by={[*NEWER_BY]}, but this sink has newer_by={newer_by}" in str(refused.value)
            assert (last := sink.last(SLOT)) is not None
            assert last.batch_id == 0
    assert rows_in(server, table) == []
    with opened(server, table, **CHANGES, deletes_kept=2) as sink:
        write(sink, [change(2, "d", 6)], 1)
        write(sink, [], 3)
    assert remembered(server, table) == (0, 0, 2)
    with opened(server, table, **CHANGES | {"newer_by": "pos"}) as sink:
        write(sink, [change(1, "c", 6), change(3, "d", 6)], 4)
        write(sink, [change(3, "u", 5)], 5)
    assert [row.id for row in rows_in(server, table)] == [1]


def test_a_transaction_holds_a_chunk_of_deletes_alone(server: DynamoDbLocal) -> None:
    table = server.new_table()
    with opened(server, table, **CHANGES) as sink:
        assert sink.max_chunk_rows == 48
        write(sink, [change(key, "d", 1) for key in range(48)], 0)
        with pytest.raises(PermanentError, match="at most 48 rows"):
            write(sink, [change(key, "d", 1) for key in range(49)], 1)
    assert remembered(server, table) == (48, 1, 0)


@pytest.mark.parametrize("by", ["a process of this sink", "another program"])
def test_a_change_between_reading_and_writing_is_read_again(server: DynamoDbLocal, by: str) -> None:
    table = server.new_table()
    newer = {"shop": {"S": "x"}, "id": {"N": "1"}, "file": {"S": "a"}, "pos": {"N": "5"}, "note": {"S": "theirs"}}
    with opened(server, table, **CHANGES) as sink, opened(server, table, **CHANGES) as other:
        transact, tried = sink._calls.transact, list[int]()

        def overtaken(*given: Any) -> bool:
            if not tried and by == "another program":
                server.put(table, newer)
            elif not tried:
                other.write(chunk(table_of([change(1, "d", 5)]), slot=f"{SINK}/1"))
            tried.append(1)
            return bool(transact(*given))

        sink._calls.transact = overtaken
        assert write(sink, [change(1, "u", 4, "ours"), change(2, "c", 1)], 0) is None
    assert len(tried) == 2
    notes = {row.id: row.note for row in rows_in(server, table)}
    assert notes == ({1: "theirs", 2: ""} if by == "another program" else {2: ""})


@pytest.mark.parametrize("kind", [DynamoDbSink, DynamoDbPutSink])
def test_a_stored_version_of_another_type_is_a_refused_row(server: DynamoDbLocal, kind: Any) -> None:
    table = server.new_table()
    server.put(table, {"id": {"N": "2"}, "v": {"S": "abc"}})
    server.put(table, {"id": {"N": "3"}, "v": {"NULL": True}})
    server.put(table, {"id": {"N": "4"}})
    with opened(server, table, kind, newer_by="v") as sink:
        rows = chunk(pa.table({"id": [1, 2, 3, 4], "v": [10, 1, 1, 1]}))
        reason = "a column of newer_by is 'abc' (S), which cannot be compared with '1' (N)"
        assert sink.write(rows) == Rejected({1: reason})
        sink.write(rows.without([1]))
        late = pa.table({"id": [1, 1, 3], "v": [9, 10, 1], "note": ["older", "equal", "equal"]})
        sink.write(chunk(late, batch=1, after=rows.position))
    found = {int(item["id"]["N"]): item.get("note", {}).get("S") for item in server.items(table)}
    assert found == {1: "equal", 2: None, 3: "equal", 4: None}


@pytest.mark.parametrize("kind", [DynamoDbSink, DynamoDbPutSink])
def test_a_row_that_cannot_be_applied_is_refused(server: DynamoDbLocal, kind: Any) -> None:
    table = server.new_table()
    rows = table_of([change(1, "c", 1), change(2, "c", 1), change(3, "c", 1)], flag="gone")
    rows = rows.set_column(1, "id", pa.array([1, None, 3])).set_column(5, "gone", pa.array([False, False, None]))
    with opened(server, table, kind, **MARKS) as sink:
        rejected = sink.write(chunk(rows))
    assert rejected == Rejected(
        {1: "column 'id' of the row's key is NULL", 2: "column 'gone' of the change stream is NULL"}
    )
    assert [row.id for row in rows_in(server, table)] == ([] if kind is DynamoDbSink else [1])


def test_arguments_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="DynamoDbPutSink remembers no deletes"):
        DynamoDbPutSink("orders", **CHANGES)
    for kind in (DynamoDbSink, DynamoDbPutSink):
        with pytest.raises(ConfigError, match="needs key and newer_by"):
            kind("orders", row_key="file", **MARKS)
    assert DynamoDbSink("orders", **CHANGES).max_concurrency == 1
    assert DynamoDbPutSink("orders", **MARKS).idempotent


def test_a_version_is_no_part_of_the_key(server: DynamoDbLocal) -> None:
    told = "newer_by column 'id' is in the key"
    with opened(server, server.new_table(), newer_by="id") as sink, pytest.raises(PermanentError, match=told):
        sink.write(chunk(pa.table({"id": [1]})))
