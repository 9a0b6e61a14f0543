"""A writer of Spark Connect, without Spark: what it tells of itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from wal_sink import WalSink
from wal_sink.errors import ConfigError, WalSinkError
from wal_sink.lifecycle.given import refuse_what_only_the_stager_can_do
from wal_sink.settings import Delivery, Settings
from wal_sink.spark.session.connect import is_connect, start_over_connect, stop_over_connect

OPTIONS = {"wal": "/wal", "checkpointLocation": "/checkpoint"}


class Writer:
    """A writer that keeps its settings like that of Spark Connect."""

    def __init__(self, options: dict[str, str], target: str = "", function: str = "") -> None:
        self._write_proto = SimpleNamespace(
            options=options, format=target, path="", table_name="", HasField=lambda name: name == function
        )


def start(writer: object) -> None:
    start_over_connect(cast("Any", writer), OPTIONS)


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


def test_a_server_that_does_not_answer_a_stop_is_an_error() -> None:
    def stop() -> None:
        raise OSError("connection refused")

    with pytest.raises(WalSinkError, match="may still run there and stage batches"):
        stop_over_connect(cast("Any", SimpleNamespace(id="a query", stop=stop)))


def test_a_walsink_is_never_sent_to_a_server() -> None:
    sink = WalSink(None, wal="wal", checkpoint="checkpoint")
    with pytest.raises(ConfigError, match="cannot be sent to another process"):
        sink.__reduce__()


@pytest.mark.parametrize(
    ("settings", "delivery", "expected"),
    [
        (Settings(single_writer=True), Delivery(print), "one process writes"),
        (Settings(max_pending_bytes=1), Delivery(print), "max_pending_bytes cannot hold back"),
        (Settings(), Delivery(print, keep_segments=False), "keep_segments=False"),
    ],
)
def test_what_needs_staging_and_delivery_in_one_process_is_refused(
    settings: Settings, delivery: Delivery, expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        refuse_what_only_the_stager_can_do(settings, {"api": delivery})


def test_other_objects_are_not_of_connect() -> None:
    assert not is_connect(object())
    refuse_what_only_the_stager_can_do(Settings(), {"api": Delivery(print)})
