"""The location of a WAL, in one spelling: a copy of a WAL is told from the WAL itself by it.

A copy holds the same records. A process that opens it would deliver again what the WAL itself delivers. The WAL's own
record says where it was made. An accepted move is a new object, `moves/<number>.json`; the highest counts. Credentials
and endpoints are no part of a location, since one bucket is reached through several.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from wal_sink.errors import ConfigError, CorruptError, StoreError, WalSinkError
from wal_sink.log import paths
from wal_sink.log.holders import TakeOver, note_end, refuse_served
from wal_sink.log.log import Log
from wal_sink.log.records import Move, WalRecord
from wal_sink.log.terms import claim
from wal_sink.protocol.inventory import MADE_AFTER_WAL, find_wal, first_held
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import LOCAL, MEMORY, S3, StoreSpec
from wal_sink.support.logs import logger_of
from wal_sink.support.secrets import mask_url, redacted
from wal_sink.support.texts import counted

_GOOGLE, _AZURE, _HDFS = "gs", "az", "hdfs"
_ONE_NAME = {
    **dict.fromkeys(("s3", "s3a", "s3n"), S3),
    **dict.fromkeys(("gs", "gcs"), _GOOGLE),
    **dict.fromkeys(("az", "abfs", "abfss", "wasb", "wasbs"), _AZURE),
    **dict.fromkeys(("hdfs", "webhdfs", "arrow_hdfs", "viewfs"), _HDFS),
}
"""Schemes that reach the same objects."""
_EXACT = frozenset({S3, _GOOGLE, _AZURE, MEMORY})
"""Schemes whose locations are the same for every process. With others, mounts and hosts differ: there it is a hint."""

_NOT_COPIED = (paths.WAL, f"{paths.TERMS}/", f"{paths.MOVES}/", f"{paths.PROBE}/")
"""Objects that a copy may lack: they end the WAL at its earlier place, or hold nothing."""

_logger = logger_of(__name__)


class Earlier(StrEnum):
    """State of a WAL at the place from which it was moved."""

    LIVES = "lives"
    """It lies there, and nothing there says that it was moved: a process that opens it there would deliver."""
    LEFT = "left"
    """Its `wal.json` was removed, so no process opens it. Its other objects lie there."""
    OVER = "over"
    """It says there that it was moved to its present place."""
    ELSEWHERE = "elsewhere"
    """It says there that it was moved to a third place."""
    GONE = "gone"
    """Nothing of it was found there. By itself, this does not prove that it lies nowhere else under this address."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class EarlierPlace:
    """A look at the place from which a WAL was moved."""

    state: Earlier
    why: str = ""
    """Why nothing was found there, or why nobody can look."""
    moved_to: str = ""
    """The third place."""
    there: Log | None = None
    """The log at that place, if it could be opened."""


@dataclass(frozen=True, slots=True)
class GonePlace:
    """A place from which a WAL was moved, and of which a person says that it is gone for good."""

    url: str


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
    """Whether a URL is a path, or names a store that only reads and writes bytes.

    No other address that a record holds may be opened. With fsspec's other schemes, the writer of the record would
    choose code that fetches other addresses, unpacks archives or fills in templates.
    """
    return "::" not in url and _scheme(url) in {LOCAL, "local", MEMORY, *_ONE_NAME}


def address_at(said: str, own: StoreSpec | None) -> StoreSpec | None:
    """The address that reaches the place `said` from a WAL opened as `own`; None if its options do not fit that place.

    A recorded place is in one spelling, without host and account. Those of the WAL stand in for them, and its scheme,
    since another one may need another client. So a WAL that is found there is certain. If none is found, it may still
    lie at another host. Raises `ConfigError`.
    """
    kind, rest = _kind(said), said.partition("://")[2]
    if kind == LOCAL:
        return StoreSpec(said)  # it needs no options
    if own is None or _kind(own.url) != kind or ("::" in own.url) != ("::" in said):
        return None
    if "::" in said:
        return StoreSpec(said, own.options)
    (first, _, path), own_first = rest.partition("/"), own.location.partition("/")[0]
    if kind == _AZURE and "@" not in first:
        first += "".join(own_first.partition("@")[1:])
    if kind == _HDFS and first and _scheme(said) != own.scheme:
        return StoreSpec(said)  # the options are those of another client
    if kind == _HDFS and not first:
        first = own_first
    return StoreSpec(f"{own.scheme}://{first}/{path}", own.options)


def _kind(url: str) -> str:
    """One name for all schemes that reach the same objects; of a chained URL that of the first."""
    written = _scheme(url)
    return LOCAL if written == "local" else _ONE_NAME.get(written, written)


def _scheme(url: str) -> str:
    """The scheme of a URL as it is written, in small letters; `LOCAL` for a path."""
    scheme, found, _ = url.partition(":")
    return scheme.lower() if found and "/" not in scheme else LOCAL


def current_location(log: Log, wal: WalRecord, *, moved: bool) -> str:
    """The location that the WAL records.

    `moved`: whether `moves/` holds anything; then a listing and a read. Raises `CorruptError`.
    """
    numbers = log.numbers(paths.MOVES) if moved else []
    return log.require(Move, paths.move(numbers[-1])).location if numbers else wal.location


def check_location(
    log: Log,
    wal: WalRecord,
    *,
    moved: bool,
    moved_from: str | GonePlace | None = None,
    take_over: TakeOver = TakeOver.ALWAYS,
) -> None:
    """Refuse a WAL that lies elsewhere than it records. If `moved_from` names the recorded place, end the WAL there and
    record the move.

    Raises `ConfigError`, also if the WAL still lives at the place from which it is said to be moved, or if nobody can
    see that it does not; and `HeldError` if a process serves it there that `take_over` does not permit to fence. For a
    local path, or one on a cluster, a difference without `moved_from` is only a warning, since mounts differ; but it is
    an error if the recorded folder exists too and holds the same WAL.
    """
    here, said = canonical(log.store.root), current_location(log, wal, moved=moved)
    if said == here:
        return
    if moved_from is None:
        _refuse_or_warn(log, wal, here, said)
        return
    is_gone = isinstance(moved_from, GonePlace)
    name, address = (
        ("moved_from_gone", moved_from.url) if isinstance(moved_from, GonePlace) else ("moved_from", moved_from)
    )
    if canonical(address) != said:
        raise ConfigError(
            f"{name} is {canonical(address)}, but the recorded location of the WAL {wal.wal_id} in {here} is "
            f"{said}. Pass the recorded location as {name}, or open the WAL that you mean"
        )
    _leave(log, wal, said, address, take_over, is_gone=is_gone)
    _note_move(log, here, said)


def refuse_copy(log: Log) -> WalRecord | None:
    """Refuse a copy of a WAL, before a command writes to it beside its query. See `check_location`.

    Returns the WAL's own record; None before its first batch, when it has no id, no location and no copy. Raises
    `ConfigError`, and `CorruptError` if the record is gone. One read of the record, one listing of the moves, and a
    read if there are any.
    """
    wal = find_wal(log)
    if wal is not None:
        check_location(log, wal, moved=True)
    return wal


def look_at_earlier(log: Log, wal: WalRecord, said: str, *, address: str | None = None) -> EarlierPlace:
    """Look whether the WAL still lives at the place `said`, from which it was moved to that of `log`.

    `address`: `said` as a person wrote it, perhaps with a host. It is opened with the options of the WAL, so only on
    the same kind of store or in a local folder. A read, and two listings and a read if anything of the WAL is there.
    """
    address = address or canonical(said)  # no host that a record names gets credentials
    try:
        spec = address_at(address, log.store.spec)
        if spec is None:
            return EarlierPlace(Earlier.UNKNOWN, "it is on another kind of store, for which no options are given")
        return _look_there(log, wal, said, Log(open_store(spec), log.runtime, log.run_id))
    except WalSinkError as error:
        return EarlierPlace(Earlier.UNKNOWN, redacted(error))


def _look_there(log: Log, wal: WalRecord, said: str, there: Log) -> EarlierPlace:
    here, found = canonical(log.store.root), there.find(WalRecord, paths.WAL)
    if found is not None and found.wal_id != wal.wal_id:
        return EarlierPlace(Earlier.GONE, "another WAL lies there now")
    if found is not None and _is_one_folder(here, said):
        return EarlierPlace(Earlier.OVER)
    if found is None and first_held(there, names := there.store.list(""), MADE_AFTER_WAL) is None:
        return EarlierPlace(Earlier.GONE, "nothing of this WAL lies there" if names else "nothing lies there")
    now = current_location(there, wal, moved=True)
    if now == said:
        return EarlierPlace(Earlier.LEFT if found is None else Earlier.LIVES, there=there)
    if now == here or _is_one_folder(here, now):
        return EarlierPlace(Earlier.OVER)
    return EarlierPlace(Earlier.ELSEWHERE, moved_to=now)


def _leave(log: Log, wal: WalRecord, said: str, address: str, take_over: TakeOver, *, is_gone: bool) -> None:
    """Make sure that no process opens the WAL at its earlier place any more, or raise `ConfigError`."""
    here, earlier = canonical(log.store.root), look_at_earlier(log, wal, said, address=address)
    if earlier.state is Earlier.LEFT and earlier.there is not None:
        try:
            earlier = _end_there(earlier.there, log, said, take_over)
        except (CorruptError, StoreError) as error:
            earlier = EarlierPlace(Earlier.UNKNOWN, redacted(error))
    if earlier.state is Earlier.ELSEWHERE:
        raise _third_place(here, said, earlier.moved_to)
    if earlier.there is not None:  # it lives
        raise ConfigError(
            f"{here}: the WAL {wal.wal_id} was moved from {said}, but its wal.json still lies at {said}. Both "
            f"places would deliver the same batches. {_compared(earlier.there, log, said)}. End every process that "
            f"uses {said}, copy what is missing, remove {said}/wal.json, then start again"
        )
    if earlier.state in {Earlier.GONE, Earlier.UNKNOWN} and not is_gone:
        raise ConfigError(
            f"{here}: it cannot be checked whether the WAL {wal.wal_id} is still used at {said}: {earlier.why}. If "
            "it can be opened there, both places deliver the same batches. Start on a machine that can reach that "
            "place. If that place or its wal.json no longer exists, and no process uses it, replace moved_from: "
            f"WalSink(…, moved_from_gone={said!r}), wal-sink drain … --moved-from-gone {said}"
        )


def _end_there(there: Log, log: Log, said: str, take_over: TakeOver) -> EarlierPlace:
    """End every process at the earlier place, and record there that the WAL lies here.

    The record is created once. So of two copies of one WAL, only one goes on. Raises `HeldError`, and `ConfigError` if
    the copy lacks anything. Four requests for each role, two listings of all names, a listing and a create.
    """
    here = canonical(log.store.root)
    roles = refuse_served(there, take_over)
    _refuse_incomplete(there, log, said)  # before anything is fenced
    for role in roles:
        note_end(there, role, claim(there, role, was_held=True, take_over=take_over).number)
    _refuse_incomplete(there, log, said)  # a process may have delivered meanwhile
    number = max(there.numbers(paths.MOVES), default=0) + 1
    move = Move(number=number, location=here, moved_from=said, **there.stamp())
    found, _ = there.create_or_find(paths.move(number), move)
    return EarlierPlace(Earlier.OVER if found.location == here else Earlier.ELSEWHERE, moved_to=found.location)


def _refuse_incomplete(there: Log, log: Log, said: str) -> None:
    lacks = _only_there(there, log)
    if lacks:
        here = canonical(log.store.root)
        raise ConfigError(
            f"{here} lacks {counted(len(lacks), 'object')} of {said}, the place before the move; the first is "
            f"{lacks[0]}. With this copy, a sink would get batches twice or never. Either not everything was copied, "
            f"or a process wrote to {said} after the copy. End every process that uses {said}, copy the WAL again, "
            f"then start again. If you do not need these objects, delete all of {said}, and pass moved_from_gone"
        )


def _compared(there: Log, log: Log, said: str) -> str:
    """Objects that only the original has, for a message."""
    try:
        lacks = _only_there(there, log)
    except WalSinkError as error:
        return f"It is not known whether this copy is complete: {redacted(error)}"
    if not lacks:
        return f"This copy has every object of {said}"
    return f"Only there: {counted(len(lacks), 'object')}, first {lacks[0]}. So this copy is too old or incomplete"


def _only_there(there: Log, log: Log) -> list[str]:
    """Objects of the original that the copy lacks. Two listings of all names."""
    only = set(there.store.list("", recursive=True)).difference(log.store.list("", recursive=True))
    return sorted(name for name in only if not name.startswith(_NOT_COPIED))


def _third_place(here: str, said: str, moved_to: str) -> ConfigError:
    return ConfigError(
        f"{here} holds a copy of a WAL. Its earlier location {said} says that the WAL was moved to {moved_to}. Two "
        f"copies of one WAL would deliver the same batches twice. Open the WAL at {moved_to}. If it is permanently "
        f"lost there, and no process opens it, delete all of {said}, and pass moved_from_gone"
    )


def _refuse_or_warn(log: Log, wal: WalRecord, here: str, said: str) -> None:
    doubt = _doubt(log, wal, here, said)
    if doubt:
        raise ConfigError(
            f"{here} holds the WAL {wal.wal_id}, but the recorded location of this WAL is {said}: {doubt}. Two "
            "copies of one WAL would deliver the same batches twice. Open the WAL at the recorded location. If the "
            "WAL was moved here permanently, and no process opens the other location again, give the earlier "
            f"location for one start: WalSink(…, moved_from={said!r}), wal-sink drain … --moved-from {said}. "
            "wal-sink refuses this while the WAL can still be opened there"
        )
    _logger.warning(
        "%s holds a WAL whose recorded location is %s. There are three possible causes. If this is the same folder "
        "under another path, delivery is correct; use the recorded path to avoid this warning. If the WAL is a copy, "
        "stop this process: two copies deliver all rows twice. If the WAL was moved, pass moved_from=%r for one "
        "start",
        here, said, said,
    )  # fmt: skip


def _doubt(log: Log, wal: WalRecord, here: str, said: str) -> str:
    """The reason why this cannot be the WAL itself; empty if it may be. A folder that is not there, or cannot be read,
    may be a path of another machine.
    """
    scheme, of_said = here.partition(":")[0], said.partition(":")[0]
    if scheme != of_said or scheme in _EXACT:
        return "this is another place"
    earlier = look_at_earlier(log, wal, said) if scheme == LOCAL else None
    if earlier is not None and earlier.state in {Earlier.LIVES, Earlier.LEFT, Earlier.ELSEWHERE}:
        return "that folder exists too, and holds the same WAL"
    if earlier is not None and earlier.state is Earlier.UNKNOWN:
        _logger.warning("it is not known whether the folder %s holds the same WAL: %s", said, earlier.why)
    return ""


def _folder(location: str) -> Path:
    return Path(location.removeprefix(f"{LOCAL}://"))


def _is_one_folder(here: str, said: str) -> bool:
    """Whether two local addresses are one folder, mounted twice."""
    if not all(each.startswith(f"{LOCAL}://") for each in (here, said)):
        return False
    try:
        return _folder(here).samefile(_folder(said))
    except OSError:
        return False  # one of the two does not exist any more


def _note_move(log: Log, here: str, said: str) -> None:
    """Record a move. Raises `ConfigError` if another process has just recorded a move elsewhere."""
    number = max(log.numbers(paths.MOVES), default=0) + 1
    move = Move(number=number, location=here, moved_from=said, **log.stamp())
    found, is_own = log.create_or_find(paths.move(number), move)
    if is_own:
        _logger.warning(
            "the WAL of %s lies at %s from now on. Never open it at the old location again. Otherwise all batches are "
            "delivered from both locations",
            said, here,
        )  # fmt: skip
        return
    if found.location != here:
        raise ConfigError(
            f"{here}: another process has just moved this WAL from {said} to {found.location}. Open the WAL there"
        )


def refuse_shared_folder(wal: str, checkpoint: str) -> None:
    """Refuse a WAL inside the checkpoint, or the reverse, with `ConfigError`. Follows links, writes nothing.

    If one of them were deleted, restored or copied, so would the other be.
    """
    here, there = canonical(wal), canonical(checkpoint)
    if here == there:
        what = "lie in the same folder"
    elif _is_within(there, here):
        what = "share a folder: the checkpoint lies inside the WAL"
    elif _is_within(here, there):
        what = "share a folder: the WAL lies inside the checkpoint"
    else:
        return
    raise ConfigError(
        f"WAL {mask_url(wal)} and checkpoint {mask_url(checkpoint)} {what}. Deleting or restoring one of them would "
        "change the other. Give the WAL a folder beside the checkpoint. If this WAL is in use: stop the query, move "
        "wal.json, terms, batches, sinks, low-water and moves (those that exist) into the new folder, leave the "
        f"checkpoint where it is, and start one time with WalSink(…, wal=NEW, moved_from={mask_url(wal)!r}). Nothing "
        "was started"
    )


def refuse_target_folder(sink: str, folder: str, wal: str, checkpoint: str) -> None:
    """Refuse a sink whose folder is that of the WAL or the checkpoint, or lies in it or around it. `ConfigError`."""
    target = canonical(folder)
    for name, url in (("WAL", wal), ("checkpoint", checkpoint)):
        place = canonical(url)
        if target == place or _is_within(target, place) or _is_within(place, target):
            raise ConfigError(
                f"sink {sink!r} writes its files into {mask_url(folder)}, and the {name} is {mask_url(url)}. Readers "
                f"of the one would take the files of the other for theirs. Choose a folder beside the {name}. Nothing "
                "was started"
            )


def _is_within(inner: str, outer: str) -> bool:
    return inner.startswith(f"{outer.rstrip('/')}/")
