# Functions stand for those that users write.
"""The checks of single arguments: what is allowed up to the very limit, and each message in full."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from wal_sink import Delivery, WalSink, wrap
from wal_sink.errors import ConfigError
from wal_sink.support.arguments import (
    LONGEST_S,
    MOST,
    check_count,
    check_options,
    check_runs,
    check_seconds,
    check_text,
    did_you_mean,
    name_of,
    one_of,
    refused_target,
)

SEVERAL = "Several sinks are a mapping from names to them: WalSink({name: to, name: to}, …)"


@pytest.mark.parametrize(
    ("to", "advice"),
    [
        (
            type("DataStreamWriter", (), {})(),
            "This is a source of rows: WalSink(to, …).run(df.writeStream); `to` receives the rows",
        ),
        (Delivery(print), "Pass it directly, not within another one: WalSink(Delivery(to, …), …)"),
        (
            WalSink(print, wal="memory://wal", checkpoint="memory://checkpoint"),
            "A WalSink is not a target; several sinks share one: WalSink({name: to, name: to}, …)",
        ),
        ([print], SEVERAL),
        ((print,), SEVERAL),
        ({"a": print}, SEVERAL),
        (
            Path("orders.db"),
            "A file or folder is named by a URL as text, such as sqlite:///orders.db?table=orders or files:///out",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_a_target_is_refused_with_the_call_that_was_meant(to: object, advice: str) -> None:
    assert str(refused_target(to)) == (
        f"rows cannot be delivered to {type(to).__name__}: expected a function of one Chunk, a Sink, a wrapped writer "
        f"(wal_sink.wrap) or the URL of a backend. {advice}"
    )


def test_what_resembles_no_target_is_refused_without_advice() -> None:
    assert str(refused_target(5)).endswith("a wrapped writer (wal_sink.wrap) or the URL of a backend")


async def later(row: object) -> None: ...


def no_row() -> None: ...


def test_a_function_for_batches_that_is_async_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^foreach_batch\(later\) is async: "):
        wrap.foreach_batch(cast("Any", later))


class CalledLater:
    async def __call__(self, chunk: object) -> None: ...


class CalledLazily:
    def __call__(self, chunk: object) -> Iterator[object]:
        yield chunk


async def lazily_later(chunk: object) -> AsyncIterator[object]:
    yield chunk


def test_what_a_call_would_not_run_is_refused() -> None:
    cases: list[tuple[object, str]] = [
        (CalledLater(), "it is async: "),
        (CalledLazily(), "it contains yield: "),
        (lazily_later, "it contains yield: "),
    ]
    for function, said in cases:
        with pytest.raises(ConfigError) as told:
            check_runs(function, "it")

        assert str(told.value).startswith(said)


def test_what_neither_waits_nor_yields_passes() -> None:
    for thing in [print, None, 5, type]:
        check_runs(thing, "it")


def test_0_seconds_are_allowed_unless_the_argument_says_otherwise() -> None:
    check_seconds("timeout_s", 0)
    check_seconds("timeout_s", LONGEST_S, above_0=True)
    check_seconds("timeout_s", 0.001, above_0=True)
    with pytest.raises(ConfigError):
        check_seconds("timeout_s", LONGEST_S + 1)


def test_a_wrong_time_is_told_with_what_is_allowed() -> None:
    cases: list[tuple[object, bool, str]] = [(-1, False, "seconds"), (0, True, "seconds above 0")]
    for value, above_0, kind in cases:
        with pytest.raises(ConfigError) as told:
            check_seconds("timeout_s", value, above_0=above_0)

        expected = f"expected a number of {kind}, at most 1,000,000,000, such as timeout_s=30"
        assert str(told.value) == f"timeout_s={value}: {expected}"


def test_a_count_may_fill_64_bits() -> None:
    check_count("rows", 1)
    check_count("rows", MOST)
    for beyond in (0, MOST + 1):
        with pytest.raises(ConfigError):
            check_count("rows", beyond)


def test_a_name_is_suggested_if_it_is_alike_or_the_beginning() -> None:
    cases: list[tuple[str, list[str], str]] = [
        ("mode_of_all_writing", ["Mode"], "; did you mean Mode?"),
        ("key_of_all_writing", ["key"], ""),
        ("something_else", ["mode"], ""),
        ("chunk_row", ["chunk_bytes", "chunk_rows"], "; did you mean chunk_rows?"),
        ("url", ["segment_bytes"], ""),
    ]
    for name, known, meant in cases:
        assert did_you_mean(name, known) == meant


def test_options_are_a_mapping_from_texts_to_anything() -> None:
    for options in (None, {}, {"key": 1}):
        assert check_options("storage_options", options) is options
    for wrong in ({1: "key"}, {"key": 1, 2: "key"}, ["key"]):
        with pytest.raises(ConfigError, match=r"^storage_options: expected a mapping"):
            check_options("storage_options", wrong)


def test_what_is_no_text_is_told_with_an_example() -> None:
    cases: list[tuple[object, str]] = [(None, "None"), (5, "5"), (b"secret", "a bytes")]
    for value, found in cases:
        with pytest.raises(ConfigError) as told:
            check_text("wal", value)

        assert str(told.value) == f"wal={found}: expected text, such as wal='s3://lake/orders'"


def test_a_value_that_is_not_allowed_is_told_with_all_that_are() -> None:
    with pytest.raises(ConfigError) as told:
        one_of("where", "drivers", ["auto", "driver", None])

    expected = "expected one of 'auto', 'driver', None; did you mean 'driver'?"
    assert str(told.value) == f"where='drivers': {expected}"


def test_a_partial_function_has_the_name_of_its_function() -> None:
    assert name_of(partial(partial(no_row))) == "no_row"
