"""A query on a server of Spark Connect, played: what its client learns, and how long it waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from tests.support.waiting import wait_until
from wal_sink.errors import WalSinkError
from wal_sink.spark import connect as remote_query
from wal_sink.spark.connect import RemoteQuery, asked


class Answer(Exception):
    """An error with which a server answered."""

    def __init__(self, condition: str) -> None:
        super().__init__(f"[{condition}] as the server says")
        self._condition = condition

    def getCondition(self) -> str:  # noqa: N802 - PySpark's name
        return self._condition


class StreamingQueryException(Exception):
    """The error of a query that failed."""


class Query:
    """A query whose server answers as a test says."""

    id = "a-query"

    def __init__(self) -> None:
        self.is_active: Callable[[], bool] = lambda: True
        self.stops: Callable[[], None] = lambda: None
        self.error: Exception | None = None
        self.asked = 0
        self.awaited = threading.Event()
        self.await_error: Exception | None = None

    @property
    def isActive(self) -> bool:  # noqa: N802 - PySpark's name
        self.asked += 1
        return self.is_active()

    def stop(self) -> None:
        self.stops()

    def exception(self) -> Exception | None:
        return self.error

    def awaitTermination(self) -> None:  # noqa: N802 - PySpark's name
        self.awaited.wait(120.0)
        if self.await_error is not None:
            raise self.await_error


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_query, "ASK_EVERY_S", 0.01)
    monkeypatch.setattr(remote_query, "_POLL_S", 0.01)


@pytest.fixture
def query() -> Query:
    return Query()


@pytest.fixture
def remote(query: Query) -> Iterator[RemoteQuery]:
    made = RemoteQuery(cast("Any", query))
    yield made
    made.leave()
    query.awaited.set()


def failing(error: Exception) -> Callable[[], Any]:
    def raise_it() -> None:
        raise error

    return raise_it


def test_the_server_is_asked_again_and_again_as_long_as_the_query_runs(query: Query, remote: RemoteQuery) -> None:
    remote.watch()
    wait_until(lambda: query.asked > 3, "several questions came")
    assert not remote.has_ended
    assert remote.failure is None


def test_the_end_of_a_query_that_failed_is_noticed_without_any_call(
    query: Query, remote: RemoteQuery, caplog: pytest.LogCaptureFixture
) -> None:
    query.error = StreamingQueryException("a source is gone")
    query.is_active = lambda: False
    remote.watch()
    wait_until(lambda: "a source is gone" in caplog.text, "the failure is logged")
    assert remote.failure is query.error


@pytest.mark.parametrize(
    "condition", ["INVALID_HANDLE.SESSION_CLOSED", "INVALID_HANDLE.SESSION_CHANGED", "STREAMING_QUERY_NOT_FOUND"]
)
def test_a_server_that_lost_the_session_or_the_query_is_a_failure(
    query: Query, remote: RemoteQuery, condition: str
) -> None:
    query.is_active = failing(Answer(condition))
    remote.watch()
    wait_until(lambda: remote.has_ended, "the loss is known")
    assert "does not have the query a-query any more" in str(remote.failure)


@pytest.mark.parametrize("error", [OSError("connection refused"), Answer("INVALID_HANDLE.OPERATION_NOT_FOUND")])
def test_a_server_that_does_not_answer_is_told_once_and_asked_again(
    query: Query, remote: RemoteQuery, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    query.is_active = failing(error)
    remote.watch()
    wait_until(lambda: query.asked > 3, "several questions came")
    assert caplog.text.count("does not say whether the query") == 1
    assert remote.failure is None


def test_a_stop_asks_for_the_error_at_once_and_the_server_may_forget_it_then(query: Query, remote: RemoteQuery) -> None:
    query.error = StreamingQueryException("it had failed")
    remote.stop(60.0)
    query.error = None
    assert str(remote.failure) == "it had failed"


def test_a_stop_that_is_refused_raises_nothing_yet_and_is_a_failure(query: Query, remote: RemoteQuery) -> None:
    query.stops = failing(OSError("connection refused"))
    remote.stop(60.0)
    assert isinstance(remote.failure, WalSinkError)
    assert "may still run there and stage batches" in str(remote.failure)
    query.stops = lambda: None
    remote.stop(60.0)
    assert remote.failure is None, "the second stop was confirmed"


def test_a_wait_that_the_server_dropped_goes_on_as_long_as_the_query_runs(query: Query, remote: RemoteQuery) -> None:
    query.await_error = Answer("INVALID_HANDLE.OPERATION_NOT_FOUND")
    query.awaited.set()

    def runs() -> bool:
        query.await_error = None
        return True

    query.is_active = runs
    remote.wait_for_end()
    assert remote.has_ended


def test_a_request_without_an_answer_ends_in_time() -> None:
    answered = threading.Event()
    with pytest.raises(WalSinkError, match=r"no answer within 0\.05 s"):
        asked(lambda: answered.wait(120.0), 0.05)
    answered.set()
    assert asked(lambda: 7, 60.0) == 7
    with pytest.raises(OSError, match="refused"):
        asked(failing(OSError("refused")), 60.0)


def test_a_query_that_ended_by_itself_did_not_fail(query: Query, remote: RemoteQuery) -> None:
    query.is_active = lambda: False
    remote.watch()
    wait_until(lambda: remote.has_ended, "the end is known")
    assert remote.failure is None


def test_a_stop_without_an_answer_is_waited_for_only_so_long(query: Query, remote: RemoteQuery) -> None:
    answered = threading.Event()
    query.stops = lambda: cast("None", answered.wait(120.0))
    remote.stop(0.05)
    assert "no answer yet" in str(remote.failure)
    remote.ask_to_stop()  # sends no second one
    answered.set()
    wait_until(lambda: remote.has_ended, "the answer came late")
    assert remote.failure is None


def test_a_run_waits_for_the_end_and_raises_the_error_of_the_query(query: Query, remote: RemoteQuery) -> None:
    query.await_error = StreamingQueryException("it failed")
    query.awaited.set()
    with pytest.raises(StreamingQueryException, match="it failed"):
        remote.wait_for_end()
    assert remote.has_ended


def test_a_wait_that_was_dropped_while_the_query_ended_is_no_failure(query: Query, remote: RemoteQuery) -> None:
    query.await_error = Answer("INVALID_HANDLE.OPERATION_NOT_FOUND")
    query.is_active = lambda: False
    query.awaited.set()
    remote.wait_for_end()
    assert remote.failure is None


def test_a_wait_that_fails_with_a_silent_server_raises(query: Query, remote: RemoteQuery) -> None:
    query.await_error = OSError("connection refused")
    query.is_active = failing(OSError("connection refused"))
    query.awaited.set()
    with pytest.raises(OSError, match="connection refused"):
        remote.wait_for_end()


def test_a_run_does_not_wait_longer_for_a_server_that_refuses_the_stop(query: Query, remote: RemoteQuery) -> None:
    query.stops = failing(OSError("connection refused"))
    remote.ask_to_stop()
    remote.wait_for_end()
    assert "did not confirm" in str(remote.failure)
