"""The wait for the threads of a run at its end: long for a call of a sink, short for a hook of the user."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from wal_sink.lifecycle.committer_thread import CommitterThread
from wal_sink.telemetry.hooks import HOOK_S


def join_all(threads: Sequence[CommitterThread], grace_s: float, now_s: Callable[[], float]) -> bool:
    """Wait until all threads have ended; False if some are left.

    Waits `grace_s` seconds at most, and no longer once each thread that is left was inside one hook for `HOOK_S`.
    """
    deadline_s, busy = now_s() + grace_s, threads
    while True:
        inside = {thread: thread.hook_event for thread in busy}
        round_ends_s = min(deadline_s, now_s() + HOOK_S)
        busy = [thread for thread in busy if not thread.join(max(0.0, round_ends_s - now_s()))]
        if not busy:
            return True
        is_kept_by_hooks = all(inside[each] is not None and each.hook_event is inside[each] for each in busy)
        if is_kept_by_hooks or now_s() >= deadline_s:
            return False


def has_delivered(thread: CommitterThread, timeout_s: float | None) -> bool:
    """Wait until a thread has answered or given up; False if time ran out or the run ended.

    A thread that is kept by one hook for `HOOK_S` has answered if its sink lacks no batch. One listing each time.
    """
    left_s = math.inf if timeout_s is None else timeout_s
    while True:
        event, round_s = thread.hook_event, min(left_s, HOOK_S)
        if thread.wait_caught_up(round_s):
            return True
        if not thread.is_running:
            return thread.wait_caught_up(0.0)  # it may have answered since
        left_s -= round_s
        inside = thread.hook_event
        if inside is not None and (inside is event or left_s <= 0) and thread.lacks_no_batch():
            return True
        if left_s <= 0:
            return False


def kept_by_hooks(threads: Sequence[CommitterThread]) -> str:
    """The sinks whose threads have not ended, each with the event of the hook that its thread is inside; empty if one
    of these threads is inside no hook.
    """
    busy = [(thread.committer.name, thread.hook_event) for thread in threads if not thread.join(0.0)]
    are_all = all(event is not None for _, event in busy)
    return ", ".join(f"{name} ({type(event).__name__})" for name, event in busy) if are_all else ""
