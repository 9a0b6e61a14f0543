"""The statistics of a file of a table, as Delta has them in its log, from the footer of the file.

A reader skips a file whose bounds exclude it, so a wrong bound loses rows. Only types whose order is the same for
every reader get bounds: booleans, whole numbers, dates, moments and short texts. Floating numbers have NaN and -0.0.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa

_LONGEST_TEXT = 64
"""Characters of a text in a bound. A longer one would have to be cut, and a maximum cut upwards."""
_DAY, _MOMENT = date(1970, 1, 1), datetime(1970, 1, 1, tzinfo=UTC)
_IS: Any = pa.types


def statistics_of(footer: Any, schema: pa.Schema, most_columns: int) -> dict[str, Any]:
    """The statistics of a file with this footer and Arrow schema, of the first columns that are not nested."""
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    places = {groups[0].column(place).path_in_schema: place for place in range(footer.num_columns)} if groups else {}
    nulls, lowest, highest = dict[str, int](), dict[str, object](), dict[str, object]()
    for field in [field for field in schema if field.name in places][:most_columns]:
        found = [group.column(places[field.name]).statistics for group in groups]
        if not all(one is not None and one.has_null_count for one in found):
            continue
        nulls[field.name] = sum(one.null_count for one in found)
        valued = [one for one in found if one.num_values]
        if valued and all(one.has_min_max for one in valued):
            with suppress(ValueError, OverflowError):
                low = _spelled(field.type, min(one.min_raw for one in valued), 0)
                high = _spelled(field.type, max(one.max_raw for one in valued), 999)
                lowest[field.name], highest[field.name] = low, high
    return {"numRecords": footer.num_rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls}


def _spelled(kind: Any, value: Any, micros: int) -> object:
    """A bound as Delta spells it. Moments are cut to milliseconds, after `micros` were added.

    Raises `ValueError` or `OverflowError` for a type without bounds, a long text, bytes that are no UTF-8, and a year
    without four digits.
    """
    if _IS.is_boolean(kind) or _IS.is_signed_integer(kind):
        return value
    if _IS.is_date32(kind):
        return (_DAY + timedelta(days=value)).isoformat()
    if _IS.is_timestamp(kind) and kind.unit == "us":
        moment = (_MOMENT + timedelta(milliseconds=(value + micros) // 1000)).replace(tzinfo=None)
        return moment.isoformat(timespec="milliseconds") + ("" if kind.tz is None else "Z")
    text: str = value.decode() if _IS.is_string(kind) or _IS.is_large_string(kind) else ""
    if not 0 < len(text) <= _LONGEST_TEXT:
        raise ValueError(kind)
    return text
