"""Where a WAL lies, in one spelling, so that a copy of it is not taken for the WAL itself.

A copy holds the same records, so whoever opens it goes on from there, and delivers what the WAL itself delivers too.
The WAL's own record says where it was made. An accepted move is a new object, `moves/<number>.json`, of which the
highest counts. Credentials and endpoints are no part of a location: the same bucket is reached through several.
"""

from __future__ import annotations

import os
from pathlib import Path

from wal_sink.errors import ConfigError, WalSinkError
from wal_sink.recovery.inventory import find_wal
from wal_sink.redaction import mask_url
from wal_sink.reporting.logs import logger_of
from wal_sink.stores.base import ObjectMissing
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import LOCAL, MEMORY, S3, StoreSpec
from wal_sink.wal import paths
from wal_sink.wal.log import Log
from wal_sink.wal.records import Move, WalRecord, decode

_GOOGLE, _AZURE, _HDFS = "gs", "az", "hdfs"
_ONE_NAME = {
    **dict.fromkeys(("s3", "s3a", "s3n"), S3),
    **dict.fromkeys(("gs", "gcs"), _GOOGLE),
    **dict.fromkeys(("az", "abfs", "abfss", "wasb", "wasbs"), _AZURE),
    **dict.fromkeys(("hdfs", "webhdfs", "arrow_hdfs", "viewfs"), _HDFS),
}
"""Schemes that reach the same objects."""
_EXACT = frozenset({S3, _GOOGLE, _AZURE, MEMORY})
"""Where a location is the same for every process. Elsewhere mounts and hosts differ, and it is only a hint."""

_logger = logger_of(__name__)


def canonical(url: str) -> str:
    """The location of a WAL: scheme, bucket or container, and key; of local files the path without links."""
    written, found, rest = url.partition("://")
    if "::" in url:
        return mask_url(url.rstrip("/"))
    if not found or written.lower() in {LOCAL, "local"}:
        return f"{LOCAL}://{os.path.realpath(StoreSpec(url).location)}"
    scheme, rest = _ONE_NAME.get(written.lower(), written.lower()), mask_url(url).partition("://")[2].rstrip("/")
    if scheme == _AZURE:  # abfs://container@account.host/key: the account is an endpoint, which options may name too
        container, _, key = rest.partition("/")
        return f"{_AZURE}://{container.partition('@')[0]}/{key}".rstrip("/")
    if scheme == _HDFS:  # a cluster has several name nodes and gateways
        return f"{_HDFS}:///{rest.partition('/')[2]}"
    return f"{scheme}://{rest.lstrip('/')}"


def is_plain(url: str) -> bool:
    """Whether a URL names a place of a common kind: a path, or a store that reads and writes nothing but bytes.

    Of an address that a record holds, nothing else may be opened: with fsspec's other schemes, the writer of the record
    would choose code that fetches other addresses, unpacks or fills in templates.
    """
    scheme, found, _ = url.partition(":")
    written = scheme.lower() if found and "/" not in scheme else LOCAL
    return "::" not in url and written in {LOCAL, "local", MEMORY, *_ONE_NAME}


def current_location(log: Log, wal: WalRecord, *, moved: bool) -> str:
    """Where the WAL says that it lies; empty if it was made before it said so.

    `moved`: whether `moves/` holds anything; then a listing and a read tell. Raises `ObjectLost`.
    """
    numbers = log.numbers(paths.MOVES) if moved else []
    return log.require(Move, paths.move(numbers[-1])).location if numbers else wal.location


def check_location(log: Log, wal: WalRecord, *, moved: bool, moved_from: str | None = None) -> None:
    """Refuse a WAL that lies elsewhere than it says, unless `moved_from` names that place: then the move is written.

    Raises `ConfigError`. A local path, or one on a cluster, that differs is a warning, since mounts differ; unless the
    old one is there too and holds the same WAL.
    """
    here, said = canonical(log.store.root), current_location(log, wal, moved=moved)
    if said in {"", here}:
        return
    if moved_from is None:
        _refuse_or_warn(wal, here, said)
    elif canonical(moved_from) == said:
        _note_move(log, here, said)
    else:
        raise ConfigError(
            f"{here} is to be moved from {canonical(moved_from)}, but the WAL {wal.wal_id} that it holds says that it "
            f"lies at {said}: give that as moved_from, or open the WAL that you mean"
        )


def refuse_copy(log: Log) -> WalRecord | None:
    """The gate of every command that writes to a WAL beside its query: `check_location` of what lies there now.

    Returns the WAL's own record; None before its first batch: it has no id and no location yet, and no copy. Raises
    `ConfigError`, and `ObjectLost` if the record is gone. One read of the record, one listing of the moves, and a read
    if there are any.
    """
    wal = find_wal(log)
    if wal is not None:
        check_location(log, wal, moved=True)
    return wal


def _refuse_or_warn(wal: WalRecord, here: str, said: str) -> None:
    doubt = _doubt(wal, here, said)
    if doubt:
        raise ConfigError(
            f"{here} holds the WAL {wal.wal_id}, which says that it lies at {said}: {doubt}. Two copies of one WAL "
            "would deliver the same batches twice. Open it there; or, if it was moved here for good and nobody will "
            f"open the other again, say so once: WalSink(…, moved_from={said!r}), wal-sink drain … --moved-from {said}"
        )
    _logger.warning(
        "%s holds a WAL that says it lies at %s: the same folder under another path, or moved. If it is a copy, stop: "
        "two copies deliver everything twice. If it was moved, moved_from=%r says so once",
        here, said, said,
    )  # fmt: skip


def _doubt(wal: WalRecord, here: str, said: str) -> str:
    """Why this cannot be the WAL itself; empty if it may be."""
    scheme, of_said = here.partition(":")[0], said.partition(":")[0]
    if scheme != of_said or scheme in _EXACT:
        return "this is another place"
    if scheme == LOCAL and _is_copy(wal, Path(here.partition("://")[2]), Path(said.partition("://")[2])):
        return "that folder is there too, and holds the same WAL"
    return ""


def _is_copy(wal: WalRecord, here: Path, said: Path) -> bool:
    """Whether another folder holds the same WAL. What cannot be read there belongs to another machine's path."""
    try:
        if here.samefile(said):
            return False  # one folder, mounted twice
        store = open_store(StoreSpec(str(said)))
        return decode(WalRecord, store.read(paths.WAL), store.url_of(paths.WAL)).wal_id == wal.wal_id
    except (OSError, ObjectMissing):
        return False  # nothing is there
    except WalSinkError as error:
        _logger.warning("%s cannot be read, so it is not known whether it is the same WAL: %s", said, error)
        return False


def _note_move(log: Log, here: str, said: str) -> None:
    """Create the next move. Of two who do so at once, the other may have moved it elsewhere."""
    number = max(log.numbers(paths.MOVES), default=0) + 1
    move = Move(number=number, location=here, moved_from=said, **log.stamp())
    found, is_own = log.create_or_find(paths.move(number), move)
    if is_own:
        _logger.warning(
            "the WAL of %s lies at %s from now on. No run at the old place notices that: end those that still live, "
            "and open it there no more, or its batches are delivered from both places",
            said, here,
        )  # fmt: skip
        return
    if found.location != here:
        raise ConfigError(
            f"{here}: another process has just moved this WAL from {said} to {found.location}; open it there"
        )
