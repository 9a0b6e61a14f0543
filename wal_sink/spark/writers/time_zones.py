"""Time zones under the names that Spark takes, which are Java's."""

from __future__ import annotations

import re
from datetime import UTC, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

from wal_sink.errors import PermanentError

_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?(?::?(\d{2}))?")


def zone_of(name: str) -> tzinfo:
    """The time zone of this name, such as `GMT+8` or `Asia/Tokyo`; UTC if it is empty.

    Raises `PermanentError` if Python does not know it. Java knows more names, such as `PST`.
    """
    if name in {"", "Z", "UTC", "GMT", "UT"}:
        return UTC
    if found := _OFFSET.fullmatch(name):
        hours, minutes, seconds = (int(part or 0) for part in found.groups()[1:])
        ahead = timedelta(hours=hours, minutes=minutes, seconds=seconds)
        return timezone(ahead if found[1] == "+" else -ahead)
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, LookupError) as error:
        raise PermanentError(
            f"time zone {name!r} of the session that staged the rows: this Python does not know it. Install tzdata, or "
            "deliver on executors, whose own time zone counts"
        ) from error
