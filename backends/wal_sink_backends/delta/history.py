"""Whether a table still shows a version: a walk through its log, from the newest entry back.

RESTORE takes rows from the table and keeps the positions. Its entry shows the state of an older version, and what was
committed between the two is undone. Every other entry builds on the one before it.
"""

from __future__ import annotations

import json
from typing import Any

from wal_sink.errors import StoreError
from wal_sink_backends.delta.table import Table


class LogGoneError(Exception):
    """An entry of the log is gone, so nobody can tell."""


def is_shown(table: Table, version: int, newest: int) -> bool:
    """Return whether `newest`, the newest version, builds on `version`. Raises `LogGoneError` and `StoreError`."""
    at = newest
    while at > version:
        data = table.entry(at)
        if data is None:
            raise LogGoneError(at)
        told = _commit_info(data)
        if str(told.get("operation")).upper() != "RESTORE":
            at -= 1
            continue
        restored = (told.get("operationParameters") or {}).get("version")
        at = _equal_version(table, at, version) if restored in (None, "", "null") else int(restored)
    return at == version


def _commit_info(data: bytes) -> dict[str, Any]:
    for line in data.splitlines():
        if b'"commitInfo"' in line and "commitInfo" in (entry := json.loads(line)):
            found: dict[str, Any] = entry["commitInfo"]
            return found
    return {}


def _equal_version(table: Table, at: int, version: int) -> int:
    """The newest version before `at` that shows the same files, if it is `version` or later; else one before it.

    For a RESTORE to a time, which the entry has in the time zone of a session that is not known.
    """
    try:
        restored = table.files_at(at)
        return next((old for old in range(at - 1, version - 1, -1) if table.files_at(old) == restored), version - 1)
    except StoreError as error:
        raise LogGoneError(at) from error
