"""`wal-sink drain --follow --standby`: several processes share a sink, one serves it and the others stand by."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from wal_sink.cli.log_format import say
from wal_sink.errors import ConfigError, FencedError, HeldError, OutcomeUnknownError, StoreError
from wal_sink.lifecycle.liveness import Liveness
from wal_sink.runtime.clock import SYSTEM
from wal_sink.stores.base import Store
from wal_sink.wal import paths
from wal_sink.wal.lease import Lease
from wal_sink.wal.log import Log
from wal_sink.wal.standby import Seen, Watch

T = TypeVar("T")


def lease_of(*, standby: bool, follow: bool, lease_s: float | None) -> Lease | None:
    """The lease that the options describe; None without `--standby`."""
    if not standby:
        if lease_s is not None:
            raise ConfigError("--lease belongs to --standby: expected both, or neither")
        return None
    if not follow:
        raise ConfigError("--standby needs --follow: without it, the command ends once all batches are delivered")
    return Lease() if lease_s is None else Lease(duration_s=lease_s)


class Turns:
    """The turns of this process at serving a sink: it stands by until the sink is free, serves, and stands by again."""

    def __init__(self, store: Store, folder: str, lease: Lease, *, take_over: bool, liveness: Liveness | None) -> None:
        self._what = f"sink {folder!r} of {store.root}"
        self._role = paths.committer_role(folder)
        self._lease = lease
        self._watch = Watch(Log(store, SYSTEM, ""), self._role, lease, accept_unknown=take_over)
        self._liveness = liveness
        self._told: tuple[int, str] | None = None
        self._cannot_look = False

    def serve(self, one_turn: Callable[[Lease, float | None], T | None], timeout_s: float | None) -> T | None:
        """Call `one_turn` with the lease and the time left, whenever the sink is free. Returns its result, or None
        once the time is over.
        """
        if self._liveness is not None:
            self._liveness.begin()
        ends_s = math.inf if timeout_s is None else SYSTEM.monotonic_s() + timeout_s
        while (free := self._wait(ends_s)) is not None:
            left_s = None if timeout_s is None else max(0.0, ends_s - SYSTEM.monotonic_s())
            try:
                return one_turn(Lease(self._lease.duration_s, {self._role: free}), left_s)
            except (FencedError, HeldError) as error:
                self._told = None
                # The advice of these errors is for processes that do not stand by. Only a target names another term.
                why = f" ({error})" if isinstance(error, FencedError) and error.term else ""
                say(f"{self._what}: another process was faster or took over{why}. This process stands by")
        return None

    def _wait(self, ends_s: float) -> int | None:
        """Wait until the sink is free; the newest term then. None: the time is over."""
        while SYSTEM.monotonic_s() < ends_s:
            if self._liveness is not None:
                self._liveness.beat(self._role, lambda: ())
            try:
                free = self._watch.look()
                self._cannot_look = False
            except (StoreError, OutcomeUnknownError) as error:
                free = None
                if not self._cannot_look:
                    self._cannot_look = True
                    say(f"{self._what}: standing by, but the lease cannot be read: {error}")
            if free is not None:
                return free
            if self._watch.seen is not None:
                self._tell(self._watch.seen)
            SYSTEM.sleep_s(min(self._lease.look_every_s, max(0.0, ends_s - SYSTEM.monotonic_s())))
        return None

    def _tell(self, seen: Seen) -> None:
        """Say once for each term which process serves the sink."""
        holder = seen.holder
        if self._told == (seen.term, holder.process):
            return
        self._told = (seen.term, holder.process)
        until = "its lease runs out" if holder.lease_s is not None else "it ended: it renews no lease"
        say(f"{self._what}: standing by. {holder.process} has served it since {holder.since}, until {until}")
