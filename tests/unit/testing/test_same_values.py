"""Forms in which a target may give back a value, and what is not the same value any more."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

from wal_sink.testing.data.rows import missing_row, same_value

INSTANT = dt.datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=dt.UTC)
MAP = [("a", 1)]


SAME: list[tuple[Any, Any]] = [
    (None, None),
    (True, True),
    (True, 1),
    (False, "false"),
    (-(2**63), str(-(2**63))),
    (0.10000000149011612, 0.1),
    (1e300, "1e300"),
    (math.nan, math.nan),
    (math.nan, "NaN"),
    (math.inf, math.inf),
    (Decimal("1.50"), "1.5"),
    (Decimal("-1E-18"), Decimal("-1E-18")),
    ("ü\0", "ü\0"),
    ("text", b"text"),
    (b"\0\xff", b"\0\xff"),
    (b"\0\xff", "AP8="),
    (b"\0\xff", "\\x00FF"),
    (b"\0\xff", "\0\udcff"),
    (dt.date(1, 1, 1), "0001-01-01"),
    (dt.date(9999, 12, 31), dt.datetime.fromisoformat("9999-12-31")),
    (INSTANT, "2023-11-14T22:13:20.123456Z"),
    (INSTANT, INSTANT.replace(tzinfo=None)),
    (INSTANT, INSTANT.astimezone(dt.timezone(dt.timedelta(hours=2)))),
    (dt.timedelta(seconds=1.5), dt.timedelta(seconds=1.5)),
    (dt.timedelta(seconds=1.5), "0:00:01.500000"),
    (dt.timedelta(seconds=1.5), "00:00:01.5"),
    (dt.timedelta(days=-1, seconds=2), "-1 days 00:00:02"),
    (-dt.timedelta(hours=30), "-30:00:00"),
    ([1, None], "[1, null]"),
    (MAP, {"a": 1}),
    (MAP, [{"key": "a", "value": 1}]),
    ({"a": None, "b": ["x"]}, {"b": ["x"]}),
]


def test_another_form_is_the_same_value() -> None:
    assert [(sent, found) for sent, found in SAME if not same_value(sent, found)] == []


DIFFERENT: list[tuple[Any, Any]] = [
    (None, ""),
    ("", None),
    (False, None),
    (2**63 - 1, float(2**63)),
    (0.1, 0.1000001),
    (1e300, math.inf),
    (math.nan, None),
    (math.inf, "NaN"),
    (Decimal("-1E-18"), 0),
    (Decimal("1.50"), "about 1.5"),
    ("x" * 21, "x" * 20),
    (b"\0\xff", "\0\ufffd"),
    (b"\0\xff", b"\0"),
    (dt.date(1, 1, 1), None),
    (dt.date(9999, 12, 31), dt.datetime.fromisoformat("9999-12-31T01")),
    (INSTANT, "2023-11-14T22:13:20.123Z"),
    (INSTANT, INSTANT.date()),
    (dt.timedelta(seconds=1.5), "0:00:01"),
    ([1, None], [1]),
    ([1, None], "[1, nu"),
    (MAP, {"a": 2}),
    ({"a": 1}, {"a": None}),
    ([1], 1.5),
]


def test_a_cut_rounded_or_lost_value_is_another_value() -> None:
    assert [(sent, found) for sent, found in DIFFERENT if same_value(sent, found)] == []


SOURCE_CODE: list[tuple[Any, Any]] = [
    (Decimal("1.50"), repr(Decimal("1.50"))),
    (dt.date(2023, 11, 14), repr(dt.date(2023, 11, 14))),
    (INSTANT, repr(INSTANT)),
    (dt.timedelta(seconds=1.5), repr(dt.timedelta(seconds=1.5))),
    (b"ab", repr(b"ab")),
    (b"ab", "bytearray(b'ab')"),
    ("text", repr("text")),
    (["a"], repr(["a"])),
    ([dt.date(2023, 11, 14)], repr([dt.date(2023, 11, 14)])),
    ({"a": Decimal(1)}, str({"a": Decimal(1)})),
]


def test_source_code_of_python_is_not_the_value() -> None:
    assert [(sent, found) for sent, found in SOURCE_CODE if same_value(sent, found)] == []


def test_the_text_of_a_value_is_the_same_value() -> None:
    values = [Decimal("1.50"), dt.date(2023, 11, 14), INSTANT, dt.time(1, 2, 3), 1.5, "text"]
    assert [sent for sent in values if not same_value(sent, str(sent))] == []


def test_columns_that_no_row_shows_are_not_compared() -> None:
    sent = [({"id": 1, "odd": "x"}, {"id": 1, "odd": "x"})]

    assert missing_row(sent, [{"id": 1}], same_value) is None
    assert missing_row(sent, [{"id": 1, "odd": "y"}], same_value) == sent[0][0]


def test_each_row_stands_for_one_that_was_sent() -> None:
    sent = [({"id": 1}, {"id": 1}), ({"id": 1}, {"id": 1})]

    assert missing_row(sent, [{"id": 1}, {"id": "1"}], same_value) is None
    assert missing_row(sent, [{"id": 1}, {"id": 2}], same_value) == {"id": 1}
