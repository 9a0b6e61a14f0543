"""Read access to a checkpoint through Hadoop's file system in the driver's JVM, for stores that fsspec cannot reach."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError, Py4JJavaError

from wal_sink.errors import StoreError
from wal_sink.redaction import mask_url
from wal_sink.spark.session.private import private
from wal_sink.stores.base import ObjectMissing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MISSING = "java.io.FileNotFoundException"


class HadoopFiles:
    """A folder on any file system that Spark can read. Driver only, read only."""

    def __init__(self, spark: SparkSession, url: str) -> None:
        self._spark = spark
        self._url = url.rstrip("/")

    @property
    def root(self) -> str:
        return mask_url(self._url)

    def read(self, path: str) -> bytes:
        """The whole file; `ObjectMissing` if there is none, `StoreError` for anything else."""
        jvm = self._jvm()
        try:
            stream = self._file_system().open(self._path(path))
            try:
                return bytes(jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
            finally:
                stream.close()
        except Py4JError as error:
            raise self._translated(path, error) from error

    def list(self, prefix: str, *, after: str = "", recursive: bool = False) -> list[str]:
        """Names in a folder, like those of `Store.list`, folders with a trailing `/`. Never recursive."""
        if recursive:
            raise StoreError(f"{self.root}: a checkpoint is never listed recursively")
        try:
            found = self._file_system().listStatus(self._path(prefix))
        except Py4JError as error:
            translated = self._translated(prefix, error)
            if isinstance(translated, ObjectMissing):
                return []
            raise translated from error
        names = (status.getPath().getName() + ("/" if status.isDirectory() else "") for status in found)
        return sorted(name for name in names if not name.startswith(".") and name > after)

    def _jvm(self) -> Any:
        return private(self._spark.sparkContext, "_jvm")

    def _path(self, path: str) -> Any:
        return self._jvm().org.apache.hadoop.fs.Path(f"{self._url}/{path}".rstrip("/"))

    def _file_system(self) -> Any:
        return self._path("").getFileSystem(_hadoop_conf(self._spark))

    def _translated(self, path: str, error: Py4JError) -> StoreError:
        where = f"{self.root}/{path}"
        if isinstance(error, Py4JJavaError) and error.java_exception.getClass().getName() == _MISSING:
            return ObjectMissing(f"{where} does not exist")
        said = str(error.java_exception) if isinstance(error, Py4JJavaError) else str(error)
        return StoreError(
            f"{where} cannot be read through Spark's file system: {said.partition(chr(10))[0]}. Check that the "
            "query itself can use this checkpoint"
        )


def path_and_file_system(spark: SparkSession, url: str) -> tuple[Any, Any]:
    """Hadoop's `Path` of an address, and the JVM's file system that holds it."""
    path = private(spark.sparkContext, "_jvm").org.apache.hadoop.fs.Path(url)
    return path, path.getFileSystem(_hadoop_conf(spark))


def default_file_system(spark: SparkSession) -> str:
    """The file system of a checkpoint without a scheme, e.g. `file:///` or `hdfs://name-node:8020`.

    Hadoop's own default is `file:///` (`FileSystem.DEFAULT_FS`, source); this function uses the same one.
    """
    return str(_hadoop_conf(spark).get("fs.defaultFS") or "file:///")


def _hadoop_conf(spark: SparkSession) -> Any:
    """The Hadoop configuration of the session, including its `spark.hadoop.*` settings."""
    return private(spark, "_jsparkSession").sessionState().newHadoopConf()
