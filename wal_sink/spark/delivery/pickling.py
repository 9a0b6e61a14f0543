"""How a sink travels to executors, and whether it can."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, cast

from pyspark import cloudpickle

from wal_sink.errors import ConfigError, PermanentError
from wal_sink.reporting.texts import name_of, told
from wal_sink.sinks.base import Sink
from wal_sink.sinks.guarantees import Ability, ability_of
from wal_sink.spark.session.job_properties import described

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WAYS_OUT = (
    "Ways out: Delivery(…, where='driver'), which calls it in the driver's process; connections and locks made "
    "in open() instead of __init__; for a module the workers lack: install it there, "
    "spark.sparkContext.addPyFile(…), or cloudpickle.register_pickle_by_value(module)"
)


@dataclass(frozen=True, slots=True)
class PickledSink:
    """A sink on its way to executors. Called, it is the sink again, a fresh copy each time."""

    payload: bytes = field(repr=False)

    def __call__(self) -> Sink:
        """Raises `PermanentError` for what another attempt cannot mend."""
        try:
            return unpickle(self.payload)
        except (ImportError, AttributeError, pickle.UnpicklingError) as error:
            raise PermanentError(f"it cannot be unpickled here ({told(error)})") from error


def pickled(sink: Sink, name: str) -> PickledSink:
    """The sink as bytes, by value where its code lies in `__main__`. Raises `ConfigError` if it cannot travel."""
    try:
        return PickledSink(cloudpickle.dumps(sink))  # type: ignore[no-untyped-call]
    except Exception as error:  # a user's __reduce__ may raise anything
        raise ConfigError(
            f"sink {name!r}: {name_of(sink)} cannot be pickled for the executors ({told(error)}). {_WAYS_OUT}"
        ) from error


def unpickle(payload: bytes) -> Sink:
    """The sink again, a fresh copy each time."""
    return cast("Sink", pickle.loads(payload))  # noqa: S301 - our own bytes, from the driver's memory


def check_on_executor(spark: SparkSession, travelling: PickledSink, sink: Sink, name: str) -> None:
    """Unpickle the sink in one task, before any batch depends on it, and see that it is there what it is here.

    Raises `ConfigError`. Runs one small Spark job.
    """
    ask = partial(problem_of, expected=ability_of(sink))
    with described(spark.sparkContext, f"wal-sink: can sink {name} be used on executors?"):
        problem = spark.sparkContext.parallelize([travelling.payload], 1).map(ask).collect()[0]
    if problem:
        raise ConfigError(f"sink {name!r}: {name_of(sink)} cannot be used on executors ({problem}). {_WAYS_OUT}")


def problem_of(payload: bytes, expected: Ability) -> str:
    """Why a pickled sink cannot be used in this process; empty if it can.

    One of another kind would not keep what the sink promises: rows that are sent without their position, for example.
    """
    try:
        sink: object = unpickle(payload)
        found = ability_of(sink).value if isinstance(sink, Sink) else type(sink).__name__
    except Exception as error:  # noqa: BLE001 - the answer is the error, whatever it is
        return told(error)
    if found == expected.value:
        return ""
    return (
        f"it is “{expected.value}” in the driver, and “{found}” once it is unpickled on an executor: its __reduce__ or "
        "__getstate__ makes something else of it, or another version of its module is installed there"
    )
