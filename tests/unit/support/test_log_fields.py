"""The attributes `wal`, `sink`, `batch` and `segment` of log records, on every thread that works for a batch."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from tests.house.sinks import Chunk
from tests.house.support import SYSTEM, logger_of
from tests.support.small_run import Place, Recorder
from wal_sink import RetryLaterError
from wal_sink.support.logs import logging_about

logger = logger_of(__name__)


class Records:
    """The records of the test so far. Other libraries log in threads that earlier tests left, and their records have no
    subject.
    """

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def __iter__(self) -> Iterator[Any]:
        return (record for record in self._caplog.records if record.name.startswith(("wal_sink", __name__)))

    def __getitem__(self, index: int) -> Any:
        return list(self)[index]


@pytest.fixture
def records(caplog: pytest.LogCaptureFixture) -> Records:
    caplog.set_level(logging.INFO)
    return Records(caplog)


def subject(record: Any) -> tuple[object, ...]:
    return record.wal, record.sink, record.batch, record.segment


def test_a_record_without_a_subject_has_none(records: Records) -> None:
    logger.warning("x")
    assert [subject(record) for record in records] == [(None, None, None, None)]


def test_an_inner_subject_adds_to_the_outer_one_and_ends_with_its_block(records: Records) -> None:
    with logging_about(wal="w", sink="s"):
        with logging_about(batch=3, segment="g"):
            logger.warning("%s", "x")
        logger.warning("x")
    logger.warning("x")
    assert [subject(record) for record in records] == [("w", "s", 3, "g"), ("w", "s", None, None), (None,) * 4]


def test_a_callers_own_attributes_stay(records: Records) -> None:
    with logging_about(sink="s"):
        logger.warning("x", extra={"own": 1, "sink": "other"})
    assert (records[0].own, records[0].sink) == (1, "other")


def test_calls_side_by_side_have_the_subject_of_their_caller(records: Records) -> None:
    with logging_about(wal="w", batch=1):
        SYSTEM.side_by_side(lambda each: logger.warning("%d", each), range(4))
    assert {subject(record) for record in records} == {("w", None, 1, None)}


def test_a_timed_call_has_the_subject_of_its_caller(records: Records) -> None:
    call = SYSTEM.new_timed_call()
    for segment in ("a", "b"):
        with logging_about(segment=segment):
            call.call(logger.warning, "x", timeout_s=60)
    call.call(logger.warning, "x", timeout_s=60)
    call.close()
    assert [record.segment for record in records] == ["a", "b", None]


def test_a_failed_attempt_names_wal_sink_and_batch(records: Records) -> None:
    failures = [RetryLaterError("busy")]

    def fail(_: Chunk) -> None:
        if failures:
            raise failures.pop()

    place = Place()
    run = place.open({"a": Recorder(fail)})
    place.stream(run, 0)
    (record,) = [record for record in records if "attempt 1 of 8" in record.message]
    assert subject(record) == (run.log.store.root, "a", 0, None)


def test_a_sinks_own_record_names_the_segment(records: Records) -> None:
    place = Place()
    run = place.open({"a": lambda _: logger.warning("from the sink")})
    place.stream(run, 0)
    (record,) = [record for record in records if record.message == "from the sink"]
    assert subject(record)[:3] == (run.log.store.root, "a", 0)
    assert record.segment
