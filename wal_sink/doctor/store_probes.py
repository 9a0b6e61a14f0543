"""Probes of a store: each promise that a WAL needs, races included. Every object is deleted afterwards."""

from __future__ import annotations

from collections.abc import Callable

from wal_sink.errors import StoreError, WalSinkError
from wal_sink.reporting.findings import Finding, fault, fine, risk
from wal_sink.reporting.texts import told
from wal_sink.runtime.clock import Runtime
from wal_sink.stores.base import ObjectExists, ObjectMissing, Store
from wal_sink.stores.probe import new_object

WRITERS = 8
"""Threads that race for one object."""
ROUNDS = 3
"""Races. A store that checks first and writes afterwards rarely survives one."""
_OTHER_STORE = (
    "use a store with conditional writes (AWS S3, MinIO since 2024, Google, Azure, HDFS, a local disk), or bypass "
    "caching proxies"
)
_CORRECT = "see what the store answered, correct the cause, then repeat this command"


def probe_store(store: Store, runtime: Runtime, *, single_writer: bool = False) -> list[Finding]:
    """Examine a store by about 40 requests. `single_writer`: the user promises that one process writes.

    A failure of the store is a finding. The probes are deleted, whatever happens, Ctrl-C included.
    """
    probes = _Probes(store, runtime)
    try:
        probes.run()
    finally:
        probes.delete()
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


class _Probes:
    """One run of all probes. Each probe returns the broken promise; empty if there is none."""

    def __init__(self, store: Store, runtime: Runtime) -> None:
        self._store = store
        self._runtime = runtime
        self._made: list[str] = []
        """Every path under which an object may lie."""
        self.findings: list[Finding] = []

    def run(self) -> None:
        path, data = self._new()
        kept = "an object is created once, and a second create of it is refused"
        if not self._look("store.create", kept, lambda: self._create(path, data)):
            said = "no other promise was probed, since nothing could be created"
            self.findings.append(risk("store.others", said, "see store.create"))
            return
        won = f"of {WRITERS} threads that create one object at once, one wins ({ROUNDS} races)"
        gone = "a deleted object is gone, and a second delete of it is no error"
        self._look("store.read", "a read after a write returns what was written", lambda: self._read(path, data))
        self._look("store.list", "a listing after a write shows the object", lambda: self._list(path))
        self._look("store.race", won, self._races)
        self._look("store.segment", "an object that is written in pieces appears as a whole", self._segment)
        self._look("store.delete", gone, lambda: self._deleted(path))

    def _look(self, check: str, kept: str, look: Callable[[], str]) -> bool:
        """Note the finding of one probe. False if the store failed."""
        try:
            problem = look()
        except WalSinkError as failure:
            self.findings.append(fault(check, told(failure), _CORRECT))
            return False
        self.findings.append(fault(check, problem, _OTHER_STORE) if problem else fine(check, kept))
        return True

    def _new(self) -> tuple[str, bytes]:
        path, data = new_object(self._runtime)
        self._made.append(path)
        return path, data

    def _create(self, path: str, data: bytes) -> str:
        self._store.create(path, data)
        if self._wins(path, b'{"probe": "second"}'):
            return "a second create of the same object was accepted, so writers overwrite each other"
        return ""

    def _wins(self, path: str, content: bytes) -> bool:
        try:
            self._store.create(path, content)
        except ObjectExists:
            return False
        return True

    def _read(self, path: str, data: bytes) -> str:
        try:
            found = self._store.read(path)
        except ObjectMissing:
            return "an object that was just created cannot be found"
        return "" if found == data else f"an object of {len(data)} bytes came back as {len(found)} other bytes"

    def _list(self, path: str) -> str:
        return "" if path in self._names() else "an object that was just created is missing in the listing"

    def _names(self) -> set[str]:
        return {f"probe/{name}" for name in self._store.list("probe")}

    def _races(self) -> str:
        return next(filter(None, (self._race() for _ in range(ROUNDS))), "")

    def _race(self) -> str:
        path, data = self._new()
        contents = [data.replace(b'"}', f'", "writer": {number}}}'.encode()) for number in range(WRITERS)]

        def ask(content: bytes) -> bool | WalSinkError:
            try:
                return self._wins(path, content)
            except WalSinkError as failure:
                return failure

        answers = self._runtime.side_by_side(ask, contents)
        winners = [content for content, answer in zip(contents, answers, strict=True) if answer is True]
        failed = [answer for answer in answers if isinstance(answer, WalSinkError)]
        found = self._store.read(path)
        if len(winners) > 1:
            return f"of {WRITERS} threads that created one object at once, {len(winners)} were told that they made it"
        if found not in (winners or contents):  # a writer without a clear answer may have won
            return "a thread was told that it made an object, but the object is another's: it was overwritten"
        if failed:
            raise failed[0]
        return ""

    def _segment(self) -> str:
        path, data = self._new()
        with self._store.segment(path) as stream:
            stream.write(data)
            if path in self._names():
                return "a listing shows an object before it is whole"
            stream.commit()
        return "" if self._store.read(path) == data else "an object that was written in pieces came back as other bytes"

    def _deleted(self, path: str) -> str:
        self._store.delete([path])
        try:
            self._store.read(path)
        except ObjectMissing:
            pass
        else:
            return "an object that was deleted can still be read"
        if path in self._names():
            return "an object that was deleted is still listed"
        self._store.delete([path])
        return ""

    def delete(self) -> None:
        try:
            self._store.delete(self._made)
        except StoreError as failure:
            step = f"delete {', '.join(self._made)} by hand"
            self.findings.append(fault("store.delete", f"the probes could not be deleted: {told(failure)}", step))
