"""The position of a sink in a table, and whether the table still shows it: walks through the log, newest entry first.

RESTORE takes rows from the table and keeps the positions. Its entry shows the state of an older version, and what was
committed between the two is undone. Every other entry builds on the one before it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from wal_sink_backends.delta.table import Table


class LogGoneError(Exception):
    """An entry of the log is gone, or does not tell its operation, so nobody can tell."""


Positions: TypeAlias = list[int | None]
"""The versions of the application ids of a sink, in the order of their names."""
_NEAR = 20
"""Entries that are read here. After them the library searches, which reads all since the last checkpoint."""


def positions(table: Table, newest: int, names: Sequence[str]) -> Positions:
    """The versions of these application ids, which every commit of a sink has together. Raises `StoreError`."""
    for version in range(newest, max(-1, newest - _NEAR), -1):
        if (data := table.entry(version)) is None:
            break
        if found := _positions_in(data, names):
            return found
    return table.positions(names)


def shown(table: Table, stored: Positions, newest: int, names: Sequence[str]) -> Positions:
    """The positions of the newest commit of the sink on which `newest`, the newest version, builds; empty if there is
    none. `stored`: those that the table has now, which RESTORE keeps. Raises `LogGoneError` and `StoreError`.
    """
    at = newest
    while at >= 0:
        if at == stored[1]:
            return stored
        data = _entry(table, at)
        if found := _positions_in(data, names):
            return found
        told = next(_actions(data, "commitInfo"), {})
        if "operation" not in told and any(_actions(data, "remove")):
            raise LogGoneError(at)  # a writer may leave it out; without a removed file it is no RESTORE that takes rows
        if str(told.get("operation")).upper() != "RESTORE":
            at -= 1
            continue
        restored = (told.get("operationParameters") or {}).get("version")
        at = _equal_version(table, at) if restored in (None, "", "null") else int(restored)
    return []


def _entry(table: Table, version: int) -> bytes:
    if (data := table.entry(version)) is None:
        raise LogGoneError(version)
    return data


def _positions_in(data: bytes, names: Sequence[str]) -> Positions:
    """The positions that an entry of the log stores; empty if it stores none."""
    found = {told["appId"]: told["version"] for told in _actions(data, "txn")}
    return [found.get(name) for name in names] if names[0] in found else []


def _actions(data: bytes, kind: str) -> Iterator[dict[str, Any]]:
    for line in data.splitlines():
        if f'"{kind}"'.encode() in line and kind in (action := json.loads(line)):
            yield action[kind]


def _equal_version(table: Table, restore: int) -> int:
    """The newest version before a RESTORE that shows the same files. For a RESTORE to a time: the entry has it in the
    time zone of an unknown session.
    """
    data = _entry(table, restore)
    lacking, extra = _files(data, "add"), _files(data, "remove")  # what a version has less, and more
    for version in range(restore - 1, -1, -1):
        if not lacking and not extra:
            return version
        data = _entry(table, version)
        added, removed = _files(data, "add"), _files(data, "remove")
        lacking, extra = (lacking - removed) | (added - extra), (extra - added) | (removed - lacking)
    raise LogGoneError(restore)


def _files(data: bytes, kind: str) -> set[tuple[str, str]]:
    """The files that an entry adds or removes, each with its deletion vector."""
    return {(told["path"], json.dumps(told.get("deletionVector"))) for told in _actions(data, kind)}
