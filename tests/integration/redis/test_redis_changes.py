"""Change streams in Redis: newest wins, deletes and their memory, in one script."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

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
from tests.support.redis_tools import VARIABLE, opened
from tests.support.servers.redis_server import PASSWORD, RedisServer
from wal_sink.errors import ConfigError, PermanentError
from wal_sink.testing import crash_matrix
from wal_sink_backends.redis.rows import LEDGER
from wal_sink_backends.redis.sink import RedisSink

SINK = SLOT.rpartition("/")[0]


def rows_in(server: RedisServer) -> list[Row]:
    with server.client() as client:
        return rows_of(client.hgetall(key) for key in client.scan_iter("orders:*", count=10_000))


def remembered(server: RedisServer) -> tuple[int, int]:
    """Return how many deletes are remembered, and since which batch."""
    with server.client() as client:
        fields = client.hgetall(f"{LEDGER}{SINK}/deleted")
        covered = int(fields.pop("covered", 0))
        assert bool(fields.pop("newer_by", "")) or not fields
        assert {f"={key}" for key in client.zrange(f"{LEDGER}{SINK}/deleted-by-batch", 0, -1)} == set(fields)
    return len(fields), covered


def write(sink: RedisSink, changes: Sequence[Change], batch: int, **more: Any) -> Rejected | None:
    flag = "gone" if sink._rule is not None and sink._rule.mark else ""
    after = sink.last(more.get("slot", SLOT))
    return sink.write(chunk(table_of(changes, flag=flag), batch=batch, after=after, segment=f"s{batch}", **more))


@pytest.mark.parametrize("options", [CHANGES, MARKS], ids=["delete", "mark"])
def test_a_history_of_changes_ends_as_its_model(server: RedisServer, options: dict[str, Any]) -> None:
    changes, model = history(7, changes=4_000, keys=300), Model(mark=options is MARKS, folds=False)
    with opened(server, **options) as sink:
        for batch, some in enumerate(batches_of(changes, 150)):
            assert write(sink, some, batch) is None
            model.apply(some)
            assert batch % 4 or rows_in(server) == model.rows
    assert rows_in(server) == model.rows


def test_a_kill_at_every_call_ends_as_the_model(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, PASSWORD)
    changes = history(3, changes=24, keys=4, lateness=6)
    tables = [table_of(some) for some in batches_of(changes, len(changes) // 3 + 1)]
    made: list[RedisSink] = []

    def make_sink(_: int) -> RedisSink:
        made.append(RedisSink(server.url, key="orders:{id}", password_env=VARIABLE, **CHANGES))
        return made[-1]

    def new_target() -> int:
        with server.client() as client:
            client.flushall()
        return 0

    matrix = crash_matrix(
        make_sink,
        lambda _: as_sent(changes, rows_in(server)),
        new_target,
        tables=tables,
        disturb=("dies", "fails", "stands still"),
        every=9,
        each_line=False,
    )
    for sink in made:
        sink.close()
    matrix.check()
    assert min(matrix.crashes, matrix.failures, matrix.takeovers) > 0


def test_at_equal_versions_a_delete_wins_and_else_the_stored_row_stays(server: RedisServer) -> None:
    with opened(server, **CHANGES) as sink:
        write(sink, [change(1, "c", 1, "first"), change(2, "c", 1), change(3, "d", 1), change(4, "d", 1)], 0)
        write(sink, [change(1, "u", 1, "again"), change(2, "d", 1), change(3, "u", 1), change(4, "u", 2)], 1)
        write(sink, [change(2, "u", 1), change(3, "c", 0, file="b"), change(4, "d", 1)], 2)
    assert {row.id: row.note for row in rows_in(server)} == {1: "first", 3: "", 4: ""}


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_equal_versions_in_two_segments_end_the_same_in_either_order(server: RedisServer, order: Sequence[int]) -> None:
    segments = [[change(1, "c", 1), change(2, "d", 1)], [change(1, "d", 1), change(2, "u", 1), change(3, "c", 1)]]
    with opened(server, **CHANGES) as sink:
        for number in order:
            assert write(sink, segments[number], 0, slot=f"{SINK}/{number}") is None
    assert [row.id for row in rows_in(server)] == [3]


def test_columns_that_a_change_stream_lacks_are_told_before_a_start(server: RedisServer) -> None:
    with pytest.raises(PermanentError, match="column 'file' of the change stream is not among"):
        RedisSink(server.url, key="orders:{id}", password_env=VARIABLE, **CHANGES).examine(
            pa.schema({"id": pa.int64()})
        )


def test_deletes_are_remembered_for_some_batches_and_older_ones_are_refused(server: RedisServer) -> None:
    with opened(server, **CHANGES, deletes_kept=2) as sink:
        write(sink, [change(1, "d", 5), change(2, "d", 5), change(3, "c", 1)], 0)
        write(sink, [change(1, "u", 4), change(2, "d", 6)], 1)
        assert remembered(server) == (2, 0)
        write(sink, [], 2)
        assert remembered(server) == (1, 1)  # the second delete of key 2 is younger
        write(sink, [change(1, "u", 4), change(2, "u", 5)], 3)  # the delete of key 1 is forgotten
        letter = chunk(table_of([change(9, "c", 1)]), batch=0, slot=f"{SLOT}/0/letter")
        with pytest.raises(PermanentError, match="remembered from batch 2 on, so rows of batch 0 might"):
            sink.write(letter)
        assert sink.last(letter.position.slot) is None
    assert [row.id for row in rows_in(server)] == [1, 3]


def test_another_newer_by_is_refused_while_deletes_are_remembered(server: RedisServer) -> None:
    with opened(server, **CHANGES, deletes_kept=2) as sink:
        write(sink, [change(1, "d", 5)], 0)
    for newer_by in (["pos"], ["pos", "file"]):
        with opened(server, **CHANGES | {"newer_by": newer_by}) as sink:
            with pytest.raises(PermanentError, match="another name of the sink") as refused:
                write(sink, [change(1, "c", 6)], 1)
            assert f"newer_by={[*NEWER_BY]}, but this sink has newer_by={newer_by}" in str(refused.value)
            assert (last := sink.last(SLOT)) is not None
            assert last.batch_id == 0
    assert rows_in(server) == []
    with opened(server, **CHANGES, deletes_kept=2) as sink:
        write(sink, [change(2, "d", 6)], 1)
        write(sink, [], 3)
    assert remembered(server) == (0, 2)
    with opened(server, **CHANGES | {"newer_by": "pos"}) as sink:
        write(sink, [change(1, "c", 6), change(3, "d", 6)], 4)
        write(sink, [change(3, "u", 5)], 5)
    assert [row.id for row in rows_in(server)] == [1]


def test_a_memory_that_names_no_newer_by_is_refused(server: RedisServer) -> None:
    with opened(server, **CHANGES) as sink, server.client() as client:
        write(sink, [change(1, "d", 5)], 0)
        client.hdel(f"{LEDGER}{SINK}/deleted", "newer_by")
        with pytest.raises(PermanentError, match=r"remembered deletes are newer_by=\[\], but"):
            write(sink, [change(1, "c", 4)], 1)
    assert rows_in(server) == []


def test_a_row_that_cannot_be_applied_is_refused_with_nothing_written(server: RedisServer) -> None:
    rows = table_of([change(1, "c", 1), change(2, "t", 1), change(3, "c", 1), change(4, "c", 1)])
    rows = rows.set_column(1, "id", pa.array([1, 2, None, 4])).set_column(3, "pos", pa.array([1, 1, 1, None]))
    with opened(server, **CHANGES) as sink:
        rejected = sink.write(chunk(rows))
        assert sink.last(SLOT) is None
    assert rejected == Rejected(
        {
            1: "operation 't' is unknown, expected c, r, u, d",
            2: "column 'id' of the change stream is NULL",
            3: "column 'pos' of the change stream is NULL",
        }
    )
    assert rows_in(server) == []


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ([9, -1, 2**53], [10, 0, 2**53 + 1]),
        ([-10, -(10**15), 0], [-9, 10**15, 2**62]),
        ([Decimal("9.50"), Decimal("-0.01"), Decimal("1E-2")], [Decimal("10.05"), Decimal("0.00"), Decimal("0.10")]),
        (["binlog.000009", "Z", ""], ["binlog.000010", "a", "\0"]),
        (
            [dt.datetime(1969, 12, 31, tzinfo=dt.UTC), dt.datetime(2026, 1, 1, tzinfo=dt.UTC)],
            [dt.datetime(1970, 1, 1, tzinfo=dt.UTC), dt.datetime(2026, 1, 1, 0, 0, 1, tzinfo=dt.UTC)],
        ),
        ([dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(2025, 9, 30)], [dt.date(9999, 1, 1)] * 3),
    ],
    ids=["integers", "negative numbers", "decimals", "texts", "moments", "dates"],
)
def test_versions_are_compared_as_what_they_are(server: RedisServer, older: list[Any], newer: list[Any]) -> None:
    keys = list(range(len(older)))
    with opened(server, newer_by="v") as sink:
        for batch, (values, note) in enumerate([(newer, "newer"), (older, "older"), (newer, "replaced")]):
            table = pa.table({"id": keys, "v": values, "note": [note] * len(keys)})
            sink.write(chunk(table, batch=batch, after=sink.last(SLOT)))
            with server.client() as client:
                found = {client.hget(f"orders:{key}", "note") for key in keys}
            assert found == {"newer" if batch < 2 else "replaced"}


@pytest.mark.parametrize(
    ("value", "stored"), [(1, "abc"), (1, ""), (dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "2026-01-01"), (1, "1e5")]
)
def test_a_stored_version_of_another_type_is_a_refused_row(server: RedisServer, value: Any, stored: str) -> None:
    rows = chunk(pa.table({"id": [1, 2, 3], "v": [value] * 3}))
    with server.client() as client, opened(server, newer_by="v") as sink:
        client.hset("orders:2", "v", stored)
        client.hset("orders:3", "note", "no version is the oldest")
        assert sink.write(rows) == Rejected(
            {1: f"field 'v' of the stored hash is {stored!r}, which cannot be compared with the row's version"}
        )
        assert client.exists("orders:1") == 0
        sink.write(rows.without([1]))
        assert client.exists("orders:1") == 1
        assert client.hlen("orders:3") == 3


def test_columns_of_a_mark_keep_the_rest_of_the_row(server: RedisServer) -> None:
    with opened(server, **MARKS) as sink:
        write(sink, [change(1, "c", 1, "kept"), change(1, "d", 2, None), change(2, "d", 1, "as it came")], 0)
        write(sink, [change(1, "u", 2, "late"), change(2, "u", 2, "new life")], 1)
    assert [row[3:] for row in rows_in(server)] == [(2, "kept", True), (2, "new life", False)]


def test_keys_of_the_memory_must_be_ours(server: RedisServer) -> None:
    for name, expected in (("deleted", "hash"), ("deleted-by-batch", "zset")):
        with server.client() as client, opened(server, **CHANGES) as sink:
            client.set(f"{LEDGER}{SINK}/{name}", "mine")
            with pytest.raises(PermanentError, match=f"{SINK}/{name}' is a string already; expected a {expected}"):
                write(sink, [change(1, "c", 1)], 0)
            client.delete(f"{LEDGER}{SINK}/{name}")


def test_versions_need_hashes_and_keys_of_their_own() -> None:
    given: dict[str, Any] = {"url": "redis://localhost", "key": "orders:{id}"}
    with pytest.raises(ConfigError, match="newer_by, operation and delete_when need kind='hash'"):
        RedisSink(**given, **CHANGES, kind="stream")
    for newer_by in ("id", "", ["at", "at"]):
        with pytest.raises(ConfigError, match="expected names of columns other than the key's"):
            RedisSink(**given, newer_by=newer_by)
    with pytest.raises(ConfigError, match="deletes_kept=0: expected a number of batches"):
        RedisSink(**given, **CHANGES, deletes_kept=0)
    assert RedisSink(**given, **CHANGES).max_concurrency == 1


@pytest.mark.parametrize(
    ("value", "told"), [(1.5, "newer_by column 'v' is double"), (b"x", "newer_by column 'v' is binary")]
)
def test_versions_without_an_order_are_refused(server: RedisServer, value: Any, told: str) -> None:
    with opened(server, newer_by="v") as sink:
        with pytest.raises(PermanentError, match=told):
            sink.write(chunk(pa.table({"id": [1], "v": [value]})))
        with pytest.raises(PermanentError, match="newer_by column 'v' is not among the columns"):
            sink.write(chunk(pa.table({"id": [1]})))
        far = pa.table({"id": [1, 2], "v": pa.array([300_000_000_000, None], pa.timestamp("s"))})
        assert sink.write(chunk(far)) == Rejected(
            {
                0: "newer_by column 'v' is beyond the years 0000 to 9999: +11476-08-15T05:20:00",
                1: "newer_by column 'v' is NULL",
            }
        )
