"""A dispatcher that loses its job, as with a cancelled Spark job or a lost executor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from tests.house.log import Manifest
from tests.house.protocol import DeliveryContext, DispatcherLostError, SegmentResult, SegmentTask
from tests.house.sinks import Failure, FailureKind
from tests.simulation.histories.coroutines import Coroutine
from tests.simulation.histories.plans import Deed
from tests.simulation.histories.process import Process
from wal_sink.protocol.dispatch import SegmentDispatcher, failed


class JobLost(BaseException):
    """The end of the task under way."""


class UnreliableDispatcher:
    """A dispatcher whose job may be lost at a point, or left behind while its task stands still.

    `answers`: whether a lost job answers by results. If not, it raises an error.
    """

    def __init__(self, inner: SegmentDispatcher, driver: Process, *, answers: bool) -> None:
        self._inner = inner
        self._driver = driver
        self._answers = answers

    @property
    def whole_batch(self) -> bool:
        return self._inner.whole_batch

    def deliver(
        self,
        delivery_context: DeliveryContext,
        manifest: Manifest,
        tasks: Sequence[SegmentTask],
        *,
        confirm: bool = False,
    ) -> list[SegmentResult]:
        def carry_out() -> list[SegmentResult]:
            return self._inner.deliver(delivery_context, manifest, tasks, confirm=confirm)

        self._driver.in_job = True
        try:
            return self._apart(carry_out, tasks) if self._driver.will(Deed.LEAVE) else carry_out()
        except JobLost:
            return self._lost(tasks, "the job was cancelled")
        finally:
            self._driver.in_job = False

    def _lost(self, tasks: Sequence[SegmentTask], why: str) -> list[SegmentResult]:
        if not self._answers:
            raise DispatcherLostError(why)
        return failed(tasks, Failure(FailureKind.LOST, why))

    def _apart(self, carry_out: Callable[[], list[SegmentResult]], tasks: Sequence[SegmentTask]) -> list[SegmentResult]:
        """Carry out the job as a task that can stand still while its driver goes on."""
        task = Coroutine(carry_out)
        task.resume()
        if not task.done:
            self._driver.left.append(task)
            return self._lost(tasks, "the job was cancelled, one of its tasks was not")
        if task.error is not None:
            raise task.error
        return cast("list[SegmentResult]", task.result)
