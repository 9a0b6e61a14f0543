"""The search for the rows that a database refuses: complete if time allows, and never without end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.house.support import SYSTEM
from wal_sink.errors import PermanentError
from wal_sink_backends.sql.base import values
from wal_sink_backends.sql.base.values import Apart, Unlisted, refused_rows


class Clock:
    """Time that passes only where a test says so."""

    now_s = 0.0


clock = Clock()


@pytest.fixture(autouse=True)
def _own_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "SYSTEM", replace(SYSTEM, monotonic_s=lambda: clock.now_s))


def refusing(bad: range, *, inserted: list[int], takes_s: float = 0.0) -> Callable[[int, int], str | None]:
    def attempt(first: int, end: int) -> str | None:
        clock.now_s += takes_s
        if set(bad).intersection(range(first, end)):
            return "out of range"
        inserted.extend(range(first, end))
        return None

    return attempt


def test_each_refused_row_is_named_and_the_others_go_in_once_and_in_order() -> None:
    inserted: list[int] = []
    numbers = range(100, 200)
    found = refused_rows(numbers, refusing(range(10, 90, 7), inserted=inserted))
    assert found == dict.fromkeys(range(110, 190, 7), "out of range")
    assert inserted == [row for row in range(100) if row not in range(10, 90, 7)]


def test_no_rows() -> None:
    assert refused_rows([], refusing(range(1), inserted=[])) == {}


def test_ten_thousand_bad_rows_are_named_as_far_as_time_allows() -> None:
    clock.now_s = 0.0
    found = refused_rows(range(10_000), refusing(range(10_000), inserted=[], takes_s=0.001), within_s=0.5)
    assert 0.5 <= clock.now_s < 0.6
    assert 0 < len(found) < 10_000
    assert list(found) == list(range(len(found)))


def test_a_search_that_finds_nothing_in_time_says_so() -> None:
    with pytest.raises(PermanentError, match=r"refused: out of range\. The refused row could not be found within"):
        refused_rows(range(10_000), refusing(range(10_000), inserted=[], takes_s=0.02), within_s=0.05)


def test_rows_that_are_refused_together_only() -> None:
    with pytest.raises(
        PermanentError, match="the chunk was refused as a whole, although each row alone was accepted: too many"
    ):
        refused_rows(range(4), lambda first, end: "too many" if end - first > 1 else None)


def test_rows_that_are_taken_one_after_the_other_are_not_refused() -> None:
    inserted: list[int] = []

    def attempt(first: int, end: int) -> str | None:
        if end - first > 2:
            return Apart("not twice")
        inserted.extend(range(first, end))
        return None

    assert refused_rows(range(9), attempt) == {}
    assert inserted == list(range(9))
    assert refused_rows([7], lambda *_: Apart("not twice")) == {7: "not twice"}


def test_a_chunk_that_is_refused_as_a_whole_is_an_error_although_its_rows_are_taken_alone() -> None:
    def attempt(first: int, end: int) -> str | None:
        return Apart("not twice") if end - first > 2 else "too many" if end - first > 1 else None

    with pytest.raises(
        PermanentError, match="the chunk was refused as a whole, although each row alone was accepted: too many"
    ):
        refused_rows(range(4), attempt)


def test_rows_that_are_not_taken_apart_in_time_are_told() -> None:
    def attempt(first: int, end: int) -> str | None:
        clock.now_s += 0.02
        return Apart("not twice") if end - first > 1 else None

    with pytest.raises(PermanentError, match=r"refused: not twice\. The refused row could not be found within"):
        refused_rows(range(10_000), attempt, within_s=0.05)


class Table:
    """Rows of a transaction. Some rows are refused by an error that is in no list."""

    def __init__(self, strange: range, *, times: int = 1000, listed: range = range(0)) -> None:
        self.rows: list[int] = []
        self.attempts = 0
        self._strange, self._listed, self._times = strange, listed, times

    def attempt(self, first: int, end: int) -> str | None:
        self.attempts += 1
        if set(self._listed).intersection(range(first, end)):
            return "out of range"
        if set(self._strange).intersection(range(first, end)) and self._times > 0:
            self._times -= 1
            (strange := Unlisted("strange")).error = KeyError("strange")
            return strange
        self.rows += range(first, end)
        return None

    def start_over(self) -> None:
        self.rows.clear()


@pytest.mark.parametrize("strange", [range(1), range(9, 10), range(3, 9, 2), range(9)], ids=str)
def test_an_unlisted_error_is_a_rows_if_another_row_was_taken_between_its_two_failures(strange: range) -> None:
    table = Table(strange, listed=range(2, 3))
    found = refused_rows(range(10), table.attempt, table.start_over)
    assert found == {**dict.fromkeys(strange, "strange"), 2: "out of range"}
    assert table.rows == [row for row in range(10) if row not in found]


@pytest.mark.parametrize("rows", [1, 3, 10_000])
def test_an_unlisted_error_of_every_row_is_no_rows_and_is_told_soon(rows: int) -> None:
    table = Table(range(10_000))
    with pytest.raises(KeyError, match="strange"):
        refused_rows(range(rows), table.attempt, table.start_over)
    assert table.attempts < 300


@pytest.mark.parametrize("times", [1, 4, 5])
def test_an_unlisted_error_that_passes_is_no_rows(times: int) -> None:
    table = Table(range(5, 6), times=times)
    with pytest.raises(KeyError, match="strange"):
        refused_rows(range(10), table.attempt, table.start_over)
