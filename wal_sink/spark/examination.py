"""Examining Java, Spark and the Python of its workers, for `wal-sink doctor`. On the driver; without a query."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec

from wal_sink.errors import ConfigError
from wal_sink.spark.environment import check_java
from wal_sink.stores.spec import S3, StoreSpec
from wal_sink.support.calls import CallTimedOutError
from wal_sink.support.clock import SYSTEM
from wal_sink.support.texts import Finding, fault, fine, risk, text_of

START_S = 180.0
"""Time limit of a session's start and its first job. A cluster without free cores never answers."""


def java_findings(environ: Mapping[str, str] | None = None) -> list[Finding]:
    """The Java that Spark would start. Without PySpark no query can run here, so Java does not matter."""
    if find_spec("pyspark") is None:
        return [fine("java", "not needed: this Python has no PySpark, so it can drain, and runs no query")]
    try:
        found = check_java(environ)
    except ConfigError as failure:
        return [fault("java", text_of(failure), "a query cannot start here before this is corrected; a drain can")]
    return [fine("java", f"Java {found.version_text}, by {found.named_by} ({found.executable})")]


def worker_findings(master: str, store: StoreSpec | None, *, timeout_s: float = START_S) -> list[Finding]:
    """Start Spark on `master`, and look at the Python and the packages of its workers. Stops that Spark again.

    A session that this process has is used, and is not stopped.
    """
    call = SYSTEM.new_timed_call()
    try:
        return call.call(_of_workers, master, store, timeout_s=timeout_s)
    except CallTimedOutError:
        step = "check the address of the master and its free cores (spark.cores.max, spark.executor.memory)"
        return [fault("workers", f"{master} ran no task within {timeout_s:g} s", step)]
    finally:
        call.close()


def _of_workers(master: str, store: StoreSpec | None) -> list[Finding]:
    from wal_sink.spark.environment import check_pyspark, prepare_python  # noqa: PLC0415 - draining needs no Spark

    try:
        check_pyspark()
        prepare_python(os.environ)
        return _with_spark(master, store)
    except ConfigError as failure:
        return [fault("workers", text_of(failure), "follow the message")]


def _with_spark(master: str, store: StoreSpec | None) -> list[Finding]:
    from py4j.protocol import Py4JError  # noqa: PLC0415
    from pyspark.errors import PySparkException  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    from wal_sink.spark.checkpoint_files import current_session  # noqa: PLC0415
    from wal_sink.spark.tasks import telling_line  # noqa: PLC0415

    own = current_session()
    builder = SparkSession.builder.master(master).appName("wal-sink doctor").config("spark.ui.enabled", "false")
    try:
        spark = own or builder.getOrCreate()
        try:
            return _of_session(spark, store)
        finally:
            if own is None:
                spark.stop()
    except (Py4JError, PySparkException, OSError, RuntimeError) as failure:
        step = "check the address of the master, Java and the network"
        return [fault("workers", f"no Spark could be started on {master}: {telling_line(text_of(failure))}", step)]


def _of_session(spark: object, store: StoreSpec | None) -> list[Finding]:
    from pyspark.sql import SparkSession  # noqa: PLC0415

    from wal_sink.spark.cluster import WORKER_MODULES, check_workers  # noqa: PLC0415
    from wal_sink.spark.environment import check_versions  # noqa: PLC0415

    if not isinstance(spark, SparkSession):
        return [risk("workers", "unknown: the session is of Spark Connect", "examine the server's own machine")]
    check_versions(spark)
    modules = (*WORKER_MODULES, "s3fs") if store is not None and store.scheme == S3 else WORKER_MODULES
    worker = check_workers(spark, modules)
    return [
        fine("spark", f"Spark {spark.version} on {spark.sparkContext.master}"),
        fine("workers", f"the workers run Python {worker.version} ({worker.executable}), with {', '.join(modules)}"),
    ]
