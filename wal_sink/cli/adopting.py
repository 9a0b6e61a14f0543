"""Findings of `wal-sink adopt` in words."""

from __future__ import annotations

from collections.abc import Iterator

from wal_sink.moving.situation import Batches, Match, PlaceFound, QueryFound, Share
from wal_sink.reporting.counts import counted, in_ranges
from wal_sink.wal.log import NOTHING

_MATCHES = {
    Match.SAME: "it belongs to this WAL",
    Match.BEHIND: "it belongs to this WAL, and was restored to an older state",
    Match.AHEAD: "it belongs to this WAL, but Spark completed batches that the WAL lacks",
    Match.DIVERGED: "it belongs to this WAL, but the WAL holds batches with other input",
    Match.FOR_DRAINS: "wal-sink adopt made it for drains, and no query goes on from it",
    Match.OTHER: "it belongs to another query",
    Match.NONE: "it has no query: it is new, or was deleted",
}


def lines(place: PlaceFound | None, query: QueryFound | None, unknown_because: str) -> Iterator[str]:
    """The findings for people."""
    if place is not None:
        yield from _place_lines(place)
    if query is None:
        yield f"the checkpoint was not compared: {unknown_because}"
        return
    yield from _query_lines(query)
    if place is None and query.match is Match.SAME:
        yield "WAL, place and checkpoint belong together: no sink gets anything twice or never"


def _place_lines(found: PlaceFound) -> Iterator[str]:
    there = {
        "same": "the same WAL lies there too",
        "other": "another WAL lies there",
        "nothing": "no WAL lies there any more",
        "unknown": f"it is not known what lies there: {found.unknown_because}",
    }
    yield f"the WAL lies at {found.here}, but records {found.said}; {there[found.there]}"
    for share in found.sinks:
        twice, never = _said(share.twice), _said(share.never)
        yield f"sink {share.sink!r} got there since, so twice: {twice}; only there, so never: {never}"
    if found.sinks_unknown_because:
        yield f"it is not known what every sink got there since: {found.sinks_unknown_because}"


def _query_lines(found: QueryFound) -> Iterator[str]:
    newest = found.committed if found.committed > NOTHING else "none"
    yield f"checkpoint {found.checkpoint}: {_MATCHES[found.match]}. Its newest complete batch: {newest}"
    if found.match is Match.DIVERGED:
        yield f"with this WAL, a drain and the query stop at batch {found.diverged} (DivergentReplay)"
    if found.match in {Match.SAME, Match.DIVERGED}:
        return
    ending = found.ending
    if found.match is Match.AHEAD:
        newest = _number(found.newest)
        yield f"the newest batch of the WAL is {newest}. The start stops (MissingBatch) until the others are restored"
    else:
        yield f"the WAL shows that Spark completed every batch up to {_number(ending.through)}"
        if ending.undecided is not None:
            rows = "" if found.undecided_rows is None else f" ({counted(found.undecided_rows, 'row')})"
            yield f"nobody knows whether Spark completed batch {ending.undecided}{rows}"
        if ending.abandoned:
            yield f"of a history that was given up, so never: batches {ending.abandoned[0]} to {ending.abandoned[-1]}"
        if ending.unclear:
            yield (
                f"two histories of the query staged batches {', '.join(in_ranges(ending.unclear))}, and the WAL does "
                "not show which of them goes on: --settle is refused"
            )
    if found.match is Match.BEHIND:
        yield _restart(found)
    yield from (_share_line(share, found.match) for share in found.sinks)
    if not found.sinks:
        yield "no sink is served: a new one (wal-sink drain --start-from earliest) may still get what the WAL holds"
    if found.match is not Match.AHEAD and not ending.unclear:
        yield from _begin_lines(found)


def _restart(found: QueryFound) -> str:
    following = found.committed + 1
    if following <= found.low_water:
        return f"with this WAL, the query stops at batch {following} (HistoryGone): it was delivered and deleted"
    if found.diverged is not None:
        return f"with this WAL, the query stops at batch {found.diverged} (DivergentReplay): it would read other input"
    return (
        f"with this WAL, Spark runs batch {following} and later ones again. Those that read the same input are "
        "recognised, and no sink gets them twice. The first that reads other input stops the query (DivergentReplay)"
    )


def _share_line(share: Share, match: Match) -> str:
    if match is Match.AHEAD:
        return f"sink {share.sink!r}, never: {_said(share.never)}"
    return f"sink {share.sink!r} with a new WAL, twice: {_said(share.twice)}; never: {_said(share.never)}"


def _begin_lines(found: QueryFound) -> Iterator[str]:
    """Where a new query must begin so that nothing is sent twice and nothing is left out."""
    yield (
        "to send nothing twice and leave nothing out: settle this WAL (--settle FOLDER), drain it, and let the new "
        f"query begin behind batch {_number(found.ending.through)}, with a new WAL:"
    )
    for number, line in enumerate(found.offsets):
        yield f"  source {number}: {line}"
    if found.ending.undecided is not None:
        yield f"with --newest complete, behind batch {found.ending.undecided}:"
        for number, line in enumerate(found.undecided_offsets):
            yield f"  source {number}: {line}"


def _said(batches: Batches) -> str:
    if batches.first is None or batches.last is None:
        return "nothing"
    which = f"batch {batches.first}" if batches.count == 1 else f"batches {batches.first} to {batches.last}"
    return f"{which} ({'' if batches.is_exact else 'at least '}{counted(batches.rows, 'row')})"


def _number(batch_id: int) -> str:
    return str(batch_id) if batch_id > NOTHING else "none"
