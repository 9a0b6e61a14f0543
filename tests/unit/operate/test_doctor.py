"""The WAL, the checkpoint, the bucket and the target are examined: what cannot be read or does not fit is told."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tests.house.log import WalRecord, decode, encode
from tests.house.operate import WalFacts, read_status
from tests.house.protocol import Run
from tests.house.sinks import Chunk, Sink, as_sink
from tests.house.stores import MeasuredStore, MemoryStore, Store, StoreSpec, open_store
from tests.house.support import SYSTEM, Finding, Level
from tests.support.counted_store import CountedStore
from tests.support.staged_log import stage
from wal_sink.errors import PermanentError, StoreError
from wal_sink.operate.doctor import (
    PERMISSION,
    bucket_findings,
    checkpoint_findings,
    newest_schema,
    recorded_checkpoint,
    target_findings,
    wal_findings,
)
from wal_sink.settings import Settings
from wal_sink.stores.base import Answer
from wal_sink.support.texts import fine
from wal_sink.testing import FakeQuery, simulated_runtime

_numbers = itertools.count()
SCHEMA = pa.schema([pa.field("id", pa.int64())])
PREFIX = "wal/orders/"


def opened(folder: Path) -> Store:
    return open_store(StoreSpec(str(folder)))


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A folder with a WAL of two batches and its checkpoint."""
    assert stage(tmp_path, 2) == [0, 1]
    return tmp_path


def of_wal(folder: Path) -> dict[str, Finding]:
    _, found = wal_findings(WalFacts(opened(folder)))
    return {one.check: one for one in found}


def of_checkpoint(base: Path, checkpoint: str = "checkpoint") -> dict[str, Finding]:
    status = read_status(opened(base / "wal"))
    found = checkpoint_findings(opened(base / checkpoint), str(base / "wal"), status)
    assert all(one.next_step for one in found if one.level is not Level.OK)
    return {one.check: one for one in found}


def rewrite(base: Path, **changes: object) -> None:
    file = base / "wal" / "wal.json"
    record = decode(WalRecord, file.read_bytes(), "wal.json")
    file.write_bytes(encode(msgspec.structs.replace(record, **changes)))


def test_a_healthy_wal_and_its_checkpoint_are_fine(base: Path) -> None:
    results = of_wal(base / "wal") | of_checkpoint(base)
    assert {one.level for one in results.values()} == {Level.OK}
    assert list(results) == ["wal", "wal.location", "checkpoint", "checkpoint.query"]
    assert "batches up to 1, no sink" in results["wal"].found
    assert "batch 1 is complete" in results["checkpoint"].found


def test_no_wal_is_a_warning(tmp_path: Path) -> None:
    status, (finding,) = wal_findings(WalFacts(opened(tmp_path / "nothing")))
    assert status is not None
    assert finding.level is Level.WARNING
    assert "holds no WAL yet" in finding.found


def test_a_damaged_wal_and_one_without_rights_are_errors(base: Path) -> None:
    class Refusing(MeasuredStore):
        def list(self, prefix: str, *, after: str = "", recursive: bool = False) -> list[str]:
            raise StoreError(f"no right to list {prefix}{after}{recursive}")

    status, (finding,) = wal_findings(WalFacts(Refusing(opened(base / "wal"))))
    assert status is None
    assert "no right to list" in finding.found
    (base / "wal" / "wal.json").write_bytes(b"{}")
    assert of_wal(base / "wal")["wal"].level is Level.ERROR


def test_a_copy_is_an_error_and_another_path_a_warning(base: Path) -> None:
    shutil.copytree(base / "wal", base / "copy")
    copy = of_wal(base / "copy")["wal.location"]
    assert copy.level is Level.ERROR
    assert "that folder exists too" in copy.found
    shutil.rmtree(base / "wal")
    assert of_wal(base / "copy")["wal.location"].level is Level.WARNING


@pytest.mark.parametrize(
    ("change", "checkpoint", "level", "said"),
    [
        (lambda _: None, "nothing", Level.ERROR, "holds no checkpoint, and the WAL holds batches of query"),
        (lambda base: shutil.copytree(base / "wal", base / "copy"), "copy", Level.ERROR, "cannot be a checkpoint"),
        (lambda _: None, "wal", Level.ERROR, "same folder"),
        (lambda base: (base / "checkpoint/offsets/1").write_text("v9\n{}\n{}"), "checkpoint", Level.ERROR, "v9"),
        (lambda base: rewrite(base, query_id="another"), "checkpoint", Level.ERROR, "query another"),
        (lambda base: empty(base / "checkpoint"), "checkpoint", Level.OK, "no batch is complete"),
    ],
)
def test_a_checkpoint_that_is_none_or_is_not_that_of_the_wal_is_told(
    change: Callable[[Path], object], checkpoint: str, level: Level, said: str, base: Path
) -> None:
    change(base)
    found = of_checkpoint(base, checkpoint).values()
    assert level in [one.level for one in found if said in one.found]


def empty(checkpoint: Path) -> None:
    """As it is before its first batch."""
    for folder in ("offsets", "commits"):
        shutil.rmtree(checkpoint / folder)


def test_without_a_wal_it_is_unknown_whose_the_checkpoint_is(base: Path) -> None:
    nothing = read_status(opened(base / "nothing"))
    for status, why in ((None, "which could not be read"), (nothing, "which records no query yet")):
        _, owner = checkpoint_findings(opened(base / "checkpoint"), str(base / "wal"), status)
        assert owner.level is Level.WARNING
        assert why in owner.found
        (none,) = checkpoint_findings(opened(base / "nothing"), str(base / "wal"), status)
        assert (none.level, "holds no checkpoint yet" in none.found) == (Level.WARNING, True)


def test_the_recorded_checkpoint_is_known_wherever_the_record_can_be_read(base: Path) -> None:
    """A WAL that cannot be read as a whole says nothing about whether it records a checkpoint."""
    wal = opened(base / "wal")
    location = opened(base / "checkpoint").root
    assert recorded_checkpoint(WalFacts(wal), read_status(wal))[0] == location
    assert recorded_checkpoint(WalFacts(wal), None) == (location, "")
    nothing = opened(base / "nothing")
    assert recorded_checkpoint(WalFacts(nothing), read_status(nothing)) == (None, "the WAL records none yet")
    assert "wal.json, which records its address, does not exist" in recorded_checkpoint(WalFacts(nothing), None)[1]
    (base / "wal" / "wal.json").write_bytes(b"{}")
    assert recorded_checkpoint(WalFacts(wal), None) == (None, "the WAL, which records its address, could not be read")


def test_sinks_and_a_wal_without_batches_are_named(base: Path) -> None:
    from wal_sink.operate.doctor import _contents  # noqa: PLC0415

    status = read_status(opened(base / "nothing"))
    assert "no batch, no sink" in _contents(status).found


class Looks(Sink):
    """A sink that keeps the schemas it gets."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.asked: list[Any] = []

    def write(self, chunk: Chunk) -> None:
        raise AssertionError(chunk)

    def open(self, context: object) -> None:
        raise AssertionError(context)

    def examine(self, schema: Any) -> Sequence[Finding]:
        self.asked.append(schema)
        if self.error is not None:
            raise self.error
        return [fine("target", "it is there")]


def test_a_sink_that_can_look_is_asked_and_is_not_opened() -> None:
    sink = Looks()
    there, rows = target_findings(sink, SCHEMA, simulated_runtime())
    assert sink.asked == [SCHEMA]
    assert (there.level, rows.level) == (Level.OK, Level.OK)
    assert "1 column" in rows.found


def test_without_staged_rows_it_is_unknown_whether_they_fit() -> None:
    _, rows = target_findings(Looks(), None, simulated_runtime())
    assert rows.level is Level.WARNING
    assert "unknown" in rows.found


def test_a_failure_is_an_error_with_the_text_of_the_sink() -> None:
    password = "hush-hush-0123"  # noqa: S105 - a dummy
    (finding,) = target_findings(Looks(PermanentError(f"no table, password={password}")), None, SYSTEM)
    assert finding.level is Level.ERROR
    assert "no table" in finding.found
    assert password not in finding.found


def test_any_other_sink_is_unknown() -> None:
    (finding,) = target_findings(as_sink(print), SCHEMA, simulated_runtime())
    assert finding.level is Level.WARNING
    assert finding.next_step


def wal_of(rows: Sequence[int]) -> tuple[MemoryStore, CountedStore]:
    """A WAL whose batches have these numbers of rows."""
    number = next(_numbers)
    wal, checkpoint = (MemoryStore(StoreSpec(f"memory://{name}-schema-{number}")) for name in ("wal", "checkpoint"))
    run = Run(wal, checkpoint, Settings(), runtime=simulated_runtime())
    run.open()
    run.become_stager()
    query = FakeQuery(
        checkpoint,
        lambda batch, _end: [pa.table({"id": pa.array(range(rows[batch]), pa.int64()), "b": [batch] * rows[batch]})],
    )
    assert len(list(query.batches(run, len(rows)))) == len(rows)
    return wal, CountedStore(wal)


def test_the_schema_is_that_of_the_newest_rows() -> None:
    wal, _ = wal_of([2, 3, 0])
    schema, damage = newest_schema(WalFacts(wal))
    assert (schema.names, damage) == (["id", "b"], [])


def test_a_wal_without_rows_has_none() -> None:
    for rows in ([0, 0], []):
        wal, _ = wal_of(rows)
        assert newest_schema(WalFacts(wal)) == (None, [])


def test_a_damaged_batch_is_an_error() -> None:
    wal, _ = wal_of([2])
    segments = [name for name in wal.list("", recursive=True) if name.endswith(".parquet")]
    wal.delete(segments)
    schema, (finding,) = newest_schema(WalFacts(wal))
    assert schema is None
    assert finding.level is Level.ERROR


@pytest.mark.parametrize("batches", [9, 60])
def test_few_batches_are_looked_at_however_many_are_pending(batches: int) -> None:
    counted = wal_of([0] * batches)[1]
    facts = WalFacts(counted)
    assert len(facts.batches) == batches
    counted.taken()
    newest_schema(facts)
    requests = counted.taken()
    assert requests.gets + requests.lists == 8 * 2


class Bucket(MeasuredStore):
    """A store in a bucket that gives this answer."""

    def __init__(self, answer: Answer, prefix: str) -> None:
        super().__init__(MemoryStore(StoreSpec("memory://bucket-rules")))
        self._answer = answer
        self._prefix = prefix

    @property
    def prefix(self) -> str:
        return self._prefix

    def life_cycle(self) -> Answer:
        return self._answer


def of_answer(answer: Answer, prefix: str = PREFIX) -> Finding:
    (finding,) = bucket_findings(Bucket(answer, prefix))
    assert finding.check == "bucket.life-cycle"
    assert bool(finding.next_step) is (finding.level is not Level.OK)
    return finding


def of_rule(prefix: str = PREFIX, **rule: Any) -> Finding:
    return of_answer(Answer({"Rules": [{"ID": "clean", "Status": "Enabled", **rule}]}), prefix)


def test_a_bucket_without_rules_is_fine() -> None:
    assert of_answer(Answer({}, "NoSuchLifecycleConfiguration")).level is Level.OK
    assert of_answer(Answer({"Rules": []})).level is Level.OK


@pytest.mark.parametrize(
    "scope",
    [
        {"Filter": {}},
        {"Filter": {"Prefix": ""}},
        {"Prefix": "wal/"},
        {"Filter": {"Prefix": "wal/orders/batches/"}},
        {"Filter": {"Prefix": "wal/orders/sinks/default/"}},
        {"Filter": {"Prefix": "wal/orders/sinks/default/dead-letters"}},
        {"Filter": {"Prefix": "wal/orders/probe"}},
        {"Filter": {"And": {"Prefix": "wal", "ObjectSizeGreaterThan": 1}}},
    ],
)
def test_a_rule_that_deletes_the_wal_is_an_error(scope: Mapping[str, Any]) -> None:
    finding = of_rule(**scope, Expiration={"Days": 30})
    assert finding.level is Level.ERROR
    assert "'clean'" in finding.found
    assert "after 30 days" in finding.found
    assert PREFIX in finding.next_step


@pytest.mark.parametrize(
    "rule",
    [
        {"Filter": {"Prefix": "other/"}, "Expiration": {"Days": 1}},
        {"Filter": {"Prefix": "wal/orders2/"}, "Expiration": {"Days": 1}},
        {"Filter": {"Tag": {"Key": "a", "Value": "b"}}, "Expiration": {"Days": 1}},
        {"Filter": {"And": {"Prefix": "", "Tags": [{"Key": "a", "Value": "b"}]}}, "Expiration": {"Days": 1}},
        {"Filter": {}, "Status": "Disabled", "Expiration": {"Days": 1}},
        {"Filter": {"Prefix": "wal/orders/probe/"}, "Expiration": {"Days": 1}},
        {"Filter": {"Prefix": "wal/orders/sinks/default/dead-letters/"}, "Expiration": {"Days": 1}},
        {"Filter": {}, "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7}},
        {"Filter": {}, "NoncurrentVersionExpiration": {"NoncurrentDays": 7}},
        {"Filter": {}, "Expiration": {"ExpiredObjectDeleteMarker": True}},
        {"Filter": {}, "Transitions": [{"Days": 1, "StorageClass": "STANDARD_IA"}]},
    ],
)
def test_a_rule_that_format_permits_is_fine(rule: Mapping[str, Any]) -> None:
    assert of_rule(**rule).level is Level.OK


def test_a_date_counts_as_days_do_and_a_rule_needs_no_name() -> None:
    finding = of_rule(ID="", prefix="", Filter={}, Expiration={"Date": "2030-01-01"})
    assert "'(without a name)' deletes" in finding.found
    assert "at 2030-01-01" in finding.found
    assert "below the root" in finding.next_step
    assert "'wal/'" in of_rule(ID=None, Prefix="wal/", Expiration={"Days": 1}).found


@pytest.mark.parametrize("storage_class", ["GLACIER", "DEEP_ARCHIVE"])
def test_a_rule_that_archives_the_wal_is_an_error(storage_class: str) -> None:
    finding = of_rule(Filter={}, Transitions=[{"Days": 1, "StorageClass": storage_class}])
    assert finding.level is Level.ERROR
    assert storage_class in finding.found


@pytest.mark.parametrize("code", ["AccessDenied", "403", "NotImplemented"])
def test_rules_that_cannot_be_read_are_unknown(code: str) -> None:
    finding = of_answer(Answer({}, code, "not today"))
    assert finding.level is Level.WARNING
    assert finding.found.startswith("unknown: ")
    assert (PERMISSION in finding.found) is (code != "NotImplemented")


@pytest.mark.parametrize(("root", "says"), [("gs://lake/wal", "gcloud"), ("abfs://lake/wal", "az storage")])
def test_rules_of_google_and_azure_are_unknown(root: str, says: str) -> None:
    class Cloud(MeasuredStore):
        @property
        def root(self) -> str:
            return root

    (finding,) = bucket_findings(Cloud(MemoryStore(StoreSpec("memory://cloud"))))
    assert finding.level is Level.WARNING
    assert says in finding.next_step


def test_a_store_without_a_bucket_has_no_rules() -> None:
    assert bucket_findings(MemoryStore(StoreSpec("memory://none"))) == []
