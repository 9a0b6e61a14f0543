"""Whose session a sink of whole batches gets, with a Spark that is played. tests/integration/test_sessions.py asks a
real one.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError

from tests.house.stores import StoreSpec
from wal_sink import wrap
from wal_sink.errors import ConfigError
from wal_sink.settings import Delivery
from wal_sink.spark.committers import Placement
from wal_sink.spark.private import cloned, of_unknown_size


class Jvm:
    """The JVM's half of a session."""

    def cloneSession(self) -> Jvm:  # noqa: N802 - Spark's name
        return Jvm()


class Session:
    version = "4.3.0"

    def __init__(self, context: Any, half: Any) -> None:
        self.sparkContext = context
        self._jsparkSession = half


def session(of_jvm: Any = None) -> Any:
    return Session(SimpleNamespace(), of_jvm or Jvm())


def half(of: Any) -> Any:
    return of._jsparkSession


def placement(*names: str, monkeypatch: pytest.MonkeyPatch) -> Placement:
    monkeypatch.setattr("wal_sink.spark.cluster.check_shared_store", lambda *_: None)
    log: Any = SimpleNamespace(run_id="run", runtime=None)
    made = Placement(log, StoreSpec("memory://nowhere"), session(), 1, lambda: False)
    for name in names:
        made.serve(name, wrap.foreach_batch(print), Delivery(print))
    return made


def test_each_sink_of_each_query_has_a_clone_and_only_its_session_may_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    made, mine = placement("a", "b", monkeypatch=monkeypatch), session()
    seen = [made._clones]
    made.use_session(None, mine)  # a drain
    seen.append(made._clones)
    other = session()
    for user in (other, session(half(other))):  # Python may have several objects for one session
        made.use_session(user, user)
        seen.append(made._clones)
    assert len({id(half(each)) for clones in seen[1:] for each in clones.values()}) == 6
    made.use_session(None, mine)  # the end of the run
    assert made._clones is seen[-1]
    with pytest.raises(ConfigError, match=r"belongs to another SparkSession .* \['a', 'b'\]"):
        made.use_session(mine, mine)
    assert made._clones is seen[-1]


def test_a_spark_that_clones_no_session_is_named() -> None:
    class Older:
        def cloneSession(self) -> Jvm:  # noqa: N802 - Spark's name
            raise Py4JError("Method cloneSession([]) does not exist")

    for other in (Older(), SimpleNamespace()):
        with pytest.raises(ConfigError, match=r"Spark 4\.3\.0 does not let wal-sink read a clone of a session"):
            cloned(session(other))


def test_a_spark_that_makes_no_dataframe_of_rows_is_named() -> None:
    df: Any = SimpleNamespace(sparkSession=session(SimpleNamespace()), _jdf=None)
    with pytest.raises(ConfigError, match=r"Spark 4\.3\.0 does not let wal-sink read the rows of a plan"):
        of_unknown_size(df)


def test_a_spark_that_notes_no_broadcasts_is_named() -> None:
    log: Any = SimpleNamespace(run_id="run", runtime=None)
    made = Placement(log, StoreSpec("memory://nowhere"), None, 1, lambda: False)
    made.spark = session()
    with pytest.raises(ConfigError, match="SimpleNamespace has no _pickled_broadcast_vars in PySpark"):
        made.serve("a", wrap.foreach_writer(print), Delivery(print))


def test_a_row_writer_without_a_session_says_whose_time_zone_its_rows_have(caplog: pytest.LogCaptureFixture) -> None:
    log: Any = SimpleNamespace(run_id="run", runtime=None)
    sink = wrap.foreach_writer(print)
    Placement(log, StoreSpec("memory://nowhere"), None, 1, lambda: False).serve("a", sink, Delivery(sink))
    assert (
        "sink a: wrap.foreach_writer(print) runs in this process, because there is no classic Spark session"
        in caplog.text
    )
