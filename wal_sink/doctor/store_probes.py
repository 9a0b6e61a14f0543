"""Probes of a store: each promise that a WAL needs, races included. Every object is deleted afterwards.

The probes run on a thread that Ctrl-C does not interrupt. So a create that is under way ends before the objects are
deleted, and none is left behind.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial

from wal_sink.errors import StoreError, WalSinkError
from wal_sink.reporting.findings import Finding, fault, fine, risk
from wal_sink.reporting.texts import told
from wal_sink.runtime.clock import Runtime
from wal_sink.stores.base import ObjectExists, ObjectMissing, Store
from wal_sink.stores.examined import Dated
from wal_sink.stores.probe import new_object

WRITERS = 8
"""Threads that race for one object."""
ROUNDS = 3
"""Races. A store that checks first and writes afterwards rarely survives one."""
SLOW_S = 1.0
"""A request that takes longer is slow."""
_RESOLUTION = timedelta(seconds=1)
_SKEW_WARNING = timedelta(seconds=60)
_SKEW_ERROR = timedelta(minutes=15)
"""S3 refuses requests from a clock that differs by more."""
_OTHER_STORE = (
    "use a store with conditional writes (AWS S3, MinIO since 2024, Google, Azure, HDFS, a local disk), or bypass "
    "caching proxies"
)
_SET_CLOCKS = "set both clocks by NTP"


def probe_store(store: Store, runtime: Runtime, *, single_writer: bool = False) -> list[Finding]:
    """Examine a store by about 40 requests. `single_writer`: the user promises that one process writes.

    A failure of the store is a finding. Raises nothing but `KeyboardInterrupt`, after the probes were deleted.
    """
    probes = _Probes(store, runtime)
    thread = threading.Thread(target=probes.run, name="wal-sink-doctor", daemon=True)
    try:
        thread.start()  # inside: the thread may already run when an interrupt leaves this call
        probes.done.wait()  # not Thread.join: after an interrupt, that of Python 3.11 returns while the thread runs
    except RuntimeError:  # the system has no more threads, so nothing was made
        raise
    except BaseException:
        probes.stop()
        probes.done.wait()
        raise
    if probes.failure is not None:
        raise probes.failure
    return [_sharing(store, single_writer=single_writer), *probes.findings]


def _sharing(store: Store, *, single_writer: bool) -> Finding:
    """Whether several processes can share the store. A race on one machine cannot show the opposite."""
    doubt, check = store.create_doubt, "store.sharing"
    if not doubt:
        return fine(check, f"several processes can share {store.root}")
    if single_writer:
        return risk(check, f"{doubt}; you promise that one process writes", "keep this promise after a crash, too")
    return fault(
        check,
        doubt,
        "use a local folder, s3://, hdfs://, gs:// or abfs:// instead; or set Settings(single_writer=True), and pass "
        "--single-writer here, but only if never more than one process writes this WAL",
    )


class _StoppedError(Exception):
    """Ctrl-C: nothing more is probed."""


class _Probes:
    """One run of all probes, on one thread."""

    def __init__(self, store: Store, runtime: Runtime) -> None:
        self._store = store
        self._runtime = runtime
        self._stopped = threading.Event()
        self.done = threading.Event()
        self._made: list[str] = []
        """Every path under which an object may lie."""
        self._took_s: dict[str, float] = {}
        self.findings: list[Finding] = []
        self.failure: BaseException | None = None
        """An error that no store should raise."""

    def stop(self) -> None:
        self._stopped.set()

    def run(self) -> None:
        """Probe, then delete, whatever happened before. A failure becomes a finding."""
        try:
            self._probe()
        except BaseException as failure:  # noqa: BLE001 - raised on the caller's thread
            self.failure = failure
        try:
            self._delete()
        finally:
            self.done.set()

    def _probe(self) -> None:
        path, data = self._new()
        runtime = self._runtime
        before = runtime.now()
        if not self._look("store.create", lambda: self._create(path, data)):
            self.findings.append(
                risk("store.others", "no other promise was probed, since nothing could be created", "see store.create")
            )
            return
        after = runtime.now()
        for check, look in (
            ("store.read", lambda: self._read(path, data)),
            ("store.list", lambda: self._list(path)),
            ("store.race", self._race),
            ("store.segment", self._segment),
            ("store.clock", lambda: self._clock(path, before, after)),
            ("store.delete", lambda: self._deleted(path)),
        ):
            self._look(check, look)
        self.findings.append(self._speed())

    def _look(self, check: str, look: Callable[[], Finding]) -> bool:
        """Note the finding of one probe. False if the store failed."""
        if self._stopped.is_set():
            raise _StoppedError
        try:
            self.findings.append(look().about(check))
        except WalSinkError as failure:
            step = "see what the store answered, correct the cause, then repeat this command"
            self.findings.append(fault(check, told(failure), step))
            return False
        return True

    def _new(self) -> tuple[str, bytes]:
        path, data = new_object(self._runtime)
        self._made.append(path)
        return path, data

    def _timed(self, what: str, call: Callable[[], object]) -> None:
        began_s = self._runtime.monotonic_s()
        call()
        self._took_s[what] = self._runtime.monotonic_s() - began_s

    def _create(self, path: str, data: bytes) -> Finding:
        self._timed("create", lambda: self._store.create(path, data))
        try:
            self._store.create(path, b'{"probe": "second"}')
        except ObjectExists:
            return fine("", "an object is created once, and a second create of it is refused")
        return fault(
            "", "a second create of the same object was accepted, so writers overwrite each other", _OTHER_STORE
        )

    def _read(self, path: str, data: bytes) -> Finding:
        began_s = self._runtime.monotonic_s()
        try:
            found = self._store.read(path)
        except ObjectMissing:
            return fault("", "an object that was just created cannot be found", _OTHER_STORE)
        self._took_s["read"] = self._runtime.monotonic_s() - began_s
        if found != data:
            return fault("", f"an object of {len(data)} bytes came back as {len(found)} other bytes", _OTHER_STORE)
        return fine("", "a read after a write returns what was written")

    def _list(self, path: str) -> Finding:
        began_s = self._runtime.monotonic_s()
        found = self._names()
        self._took_s["list"] = self._runtime.monotonic_s() - began_s
        if path not in found:
            return fault("", "an object that was just created is missing in the listing", _OTHER_STORE)
        return fine("", "a listing after a write shows the object")

    def _names(self) -> set[str]:
        return {f"{self._made[0].partition('/')[0]}/{name}" for name in self._store.list("probe")}

    def _race(self) -> Finding:
        for _ in range(ROUNDS):
            path, data = self._new()
            contents = [data.replace(b'"}', f'", "writer": {number}}}'.encode()) for number in range(WRITERS)]
            won = _at_once(partial(self._wins, path), contents)
            problem = self._race_problem(path, contents, won)
            if problem:
                return fault("", problem, _OTHER_STORE)
        return fine("", f"of {WRITERS} threads that create one object at once, one wins ({ROUNDS} races)")

    def _wins(self, path: str, content: bytes) -> bool:
        try:
            self._store.create(path, content)
        except ObjectExists:
            return False
        return True

    def _race_problem(self, path: str, contents: list[bytes], won: list[bool | WalSinkError]) -> str:
        """The broken promise; empty if there is none. A writer without a clear answer may have won."""
        failed = [answer for answer in won if isinstance(answer, WalSinkError)]
        winners = [content for content, answer in zip(contents, won, strict=True) if answer is True]
        found = self._store.read(path)
        if len(winners) > 1:
            return f"of {WRITERS} threads that created one object at once, {len(winners)} were told that they made it"
        if found not in (winners or contents):
            return "a thread was told that it made an object, but the object is another's: it was overwritten"
        if failed:
            raise failed[0]
        return ""

    def _segment(self) -> Finding:
        path, data = self._new()
        with self._store.segment(path) as stream:
            stream.write(data)
            if path in self._names():
                return fault("", "a listing shows an object before it is whole", _OTHER_STORE)
            stream.commit()
        if self._store.read(path) != data:
            return fault("", "an object that was written in pieces came back as other bytes", _OTHER_STORE)
        return fine("", "an object that is written in pieces appears as a whole")

    def _clock(self, path: str, before: datetime, after: datetime) -> Finding:
        by_hand = f"compare the clock of this machine with that of the store, and {_SET_CLOCKS}"
        if not isinstance(self._store, Dated):
            return risk("", f"unknown: {type(self._store).__name__} tells no time of an object", by_hand)
        try:
            made = self._store.created_at(path)
        except StoreError as failure:
            return risk("", f"unknown: {told(failure)}", by_hand)
        skew = max(before - _RESOLUTION - made, made - after - _RESOLUTION, timedelta())
        if not skew:
            return fine("", "the clocks of this machine and of the store agree to the second")
        side = "ahead of" if made < before else "behind"
        found = f"this machine's clock is {skew.total_seconds():,.0f} s {side} the store's"
        if skew >= _SKEW_ERROR:
            return fault("", f"{found}; S3 refuses such requests", _SET_CLOCKS)
        if skew >= _SKEW_WARNING:
            return risk("", f"{found}; ages in reports are wrong by as much", _SET_CLOCKS)
        return fine("", found)

    def _deleted(self, path: str) -> Finding:
        self._store.delete([path])
        try:
            self._store.read(path)
        except ObjectMissing:
            pass
        else:
            return fault("", "an object that was deleted can still be read", _OTHER_STORE)
        if path in self._names():
            return fault("", "an object that was deleted is still listed", _OTHER_STORE)
        self._store.delete([path])
        return fine("", "a deleted object is gone, and a second delete of it is no error")

    def _speed(self) -> Finding:
        told_s = ", ".join(f"{what} {took_s * 1000:,.0f} ms" for what, took_s in self._took_s.items())
        if max(self._took_s.values()) < SLOW_S:
            return fine("store.speed", told_s)
        step = "check the load and the request limits of the store, and the network"
        return risk("store.speed", f"{told_s}: batches are staged and delivered as slowly", step)

    def _delete(self) -> None:
        try:
            self._store.delete(self._made)
        except StoreError as failure:
            names = ", ".join(self._made)
            self.findings.append(
                fault("store.delete", f"the probes could not be deleted: {told(failure)}", f"delete {names} by hand")
            )


def _at_once(create: Callable[[bytes], bool], contents: Sequence[bytes]) -> list[bool | WalSinkError]:
    """The answers to creates that begin at the same moment, each on a thread."""
    answers: dict[int, bool | WalSinkError] = {}
    go = threading.Event()

    def ask(number: int) -> None:
        go.wait()
        try:
            answers[number] = create(contents[number])
        except WalSinkError as failure:
            answers[number] = failure

    threads = [threading.Thread(target=ask, args=(number,), daemon=True) for number in range(len(contents))]
    for thread in threads:
        thread.start()
    go.set()
    for thread in threads:
        thread.join()
    return [answers[number] for number in range(len(contents))]
