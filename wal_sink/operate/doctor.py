"""Examining where a WAL is to run: store, bucket, checkpoint and target, each finding with its next step.

It changes nothing but its own probes, which it deletes. `wal_sink/spark/examination.py` examines Java and the workers.
docs/FORMAT.md lists what a life-cycle rule of a bucket may do. The WAL's objects have no tags, so a rule for tagged
objects does not concern them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from wal_sink.errors import StoreError, WalSinkError
from wal_sink.log import paths
from wal_sink.log.log import NOTHING
from wal_sink.log.records import Manifest, WalRecord
from wal_sink.log.segment_reader import load_segment, read_chunks
from wal_sink.operate.look import WalFacts, find_staged
from wal_sink.operate.status import Status, status_of
from wal_sink.protocol.checkpoint import Checkpoint
from wal_sink.protocol.checkpoint_formats import CheckpointFiles
from wal_sink.protocol.location import canonical, check_location, refuse_shared_folder
from wal_sink.sinks.base import BatchSink, Sink
from wal_sink.sinks.calls import Examined, call_sink
from wal_sink.sinks.failures import SinkFailedError
from wal_sink.stores.base import InBucket, ObjectExists, ObjectMissing, Store
from wal_sink.stores.creation import new_object
from wal_sink.support.clock import Runtime
from wal_sink.support.texts import Finding, counted, fault, fine, name_of, risk, text_of, told

PERMISSION = "s3:GetLifecycleConfiguration"
"""The permission that the request needs."""
_CHECK = "bucket.life-cycle"
_NONE = "NoSuchLifecycleConfiguration"
_DENIED = {"AccessDenied", "403"}
_ARCHIVES = {"GLACIER", "DEEP_ARCHIVE"}
"""Storage classes whose objects cannot be read before they are restored."""
_BY_HAND = {
    **dict.fromkeys(("gs", "gcs"), "gcloud storage buckets describe"),
    **dict.fromkeys(("abfs", "abfss", "az"), "az storage account management-policy show"),
}
WRITERS = 8
"""Threads that race for one object."""
ROUNDS = 3
"""Races. A store that checks first and writes afterwards rarely survives one."""
_OTHER_STORE = (
    "use a store with conditional writes (AWS S3, MinIO since 2024, Google, Azure, HDFS, a local disk), or bypass "
    "caching proxies"
)
_CORRECT = "see what the store answered, correct the cause, then repeat this command"
CHECK = "target"
TIMEOUT_S = 60.0
_BATCHES = 8
"""Newest batches among which one with rows is looked for."""
NO_ROWS = "no staged rows were found"
_SEE = "see the message and docs/troubleshooting.md"


def bucket_findings(store: Store) -> list[Finding]:
    """Findings about the rules of the bucket of a WAL. One request for S3; none for other stores.

    A store that is no bucket gives no finding. The rules of Google and Azure are unknown.
    """
    if isinstance(store, InBucket):
        return _of_answer(store)
    if by_hand := _BY_HAND.get(store.root.partition(":")[0]):
        step = f"look at {by_hand}: no rule may delete or archive objects of the WAL"
        return [risk(_CHECK, f"unknown: the rules of {store.root} are not read", step)]
    return []


def _of_answer(store: InBucket) -> list[Finding]:
    answer, prefix = store.life_cycle(), store.prefix
    if answer.refused == _NONE:
        return [fine(_CHECK, "the bucket has no life-cycle rule")]
    if answer.refused in _DENIED:
        return [
            risk(
                _CHECK,
                f"unknown: these credentials have no permission to read it ({PERMISSION})",
                f"grant {PERMISSION} for this command, or let the owner of the bucket check its rules",
            )
        ]
    if answer.refused:
        said = f"unknown: the store answered {answer.refused} ({answer.text})"
        return [risk(_CHECK, said, "let the owner of the bucket check its rules")]
    rules = [rule for rule in answer.found.get("Rules", ()) if _concerns(rule, prefix)]
    found = [finding for rule in rules for finding in _of_rule(rule, prefix)]
    return found or [fine(_CHECK, "no life-cycle rule deletes or archives objects of the WAL")]


def _concerns(rule: Mapping[str, Any], prefix: str) -> bool:
    """Whether a rule may act on objects below the WAL's folder."""
    scope = _filter(rule)
    if rule.get("Status") == "Disabled" or scope.get("Tag") or scope.get("Tags"):
        return False
    head = _head(rule)
    return prefix.startswith(head) or (head.startswith(prefix) and not _is_permitted_place(head.removeprefix(prefix)))


def _is_permitted_place(head: str) -> bool:
    """Whether objects in this part of a WAL may be deleted: probes, and dead letters of one sink."""
    parts = head.split("/")
    return (parts[0] == "probe" and len(parts) > 1) or (
        parts[0] == "sinks" and parts[2:3] == ["dead-letters"] and len(parts) > 3
    )


def _filter(rule: Mapping[str, Any]) -> Mapping[str, Any]:
    scope: Mapping[str, Any] = rule.get("Filter") or {}
    return scope.get("And") or scope


def _head(rule: Mapping[str, Any]) -> str:
    """The beginning of the keys that a rule is about; empty for all keys."""
    return str(_filter(rule).get("Prefix") or rule.get("Prefix") or "")


def _of_rule(rule: Mapping[str, Any], prefix: str) -> list[Finding]:
    named = f"rule {rule.get('ID') or _head(rule) or '(without a name)'!r}"
    step = f"exclude the keys below {prefix or 'the root'} from this rule; docs/FORMAT.md lists what a rule may do"
    found, expiry = [], rule.get("Expiration") or {}
    if "Days" in expiry or "Date" in expiry:
        when = f"after {expiry['Days']} days" if "Days" in expiry else f"at {expiry['Date']}"
        found.append(f"{named} deletes objects of the WAL {when}; wal.json and terms must stay for ever")
    classes = [str(move.get("StorageClass")) for move in rule.get("Transitions") or ()]
    found += [
        f"{named} moves objects of the WAL to {where}, where they cannot be read"
        for where in classes
        if where in _ARCHIVES
    ]
    return [fault(_CHECK, said, step) for said in found]


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


def target_findings(
    sink: Sink | BatchSink, schema: Any, runtime: Runtime, *, no_schema: str = NO_ROWS
) -> list[Finding]:
    """Findings about the target of a sink. `schema` is that of `newest_schema`, or None because of `no_schema`."""
    named = name_of(sink)
    if not isinstance(sink, Examined):
        return [
            risk(
                CHECK,
                f"{named}: unknown, since this kind of sink cannot be examined without a delivery",
                "deliver a batch to a copy of the target, or see wal_sink.testing for tests of a sink",
            )
        ]
    timed_call = runtime.new_timed_call()
    try:
        found = call_sink(timed_call, f"examining {named}", sink.examine, schema, timeout_s=TIMEOUT_S)
    except SinkFailedError as failure:
        return [fault(CHECK, str(failure), "correct the cause, then repeat this command")]
    finally:
        timed_call.close()
    return [*found, _fit(schema, named, no_schema)]


def _fit(schema: Any, named: str, no_schema: str) -> Finding:
    """Whether rows were compared with the target."""
    check = f"{CHECK}.rows"
    if schema is None:
        step = "repeat this command with the address of a WAL that holds a batch with rows"
        return risk(check, f"unknown whether rows fit {named}: {no_schema}", step)
    return fine(check, f"the newest staged rows have {counted(len(schema), 'column')}, and none of these is refused")


def newest_schema(facts: WalFacts) -> tuple[Any, list[Finding]]:
    """The Arrow schema of the newest staged rows, None if none were found; and findings about damage on the way.

    Looks at up to eight batches, and reads the smallest segment of one.
    """
    try:
        for batch_id in reversed(facts.batches[-_BATCHES:]):
            manifest = find_staged(facts.log, batch_id).whole().manifest
            if manifest is not None and (schema := _schema_of(facts.log.store, manifest)) is not None:
                return schema, []
    except WalSinkError as failure:
        return None, [fault("wal.rows", told(failure), "see the message; wal-sink show WAL BATCH shows one batch")]
    return None, []


def _schema_of(store: Store, manifest: Manifest) -> Any:
    """The schema of a batch's rows; None if it has none, or keeps none."""
    kept = [ref for ref in manifest.segments if ref.kept and ref.rows]
    if not kept:
        return None
    ref = min(kept, key=lambda one: one.bytes)
    chunks = read_chunks(
        load_segment(store, ref),
        ref,
        chunk_rows=manifest.chunk_rows,
        columns=manifest.columns,
        where=store.url_of(ref.path),
    )
    _, _, table = next(iter(chunks))
    return table.schema


def wal_findings(facts: WalFacts) -> tuple[Status | None, list[Finding]]:
    """The status of a WAL, None if it cannot be read; and findings about it. A few requests for each sink."""
    try:
        status = status_of(facts)
        if facts.wal is None:
            step = "check the address if a query already ran; otherwise its first batch makes the WAL"
            return status, [risk("wal", f"{status.wal} holds no WAL yet", step)]
        return status, [_contents(status), _location(facts, facts.wal)]
    except WalSinkError as failure:
        return None, [fault("wal", told(failure), _SEE)]


def _contents(status: Status) -> Finding:
    names = ", ".join(repr(sink.name) for sink in status.sinks) or "no sink"
    newest = "no batch" if status.newest_batch == NOTHING else f"batches up to {status.newest_batch}"
    return fine("wal", f"{status.wal} can be read: {newest}, {names}")


def _location(facts: WalFacts, wal: WalRecord) -> Finding:
    """Whether the WAL lies where it says."""
    here, check = canonical(facts.log.store.root), "wal.location"
    if facts.location == here:
        return fine(check, "the WAL lies at its recorded location")
    try:
        check_location(facts.log, wal, moved=True)
    except WalSinkError as failure:
        return fault(check, text_of(failure), "open the recorded location, or declare the move once (moved_from)")
    step = "use the recorded path; if this is a copy, do not open it"
    return risk(check, f"the WAL lies at {here}, but its recorded location is {facts.location}", step)


def recorded_checkpoint(facts: WalFacts, status: Status | None) -> tuple[str | None, str]:
    """The address that the WAL records; if it is not known, None and the reason. One read if there is no status.

    The record itself may be readable where the WAL as a whole is not.
    """
    if status is not None:
        return status.checkpoint, "the WAL records none yet"
    try:
        record = facts.log.find(WalRecord, paths.WAL)
    except WalSinkError:
        return None, "the WAL, which records its address, could not be read"
    if record is None:
        return None, f"{facts.log.store.url_of(paths.WAL)}, which records its address, does not exist"
    return record.checkpoint, ""


def checkpoint_findings(files: CheckpointFiles, wal: str, status: Status | None) -> list[Finding]:
    """Findings about a checkpoint, and whether it belongs to the WAL at the address `wal`. At most ten requests."""
    check = "checkpoint"
    try:
        refuse_shared_folder(wal, files.root)
        checkpoint = Checkpoint(files)
        checkpoint.refuse_wal()
        query_id = checkpoint.query_id()
        if query_id is None and status is not None and status.query_id is not None:
            found = f"{files.root} holds no checkpoint, and the WAL holds batches of query {status.query_id}"
            return [fault(check, found, "check the address, restore the checkpoint, or see: wal-sink settle")]
        if query_id is None:
            return [risk(check, f"{files.root} holds no checkpoint yet", "check the address if a query already ran")]
        return [_entries(checkpoint), _owner(checkpoint, query_id, status)]
    except WalSinkError as failure:
        return [fault(check, told(failure), _SEE)]


def _entries(checkpoint: Checkpoint) -> Finding:
    """Read the newest entries: Spark may have written them in a format that wal-sink does not know."""
    planned, completed = checkpoint.newest_planned(), checkpoint.newest_commit()
    if planned > NOTHING:
        checkpoint.offsets(planned)
    if completed > NOTHING:
        checkpoint.is_completed(completed)
    newest = "no batch is complete" if completed == NOTHING else f"batch {completed} is complete"
    return fine("checkpoint", f"{checkpoint.root} can be read: {newest}")


def _owner(checkpoint: Checkpoint, query_id: str, status: Status | None) -> Finding:
    check = "checkpoint.query"
    if status is None or status.query_id is None:
        why = "could not be read" if status is None else "records no query yet"
        return risk(check, f"unknown whether it belongs to the WAL, which {why}", "see the lines above")
    if status.query_id != query_id:
        return fault(
            check,
            f"{checkpoint.root} belongs to query {query_id}, but the WAL to query {status.query_id}",
            f"pass the checkpoint that the WAL records, {status.checkpoint}. If it is lost: wal-sink settle",
        )
    return fine(check, "the checkpoint and the WAL belong to one query")
