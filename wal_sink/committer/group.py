"""The group of a sink that is behind: consecutive batches that share one marker, and looks at the term.

A marker stands for its batch and all earlier ones. After a crash, batches without a marker are sent again under the
same keys. So only a target that ignores repeats has groups. Every other sink gets one marker per batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from wal_sink.committer.context import CommitContext
from wal_sink.messages import SMALL_BATCH_BYTES
from wal_sink.wal.records import DeliveryTiming, Manifest

GROUP_BATCHES = 8
"""The most batches that share a marker."""
GROUP_S = 1.0
"""The longest time for which they may, by the monotonic clock: a process that slept looks at its term again."""


class Group:
    """The batches that a sink has without a marker, and the last look at the term. Not shared between threads."""

    def __init__(self, shared: CommitContext, *, is_allowed: bool) -> None:
        """`is_allowed`: the target ignores repeats, and so does every other that the sink's name may get."""
        self.batches: list[Manifest] = []
        self.timings: dict[int, DeliveryTiming] = {}
        """Of the batches, and of the one that is delivered now."""
        self.looked_s = -math.inf
        """Time of the last look at the term, by the monotonic clock."""
        self._known_at_look = shared.gate.known
        self._began_s = -math.inf  # the time of the look for the first batch of the group
        self._s_per_byte = math.inf  # of the last delivery
        self._is_allowed = is_allowed
        self._gate = shared.gate
        self._history = shared.history
        self._runtime = shared.log.runtime

    def look(self, check: Callable[[], None]) -> None:
        """Look at the term by `check`. Only what was known before the look may rest on it."""
        now_s, known = self._runtime.monotonic_s(), self._gate.known
        check()
        self.looked_s, self._known_at_look = now_s, known
        if not self.batches:
            self._began_s = now_s

    def is_in_time(self, limit_s: float = GROUP_S) -> bool:
        """Whether the last look is no older than `limit_s`."""
        return self._runtime.monotonic_s() - self.looked_s < limit_s

    def learn_of_backlog(self, batch_id: int) -> None:
        """Learn by one read which batches may share a look and a marker, where several after this one are staged.

        Spark ran the newest after it completed the one before. That is learnt before the look: see `covers`.
        """
        newest = self._history.newest_known
        if self._is_allowed and newest - 1 > batch_id and not self._gate.is_known_open(batch_id):
            self._gate.is_open(newest - 1)

    def covers(self, batch_id: int) -> bool:
        """Whether the last look counts for the group's next batch.

        A batch that became known as complete after the look may have been staged anew by a newer process, and only that
        attempt be complete.
        """
        was_known = self._gate.knew(self._known_at_look, batch_id)
        return bool(self.batches) and self.is_in_time() and was_known

    def must_end_before(self, manifest: Manifest) -> bool:
        """Whether the group gets its marker before this batch is sent: one that takes long would keep it waiting, and a
        crash would send the group again. A large batch takes long, unless the pace of the last one says otherwise.
        """
        is_large = manifest.bytes > SMALL_BATCH_BYTES
        return bool(self.batches) and is_large and manifest.bytes * self._s_per_byte >= GROUP_S

    def note_pace(self, manifest: Manifest, took_s: float) -> None:
        """Note how long the delivery of a batch took. One without rows tells nothing of the next."""
        self._s_per_byte = took_s / manifest.bytes if manifest.bytes else math.inf

    def may_take(self, batch_id: int) -> bool:
        """Whether this batch may wait for the marker of the next one, which is complete and so is delivered now.

        At most one read of the checkpoint, and none unless this run has staged the next batch.
        """
        is_young = self._runtime.monotonic_s() - self._began_s < GROUP_S
        return (
            self._is_allowed and len(self.batches) + 1 < GROUP_BATCHES and is_young and self._is_complete(batch_id + 1)
        )

    def _is_complete(self, later: int) -> bool:
        gate = self._gate
        return gate.is_known_open(later) or (self._history.staged(later) is not None and gate.is_open(later))

    def clear(self) -> None:
        """Forget the batches: there is a marker for them."""
        self.batches.clear()
        self.timings.clear()
