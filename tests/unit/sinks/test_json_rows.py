"""The JSON of each Arrow type, and that nothing else is lost on the way."""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from decimal import Decimal
from typing import Any, Literal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.house.sinks import Chunk
from wal_sink.errors import ConfigError
from wal_sink.sinks.json_rows import to_json_array, to_json_lines


def structs(**fields: Any) -> Any:
    return pa.struct(list(fields.items()))


def values(array: Any, *, parse_float: Any = float) -> list[Any]:
    """The JSON values of one column."""
    rows = json.loads(to_json_array(pa.table({"v": array})), parse_float=parse_float)
    assert all(list(row) == ["v"] for row in rows)
    return [row["v"] for row in rows]


def test_rows_become_objects_in_column_order() -> None:
    table = pa.table({"b": [1, 2], "a": ["x", None]})
    assert to_json_array(table) == b'[{"b":1,"a":"x"},{"b":2,"a":null}]'


def test_lines_hold_one_object_each_and_end_with_a_newline() -> None:
    assert to_json_lines(pa.table({"a": [1, 2]})) == b'{"a":1}\n{"a":2}\n'


def test_no_rows() -> None:
    table = pa.table({"a": pa.array([], pa.list_(pa.int32()))})
    assert (to_json_array(table), to_json_lines(table)) == (b"[]", b"")


def test_integers_keep_every_digit() -> None:
    cases: list[Any] = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint32(), pa.uint64()]
    for kind in cases:
        low, high = (-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1)
        wanted = [0, 2**kind.bit_width - 1, None] if str(kind).startswith("u") else [low, high, None]
        assert values(pa.array(wanted, kind)) == wanted


def test_numbers_json_lacks_become_text() -> None:
    for kind in [pa.float16(), pa.float32(), pa.float64()]:
        array = pa.array([1.5, math.nan, math.inf, -math.inf, None], pa.float64()).cast(kind)
        assert values(array) == [1.5, "NaN", "Infinity", "-Infinity", None]


def test_a_float_does_not_grow_digits() -> None:
    assert to_json_lines(pa.table({"v": pa.array([0.1], pa.float32())})) == b'{"v":0.1}\n'


def test_decimals_are_numbers_with_all_digits() -> None:
    for kind in [pa.decimal128(38, 18), pa.decimal256(60, 18)]:
        wanted = [
            Decimal("12345678901234567890.123456789012345678"),
            Decimal("1E-18"),
            Decimal(0),
            Decimal("-0.5"),
            None,
        ]
        array = pa.array(wanted, pa.decimal128(38, 18)).cast(kind)
        assert values(array, parse_float=Decimal) == wanted
        assert b"0.000000000000000001" in to_json_array(pa.table({"v": array}))


def test_booleans_nulls_and_texts() -> None:
    assert values(pa.array([True, False, None])) == [True, False, None]
    assert values(pa.nulls(2)) == [None, None]
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        assert values(pa.array(['ü"\n\\', "", None], kind)) == ['ü"\n\\', "", None]


def test_text_that_is_not_utf8_is_shown_not_fatal() -> None:
    offsets, data = pa.py_buffer(b"\0\0\0\0\3\0\0\0"), pa.py_buffer(b"a\xffb")
    assert values(pa.StringArray.from_buffers(1, offsets, data)) == ["a\N{REPLACEMENT CHARACTER}b"]


def test_binary_becomes_base64() -> None:
    for kind in [pa.binary(), pa.large_binary(), pa.binary(2)]:
        assert values(pa.array([b"\0\xff", None], kind)) == [base64.b64encode(b"\0\xff").decode(), None]


def test_dates() -> None:
    array = pa.array([dt.date(2013, 1, 2), dt.date(1, 1, 1), dt.date(9999, 12, 31), None], pa.date32())
    assert values(array) == ["2013-01-02", "0001-01-01", "9999-12-31", None]


def test_dates_beyond_python() -> None:
    array = pa.array([5_000_000, -800_000, 2**31 - 1, -(2**31), 0, None], pa.int32()).cast(pa.date32())
    assert values(array) == ["+15659-07-15", "-0221-09-04", "+5881580-07-11", "-5877641-06-23", "1970-01-01", None]


def test_timestamps_keep_microseconds() -> None:
    moments = [dt.datetime(2013, 1, 2, 3, 4, 5, 6), dt.datetime(1, 1, 1), dt.datetime.max, None]  # noqa: DTZ001, DTZ901
    texts = ["2013-01-02T03:04:05.000006", "0001-01-01T00:00:00.000000", "9999-12-31T23:59:59.999999", None]
    assert values(pa.array(moments, pa.timestamp("us"))) == texts


def test_instants_are_shown_in_utc_whatever_the_zone() -> None:
    for zone in ["UTC", "Europe/Paris", "America/New_York", "+05:30"]:
        array = pa.array([0, -62_135_596_800_000_000, None], pa.timestamp("us", zone))
        assert values(array) == ["1970-01-01T00:00:00.000000Z", "0001-01-01T00:00:00.000000Z", None]


def test_timestamps_beyond_python() -> None:
    numbers = [2**62, -(2**62), 0, None]
    texts = ["+148108-07-06T14:00:27.387904", "-144169-06-28T09:59:32.612096", "1970-01-01T00:00:00.000000"]
    assert values(pa.array(numbers, pa.timestamp("us"))) == [*texts, None]
    assert values(pa.array(numbers, pa.timestamp("us", "Asia/Tokyo"))) == [*(f"{text}Z" for text in texts), None]


def test_the_earliest_timestamp_is_one_below_the_next() -> None:
    """numpy takes it for no time at all."""
    units: tuple[Literal["s", "ms", "us", "ns"], ...] = ("s", "ms", "us", "ns")
    for unit in units:
        earliest, following = values(pa.array([-(2**63), -(2**63) + 1], pa.int64()).cast(pa.timestamp(unit)))
        assert (earliest[:-1], earliest[-1], following[-1]) == (following[:-1], "2", "3")
        if unit == "us":
            assert earliest == "-290308-12-21T19:59:05.224192"


def test_times_of_day() -> None:
    assert values(pa.array([1, None], pa.time64("us"))) == ["00:00:00.000001", None]
    assert values(pa.array([1], pa.time32("ms"))) == ["00:00:00.001"]


def test_durations() -> None:
    cases: list[tuple[int, str]] = [
        (0, "PT0S"),
        (1, "PT0.000001S"),
        (-1_500_000, "-PT1.5S"),
        (86_400_000_000, "P1D"),
        (93_784_500_000, "P1DT2H3M4.5S"),
        (3_600_000_000, "PT1H"),
        (-(2**63), "-P106751991DT4H54.775808S"),
    ]
    for number, text in cases:
        assert values(pa.array([number, None], pa.int64()).cast(pa.duration("us"))) == [text, None]


def test_lists() -> None:
    for kind in [pa.list_(pa.int32()), pa.large_list(pa.int32())]:
        wanted = [[1, 2], None, [], [3, None]]
        assert values(pa.array(wanted, kind)) == wanted
        assert values(pa.array(wanted, kind)[1:]) == wanted[1:]


def test_fixed_size_lists() -> None:
    wanted = [[1, 2], None, [3, 4]]
    assert values(pa.array(wanted, pa.list_(pa.int32(), 2))) == wanted


TEXT_MAPS: Any = pa.map_(pa.string(), pa.int32())


def test_maps_with_text_keys_become_objects() -> None:
    """As Spark's own `to_json` writes them."""
    for text in [pa.string(), pa.large_string(), pa.string_view()]:
        array = pa.array([[("a", 1)], None, [], [("b", None), ("", 3)]], pa.map_(text, pa.int32()))
        wanted = [{"a": 1}, None, {}, {"b": None, "": 3}]
        assert values(array) == wanted
        assert values(array[1:]) == wanted[1:]
        assert values(array[3:]) == wanted[3:]
        assert values(array[:1]) == wanted[:1]


def test_a_map_in_which_a_key_stands_twice_keeps_every_entry() -> None:
    array = pa.array([[("a", 1), ("b", 2), ("a", 3)], [("a", 1)]], TEXT_MAPS)
    entries = [{"key": "a", "value": 1}, {"key": "b", "value": 2}, {"key": "a", "value": 3}]
    assert values(array) == [entries, {"a": 1}]


def test_keys_that_become_equal_as_utf_8_keep_every_entry() -> None:
    keys = pa.Array.from_buffers(pa.string(), 2, pa.array([b"\xff", b"\xfe"], pa.binary()).buffers())
    offsets: Any = pa.array([0, 2], pa.int32())
    array = pa.MapArray.from_arrays(offsets, keys, pa.array([1, 2], pa.int32()))
    assert values(array) == [[{"key": "\ufffd", "value": 1}, {"key": "\ufffd", "value": 2}]]


def test_maps_within_lists_structs_and_maps() -> None:
    kind = structs(m=pa.map_(pa.string(), TEXT_MAPS), l=pa.list_(TEXT_MAPS))
    row = {"m": [("x", [("a", 1)])], "l": [[("b", 2)], None]}
    assert values(pa.array([row], kind)) == [{"m": {"x": {"a": 1}}, "l": [{"b": 2}, None]}]


def test_every_map_may_become_entries() -> None:
    cases: list[Any] = [
        pa.list_(TEXT_MAPS),
        pa.large_list(TEXT_MAPS),
        pa.list_(TEXT_MAPS, 1),
        pa.map_(pa.int32(), TEXT_MAPS),
    ]
    for kind in cases:
        plain: Any = [("a", 1)]
        nested = [(7, plain)] if pa.types.is_map(kind) else [plain]
        table = pa.table({"m": pa.array([plain, None], TEXT_MAPS), "n": pa.array([nested, nested], kind), "i": [1, 2]})
        wanted = [{"key": "a", "value": 1}]
        outer = [{"key": 7, "value": wanted}] if pa.types.is_map(kind) else [wanted]
        made = Chunk.of(table, key="k")
        assert json.loads(made.to_json(maps="entries")) == [
            {"m": wanted, "n": outer, "i": 1},
            {"m": None, "n": outer, "i": 2},
        ]
        assert made.maps_as("entries").to_json() == made.to_json(maps="entries")
        assert made.maps_as("object") is made
        assert json.loads(made.to_json())[0]["m"] == {"a": 1}
        assert made.maps_as("entries").key == "k"


def test_a_way_to_write_maps_has_to_be_one() -> None:
    with pytest.raises(ConfigError, match=r"maps='pairs': expected one of 'object', 'entries'"):
        Chunk.of(pa.table({"a": [1]}), key="k").to_json(maps="pairs")  # type: ignore[arg-type]


def test_maps_with_other_keys_become_arrays_of_entries() -> None:
    array = pa.array([[(1, "a")], None, [], [(2, None), (3, "c")]], pa.map_(pa.int32(), pa.string()))
    wanted = [[{"key": 1, "value": "a"}], None, [], [{"key": 2, "value": None}, {"key": 3, "value": "c"}]]
    assert values(array) == wanted
    assert values(array[1:]) == wanted[1:]
    assert values(array[3:]) == wanted[3:]
    assert values(array[:1]) == wanted[:1]


def test_structs_become_objects() -> None:
    kind = structs(a=pa.int32(), b=structs(c=pa.list_(pa.date32())))
    array = pa.array([{"a": 1, "b": {"c": [dt.date(2013, 1, 2)]}}, None, {"a": None, "b": None}], kind)
    assert values(array) == [{"a": 1, "b": {"c": ["2013-01-02"]}}, None, {"a": None, "b": None}]
    assert values(array[2:]) == [{"a": None, "b": None}]


def test_dictionaries_and_extensions_are_seen_through() -> None:
    assert values(pa.array(["x", None, "x"]).dictionary_encode()) == ["x", None, "x"]
    assert values(pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0" * 16], pa.binary(16)))) == [
        base64.b64encode(b"0" * 16).decode()
    ]


def test_a_name_that_stands_twice_is_refused() -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["id", "id"])
    with pytest.raises(ConfigError, match="'id' occurs 2 times"):
        to_json_array(table)


def test_a_field_that_stands_twice_is_refused() -> None:
    array = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    with pytest.raises(ConfigError, match=r"'x' occurs 2 times in the struct 'v'"):
        values(array)


def test_an_unknown_type_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"column 'v': .*month_day_nano"):
        values(pa.array([None], pa.month_day_nano_interval()))


@given(st.lists(st.text(), min_size=1, max_size=5, unique=True))
def test_any_column_name_is_kept(names: list[str]) -> None:
    table = pa.Table.from_arrays([pa.array([index]) for index in range(len(names))], names=names)
    assert json.loads(to_json_array(table)) == [{name: index for index, name in enumerate(names)}]


FLOATS = st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
COLUMNS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "i": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "f": (pa.float64(), FLOATS),
    "s": (pa.string(), TEXTS),
    "l": (pa.list_(pa.list_(pa.string())), st.lists(st.none() | st.lists(st.none() | TEXTS, max_size=3), max_size=3)),
    "r": (structs(a=pa.bool_(), b=pa.float64()), st.fixed_dictionaries({"a": st.booleans(), "b": FLOATS})),
}


@given(st.data(), st.integers(0, 6), st.integers(0, 6))
def test_round_trip(data: st.DataObject, rows: int, skip: int) -> None:
    wanted = {
        name: data.draw(st.lists(st.none() | some, min_size=rows, max_size=rows)) for name, (_, some) in COLUMNS.items()
    }
    table = pa.table({name: pa.array(wanted[name], kind) for name, (kind, _) in COLUMNS.items()}).slice(skip)
    objects = [{name: wanted[name][row] for name in COLUMNS} for row in range(min(skip, rows), rows)]
    assert json.loads(to_json_array(table)) == objects
    assert [json.loads(line) for line in to_json_lines(table).splitlines()] == objects


@given(st.lists(st.none() | st.integers(-(2**63) + 1, 2**63 - 1)), st.sampled_from(["s", "ms", "us", "ns"]))
def test_no_moment_is_out_of_range(numbers: list[int | None], unit: Any) -> None:
    for kind in (pa.timestamp(unit), pa.timestamp(unit, "Europe/Berlin"), pa.duration(unit)):
        texts = values(pa.array(numbers, pa.int64()).cast(kind))
        assert [text is None for text in texts] == [number is None for number in numbers]
