"""Texts of what a user's code raises, returns and is: making one never raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.house.sinks import Chunk, FailureKind, Rejected, Sink
from tests.support.one_segment import Stage
from wal_sink.support.texts import name_of, repr_of, said_once, text_of, told


class Odd(Exception):
    """Its text is made by a function that may raise."""

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__()
        self.make = make

    def __str__(self) -> str:
        text: str = self.make()
        return text

    __repr__ = __str__


def raises(error: BaseException) -> Callable[[], str]:
    def make() -> str:
        raise error

    return make


ODD = [
    pytest.param(raises(ValueError("no text")), "<a Odd without text: {} raised ValueError>", id="raises"),
    pytest.param(lambda: "\ud800 and more", r"\ud800 and more", id="half a pair"),
]


@pytest.mark.parametrize(("make", "expected"), ODD)
def test_a_text_is_plain_and_can_be_written(make: Callable[[], Any], expected: str) -> None:
    for name, text in (("str()", text_of(Odd(make))), ("repr()", repr_of(Odd(make)))):
        assert type(text) is str
        assert expected.format(name) in text
        assert text.encode()


LEFT_OUT = " … {} characters are left out … "


def test_of_a_text_of_megabytes_its_ends_are_kept() -> None:
    """Each text is searched for secrets, which took minutes for the text of one exception."""
    cases: list[tuple[str, str]] = [
        ("a" * 200_000, "a" * 200_000),
        ("b" * 200_001, LEFT_OUT.format("200,001")),
        ("first " + "b" * 300_000, "first" + LEFT_OUT.format("300,001")),
        ("b" * 300_000 + " last", LEFT_OUT.format("300,001") + "last"),
    ]
    for text, kept in cases:
        assert text_of(text) == kept


def test_no_part_of_a_word_is_kept_where_a_text_is_cut() -> None:
    """A part of a password is masked by nothing."""
    words = " ".join(f"password={number:07}-secret" for number in range(20_000))
    kept = text_of(words)
    assert kept.count("password=") == 2 * (100_000 // len("password=0000000-secret "))
    assert {len(word) for word in kept.split(" ") if "=" in word} == {len("password=0000000-secret")}
    assert kept.startswith("password=0000000-secret ")
    assert kept.endswith(" password=0019999-secret")


def test_what_is_told_of_an_ordinary_error_is_its_class_and_text() -> None:
    assert told(ValueError("expected a number")) == "ValueError: expected a number"


@pytest.mark.parametrize(("make", "expected"), ODD)
def test_a_sinks_exception_without_text_is_an_outcome(make: Callable[[], Any], expected: str) -> None:
    def fail(_: Chunk) -> None:
        raise Odd(make)

    failure = Stage().deliver(fail).failure
    assert failure is not None
    assert failure.kind is FailureKind.RETRIABLE
    assert expected.format("str()") in failure.message


def test_a_row_that_is_named_by_no_index_is_an_outcome() -> None:
    outcome = Stage().deliver(lambda _: Rejected({0: "x", "a": "y"}))  # type: ignore[dict-item]
    assert outcome.failure is not None
    assert "Rejected names a row by 'a': expected its index in the chunk" in outcome.failure.message


class Nameless(Sink):
    """A sink that cannot say what it is."""

    def write(self, chunk: Chunk) -> None:
        raise OSError(f"{chunk.num_rows} rows are too many")

    def describe(self) -> str:
        raise ValueError("no name")


def test_a_sink_that_cannot_say_what_it_is_fails_by_its_own_error_alone() -> None:
    failure = Stage().deliver(Nameless()).failure
    assert failure is not None
    assert "describe() raised ValueError" in failure.message
    assert "OSError: 2 rows are too many" in failure.message
    assert name_of(Nameless()).startswith("<a Nameless")


def test_each_name_is_said_where_it_comes_first() -> None:
    cases: list[tuple[str, str]] = [
        ("batch 3, sink 'a': gave up: batch 3, chunk k: no route", "batch 3, sink 'a': gave up: chunk k: no route"),
        ("batch 3: batch 3, sink 'a': batch 3, sink 'a': no route", "batch 3: sink 'a': no route"),
        ("segment s-1, chunk k: segment s-1, sink 'b c': lost", "segment s-1, chunk k: sink 'b c': lost"),
        ("sink 'a': sink 'b': lost", "sink 'a': sink 'b': lost"),
        ("a minibatch 3: batch 3: lost", "a minibatch 3: batch 3: lost"),
        ("batch 3 was lost: batch 3", "batch 3 was lost: batch 3"),
        ("batch 3, chunk k: A: batch 3, chunk k: busy", "batch 3, chunk k: A: busy"),
        ("batch 3: found batch 4: old", "batch 3: found batch 4: old"),
    ]
    for text, said in cases:
        assert said_once(text) == said
