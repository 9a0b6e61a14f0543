"""The structure of a WAL for a bug report: which objects there are, and their fields without anything that may be
secret.

Only fields of the list below are shown with their values. Any other field, known or not, is shown as its kind and
length: rows, offsets, columns, addresses, handles, tokens and texts of errors never leave the WAL this way. Names that
no version of wal-sink gives to an object are not shown either.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from wal_sink.checking.kinds import KINDS
from wal_sink.errors import StoreError
from wal_sink.stores.base import Store
from wal_sink.wal import paths

NEWEST = 4
"""So many of the numbered objects of a folder are described, the newest ones."""
_MOST_NAMED = 64
"""So many folders of sinks or roles are described."""
_SHOWN = frozenset(
    {
        *("id", "created", "wal_id", "query_id", "run_id", "segment_id", "transaction_id", "fingerprint"),
        *("number", "first_batch", "batch_id", "term", "attempt", "ordinal", "partition"),
        *("chunk_rows", "passed_over", "at_most_once", "through", "rows", "bytes", "crc32", "kept"),
        *("rejected", "unknown", "role", "sink_kind", "pid", "started"),
    }
)
"""Fields whose values are numbers, ids or words of wal-sink itself."""
_WORD = re.compile(r"[A-Za-z0-9_.:+-]{1,64}")
"""A value that may be shown as it is."""
_NUMBERED = re.compile(r"(?:manifest-|prepared-)?[0-9a-f][0-9a-f-]*(?:\.[a-z]+)*/?|\d{8}T\d{6}Z-[0-9a-f]{32}\.json")
_FIXED = frozenset(
    part for kind in KINDS for part in re.findall(r"[^/]+/?", kind.pattern) if not re.search("[<>]", part)
)
"""Parts of the paths of objects that are the same in every WAL."""
_NAMED_FOLDERS = frozenset({f"{paths.SINKS}/", f"{paths.TERMS}/"})
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,90}/")


def structure(store: Store) -> Iterator[Mapping[str, Any]]:
    """One entry for each folder and each record that is described. Reads few objects, however many there are.

    A folder or record that cannot be read has an `error` with the class alone.
    """
    yield from _of_folder(store, "")


def _of_folder(store: Store, folder: str) -> Iterator[Mapping[str, Any]]:
    try:
        names = store.list(folder)
    except StoreError as error:
        yield {"folder": folder, "error": type(error).__name__}
        return
    known = [name for name in names if _is_known(folder, name)]
    chosen = _chosen(folder, known)
    yield {
        "folder": folder,
        "names": len(names),
        "of other programs": len(names) - len(known),
        "described": len(chosen),
    }
    for name in chosen:
        path = f"{folder}{name}"
        if name.endswith("/"):
            yield from _of_folder(store, path)
        elif name.endswith(".json") and folder != "probe/":
            yield {"object": path, **_of_record(store, path)}
        else:
            yield {"object": path}


def _is_known(folder: str, name: str) -> bool:
    """Whether a version of wal-sink gives this name to an object or a folder there."""
    if folder in _NAMED_FOLDERS:
        return _NAME.fullmatch(name) is not None
    return name in _FIXED or _NUMBERED.fullmatch(name) is not None


def _chosen(folder: str, names: Sequence[str]) -> list[str]:
    """The names to describe: fixed ones, a bounded number of sinks, and the newest numbers."""
    if folder in _NAMED_FOLDERS:
        return list(names[:_MOST_NAMED])
    numbered = [name for name in names if name not in _FIXED]
    return [name for name in names if name in _FIXED] + numbered[-NEWEST:]


def _of_record(store: Store, path: str) -> Mapping[str, Any]:
    try:
        data = store.read(path)
        envelope = msgspec.json.decode(data, type=dict[str, Any])
    except (StoreError, msgspec.DecodeError, UnicodeDecodeError) as error:
        return {"error": type(error).__name__}
    found = {name: _shape(envelope.get(name)) for name in ("format", "kind")}
    body = envelope.get("body")
    return {**found, "size": len(data), "body": _fields(body) if isinstance(body, dict) else _length(body)}


def _fields(body: Mapping[str, Any]) -> Mapping[str, Any]:
    return {
        name if _WORD.fullmatch(name) and len(name) < 30 else "(another field)": _shown(name, value)
        for name, value in body.items()
    }


def _shown(name: str, value: Any) -> Any:
    """The value of a field, or its kind and length."""
    if name == "segments" and isinstance(value, list):
        return [_fields(one) if isinstance(one, dict) else _length(one) for one in value[:NEWEST]] + [_length(value)]
    if name == "holder" and isinstance(value, dict):
        return _fields(value)
    if name not in _SHOWN:
        return _length(value)
    return [_shape(one) for one in value[:NEWEST]] + [_length(value)] if isinstance(value, list) else _shape(value)


def _shape(value: Any) -> Any:
    """A number or a word as it is; anything else as its kind and length."""
    is_plain = value is None or isinstance(value, bool | int) or (isinstance(value, str) and _WORD.fullmatch(value))
    return value if is_plain else _length(value)


def _length(value: Any) -> str:
    """The kind of a value, and its length if it has one."""
    if isinstance(value, str | list | dict):
        return f"({type(value).__name__} of length {len(value)})"
    return f"({type(value).__name__})"
