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

    UNCONFIRMED = "This process confirms that the target has what the newest marker stands for."
    READY = "The next batch is looked up, and the gate is asked whether it is complete."
    COMPLETE = "The next term is read, unless it was read for the group just now."
    ENTITLED = "The batch is released, or its release is found."
    DOUBTFUL = "The next term is read again: a newer process may have collected the release."
    RELEASED = "Memory, the release and the progress records tell whether a process has begun the delivery."
    BEGUN = "The progress of the batch is read."
    INFORMED = "The markers are read after the progress: absent progress may mean that the batch was collected."
    UNSENT = "The rows are delivered."
    SENT = "Dead letters are counted, and the next batch is looked at: it may share the marker."
    SHARING = "The batch joins the group, and the next batch's marker will stand for it."
    MARKABLE = "The marker of the batch and of its group is created."
    SETTLED = "The delivery is forgotten."
    CLOSED = "No batch can be released now, so the group is marked, if there is one."
    DELIVERED = "End: the sink has one more batch, or one more marker."
    IDLE = "End: there is nothing to do now."


class Seen(Enum):
    """What an action observed."""

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
    """What one walk through the table knows of its batch. A field has no value before the action that sets it."""

    search: bool
    """Whether the gate looks for later entries of the checkpoint, too."""
    batch_id: int = field(init=False)
    staged: Manifest | None = field(init=False)
    """What this run staged of it, looked up before the gate was asked."""
    released: Released = field(init=False)
    is_begun: bool = field(init=False)
    delivery: BatchDelivery = field(init=False)
    kept: Mapping[Kept, int] = field(init=False)
    """Rows of it that are dead letters."""
