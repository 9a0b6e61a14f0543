"""A writer of Spark Connect, without Spark: what it tells of itself."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.errors.exceptions.connect import AnalysisException, SparkConnectGrpcException

from tests.support.vault import Vault, VaultSink
from wal_sink import WalSink
from wal_sink.deliveries import refuse_what_only_the_stager_can_do
from wal_sink.errors import ConfigError, WalSinkError
from wal_sink.settings import Settings
from wal_sink.sinks.base import BatchSink, Sink, as_sink
from wal_sink.spark.connect import is_connect, start_over_connect

OPTIONS = {"wal": "/wal", "checkpointLocation": "/checkpoint"}


class Writer:
    """A writer that keeps its settings like that of Spark Connect."""

    def __init__(self, options: dict[str, str], target: str = "", function: str = "") -> None:
        self._write_proto = SimpleNamespace(
            options=options, format=target, path="", table_name="", HasField=lambda name: name == function
        )


def start(writer: object, query_id: str | None = None) -> object:
    return start_over_connect(cast("Any", writer), OPTIONS, lambda: query_id)


class Starting(Writer):
    """A writer whose start raises, and whose session knows these queries."""

    def __init__(self, error: BaseException, active: Callable[[], list[object]] = list) -> None:
        super().__init__({})
        self._error = error
        self._session = SimpleNamespace(streams=type("Streams", (), {"active": property(lambda _: active())})())

    def format(self, _: str) -> Starting:
        return self

    def options(self, **_: str) -> Starting:
        return self

    def start(self) -> None:
        raise self._error


LOST = SparkConnectGrpcException("Socket closed")


def test_a_writer_that_does_not_tell_its_target_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not tell which target the writer has"):
        start(SimpleNamespace())


@pytest.mark.parametrize(
    ("writer", "expected"),
    [
        (Writer({}, target="kafka"), "the target kafka already"),
        (Writer({}, function="foreach_batch"), "a function already"),
        (Writer({"checkpointlocation": "/other"}), "Pass the checkpoint to WalSink alone"),
    ],
)
def test_a_writer_with_another_target_is_refused(writer: Writer, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        start(writer)


def test_a_query_whose_start_got_no_answer_is_found_by_the_id_in_its_checkpoint(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ours, other = SimpleNamespace(id="ours"), SimpleNamespace(id="other")
    assert start(Starting(LOST, lambda: [other, ours]), "ours") is ours
    assert "This process continues with that query" in caplog.text


@pytest.mark.parametrize("query_id", [None, "ours"])
def test_a_start_without_an_answer_and_without_a_query_says_so(query_id: str | None) -> None:
    with pytest.raises(WalSinkError, match="runs no query of this session on this checkpoint now") as raised:
        start(Starting(LOST, lambda: [SimpleNamespace(id="other")]), query_id)
    assert raised.value.__cause__ is LOST


def test_a_server_that_does_not_say_whether_the_query_runs_is_an_error_with_the_way_out() -> None:
    def ask() -> list[object]:
        raise OSError("connection refused")

    with pytest.raises(WalSinkError, match=r"The query may run there and stage batches.*start the query again"):
        start(Starting(LOST, ask), "ours")


def test_an_error_with_which_the_server_answers_is_raised_as_it_is() -> None:
    answer = AnalysisException("the schema is wrong")
    with pytest.raises(AnalysisException) as raised:
        start(Starting(answer))
    assert raised.value is answer


def test_a_start_that_is_interrupted_warns_that_the_query_may_run(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(KeyboardInterrupt):
        start(Starting(KeyboardInterrupt()))
    assert "Its server may still run the query" in caplog.text


def test_a_walsink_is_never_sent_to_a_server() -> None:
    sink = WalSink(None, wal="wal", checkpoint="checkpoint")
    with pytest.raises(ConfigError, match="cannot be sent to another process"):
        sink.__reduce__()


PRINTING = as_sink(print)


@pytest.mark.parametrize(
    ("settings", "sink", "expected"),
    [
        (Settings(single_writer=True), PRINTING, "one process writes"),
        (Settings(max_pending_batches=1), PRINTING, "max_pending_batches cannot hold back"),
        (Settings(), VaultSink(Vault(), keep_segments=False), "keep_segments=False"),
    ],
)
def test_what_needs_staging_and_delivery_in_one_process_is_refused(
    settings: Settings, sink: Sink | BatchSink, expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        refuse_what_only_the_stager_can_do(settings, {"api": sink})


def test_options_of_the_checkpoint_that_the_server_does_not_know_are_refused() -> None:
    with pytest.raises(ConfigError, match="checkpoint_options stay in this process"):
        refuse_what_only_the_stager_can_do(Settings(), {"api": PRINTING}, has_checkpoint_options=True)


def test_other_objects_are_not_of_connect() -> None:
    assert not is_connect(object())
    refuse_what_only_the_stager_can_do(Settings(), {"api": PRINTING})
