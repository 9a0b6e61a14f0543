"""Ages of records, by their `created` and the clock of the process that looks. The two clocks may differ."""

from __future__ import annotations

from datetime import UTC, datetime


def moment_of(created: str | None) -> datetime | None:
    """The time in a record's `created`; None if there is none, or if it is not ISO 8601."""
    try:
        moment = datetime.fromisoformat(created or "")
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def age_s(created: str | None, now: datetime) -> float | None:
    """Seconds since a record was made; None if this is unknown. Negative if the writer's clock is ahead of this one."""
    moment = moment_of(created)
    return None if moment is None else round((now - moment).total_seconds(), 3)


def seconds_between(earlier: str | None, later: str | None) -> float | None:
    """Seconds between two records; None if this is unknown. Negative if the clocks of their writers differ."""
    first, second = moment_of(earlier), moment_of(later)
    return None if first is None or second is None else round((second - first).total_seconds(), 3)
