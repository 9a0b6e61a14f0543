"""Rows as `RedisSink` writes them, and those that it cannot write."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from tests.house.sinks import Position, Rejected
from tests.support.chunks import SLOT, chunk, ids, raw_texts
from tests.support.redis_tools import opened, stream_ids
from tests.support.servers.redis_server import RedisServer
from wal_sink.errors import (
    PermanentError,
)
from wal_sink.testing.data.tables import COLUMN_TYPES
from wal_sink_backends.redis import rows as redis_rows
from wal_sink_backends.redis.rows import LEDGER
from wal_sink_backends.redis.sink import Kind


def test_every_type_as_a_field(server: RedisServer) -> None:
    table = pa.table({"id": [0, 1, 2]} | {name.replace(" ", "_"): column for name, column in COLUMN_TYPES.items()})
    with opened(server) as sink:
        sink.write(chunk(table))
    with server.client(decode_responses=False) as raw:
        first, last = raw.hgetall("orders:0"), raw.hgetall("orders:2")
    assert first[b"bigint"] == b"-9223372036854775808"
    assert first[b"decimal"] == b"1.500000000000000000"
    assert first[b"string"] == "ü\n\"'\\\0".encode()
    assert first[b"binary"] == b"\0\xff"
    assert first[b"boolean"] == b"true"
    assert first[b"float"] == b"0.1"
    assert first[b"not_a_number"] == b"NaN"
    assert first[b"date"] == b"0001-01-01"
    assert first[b"timestamp"] == b"1970-01-01T00:00:00.000000Z"
    assert first[b"array"] == b"[1,null]"
    assert first[b"map"] == b'{"a":1}'
    assert first[b"struct"] == b'{"a":1,"b":["x",null]}'
    assert last == {b"id": b"2", b"not_a_number": b"-Infinity"}


def test_a_row_of_a_known_key_replaces_its_fields_and_null_removes_one(server: RedisServer) -> None:
    with opened(server) as sink, server.client() as client:
        client.hset("orders:1", mapping={"mine": "kept", "note": "old"})
        sink.write(chunk(pa.table({"id": [1], "note": ["new"], "by": ["me"]})))
        assert client.hgetall("orders:1") == {"mine": "kept", "id": "1", "note": "new", "by": "me"}
        sink.write(chunk(pa.table({"id": [1], "note": ["newer"], "by": pa.nulls(1, pa.string())}), first=1))
        assert client.hgetall("orders:1") == {"mine": "kept", "id": "1", "note": "newer"}


def test_of_two_rows_of_one_key_the_last_stays(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    rows = pa.table({"id": [1, 2, 1], "late": [1, 2, 3]})
    with opened(server, kind="set", key="all") as sink:
        sink.write(chunk(rows))
    assert "have one key" not in caplog.text
    with opened(server) as sink, server.client() as client:
        sink.write(chunk(rows, slot="wal/other/0"))
        assert [client.hget(f"orders:{number}", "late") for number in (1, 2)] == ["3", "2"]
    assert "several rows at once have one key" in caplog.text


def test_texts_of_any_bytes_stay_apart(server: RedisServer) -> None:
    """JSON would make U+FFFD of both, and one key of two rows."""
    rows = pa.table({"id": raw_texts(b"\xff", b"\xfe", b"ok", None), "n": [1, 2, 3, 4]}).slice(0, 3)
    with opened(server) as sink, server.client(decode_responses=False) as client:
        assert sink.write(chunk(rows)) is None
        found = {key: client.hget(key, "id") for key in client.keys("orders:*")}
    assert found == {b"orders:" + text: text for text in (b"\xff", b"\xfe", b"ok")}


def test_of_a_set_a_text_that_json_would_alter_is_told(server: RedisServer) -> None:
    rows = pa.table({"id": raw_texts(b"\xff", b"\xfe", b"ok").dictionary_encode()})
    with opened(server, kind="set", key="orders") as sink, server.client() as client:
        refused = sink.write(chunk(rows))
        assert isinstance(refused, Rejected)
        assert refused.reasons == dict.fromkeys(
            (0, 1), "column 'id' holds bytes that are not UTF-8 text: invalid start byte"
        )
        assert client.exists("orders") == 0


def test_keys_of_several_columns_and_braces(server: RedisServer) -> None:
    table = pa.table({"a.b": ["ü"], "id": [7], "on": [True]})
    with opened(server, key="{{x}}:{a.b}:{id}:{on}:y") as sink, server.client() as client:
        sink.write(chunk(table))
        assert client.exists("{x}:ü:7:true:y")


@pytest.mark.parametrize("kind", ["hash", "stream", "set"])
def test_two_rows_never_share_a_key_because_of_the_text_between_its_fields(server: RedisServer, kind: Kind) -> None:
    rows = pa.table({"x": ["1:2", "1", "9"], "y": ["3", "2:3", "9"]})
    with opened(server, key="a:{x}:{y}", kind=kind) as sink, server.client() as client:
        refused = sink.write(chunk(rows))
        assert refused == Rejected(
            {
                0: "column 'x' of the key 'a:{x}:{y}' is '1:2', but ':' separates {x} and {y}: another row could "
                "have the same key"
            }
        )
        assert client.keys("*") == []
        assert sink.write(chunk(rows.slice(1))) is None
        assert sorted(client.keys("a:*")) == ["a:1:2:3", "a:9:9"], "the keys are what they were"


@pytest.mark.parametrize(
    ("key", "x", "y", "refused"),
    [
        ("{x}::{y}", ["a:", "a"], ["b", ":b"], [0]),  # both would be a:::b
        ("{x}--{y}-{x}", ["a-", "b"], ["c", "-d"], [0, 1]),
        ("{{{x}}}{{{y}}}", ["a}{b", "}{"], ["", "a"], [0, 1]),
        ("{x}:{y}:", ["a", "b:"], ["c:d:", ""], [1]),
        ("{x}:{y}", [b"\xff:", b":"], [b"", b""], [0, 1]),
        ("{x}1{y}", [11, 2], [2, 3], [0]),
        ("{x}-{y}", [-11, 2], [2, -3], []),
        ("{x}.{y}", [1.5, 2e300], [2, 3], [0]),
        ("{x}:{y}", [dt.datetime(2026, 1, 2, tzinfo=dt.UTC), None], [1, 1], []),
        ("{x}:{y}", [dt.time(1, 2), dt.time(3)], [1, 1], []),
        ("{x}-{y}", [dt.date(2026, 1, 2), dt.date(1, 1, 1)], [1, 1], []),
    ],
)
def test_which_values_end_where_the_next_field_begins(key: str, x: Any, y: Any, refused: list[int]) -> None:
    template = redis_rows.KeyTemplate(key)
    table = pa.table({"x": x, "y": y})
    _, _, reasons = redis_rows.encoded(chunk(table), "hash", template, "x")
    assert [row for row, reason in reasons.items() if "NULL" not in reason] == refused


def test_a_moment_beyond_four_digits_of_a_year_may_not_hold_the_text_between(server: RedisServer) -> None:
    far = pa.array([260_000_000_000_000_000, 0], pa.int64()).cast(pa.timestamp("us"))
    with opened(server, key="{x}:{y}") as sink:
        refused = sink.write(chunk(pa.table({"x": far, "y": [1, 1]})))
    assert refused is not None
    assert list(refused.reasons) == [0]


def test_rows_that_cannot_be_written_are_told_and_nothing_is(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_rows, "MOST_BYTES", 20)
    table = pa.table({"id": ["1", None, "wal", "4"], "text": ["a", "b", "c", "x" * 20]})
    with opened(server, key="{id}_sink:ledger:") as sink:
        assert sink.write(chunk(table)) == Rejected(
            {
                1: "a column of the key '{id}_sink:ledger:' is NULL",
                2: "the key of the row begins with wal_sink:ledger:, but such keys belong to the ledger",
                3: "the row has more bytes than Redis accepts (at most 20)",
            }
        )
        assert sink.last(SLOT) is None
        sink.write(chunk(table).without([1, 2, 3]))
        assert sink.last(SLOT) == Position(SLOT, 0, 4, "a")


def test_a_stream_is_trimmed(server: RedisServer) -> None:
    with opened(server, kind="stream", key="orders", maxlen=10) as sink:
        for number in range(50):
            sink.write(chunk(ids(*range(20)), first=number * 20))
    assert 10 <= len(stream_ids(server)) < 300


@pytest.mark.parametrize("kind", ["hash", "stream", "set"])
def test_rows_under_keys_of_another_type_are_named_before_anything_is_written(server: RedisServer, kind: Kind) -> None:
    with opened(server, kind=kind) as sink, server.client() as client:
        client.set("orders:2", "a text")
        client.rpush("orders:4", "a list")
        reasons = {
            1: f"key 'orders:2' is a string already; expected a {kind}",
            2: f"key 'orders:2' is a string already; expected a {kind}",
            4: f"key 'orders:4' is a list already; expected a {kind}",
        }
        some = chunk(ids(1, 2, 2, 3, 4, 5))
        assert sink.write(some) == Rejected(reasons)
        assert sorted(client.keys("*")) == ["orders:2", "orders:4"]
        assert sink.write(some.without(reasons)) is None
        assert sorted(client.keys("orders:*")) == [f"orders:{row}" for row in (1, 2, 3, 4, 5)]
        assert sink.last(SLOT) == some.position
        assert sink.write(some) is None, "the ledger has it"


def test_a_stream_without_numbers_left_is_told_before_anything_is_written(server: RedisServer) -> None:
    """Else the rows before it would be written, and again each time that the chunk comes."""
    with opened(server, kind="stream") as sink, server.client() as client:
        client.xadd("orders:2", {"id": "x"}, id=f"{2**64 - 1}-{2**64 - 1}")
        reason = "key 'orders:2' is a stream without numbers left already; expected a stream"
        assert sink.write(chunk(ids(1, 2))) == Rejected({1: reason})
        assert client.keys("*") == ["orders:2"]


def test_one_key_for_all_rows_of_another_type_is_no_fault_of_rows(server: RedisServer) -> None:
    with opened(server, kind="stream", key="orders") as sink, server.client() as client:
        client.set("orders", "a text")
        with pytest.raises(PermanentError, match="key 'orders' is a string already; expected a stream, or no key"):
            sink.write(chunk(ids(1, 2)))
        assert client.keys("*") == ["orders"]


@pytest.mark.parametrize("damage", [{"rows": "x"}, {"rows": "1.0"}, {"batch_id": ""}, {"segment_id": None}])
def test_a_damaged_ledger_is_refused(server: RedisServer, damage: dict[str, Any]) -> None:
    ((field, value),) = damage.items()
    with opened(server) as sink, server.client() as client:
        sink.write(chunk(ids(1)))
        if value is None:
            client.hdel(f"{LEDGER}{SLOT}", field)
        else:
            client.hset(f"{LEDGER}{SLOT}", field, value)
        with pytest.raises(PermanentError, match="Another program altered the ledger"):
            sink.last(SLOT)


def test_a_ledger_of_another_type_is_refused(server: RedisServer) -> None:
    with opened(server) as sink, server.client() as client:
        client.set(f"{LEDGER}{SLOT}", "a text")
        with pytest.raises(PermanentError, match=f"key '{LEDGER}{SLOT}' is a string already"):
            sink.write(chunk(ids(1)))
        assert client.keys("orders*") == []
