"""Pickling of sinks for executors, and the check that a sink works there."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from pyspark import Broadcast, cloudpickle

from wal_sink.errors import ConfigError, PermanentError
from wal_sink.reporting.texts import name_of, told
from wal_sink.sinks.base import Sink
from wal_sink.sinks.guarantees import Ability, ability_of
from wal_sink.spark.session.private import described

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WAYS_OUT = (
    "Ways out: use Delivery(…, where='driver'), so that the sink is called in the driver's process; or create "
    "connections and locks in open() instead of __init__; or, if the workers do not have a module, install it there, "
    "call spark.sparkContext.addPyFile(…) or cloudpickle.register_pickle_by_value(module)"
)


@dataclass(frozen=True, slots=True)
class PickledSink:
    """A sink as bytes for the executors. Each call returns a fresh copy of the sink."""

    payload: bytes = field(repr=False)
    broadcasts: tuple[Broadcast[Any], ...] = field(default=(), repr=False)
    """Those that the sink refers to. Spark ships a broadcast with the jobs whose function it is pickled with."""

    def __call__(self) -> Sink:
        """Unpickle the sink. Raises `PermanentError` if it cannot be unpickled: a retry would not help."""
        try:
            return unpickle(self.payload)
        except (ImportError, AttributeError, pickle.UnpicklingError) as error:
            raise PermanentError(f"it cannot be unpickled here ({told(error)})") from error


def pickled(sink: Sink, name: str) -> PickledSink:
    """Pickle the sink; code in `__main__` is pickled by value. Raises `ConfigError` if it cannot be pickled."""
    try:
        return PickledSink(cloudpickle.dumps(sink))  # type: ignore[no-untyped-call]
    except Exception as error:  # a user's __reduce__ may raise anything
        raise ConfigError(
            f"sink {name!r}: {name_of(sink)} cannot be pickled for the executors ({told(error)}). {_WAYS_OUT}"
        ) from error


def unpickle(payload: bytes) -> Sink:
    """A fresh copy of the pickled sink."""
    return cast("Sink", pickle.loads(payload))  # noqa: S301 - our own bytes, from the driver's memory


def check_on_executor(spark: SparkSession, travelling: PickledSink, sink: Sink, name: str) -> None:
    """Check in one task, before any batch depends on it, that the sink unpickles on an executor as the same kind.

    Raises `ConfigError`. Runs one small Spark job.
    """
    ask = partial(problem_of, expected=ability_of(sink))
    with described(spark.sparkContext, f"wal-sink: can sink {name} be used on executors?"):
        problem = spark.sparkContext.parallelize([travelling.payload], 1).map(ask).collect()[0]
    if problem:
        raise ConfigError(f"sink {name!r}: {name_of(sink)} cannot be used on executors ({problem}). {_WAYS_OUT}")


def problem_of(payload: bytes, expected: Ability) -> str:
    """The reason why a pickled sink cannot be used in this process; empty if it can.

    A sink of another kind is refused, because it would break the guarantee: it could send rows without their position,
    for example.
    """
    try:
        sink: object = unpickle(payload)
        found = ability_of(sink).value if isinstance(sink, Sink) else type(sink).__name__
    except Exception as error:  # noqa: BLE001 - every error is an answer
        return told(error)
    if found == expected.value:
        return ""
    return (
        f"it is “{expected.value}” in the driver, but “{found}” after unpickling on an executor: either its __reduce__ "
        "or __getstate__ returns another object, or the executor has another version of its module"
    )
