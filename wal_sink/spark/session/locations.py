"""Where a checkpoint lies: read through Hadoop's file system in the driver's JVM, and compared with another address.

Driver only. fsspec does not reach every store that Spark can use.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError, Py4JJavaError

from wal_sink.errors import StoreError
from wal_sink.redaction import mask_url
from wal_sink.spark.session.private import private
from wal_sink.stores.base import ObjectMissing
from wal_sink.stores.spec import LOCAL, S3, StoreSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_MISSING = "java.io.FileNotFoundException"
_S3_SCHEMES = frozenset({S3, "s3a", "s3n"})
_LOCAL_SCHEMES = frozenset({LOCAL, "local"})


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


class Place(Enum):
    """The result of comparing two addresses."""

    SAME = "same"
    OTHER = "other"
    UNDECIDED = "undecided"
    """Two file systems may show the same folder: a mount, a gateway such as WebHDFS, another name of a name node."""


def compare(spark: SparkSession, one: str, other: str) -> Place:
    """Compare two full addresses. May read local folders, and may ask Spark's file systems about others."""
    if "::" in one or "::" in other:
        return Place.SAME if one == other else Place.UNDECIDED
    schemes = {_scheme(one), _scheme(other)}
    if schemes <= _LOCAL_SCHEMES:
        return _same(_is_same_folder(_local(one), _local(other)))
    if schemes <= _S3_SCHEMES:
        return _same(_bucket_and_key(one) == _bucket_and_key(other))
    if schemes & (_LOCAL_SCHEMES | _S3_SCHEMES):
        return Place.UNDECIDED
    return _compare_in_hadoop(spark, one, other)


def _compare_in_hadoop(spark: SparkSession, one: str, other: str) -> Place:
    if _file_system(one) != _file_system(other):
        return Place.UNDECIDED
    if one.rstrip("/") == other.rstrip("/"):
        return Place.SAME
    try:
        return _same(_resolved(spark, one) == _resolved(spark, other))
    except Py4JJavaError:  # for example, access to a folder is denied
        return Place.UNDECIDED


def _resolved(spark: SparkSession, url: str) -> str:
    """The address with links and mount points followed; the plain address of a folder that does not exist."""
    path, file_system = path_and_file_system(spark, url)
    try:
        return str(file_system.resolvePath(path).toString())
    except Py4JJavaError as error:
        if error.java_exception.getClass().getName() == _MISSING:
            return str(file_system.makeQualified(path).toString())
        raise


def _same(found: bool) -> Place:  # noqa: FBT001 - it turns one answer into another
    return Place.SAME if found else Place.OTHER


def _is_same_folder(one: str, other: str) -> bool:
    """Whether two local paths lead to one folder, links and bind mounts followed.

    If one of them does not exist, the resolved paths are compared: a missing folder cannot be the same as an existing
    one.
    """
    try:
        return Path(one).samefile(other)
    except OSError:
        return Path(one).resolve() == Path(other).resolve()


def _local(url: str) -> str:
    return StoreSpec(url).location


def _bucket_and_key(url: str) -> str:
    """Bucket and key, without the user that older versions of Hadoop accept in the address."""
    bucket, slash, key = url.partition("://")[2].partition("/")
    return f"{bucket.rpartition('@')[2]}{slash}{key}".rstrip("/")


def _file_system(url: str) -> tuple[str, str]:
    """Scheme and authority, as the user wrote them."""
    rest = url.partition(":")[2]
    return _scheme(url), rest[2:].partition("/")[0] if rest.startswith("//") else ""


def _scheme(url: str) -> str:
    """The scheme of a full address; one without a scheme is a local path (see `checkpoint_location`)."""
    return url.partition(":")[0].lower() if ":" in url.partition("/")[0] else LOCAL
