"""Starts of a sink one after the other, each before the process before it recorded its end: processes that end each
other in turn, or one that is killed again and again.
"""

from __future__ import annotations

from datetime import datetime

from wal_sink.errors import CorruptError
from wal_sink.inspection.ages import age_s
from wal_sink.wal import paths
from wal_sink.wal.holders import Holding, state_of
from wal_sink.wal.log import Log
from wal_sink.wal.records import TermRecord
from wal_sink.wal.sink_records import EndedRecord

LOOKED_AT = 5
"""Newest terms of a sink that are looked at."""
WITHIN_S = 3600.0
"""Time in which so many terms are suspicious."""


def take_overs(log: Log, folder: str, newest: int, now: datetime) -> int:
    """How many of a sink's newest terms began before the process that held the one before had recorded its end. 0 if
    these terms are not of the last hour. A process that is known to be gone without that record was killed.

    No request for a sink with few terms, one read for any other, and two for each term only if they are so young.
    """
    role, first = paths.committer_role(folder), newest - LOOKED_AT + 1
    if first < 1:
        return 0
    try:
        began = log.find(TermRecord, paths.term(role, first))
        age = age_s(began.created, now) if began else None
        if age is None or age > WITHIN_S:
            return 0
        return sum(_was_fenced(log, role, number) for number in range(first, newest))
    except CorruptError:
        return 0  # terms count by their names; a record that cannot be read tells nothing


def _was_fenced(log: Log, role: str, number: int) -> bool:
    held = log.find(TermRecord, paths.term(role, number))
    following = log.find(TermRecord, paths.term(role, number + 1))
    if held is None or following is None or held.run_id == following.run_id:
        return False  # one process claims several terms to fence its requests
    ended = log.find(EndedRecord, paths.ended(role, number))
    if ended is None:
        return state_of(held.holder) is not Holding.GONE  # it was killed: one that is fenced records its end
    return ended.created > following.created
