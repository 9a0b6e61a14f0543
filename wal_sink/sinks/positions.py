"""Positions in a transactional target: the name of a slot, and the check of an answer."""

from __future__ import annotations

import math
import operator
from decimal import Decimal
from typing import SupportsIndex

from wal_sink.redaction import redacted
from wal_sink.reporting.texts import repr_of
from wal_sink.sinks.chunk import Position
from wal_sink.sinks.failures import FailureKind, SinkFailedError

_MOST_SHOWN = 200


def stored_position(what: str, slot: str, found: object) -> Position | None:
    """A target's answer about one slot, with plain numbers: databases return decimals, libraries return their own
    types.

    Raises `SinkFailedError` for an invalid answer. Otherwise delivery would draw conclusions from it.
    """
    if found is None:
        return None
    if isinstance(found, Position) and found.slot == slot and isinstance(found.segment_id, str):
        batch_id, rows = _whole(found.batch_id), _whole(found.rows)
        if batch_id is not None and rows is not None:
            return Position(slot, batch_id, rows, found.segment_id)
    raise SinkFailedError(
        FailureKind.PERMANENT,
        f"{what} returned {redacted(repr_of(found))[:_MOST_SHOWN]}: expected None, or a Position of the slot {slot!r} "
        "whose batch_id and rows are whole numbers, 0 or more. Each slot has a separate position: store it with the "
        "rows, under the slot",
    )


def _whole(value: object) -> int | None:
    """The number as a plain int if it is whole and not negative. None for anything else, True and False included."""
    number: int | None = None
    if isinstance(value, (float, Decimal)) and math.isfinite(value) and value == int(value):
        number = int(value)
    elif isinstance(value, SupportsIndex) and not isinstance(value, bool):
        number = operator.index(value)
    return number if number is not None and number >= 0 else None


def slot_name(wal_id: str, sink: str, ordinal: int) -> str:
    """The slot under which a transactional target stores the position of a batch's n-th segment. Every batch reuses
    it.
    """
    return f"{wal_id}/{sink}/{ordinal}"
