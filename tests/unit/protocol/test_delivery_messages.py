"""Messages of failed calls of a sink: they name the kind of failure and the call, without secrets and in short."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.house.sinks import Failure, FailureKind, ForgottenError, Rejected, SinkFailedError, check_returned
from tests.house.support import CallTimedOutError, DirectCall
from wal_sink.errors import (
    ConfigError,
    CorruptError,
    FencedError,
    HandleGoneError,
    HistoryError,
    OutcomeUnknownError,
    PermanentError,
    RetryLaterError,
)
from wal_sink.sinks.calls import call_sink, rejected_of
from wal_sink.support.calls import ProgramExitError

SECRET = "https://me:hush-hush@host/path"  # noqa: S105 - of nobody
MASKED = "https://host/path"


def raising(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def failed(error: Exception) -> Failure:
    with pytest.raises(SinkFailedError) as told:
        call_sink(DirectCall(), "the call", raising(error), timeout_s=1)
    assert str(told.value) == told.value.failure.message
    assert told.value.__cause__ is error
    return told.value.failure


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (CallTimedOutError("no answer within 1 s"), "unknown", "the call timed out: no answer within 1 s"),
        (PermanentError(SECRET), "permanent", f"the call refused permanently: {MASKED}"),
        (ConfigError("x"), "permanent", "the call refused permanently: x"),
        (OutcomeUnknownError(SECRET), "unknown", f"the call: {MASKED}"),
        (ForgottenError(SECRET), "forgotten", f"the call: {MASKED}"),
        (RetryLaterError(SECRET), "retriable", f"the call: {MASKED}"),
        (HandleGoneError(SECRET), "gone", f"the call: {MASKED}"),
        (HandleGoneError("x", never_committed=True), "never committed", "the call: x"),
        (FencedError("a higher term"), "fenced", "a higher term"),
        (HistoryError(SECRET), "history", MASKED),
        (CorruptError("damage"), "corrupt", "damage"),
        (
            ProgramExitError("called sys.exit(3)"),
            "permanent",
            "the call called sys.exit(3): expected the call to return, or to raise an Exception",
        ),
        (ConnectionError(SECRET), "retriable", f"the call raised ConnectionError: {MASKED}"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_every_way_to_fail_has_its_kind_and_its_words(error: Exception, kind: str, message: str) -> None:
    found = failed(error)
    assert (found.kind, found.message) == (FailureKind(kind), message)


def test_a_target_names_the_time_to_wait_or_the_term_that_it_knows_and_other_errors_neither() -> None:
    def named(error: Exception) -> tuple[float, int]:
        found = failed(error)
        return found.retry_after_s, found.term

    assert named(RetryLaterError("busy", after_s=7)) == (7, 0)
    assert named(FencedError("a higher term", term=5)) == (0, 5)
    assert named(HistoryError("another history")) == (0, 0)
    assert named(ConnectionError("down")) == (0, 0)


def test_what_a_call_returns_is_passed_on() -> None:
    assert call_sink(DirectCall(), "the call", lambda one, other: (one, other), 1, 2, timeout_s=1) == (1, 2)


@pytest.mark.filterwarnings("error")
def test_an_answer_that_is_code_which_did_not_run_fails_for_good() -> None:
    async def later() -> None: ...

    for answer in (later(), (one for one in "rows")):
        with pytest.raises(SinkFailedError, match=r": it returned a (coroutine|generator), ") as told:
            call_sink(DirectCall(), "the call", lambda answer=answer: answer, timeout_s=1)
        assert told.value.failure.kind is FailureKind.PERMANENT


def told_of(returned: object) -> str:
    with pytest.raises(SinkFailedError) as told:
        check_returned("the call", returned)
    assert told.value.failure.kind is FailureKind.PERMANENT
    return told.value.failure.message


def test_an_answer_is_shown_up_to_two_hundred_characters() -> None:
    whole, cut = "x" * 198, "x" * 199  # their quotation marks count

    assert told_of(whole) == f"the call returned '{whole}': expected None (the target has every row) or Rejected"
    assert f"the call returned '{'x' * 198}…: expected" in told_of(cut)


def test_of_rejected_rows_the_lowest_is_shown_with_its_reason() -> None:
    assert (
        told_of(Rejected({4: "late", 2: SECRET}))
        == f"the call rejected 2 rows; row 2 of the chunk: {MASKED}. Correct the rows in the query"
    )


def test_of_rows_that_a_chunk_does_not_have_the_lowest_is_shown_with_those_that_it_has() -> None:
    refused = Rejected({1: "late", 9: "late", 3: "late"})

    with pytest.raises(SinkFailedError) as told:
        rejected_of("the call", refused, 3)

    assert told.value.failure == Failure(
        FailureKind.PERMANENT, "the call rejected row 3: expected indices of rows in this chunk, from 0 to 2"
    )
    assert rejected_of("the call", refused, 10) is refused
    every_row = Rejected({0: "late", 1: "late"})
    assert rejected_of("the call", every_row, 2) is every_row


def test_an_answer_that_cannot_be_shown_is_named_by_its_type() -> None:
    class Shy:
        def __repr__(self) -> str:
            raise ValueError("no")

    assert "the call returned <a Shy without text: repr() raised ValueError>: expected None" in told_of(Shy())
