"""Rules about paths that all stores share: allowed paths, and the form of keys in a listing."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from wal_sink.errors import StoreError

HIDDEN = "."
"""Prefix of a store's temporary objects. No listing shows them, and no object may have such a name."""

_FOLDER_END = chr(ord("/") + 1)


def check_path(path: str) -> str:
    """Return `path` if every store can hold an object under it; otherwise raise `StoreError` before any request."""
    parts = path.split("/")
    if "" in parts or any(part.startswith(HIDDEN) for part in parts) or "\0" in path or "?" in path:
        raise StoreError(
            f"{path!r} is not a path of an object: expected names joined by '/', none empty or beginning with '.', and "
            "no '?'"
        )
    return path


def folder_of(prefix: str) -> str:
    """The prefix of every key in the folder: empty for the root, otherwise ending in one `/`."""
    bare = prefix.strip("/")
    return f"{bare}/" if bare else ""


def is_hidden(name: str) -> bool:
    """Return whether any part of a relative path is a temporary name."""
    return name.startswith(HIDDEN) or f"/{HIDDEN}" in name


def shown(name: str, *, recursive: bool) -> str:
    """The name under which a listing shows the object with this relative path."""
    head, slash, _ = name.partition("/")
    return name if recursive else head + slash


def names_in(keys: Sequence[str], prefix: str, *, after: str, recursive: bool) -> Iterator[str]:
    """The names that `Store.list` shows of `keys`, which must be sorted. A folder costs one step, whatever its size."""
    folder = folder_of(prefix)
    at = bisect_left(keys, folder)
    while at < len(keys) and keys[at].startswith(folder):
        name = shown(keys[at].removeprefix(folder), recursive=recursive)
        if name > after:
            yield name
        end = name.removesuffix("/") + _FOLDER_END
        at = bisect_left(keys, folder + end, lo=at) if name.endswith("/") else at + 1
