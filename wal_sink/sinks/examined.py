"""An ability of some sinks: to look at their target and change nothing. And the look before a query starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from wal_sink.errors import ConfigError
from wal_sink.reporting.findings import Finding
from wal_sink.reporting.logs import logger_of
from wal_sink.runtime.clock import Runtime
from wal_sink.settings import Delivery
from wal_sink.sinks.base import BatchSink, Sink
from wal_sink.sinks.failures import FailureKind, SinkFailedError
from wal_sink.sinks.session import call_sink

LOOK_S = 15.0
"""Time limit of a look at one target. A target that fails for a moment is looked at again within it."""
_PAUSE_S = 1.0

_logger = logger_of(__name__)


@runtime_checkable
class Examined(Protocol):
    """A sink that can look at its target before anything is delivered. The sink is not open."""

    def examine(self, schema: Any) -> Sequence[Finding]:
        """Findings about the target: whether it can be reached, and whether rows of this Arrow schema fit.

        `schema` is None if no rows are known. It makes nothing, writes nothing and fences no process. Raises what
        `open` and `write` raise about such a target. Runs on the driver.
        """
        ...


def refuse_unfit_targets(
    sinks: Mapping[str, Sink | BatchSink], deliveries: Mapping[str, Delivery], schema: Any, runtime: Runtime
) -> None:
    """Look at each target once, before Spark works for it. `ConfigError` for one that refuses or does not answer.

    A sink that may be parked gets a warning instead, since the stream goes on without it. Two kinds are left to their
    first delivery: sinks that cannot look, and those with `where="executors"`, which this process need not reach.
    """
    for name, sink in sinks.items():
        if not isinstance(sink, Examined) or deliveries[name].where == "executors":
            continue
        failure = _looked_at(sink, name, schema, runtime)
        if failure is None:
            continue
        if deliveries[name].on_failure != "park":
            raise ConfigError(
                f"{failure}. Nothing was started. Correct this; if only this process cannot reach the target, pass "
                "check_targets=False"
            ) from None
        _logger.warning("%s. The query starts without this target, since the sink has on_failure='park'", failure)


def _looked_at(sink: Examined, name: str, schema: Any, runtime: Runtime) -> SinkFailedError | None:
    """The error of the last look; None for a target that takes rows. It is looked at again while a retry may help."""
    until_s = runtime.monotonic_s() + LOOK_S
    timed_call = runtime.new_timed_call()
    try:
        while True:
            left_s = max(_PAUSE_S, until_s - runtime.monotonic_s())
            try:
                call_sink(timed_call, f"looking at the target of sink {name!r}", sink.examine, schema, timeout_s=left_s)
            except SinkFailedError as failure:
                may_help = failure.failure.kind is FailureKind.RETRIABLE
                if not may_help or runtime.monotonic_s() + _PAUSE_S >= until_s:
                    return failure
                runtime.sleep_s(_PAUSE_S)
            else:
                return None
    finally:
        timed_call.close()
