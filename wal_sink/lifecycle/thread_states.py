"""The states of a committer's thread, and the one table that says which state follows which.

The thread begins in QUIET and ends in ENDED. Each state has one action, which makes one observation. An error leaves
the table from any state and ends the thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto


class State(Enum):
    """A state, and the action that is taken in it."""

    QUIET = "Decide about the next look. The last one found nothing."
    BUSY = "Decide about the next look. The last one delivered a batch."
    LOOKING = "Deliver the next batch if the gate is open for it."
    SEARCHING = "Do the same, after the gate looked for later entries of the checkpoint."
    CONFIRMING = "Confirm that the target has what is marked: this is the last look of the run."
    WAITING = "Tell callers that all is done, then wait to be woken or for the next poll."
    ENDED = "The end: everything that callers asked for is done, and no poll is due."


class Seen(Enum):
    """The observation of an action."""

    ANSWER_DUE = auto()
    """A caller waits until everything complete is delivered."""
    PAUSED = auto()
    """The batch that is due was staged only just now, so the thread paused until it may be complete."""
    SEARCH_DUE = auto()
    READ_SPENT = auto()
    """This poll's one read was spent on finding out whether to search."""
    ALL_DELIVERED = auto()
    LOOK_DUE = auto()
    DELIVERED = auto()
    NOTHING = auto()
    NOTHING_YET = auto()
    """Nothing was found, but a caller's answer needs a search."""
    NOTHING_LEFT = auto()
    """A search found nothing, and the run is finishing."""
    CONFIRMED = auto()
    WOKEN = auto()
    POLL_DUE = auto()
    OVER = auto()


NEXT: Mapping[State, Mapping[Seen, State]] = {
    State.QUIET: {
        Seen.ANSWER_DUE: State.SEARCHING,
        Seen.PAUSED: State.QUIET,
        Seen.SEARCH_DUE: State.SEARCHING,
        Seen.READ_SPENT: State.WAITING,
        Seen.LOOK_DUE: State.LOOKING,
    },
    State.BUSY: {
        Seen.ANSWER_DUE: State.LOOKING,
        Seen.PAUSED: State.BUSY,
        Seen.ALL_DELIVERED: State.WAITING,
        Seen.LOOK_DUE: State.LOOKING,
    },
    State.LOOKING: {Seen.DELIVERED: State.BUSY, Seen.NOTHING: State.WAITING, Seen.NOTHING_YET: State.QUIET},
    State.SEARCHING: {
        Seen.DELIVERED: State.BUSY,
        Seen.NOTHING: State.WAITING,
        Seen.NOTHING_LEFT: State.CONFIRMING,
    },
    State.CONFIRMING: {Seen.CONFIRMED: State.WAITING},
    State.WAITING: {Seen.WOKEN: State.QUIET, Seen.POLL_DUE: State.QUIET, Seen.OVER: State.ENDED},
}
