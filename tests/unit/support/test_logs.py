"""Logging handlers that raise: they end no thread, and hide nothing that a committer has to tell."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.house.support import logger_of
from tests.support.processes import CHECKOUT
from tests.support.waiting import PATIENCE_S
from tests.unit.protocol.test_committer_pool import Team, failing
from wal_sink.errors import DeliveryError


class Raising(logging.Handler):
    """A handler whose own target is gone."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def emit(self, record: logging.LogRecord) -> None:  # noqa: ARG002
        raise self.error


@pytest.fixture(params=[OSError("the disk is full"), SystemExit(1)], ids=["raises", "exits"])
def raising(request: pytest.FixtureRequest) -> Iterator[BaseException]:
    """Every record of this package meets a handler that raises."""
    logger, handler = logging.getLogger("wal_sink"), Raising(request.param)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield request.param
    logger.removeHandler(handler)
    logger.setLevel(level)


@pytest.mark.usefixtures("raising")
def test_a_committer_that_gives_up_stops_the_query_though_nobody_can_log_it() -> None:
    stopped: list[str] = []
    team = Team({"a": failing()}, on_failure=lambda: stopped.append("the query"))
    team.pool.start()
    team.pool.wait_caught_up()
    assert team.pool.stop(PATIENCE_S)
    assert stopped == ["the query"]
    assert isinstance(team.pool.error, DeliveryError)


def test_what_cannot_be_logged_is_told_on_stderr(raising: BaseException, capsys: pytest.CaptureFixture[str]) -> None:
    logger_of("wal_sink.some").warning("sink %s", "a")
    why = f"{type(raising).__name__}: {raising}"
    assert capsys.readouterr().err == f"wal_sink.some: the log could not write 'sink %s': {why}\n"


def records_of_this_thread(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """The records of this thread: one that another test left may log, too."""
    return [record for record in caplog.records if record.thread == threading.get_ident()]


def test_a_record_names_the_place_that_logged(caplog: pytest.LogCaptureFixture) -> None:
    logger_of("wal_sink.some").warning("sink %s", "a")
    (record,) = records_of_this_thread(caplog)
    assert (record.name, record.filename, record.getMessage()) == ("wal_sink.some", "test_logs.py", "sink a")


def test_a_caller_may_name_another_place(caplog: pytest.LogCaptureFixture) -> None:
    def here(**given: Any) -> None:
        logger_of("wal_sink.some").warning("sink", **given)

    def above(**given: Any) -> None:
        here(**given)

    above()
    above(stacklevel=2)
    above(stacklevel=3)

    by_itself, same, other = [(record.funcName, record.lineno) for record in records_of_this_thread(caplog)]
    assert by_itself == same != other


def test_a_record_holds_the_exception_that_is_logged_with_it(caplog: pytest.LogCaptureFixture) -> None:
    error = ValueError("why")
    logger_of("wal_sink.some").warning("sink", exc_info=error)
    (record,) = records_of_this_thread(caplog)
    assert record.exc_info is not None
    assert record.exc_info[1] is error


def test_ctrl_c_passes() -> None:
    logger, handler = logging.getLogger("wal_sink"), Raising(KeyboardInterrupt())
    logger.addHandler(handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            logger_of("wal_sink.some").error("sink")
    finally:
        logger.removeHandler(handler)


def test_no_other_loggers_are_made() -> None:
    """The linter bans them: this fails if the rule is taken out of its settings."""
    assert '"logging.getLogger".msg' in (CHECKOUT / "pyproject.toml").read_text()
