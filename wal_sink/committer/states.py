"""The states of a committer while it delivers a batch, and the one table that says which state follows which.

`Committer.deliver_next` walks the table once: it begins in UNCONFIRMED or READY and ends in DELIVERED or IDLE. Each
state has one action, which makes one observation. An error leaves the table from any state; the next walk begins anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from wal_sink.committer.release import Released
from wal_sink.dead_letters.files import Kept
from wal_sink.delivery.batch import BatchDelivery
from wal_sink.wal.records import Manifest


class State(Enum):
    """A state, and the action that is taken in it."""

    UNCONFIRMED = "Confirm that the target has what the newest marker stands for."
    READY = "Look up the next batch, and ask the gate whether Spark has completed it."
    COMPLETE = "Read the next term, unless it was read just now for this group, with this batch known to be complete."
    ENTITLED = "Release the batch, or find its release."
    DOUBTFUL = "Read the next term again: a newer process may have collected the release."
    RELEASED = "Find out whether a process may have begun the delivery."
    BEGUN = "Read how far the delivery came."
    INFORMED = "Read the markers, after the progress: it may be absent because the batch was collected."
    UNSENT = "Deliver the rows."
    SENT = "Count the dead letters, and decide whether a later batch shares its marker."
    SHARING = "Add the batch to the group that shares a marker."
    MARKABLE = "Create the marker of the batch and of its group."
    SETTLED = "Forget the delivery, so that the next batch is a new one."
    CLOSED = "Create the marker of the group, if there is one: no batch can be released now."
    DELIVERED = "The end: the sink has one more batch, or one more marker."
    IDLE = "The end: nothing can be delivered now."


class Seen(Enum):
    """The observation of an action."""

    CONFIRMED = auto()
    GATE_OPEN = auto()
    GATE_CLOSED = auto()
    NOT_SUPERSEDED = auto()
    RELEASE_HOLDS = auto()
    RELEASE_IN_DOUBT = auto()
    NEW = auto()
    MAYBE_BEGUN = auto()
    PROGRESS_READ = auto()
    MARKER_FOUND = auto()
    NO_MARKER = auto()
    ALL_SENT = auto()
    MARKER_SHARED = auto()
    MARKER_DUE = auto()
    JOINED = auto()
    MARKED = auto()
    FORGOTTEN = auto()
    NO_GROUP = auto()


ENDS = frozenset({State.DELIVERED, State.IDLE})

NEXT: Mapping[State, Mapping[Seen, State]] = {
    State.UNCONFIRMED: {Seen.CONFIRMED: State.READY},
    State.READY: {Seen.GATE_OPEN: State.COMPLETE, Seen.GATE_CLOSED: State.CLOSED},
    State.COMPLETE: {Seen.NOT_SUPERSEDED: State.ENTITLED},
    State.ENTITLED: {
        Seen.RELEASE_HOLDS: State.RELEASED,
        Seen.RELEASE_IN_DOUBT: State.DOUBTFUL,
        Seen.GATE_CLOSED: State.CLOSED,
    },
    State.DOUBTFUL: {Seen.NOT_SUPERSEDED: State.RELEASED},
    State.RELEASED: {Seen.NEW: State.UNSENT, Seen.MAYBE_BEGUN: State.BEGUN},
    State.BEGUN: {Seen.PROGRESS_READ: State.INFORMED},
    State.INFORMED: {Seen.MARKER_FOUND: State.SETTLED, Seen.NO_MARKER: State.UNSENT},
    State.UNSENT: {Seen.ALL_SENT: State.SENT},
    State.SENT: {Seen.MARKER_SHARED: State.SHARING, Seen.MARKER_DUE: State.MARKABLE},
    State.SHARING: {Seen.JOINED: State.SETTLED},
    State.MARKABLE: {Seen.MARKED: State.SETTLED},
    State.SETTLED: {Seen.FORGOTTEN: State.DELIVERED},
    State.CLOSED: {Seen.MARKED: State.DELIVERED, Seen.NO_GROUP: State.IDLE},
}


@dataclass(slots=True)
class DueBatch:
    """The facts about one batch in one pass through the table. A field has no value before the action that sets it."""

    search: bool
    """Whether the gate looks for later entries of the checkpoint, too."""
    batch_id: int = field(init=False)
    staged: Manifest | None = field(init=False)
    """This run's manifest of the batch, looked up before the gate was read."""
    released: Released = field(init=False)
    is_begun: bool = field(init=False)
    delivery: BatchDelivery = field(init=False)
    kept: Mapping[Kept, int] = field(init=False)
    """The numbers of its rows that are dead letters."""
