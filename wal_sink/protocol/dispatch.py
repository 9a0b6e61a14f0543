"""Dispatchers: what carries out the tasks of a batch for one sink. Those of this process; `wal_sink.spark` has another
for executors.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from wal_sink.errors import PermanentError, WalSinkError
from wal_sink.log.log import Log
from wal_sink.log.records import Manifest, SegmentRef
from wal_sink.protocol.messages import SMALL_BATCH_BYTES, DeliveryContext, SegmentResult, SegmentTask, failed_as_a_whole
from wal_sink.protocol.positions import commit_position, digest_of, is_committed
from wal_sink.protocol.segment_delivery import SegmentDelivery
from wal_sink.protocol.two_phase import Preparation
from wal_sink.settings import Delivery
from wal_sink.sinks.base import BatchCommit, BatchSink, CommitSink, MakeSink, Sink, TwoPhaseSink
from wal_sink.sinks.calls import SinkSession, call_sink, check_returned
from wal_sink.sinks.failures import Failure, FailureKind, SinkFailedError, failure_of
from wal_sink.sinks.guarantees import Ability, Promise, ability_of, promise
from wal_sink.sinks.held import objects_of
from wal_sink.sinks.renaming import Renaming
from wal_sink.support.calls import CallTimedOutError, Claim, TimedCall
from wal_sink.support.texts import name_of

SMALL_BATCH_SEGMENTS = 16
"""The same in segments, which the driver delivers one after the other: each costs some requests."""


class DispatcherLostError(Exception):
    """The dispatcher failed as a whole (a cancelled job, a lost executor). The fate of its tasks is unknown."""


class SegmentDispatcher(Protocol):
    """Carries out tasks, in this process or on Spark's executors."""

    @property
    def whole_batch(self) -> bool:
        """Whether it delivers a batch in one piece, an empty one too."""
        ...

    def deliver(
        self,
        delivery_context: DeliveryContext,
        manifest: Manifest,
        tasks: Sequence[SegmentTask],
        *,
        confirm: bool,
    ) -> list[SegmentResult]:
        """Carry out tasks: one result per task, or one of ordinal `NO_SEGMENT` for a whole batch without tasks. Raises
        `DispatcherLostError` only.

        With `confirm`, the dispatcher also reads the positions of a transactional target for every segment of the
        manifest, once all tasks are done without a failure. It then adds one result per segment. See
        `Positions.confirm`.
        """
        ...


@dataclass(frozen=True, slots=True)
class ServedSink:
    """One sink of a run: its name, its policies, its guarantee and the dispatcher of its tasks."""

    name: str
    delivery: Delivery
    promise: Promise
    dispatcher: SegmentDispatcher
    identity: str = ""
    """A description of the sink, for people. It holds no secret."""
    make_sink: MakeSink | None = None
    """For a two-phase sink: makes one in this process, to abort transactions that will not be committed."""
    preparation: Preparation | None = None
    """For a two-phase sink: how it takes part in staging; None if it cannot, or if it gets rolls of batches: then rows
    are prepared at delivery.
    """
    shown: str = ""
    """The name for people. A sink that was renamed has its first one in `name`, for the WAL and events."""
    keeps_segments: bool = True
    """Whether the WAL keeps the rows of this sink. They are its only source, unless it is a two-phase sink. Like
    `prepares_again` read once, since a start checks it once: the sink is an object of the user, who may change it.
    """
    prepares_again: bool = False
    """Of a two-phase sink: whether a lost transaction is prepared again although it may have been committed."""


def serve(
    name: str,
    sink: Sink | BatchSink,
    delivery: Delivery,
    dispatcher: SegmentDispatcher,
    log: Log,
    *,
    travels: MakeSink | None,
    here: MakeSink | None = None,
    promised: Promise | None = None,
) -> ServedSink:
    """One sink of a run, with its promise. Raises `ConfigError` for a guarantee that the sink cannot give.

    `travels` makes the sink where rows are staged; None if it cannot go there. A two-phase sink prepares rows while
    they are staged if it travels, else when they are delivered. `here` makes it in this process if it does not travel;
    None: a copy of the sink, or the sink itself if it cannot be copied. `promised`: its promise, if that is known.
    """
    promised, identity = promised or promise(sink, delivery, name), name_of(sink)
    delivery = replace(delivery, to=sink)  # it may be a URL
    if isinstance(sink, CommitSink):
        dispatcher = CommitDispatcher(dispatcher, travels or copier(sink), log, itself=sink)
    if not isinstance(sink, TwoPhaseSink):
        return ServedSink(name, delivery, promised, dispatcher, identity)
    make = travels or here or copier(sink) or (lambda: sink)
    preparation = (
        None
        if travels is None or delivery.roll_s
        else Preparation(name, travels, delivery.retry.attempt_timeout_s, Renaming.of(delivery.columns))
    )
    return ServedSink(
        name,
        delivery,
        promised,
        dispatcher,
        identity,
        make,
        preparation,
        keeps_segments=sink.keep_segments,
        prepares_again=sink.on_gone == "prepare_again",
    )


def is_small(manifest: Manifest, tasks: Sequence[SegmentTask]) -> bool:
    """Whether a batch is delivered in the driver if both the driver and executors could do it.

    Rows that a two-phase sink has prepared are not moved any more.
    """
    moves_few = manifest.bytes <= SMALL_BATCH_BYTES or all(task.handle is not None for task in tasks)
    return moves_few and len(manifest.segments) <= SMALL_BATCH_SEGMENTS


class LocalDispatcher:
    """Delivers in the committer's own process, one segment after the other.

    `make_sink` may return the same object every time. While a call that timed out may still be running in it, it is not
    called again: `copy_sink` makes another one. Without `copy_sink` the sink has failed for good.
    """

    whole_batch = False

    def __init__(
        self,
        make_sink: MakeSink,
        log: Log,
        *,
        should_stop: Callable[[], bool],
        copy_sink: MakeSink | None = None,
        objects: Sequence[object] = (),
    ) -> None:
        """`objects`: what the sink consists of, if it is called itself."""
        self._objects = objects
        self._make_sink = make_sink
        self._copy_sink = copy_sink
        self._log = log
        self._should_stop = should_stop
        self._holder: TimedCall | None = None

    def deliver(
        self,
        delivery_context: DeliveryContext,
        manifest: Manifest,
        tasks: Sequence[SegmentTask],
        *,
        confirm: bool,
    ) -> list[SegmentResult]:
        """Deliver up to the first failure. The rest is left for the next attempt."""
        make_sink, timed_call = self._make_sink, _claiming(delivery_context, self._log, self._objects)
        if self._holder is None or not self._holder.busy:
            self._holder = timed_call
        elif self._copy_sink is not None:
            make_sink = self._copy_sink
        else:
            return failed(tasks, Failure(FailureKind.PERMANENT, _still_running(delivery_context)))
        return carry_out(
            delivery_context,
            tasks,
            make_sink,
            timed_call,
            self._log,
            on_executor=False,
            should_stop=self._should_stop,
            confirms=manifest.segments if confirm else None,
        )


def copier(sink: Sink) -> MakeSink | None:
    """A function that copies a sink as it is now, before it is opened; None if its copies would not be as good."""
    if sink.driver_only:
        return None
    try:
        payload = pickle.dumps(sink)
    except Exception:  # noqa: BLE001 - a user's __reduce__ may raise anything, and copies are optional
        return None
    return partial(_copy, payload, ability_of(sink))


def _copy(payload: bytes, ability: Ability) -> Sink:
    """A copy of the sink. Raises `PermanentError` if it is another kind of sink, with another guarantee."""
    copy: object = pickle.loads(payload)  # noqa: S301 - our own bytes
    if isinstance(copy, Sink) and ability_of(copy) is ability:
        return copy
    found = ability_of(copy).value if isinstance(copy, Sink) else type(copy).__name__
    raise PermanentError(
        f"a copy of the sink is “{found}”, expected “{ability.value}”: __reduce__ or __getstate__ of the sink drops "
        "this property"
    )


def failed(tasks: Sequence[SegmentTask], failure: Failure) -> list[SegmentResult]:
    """Results that say that these tasks failed; without tasks, that the target confirmed nothing."""
    results = [SegmentResult(task.ordinal, task.start, failure=failure) for task in tasks]
    return results or [failed_as_a_whole(failure)]


def carry_out(
    delivery_context: DeliveryContext,
    tasks: Sequence[SegmentTask],
    make_sink: MakeSink,
    timed_call: TimedCall,
    log: Log,
    *,
    on_executor: bool,
    should_stop: Callable[[], bool] = lambda: False,
    confirms: Sequence[SegmentRef] | None = None,
) -> list[SegmentResult]:
    """Deliver segments one after the other through one opened sink, in the driver or on an executor.

    `confirms`: the segments of the whole batch, if a transactional target is to confirm them once all tasks are done.
    These results follow those of the tasks.
    """
    limit_s = delivery_context.attempt_timeout_s
    try:
        sink = call_sink(timed_call, "making the sink", make_sink, timeout_s=limit_s)
    except SinkFailedError as error:
        timed_call.close()
        return failed(tasks, error.failure)
    context = delivery_context.context(on_executor=on_executor)
    session = SinkSession(sink, timed_call, context, timeout_s=limit_s, renaming=delivery_context.renaming)
    delivery = SegmentDelivery(delivery_context, session, log, should_stop=should_stop, on_executor=on_executor)
    results: list[SegmentResult] = []
    try:
        for task in tasks:
            results.append(delivery.deliver(task))
            if results[-1].failure:
                return results
        if confirms is not None:
            results += delivery.confirm(confirms)
    finally:
        session.close()
    return results


def _still_running(delivery_context: DeliveryContext) -> str:
    return (
        f"a call of this sink is still running after {delivery_context.attempt_timeout_s:g} s. The sink cannot be "
        "called again in this process, because it cannot be copied. Set a time limit in the client of the sink, raise "
        "attempt_timeout_s, write the sink as a Sink of plain data that can be pickled, or choose where='executors'"
    )


def _claiming(delivery_context: DeliveryContext, log: Log, objects: Sequence[object]) -> TimedCall:
    """A timed call for one sink of one WAL: whatever object another run of this process passes for it has to wait."""
    timed_call = log.runtime.new_timed_call()
    sink = (delivery_context.wal_id, delivery_context.sink)
    timed_call.claim = Claim(log.run_id, (sink, *map(id, objects)))
    return timed_call


class WholeBatchDispatcher:
    """Hands a whole batch to a writer on the driver, in one call.

    A writer that does not return within `limit_s` is given up for good, and `cancel` ends its Spark jobs. It is not
    called again, since it may still be writing.
    """

    whole_batch = True

    def __init__(
        self,
        write: Callable[[DeliveryContext, Manifest], object],
        log: Log,
        *,
        what: str,
        limit_s: float,
        objects: Sequence[object] = (),
        cancel: Callable[[], None] = lambda: None,
    ) -> None:
        self._objects = objects
        self._cancel = cancel
        self._write = write
        self._log = log
        self._what = what
        self._limit_s = limit_s

    def deliver(
        self,
        delivery_context: DeliveryContext,
        manifest: Manifest,
        tasks: Sequence[SegmentTask],
        *,
        confirm: bool,  # noqa: ARG002 - only a transactional target can confirm, and this is none
    ) -> list[SegmentResult]:
        """Deliver all tasks in one call: either all rows have arrived, or none is known to have."""
        try:
            delivery_context.term.check(self._log.store)
            self._call(delivery_context, manifest)
        except (SinkFailedError, WalSinkError) as error:
            return [failed_as_a_whole(failure_of(error))]
        return [SegmentResult(task.ordinal, task.segment.rows, chunks=1) for task in tasks]

    def _call(self, delivery_context: DeliveryContext, manifest: Manifest) -> None:
        what = f"batch {manifest.batch_id}: {self._what}"
        timed_call = _claiming(delivery_context, self._log, self._objects)
        try:
            returned = call_sink(timed_call, what, self._write, delivery_context, manifest, timeout_s=self._limit_s)
        except SinkFailedError as error:
            if isinstance(error.__cause__, CallTimedOutError):
                self._cancel()
                raise SinkFailedError(
                    FailureKind.PERMANENT, f"{what} is still running after {self._limit_s:g} s"
                ) from error
            raise
        finally:
            timed_call.close()
        check_returned(what, returned)


class CommitDispatcher:
    """Lets another dispatcher prepare the segments of a batch, then shows them in one commit, from this process.

    The position in the target decides: no batch is committed that the target has, and the commit itself compares the
    position again. So a process that was superseded, or a call that arrives late, changes nothing.
    """

    whole_batch = True

    def __init__(
        self, prepares: SegmentDispatcher, copy_sink: MakeSink | None, log: Log, *, itself: CommitSink
    ) -> None:
        """`copy_sink` makes a copy of the sink for each look and commit. Without it the sink `itself` is called, but
        not while a call that timed out may still be running in it.
        """
        self._prepares = prepares
        self._copy_sink = copy_sink
        self._log = log
        self._itself = itself
        self._last_call: TimedCall | None = None

    def deliver(
        self,
        delivery_context: DeliveryContext,
        manifest: Manifest,
        tasks: Sequence[SegmentTask],
        *,
        confirm: bool,
    ) -> list[SegmentResult]:
        """Prepare and commit all segments of the batch, or none. Without tasks: `confirm` the target's position.

        An attempt after a failure reads the position before anything is prepared, since the commit may have arrived.
        """
        if not tasks and not confirm:
            return []  # a batch without rows makes no commit
        try:
            if not tasks or any(task.maybe_sent for task in tasks):
                with self._opened(delivery_context) as (session, sink):
                    position = commit_position(delivery_context, session, sink)
                if not tasks or is_committed(position, manifest, marked_through=delivery_context.marked_through):
                    return [SegmentResult(task.ordinal, task.segment.rows, chunks=1) for task in tasks]
            prepared = self._prepares.deliver(delivery_context, manifest, tasks, confirm=False)
            if len(prepared) < len(tasks) or any(result.failure for result in prepared):
                return prepared
            with self._opened(delivery_context) as (session, sink):
                self._commit(delivery_context, manifest, prepared, session, sink)
        except (SinkFailedError, WalSinkError) as error:
            return [failed_as_a_whole(failure_of(error))]
        return [replace(result, rows=manifest.segments[result.ordinal].rows, chunks=1) for result in prepared]

    def _commit(
        self,
        given: DeliveryContext,
        manifest: Manifest,
        prepared: Sequence[SegmentResult],
        session: SinkSession,
        sink: CommitSink,
    ) -> None:
        follows = commit_position(given, session, sink)
        if is_committed(follows, manifest, marked_through=given.marked_through):
            return
        given.term.check(self._log.store)
        handles = {result.ordinal: result.handle for result in prepared}
        batch = BatchCommit(
            batch_id=manifest.batch_id,
            digest=digest_of(manifest),
            rows=manifest.rows,
            handles=tuple(handles[ordinal] for ordinal in range(len(manifest.segments))),
            follows=follows,
        )
        what = f"batch {manifest.batch_id}: {name_of(sink)}: commit"
        check_returned(what, session.call(what, sink.commit, batch))

    @contextmanager
    def _opened(self, given: DeliveryContext) -> Iterator[tuple[SinkSession, CommitSink]]:
        """An open session in this process. Raises `SinkFailedError`."""
        if self._copy_sink is None and self._last_call is not None and self._last_call.busy:
            raise SinkFailedError(FailureKind.PERMANENT, _still_running(given))
        limit_s = given.attempt_timeout_s
        timed_call = self._last_call = _claiming(given, self._log, objects_of(self._itself))
        try:
            sink = call_sink(
                timed_call, "making the sink", self._copy_sink or (lambda: self._itself), timeout_s=limit_s
            )
        except SinkFailedError:
            timed_call.close()
            raise
        session = SinkSession(sink, timed_call, given.context(on_executor=False), timeout_s=limit_s)
        try:
            session.open()
            if not isinstance(sink, CommitSink):
                raise SinkFailedError(FailureKind.PERMANENT, f"{name_of(sink)} is not a CommitSink")
            yield session, sink
        finally:
            session.close()
