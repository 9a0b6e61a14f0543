"""The look at the targets before Spark works: who is refused, who is warned of, and who is left alone."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Literal

import pytest

from tests.house.sinks import Chunk, Sink
from tests.house.support import Finding
from wal_sink.errors import ConfigError, OutcomeUnknownError, PermanentError
from wal_sink.settings import Delivery
from wal_sink.sinks.calls import refuse_unfit_targets
from wal_sink.testing import simulated_runtime


class Target(Sink):
    """A sink whose target fails the first looks with these errors."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.looks = list[Any]()

    def write(self, chunk: Chunk) -> None:
        raise AssertionError(chunk)

    def examine(self, schema: Any) -> Sequence[Finding]:
        self.looks.append(schema)
        if self.errors:
            raise self.errors.pop(0)
        return []


def look(
    target: Target, *, where: Literal["auto", "executors"] = "auto", on_failure: Literal["stop", "park"] = "stop"
) -> None:
    delivery = Delivery(target, where=where, on_failure=on_failure)
    refuse_unfit_targets({"orders": target}, {"orders": delivery}, "schema", simulated_runtime())


def test_a_target_that_refuses_is_told_with_the_sink_and_the_way_out() -> None:
    target = Target(PermanentError("no such table"))
    with pytest.raises(ConfigError, match=r"sink 'orders'.*no such table.*check_targets=False"):
        look(target)
    assert target.looks == ["schema"]


def test_a_target_that_fails_for_a_moment_is_looked_at_again() -> None:
    look(target := Target(ConnectionError("reset"), ConnectionError("reset")))
    assert len(target.looks) == 3


def test_a_target_that_never_answers_is_refused_within_the_limit() -> None:
    target = Target(*[ConnectionError("unreachable")] * 100)
    with pytest.raises(ConfigError, match="unreachable"):
        look(target)
    assert 10 < len(target.looks) < 20


def test_a_last_look_without_an_answer_does_not_hide_why_the_earlier_ones_failed() -> None:
    with pytest.raises(ConfigError, match="nothing answers at the endpoint"):
        look(Target(ConnectionError("nothing answers at the endpoint"), OutcomeUnknownError("no answer within 1 s")))
    with pytest.raises(ConfigError, match="no answer within 15 s"):
        look(Target(OutcomeUnknownError("no answer within 15 s")))


def test_a_sink_that_may_be_parked_lets_the_query_start(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        look(Target(PermanentError("no such table")), on_failure="park")
    assert "no such table" in caplog.text


def test_a_target_that_only_executors_reach_is_not_looked_at() -> None:
    look(target := Target(PermanentError("no such table")), where="executors")
    assert target.looks == []
