"""The position of a sink in a table, and whether the table still shows it: walks through the log, newest entry first.

RESTORE takes rows from the table and keeps the positions. Its entry shows the state of an older version, and what was
committed between the two is undone. Every other entry builds on the one before it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from wal_sink.errors import StoreError
from wal_sink_backends.delta.table import Table


class LogGoneError(Exception):
    """An entry of the log is gone, or does not tell its operation, so nobody can tell."""


_NEAR = 20
"""Entries that are read here. After them the library searches, which reads all since the last checkpoint."""


def positions(table: Table, newest: int, names: Sequence[str]) -> list[int | None]:
    """The versions of these application ids, which every commit of a sink has together. Raises `StoreError`."""
    for version in range(newest, max(-1, newest - _NEAR), -1):
        if (data := table.entry(version)) is None:
            break
        found = {told["appId"]: told["version"] for told in _actions(data, "txn")}
        if names[0] in found:
            return [found.get(name) for name in names]
    return table.positions(names)


def is_shown(table: Table, version: int, newest: int) -> bool:
    """Return whether `newest`, the newest version, builds on `version`. Raises `LogGoneError` and `StoreError`."""
    at = newest
    while at > version:
        data = table.entry(at)
        if data is None:
            raise LogGoneError(at)
        told = next(_actions(data, "commitInfo"), {})
        if "operation" not in told and any(_actions(data, "remove")):
            raise LogGoneError(at)  # a writer may leave it out; without a removed file it is no RESTORE that takes rows
        if str(told.get("operation")).upper() != "RESTORE":
            at -= 1
            continue
        restored = (told.get("operationParameters") or {}).get("version")
        at = _equal_version(table, at, version) if restored in (None, "", "null") else int(restored)
    return at == version


def _actions(data: bytes, kind: str) -> Iterator[dict[str, Any]]:
    for line in data.splitlines():
        if f'"{kind}"'.encode() in line and kind in (action := json.loads(line)):
            yield action[kind]


def _equal_version(table: Table, at: int, version: int) -> int:
    """The newest version before `at` that shows the same files, if it is `version` or later; else one before it.

    For a RESTORE to a time, which the entry has in the time zone of a session that is not known.
    """
    try:
        restored = table.files_at(at)
        return next((old for old in range(at - 1, version - 1, -1) if table.files_at(old) == restored), version - 1)
    except StoreError as error:
        raise LogGoneError(at) from error
