"""Choice of how a checkpoint is read: fsspec if it reaches the store, else Hadoop's file system in the driver's JVM."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from wal_sink.protocol.checkpoint_formats import CheckpointFiles
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import LOCAL, MEMORY, S3, StoreSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def checkpoint_files(
    url: str, options: Mapping[str, object] | None, wal: StoreSpec, spark: SparkSession | None
) -> CheckpointFiles:
    """Open the checkpoint at a full address (see `checkpoint_location`) for reading. Sends no request.

    Without `options`, a checkpoint on the same kind of store as the WAL is read with the WAL's options. With `options`,
    fsspec is used for every scheme.
    """
    if spark is not None and options is None and not _fsspec_reaches(url):
        from wal_sink.spark.identity import HadoopFiles  # noqa: PLC0415 - the core runs without Spark

        return HadoopFiles(spark, url)
    plain = StoreSpec(url, options or {})
    if options is None and plain.scheme == wal.scheme:
        plain = StoreSpec(url, wal.options)
    return open_store(plain)


def current_session() -> SparkSession | None:
    """The Spark session that is active here, else the first of this process; None if it has none. Imports no pyspark.

    A Spark Connect session does not count: nothing here can run on it. Raises `ConfigError` if this version of PySpark
    does not tell, because without the session the checkpoint would be looked for in another place.
    """
    if "pyspark.sql" not in sys.modules:
        return None
    from pyspark.sql import SparkSession  # noqa: PLC0415 - only if the user imported it

    from wal_sink.spark.private import is_running, private  # noqa: PLC0415 - the core runs without Spark

    session: SparkSession | None = private(SparkSession, "_instantiatedSession")
    if session is None or not is_running(session.sparkContext):
        return None
    return SparkSession.getActiveSession() or session


def checkpoint_location(checkpoint: str, spark: SparkSession | None) -> str:
    """The full address of a checkpoint. It is needed because Spark's JVM may have another working directory.

    An address without a scheme is on Spark's default file system; without Spark it is a local folder.
    """
    if ":" in checkpoint.partition("/")[0]:
        return checkpoint
    if spark is not None:
        from wal_sink.spark.identity import default_file_system  # noqa: PLC0415 - the core runs without Spark

        default = default_file_system(spark)
        if not default.startswith("file:"):
            return f"{default.rstrip('/')}/{checkpoint.lstrip('/')}"
    return str(Path(checkpoint).absolute())


def _fsspec_reaches(url: str) -> bool:
    scheme = url.partition(":")[0].lower() if ":" in url.partition("/")[0] else LOCAL
    if scheme in {"s3", "s3a", "s3n"}:
        return importlib.util.find_spec("s3fs") is not None
    return scheme in {LOCAL, "local", MEMORY, S3}
