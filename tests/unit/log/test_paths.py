"""Paths of a WAL: what is built is parsed, in the order of what it numbers, and nothing else is taken for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.house.log import paths
from wal_sink.errors import ConfigError


def test_a_name_that_can_stand_in_a_path_is_a_sinks() -> None:
    for name in ["a", "Orders-2.eu_west", "0", "x" * 64]:
        assert paths.check_sink_name(name) == name


def test_any_other_name_is_refused() -> None:
    cases: list[str] = ["", ".", "..", "-a", "_a", "a/b", "a b", "ä", "x" * 65, "a\n"]
    for name in cases:
        with pytest.raises(ConfigError, match="is not a valid sink name: expected 1 to 64 letters, digits"):
            paths.check_sink_name(name)


def test_a_role_in_words() -> None:
    roles = [paths.committer_role("a-b"), paths.replayer_role("a-b"), paths.STAGER_ROLE]
    assert [paths.described_role(role) for role in roles] == [
        "sink 'a-b'",
        "replaying the dead letters of sink 'a-b'",
        "stager",
    ]


def test_other_names_are_of_nothing() -> None:
    cases: list[str] = ["release.json", "0000000001-0000000001/", "x", "", "manifest-1-1.json", "000001-1.json.tmp"]
    for name in cases:
        assert paths.parse_manifest(name) is None
        assert paths.parse_progress(name) is None
        assert paths.parse_dead_letter(name) is None


def test_what_is_no_number_in_ascii_is_none() -> None:
    for name in ["", "x.json", "1x", "-1", "٣.json", "²"]:
        assert paths.parse_number(name) is None


def test_a_listing_is_in_the_order_of_the_numbers() -> None:
    numbers = [0, 1, 9, 10, 99, 100, 12345678]
    for built in (
        [paths.term("a", number) for number in numbers],
        [paths.batch(number) for number in numbers],
        [paths.marker("a", number) for number in numbers],
        [paths.low_water(number) for number in numbers],
        [paths.manifest(0, number, 0) for number in numbers],
        [paths.manifest(0, 0, number) for number in numbers],
        [paths.progress("a", 0, 0, number) for number in numbers],
    ):
        assert built == sorted(built)


def test_what_lies_in_a_sinks_folder_is_its_own() -> None:
    cases: list[str] = [paths.sink("a"), paths.marker("a", 1), paths.progress("a", 1, 1, 1), "sinks/a"]
    for path in cases:
        assert paths.sink_of(path) == "a"


def test_what_lies_elsewhere_is_no_sinks() -> None:
    cases: list[str] = [paths.WAL, paths.term("a", 1), paths.release(1), "x/sinks/a"]
    for path in cases:
        assert paths.sink_of(path) == ""


def test_the_record_of_a_replay_lies_beside_its_dead_letter() -> None:
    assert paths.replayed("sinks/a/dead-letters/7/1-2-3.parquet") == "sinks/a/dead-letters/7/1-2-3.replayed.json"


COUNTS = st.one_of(
    st.integers(0, 3), st.integers(9_998, 10_001), st.integers(999_998, 1_000_001), st.integers(0, 10**20)
)
BATCHES = st.integers(0, 2**63 - 1)
IDS = st.text("0123456789abcdef", min_size=32, max_size=32)


def name_of(path: str) -> str:
    return path.rpartition("/")[2]


@given(batch=BATCHES, a=COUNTS, b=COUNTS, c=COUNTS, d=st.none() | COUNTS, id_=IDS)
def test_every_name_that_can_be_written_is_read_back(
    *, batch: int, a: int, b: int, c: int, d: int | None, id_: str
) -> None:
    folder = paths.attempt_folder(batch, a, b)
    assert paths.parse_attempt(f"{name_of(folder)}/") == (a, b)
    assert paths.parse_manifest(name_of(paths.manifest(batch, a, b))) == (a, b)
    assert paths.parse_attempt(name_of(paths.manifest(batch, a, b))) == (a, b)
    assert paths.parse_segment(paths.segment(folder, a, b, id_)) == (a, b)
    assert paths.parse_progress(name_of(paths.progress("x", batch, a, b))) == (a, b)
    assert paths.is_prepared(name_of(paths.prepared("x", batch, a, b)))
    assert paths.parse_prepared(name_of(paths.prepared("x", batch, a, b))) == (a, b)
    assert paths.parse_dead_letter(name_of(paths.dead_letter("x", batch, a, b, c, number=d))) == (a, b, c, d)
    assert paths.parse_number(name_of(paths.term("x", a))) == a
    assert paths.parse_number(name_of(paths.move(a))) == a
    for path in (paths.marker("x", batch), paths.low_water(batch), f"{paths.batch(batch)}/"):
        assert paths.parse_number(path.removesuffix("/").rpartition("/")[2]) == batch
    written = paths.begun("x", batch, id_)
    begun = paths.parse_begun(written.rpartition("/")[0], name_of(written))
    assert begun == (written.rpartition("/")[0], batch, id_)


@given(first=BATCHES, second=BATCHES)
def test_the_names_of_batches_sort_as_the_batches_do(first: int, second: int) -> None:
    assert (paths.batch_name(first) < paths.batch_name(second)) == (first < second)


@given(a=COUNTS, b=COUNTS, c=COUNTS, d=COUNTS)
def test_other_numbers_have_other_names(a: int, b: int, c: int, d: int) -> None:
    assert (paths.progress("x", 0, a, b) == paths.progress("x", 0, c, d)) == ((a, b) == (c, d))


def test_a_number_is_written_in_one_way_only() -> None:
    cases: list[str] = [
        "0000001-000000000001.json",
        "000001-0000000000001.json",
        "prepared-0000001-000001.json",
        "\u0660" * 6 + "-000000000001.json",
    ]
    for name in cases:
        assert paths.parse_progress(name) is None
        assert not paths.is_prepared(name)


def test_a_number_that_no_name_can_hold_is_refused_before_it_is_written() -> None:
    for batch in (-1, 10**19):
        with pytest.raises(ConfigError, match="is not a batch id: expected a whole number from 0 on, of 19 digits"):
            paths.release(batch)
    builds: list[Callable[[], str]] = [
        partial(paths.term, "x", -1),
        partial(paths.progress, "x", 0, -1, 0),
        partial(paths.progress, "x", 0, 0, -1),
        partial(paths.segment, "batches/0/1-1", 0, -1, "x"),
    ]
    for build in builds:
        with pytest.raises(ConfigError, match="-1 cannot be part of an object's name"):
            build()
