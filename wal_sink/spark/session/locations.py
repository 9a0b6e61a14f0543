"""Comparison of two addresses of a checkpoint: do they name the same folder? Driver only."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError

from wal_sink.errors import ConfigError
from wal_sink.redaction import mask_url
from wal_sink.spark.session.hadoop import path_and_file_system
from wal_sink.stores.spec import LOCAL, S3, StoreSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from wal_sink.spark.session.identity import QueryIdentity

_S3_SCHEMES = frozenset({S3, "s3a", "s3n"})
_LOCAL_SCHEMES = frozenset({LOCAL, "local"})
_MISSING = "java.io.FileNotFoundException"


class Place(Enum):
    """The result of comparing two addresses."""

    SAME = "same"
    OTHER = "other"
    UNDECIDED = "undecided"
    """Two file systems may show the same folder: a mount, a gateway such as WebHDFS, another name of a name node."""


def refuse_other_checkpoint(identity: QueryIdentity, given: str) -> None:
    """Refuse a query that runs on another checkpoint than the given one: its gate would open for other batches.

    A copy of a checkpoint has the same query id, so the id alone proves nothing. If the addresses leave it undecided,
    the id and the entry of the batch decide, at each batch (`stage_batch`, `Stager`): a copy lacks the entries that
    Spark writes from now on.
    """
    if compare(identity.session, given, identity.checkpoint) is Place.OTHER:
        raise ConfigError(
            f"batch {identity.batch_id}: query {identity.query_id} runs on {mask_url(identity.checkpoint)}, but "
            f"WalSink was given checkpoint {mask_url(given)}. Pass WalSink the checkpointLocation of the query that "
            "calls stage(), written the same way. Nothing was staged"
        )


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
