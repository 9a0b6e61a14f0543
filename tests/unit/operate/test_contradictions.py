"""Objects that are whole, but do not agree with each other; objects that nothing knows; listings that are too old."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.house.log import (
    Log,
    LowWater,
    Manifest,
    Marker,
    Move,
    NameRecord,
    OwnerRecord,
    PreparedRecord,
    Progress,
    Record,
    Release,
    RenamedRecord,
    RetiredRecord,
    SegmentRef,
    SinkRecord,
    TakeOver,
    TermRecord,
    decode,
    encode,
    paths,
)
from tests.house.operate import AgainstTarget, Check, Fault, Finding, plan_skip, rename, skip, skip_order
from tests.house.stores import MemoryStore, Store
from tests.house.support import SYSTEM, process_identity
from tests.support.golden.targets import LookedUp
from tests.support.golden.wals import GoldenWal
from tests.unit.operate.worlds import copied, findings, replaced, world_of
from wal_sink.operate.look import Known, Look
from wal_sink.testing import FaultyStore

LOST, CONTRADICTION, FOREIGN, UNKNOWN = Fault.LOST, Fault.CONTRADICTION, Fault.FOREIGN, Fault.UNKNOWN
STAMP: Any = {"id": "0" * 32, "created": "2026-01-01T00:00:00.000+00:00"}
RUN = "9" * 32
HERE = process_identity()


def world(name: str = "kinds") -> MemoryStore:
    return copied(world_of(name).wal)


def changed(wal: MemoryStore, kind: type[Record], path: str, **fields: Any) -> None:
    """Change a record and its checksum."""
    replaced(wal, path, encode(msgspec.structs.replace(decode(kind, wal.read(path), path), **fields)))


def told(wal: Store) -> list[tuple[Fault, str]]:
    return [(found.fault, found.where) for found in Check(wal).run()]


def only(wal: MemoryStore) -> Finding:
    (found,) = findings(wal)
    return found


def manifest_of(wal: MemoryStore, batch_id: int) -> tuple[str, Manifest]:
    names = [paths.parse_manifest(name) for name in wal.list(paths.batch(batch_id))]
    path = paths.manifest(batch_id, *max(name for name in names if name))
    return path, decode(Manifest, wal.read(path), path)


def below(wal: MemoryStore, prefix: str) -> list[str]:
    return [path for path in wal.list("", recursive=True) if path.startswith(prefix)]


def another(wal: MemoryStore, kind: type[Record], path: str, at: str, **fields: Any) -> None:
    """Add a record that is another one but for these fields."""
    wal.create(at, encode(msgspec.structs.replace(decode(kind, wal.read(path), path), **fields)))


def _newer(wal: MemoryStore) -> None:
    data = wal.read(paths.release(1))
    replaced(wal, paths.release(1), data.replace(b'"format":6', b'"format":7', 1))


def _damaged_release(wal: MemoryStore) -> None:
    wal.delete([manifest_of(wal, 4)[0]])
    replaced(wal, paths.release(4), b"{}")


def _collected(wal: MemoryStore, through: int, *lost: str) -> None:
    wal.create(paths.low_water(through), encode(LowWater(batch_id=through, marked={}, **STAMP)))
    wal.delete([path for prefix in lost for path in below(wal, prefix)])


PREPARED, PROGRESS = paths.prepared("vault", 2, 0, 1), paths.progress("plain", 2, 0, 2)
PLAIN_1, RELEASE_1 = paths.marker("plain", 1), paths.release(1)
Change = Callable[[MemoryStore], object]
CASES: dict[str, tuple[str, Change, list[tuple[Fault, str]]]] = {
    "a release of other offsets": (
        "kinds", lambda wal: changed(wal, Release, RELEASE_1, fingerprint="f" * 64), [(CONTRADICTION, RELEASE_1)]
    ),
    "a release by a run that never held a term": (
        "kinds", lambda wal: changed(wal, Release, RELEASE_1, run_id=RUN), [(FOREIGN, RELEASE_1)]
    ),
    "a record of a newer version": ("kinds", _newer, [(Fault.NEWER, RELEASE_1)]),
    "a record with a number that no path can hold": (
        "kinds", lambda wal: changed(wal, Release, RELEASE_1, batch_id=10**19), [(Fault.MISPLACED, RELEASE_1)]
    ),
    "a marked batch whose manifest and release are gone": (
        "passed_over",
        lambda wal: wal.delete([manifest_of(wal, 4)[0], paths.release(4)]),
        [(LOST, f"{paths.batch(4)}/"), (LOST, paths.release(4))],
    ),
    "a damaged release without a manifest": (
        "passed_over", _damaged_release, [(Fault.DAMAGED, paths.release(4)), (LOST, f"{paths.batch(4)}/")]
    ),
    "a marked batch that is gone as a whole": (
        "passed_over", lambda wal: wal.delete(below(wal, paths.batch(4))), [(LOST, f"{paths.batch(4)}/")]
    ),
    "a term that a manifest names is gone": (
        "unkept", lambda wal: wal.delete([paths.term("stager", 1)]), [(LOST, paths.term("stager", 1))]
    ),
    "a damaged end": (
        "collected",
        lambda wal: replaced(wal, paths.ended("committer-retired", 2), b""),
        [(Fault.DAMAGED, paths.ended("committer-retired", 2))],
    ),
    "low water that names a newer marker": (
        "collected",
        lambda wal: changed(wal, LowWater, paths.low_water(3), marked={"plain": 9, "ledger": 5}),
        [(LOST, paths.marker("plain", 9))],
    ),
    "a preparation that follows none": (
        "kinds",
        lambda wal: another(wal, PreparedRecord, PREPARED, paths.prepared("vault", 2, 0, 3), number=3),
        [(LOST, paths.prepared("vault", 2, 0, 2))],
    ),
    "progress of a segment that the batch does not have": (
        "kinds",
        lambda wal: another(wal, Progress, PROGRESS, paths.progress("plain", 2, 7, 2), ordinal=7),
        [(FOREIGN, paths.progress("plain", 2, 7, 2))],
    ),
    "a marker of other rows": (
        "kinds", lambda wal: changed(wal, Marker, PLAIN_1, rows=77), [(CONTRADICTION, PLAIN_1)]
    ),
    "a marker of other rows of a segment": (
        "kinds",
        lambda wal: changed(wal, Marker, paths.marker("ledger", 1), last_delivered_rows=(4,)),
        [(CONTRADICTION, paths.marker("ledger", 1))],
    ),
    "a marker of a skipped batch, which counts the rows that the sink got before": (
        "kinds", lambda wal: changed(wal, Marker, PLAIN_1, rows=0, skipped=True), []
    ),
    "a marker of a skipped batch with more rows than that has": (
        "kinds", lambda wal: changed(wal, Marker, PLAIN_1, rows=77, skipped=True), [(CONTRADICTION, PLAIN_1)]
    ),
    "a marker in the middle that is gone": (
        "kinds", lambda wal: wal.delete([paths.marker("plain", 0)]), [(LOST, paths.marker("plain", 0))]
    ),
    "one that is gone, for which the later one may stand": (
        "kinds", lambda wal: wal.delete([paths.marker("keyed", 0)]), []
    ),
    "a retired sink that had more": (
        "collected",
        lambda wal: changed(wal, RetiredRecord, paths.retired("retired"), through=9),
        [(LOST, paths.marker("retired", 9))],
    ),
    "a retired sink whose markers were collected": (
        "collected", lambda wal: _collected(wal, 5, "sinks/retired/markers/"), []
    ),
    "a retired sink that lacks older markers": (
        "collected", lambda wal: wal.delete([paths.marker("retired", 4)]), []
    ),
    "letters of a batch that was collected": ("dead_letters", lambda wal: _collected(wal, 2), []),
    "letters of a batch whose release is gone": (
        "dead_letters", lambda wal: wal.delete([RELEASE_1]), [(LOST, RELEASE_1)]
    ),
}  # fmt: skip
"""By what is wrong: the WAL, the change, and the findings."""


@pytest.mark.parametrize(("name", "change", "expected"), CASES.values(), ids=CASES)
def test_each_contradiction_is_found_and_nothing_else_is(
    name: str, change: Change, expected: list[tuple[Fault, str]]
) -> None:
    wal = world(name)
    change(wal)
    assert set(told(wal)) == set(expected)


# --- batches


def _moved(ref: SegmentRef) -> SegmentRef:
    return msgspec.structs.replace(ref, path=ref.path.replace("0000000000000000003/", "0000000000000000002/"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda _: {"prepared": {"vault": ("a", "b", "c")}}, "3 handles of sink 'vault' for 1 segments"),
        (lambda _: {"passed_over": True}, "no query ran this batch, but it has segments"),
        (lambda found: {"segments": (*found.segments, found.segments[0])}, "twice"),
        (lambda found: {"segments": tuple(map(_moved, found.segments))}, "does not lie in the folder of this attempt"),
        (
            lambda found: {"segments": (msgspec.structs.replace(found.segments[0], chunk_ends=(3, 2)),)},
            "expected ascending chunk ends",
        ),
        (lambda _: {"columns": ("id",)}, "expected 4 rows of 1 columns"),
        (
            lambda found: {"segments": (msgspec.structs.replace(found.segments[0], rows=3),)},
            "expected 3 rows of 2 columns",
        ),
        (
            lambda found: {"segments": (msgspec.structs.replace(found.segments[0], bytes=3),)},
            "expected 3 bytes, found",
        ),
    ],
)
def test_a_manifest_that_contradicts_itself_or_its_segments(
    change: Callable[[Manifest], dict[str, Any]], said: str
) -> None:
    wal = world()
    path, found = manifest_of(wal, 3)
    changed(wal, Manifest, path, **change(found))
    assert any(said in each.what for each in findings(wal))


def test_a_batch_without_a_manifest_before_a_later_one() -> None:
    wal = world()
    wal.delete([manifest_of(wal, 3)[0]])
    assert (LOST, f"{paths.batch(3)}/") in told(wal)
    assert "is made after it" in only(wal).what


def test_batches_that_are_gone_in_the_middle() -> None:
    wal = world()
    wal.delete([path for path in wal.list("", recursive=True) if path.startswith((paths.batch(1), paths.batch(2)))])
    assert (LOST, f"{paths.batch(1)}/") in told(wal)
    assert "batches 1 to 2 must exist" in next(found.what for found in findings(wal))
    wal = world()
    wal.delete(below(wal, paths.batch(3)))
    assert "batch 3 must exist" in findings(wal)[0].what


def test_a_release_by_a_run_whose_term_came_after_the_terms_were_read() -> None:
    wal = world("dead_letters")
    release = decode(Release, wal.read(paths.release(1)), "")
    role = paths.committer_role(release.sink)
    numbers = Log(wal, SYSTEM, "").numbers(paths.terms(role))
    claimed = paths.term(role, numbers[-1] + 1)

    def claim(what: str, where: str) -> None:
        if (what, where) == ("before read", paths.release(1)):
            term = TermRecord(role=role, term=numbers[-1] + 1, run_id=RUN, process="p", holder=HERE, **STAMP)
            replaced(wal, claimed, encode(term))
            changed(wal, Release, paths.release(1), run_id=RUN)

    assert Check(FaultyStore(wal, claim)).run() == []
    assert wal.read(claimed)


def test_a_term_that_was_filled_in_proves_nothing() -> None:
    """A claim above lost terms creates the missing ones, in its own name."""
    wal = world("unkept")
    wal.delete([paths.term("stager", 1)])
    for number in (1, 2):
        term = TermRecord(role="stager", term=number, run_id=RUN, process="p", holder=HERE, **STAMP)
        wal.create(paths.term("stager", number), encode(term))
    assert told(wal) == []


# --- terms, moves, low water


def test_terms_that_are_gone_below_the_highest() -> None:
    wal = world()
    wal.delete([paths.term("committer-plain", 2)])
    assert (LOST, paths.term("committer-plain", 2)) in told(wal)
    far = TermRecord(role="committer-other", term=900, run_id=RUN, process="p", holder=HERE, **STAMP)
    wal = world()
    wal.create(paths.term("committer-plain", 900), encode(msgspec.structs.replace(far, role="committer-plain")))
    assert told(wal) == [(LOST, paths.term("committer-plain", 644))]


def test_an_end_without_its_term() -> None:
    wal = world("dead_letters")
    data = wal.read(paths.ended("replayer-refusing", 1))
    wal.create(paths.ended("replayer-other", 1), data.replace(b"replayer-refusing", b"replayer-other"))
    assert [fault for fault, where in told(wal) if where == paths.ended("replayer-other", 1)] == [Fault.DAMAGED]
    wal = world("collected")
    wal.delete([paths.term("committer-retired", 2)])
    assert (Fault.DANGLING, paths.ended("committer-retired", 2)) in told(wal)


def test_moves_that_are_gone_or_lead_elsewhere() -> None:
    wal = world("collected")
    here = decode(Move, wal.read(paths.move(1)), "").location
    wal.create(paths.move(3), encode(Move(number=3, location="s3://b", moved_from="s3://a", **STAMP)))
    assert told(wal) == [(LOST, paths.move(2))]
    wal.create(paths.move(2), encode(Move(number=2, location="s3://a", moved_from=here, **STAMP)))
    assert told(wal) == []
    changed(wal, Move, paths.move(2), moved_from="s3://c")
    assert told(wal) == [(CONTRADICTION, paths.move(2))]


# --- sinks


def test_progress_within_a_chunk() -> None:
    wal = world("kinds")
    folder = next(f"{root}/{name}" for root in [paths.progress_batches("plain")] for name in wal.list(root))
    path = f"{folder}{wal.list(folder.rstrip('/'))[0]}"
    record = decode(Progress, wal.read(path), path)
    within = paths.progress("plain", record.batch_id, record.ordinal, 999)
    wal.create(within, encode(msgspec.structs.replace(record, rows=999)))
    assert told(wal) == [(CONTRADICTION, within)]
    wal.delete([within])
    manifest_path, found = manifest_of(wal, record.batch_id)
    broken = msgspec.structs.replace(found.segments[0], chunk_ends=(3, 2))
    changed(wal, Manifest, manifest_path, segments=(broken, *found.segments[1:]))
    assert told(wal) == [(CONTRADICTION, manifest_path)]


def test_names_that_are_gone_or_taken() -> None:
    wal = world("collected")
    wal.create(paths.sink_name("renamed", 3), encode(NameRecord(number=3, name="renamed", **STAMP)))
    assert told(wal) == [(LOST, paths.sink_name("renamed", 2))]
    wal.create(paths.sink_name("renamed", 2), encode(NameRecord(number=2, name="renamed", **STAMP)))
    assert told(wal) == []
    wal = world("collected")
    changed(wal, OwnerRecord, paths.owner("anew"), folder="plain")
    assert set(told(wal)) == {(CONTRADICTION, paths.owner("anew"))}
    changed(wal, RenamedRecord, paths.renamed("anew"), folder="nobody")
    changed(wal, OwnerRecord, paths.owner("anew"), folder="nobody")
    assert (LOST, paths.sink("nobody")) in told(wal)


def test_a_rename_that_was_interrupted_is_normal() -> None:
    wal = world("collected")
    wal.create(paths.renamed("later"), encode(RenamedRecord(name="later", folder="plain", **STAMP)))
    assert told(wal) == []
    wal.create(paths.owner("later"), encode(OwnerRecord(name="later", folder="plain", **STAMP)))
    assert told(wal) == []


def test_a_name_that_a_registration_and_a_rename_wanted() -> None:
    """The rename has it. The registration stays, and nothing serves it."""
    whole = GoldenWal("wanted", "checks", ["plain"])
    whole.batch(whole.process(), 2)
    log = Log(whole.wal, SYSTEM, RUN)
    rename(log, "plain", "simple", take_over=TakeOver.ALWAYS)
    record = decode(SinkRecord, whole.wal.read(paths.sink("plain")), "")
    whole.wal.create(paths.sink("simple"), encode(msgspec.structs.replace(record, name="simple")))
    assert told(whole.wal) == []
    rename(log, "simple", "plain", take_over=TakeOver.ALWAYS)
    assert told(whole.wal) == []


# --- repairs


def skipping(wal: MemoryStore, name: str, batch_id: int) -> None:
    log = Log(wal, SYSTEM, RUN)
    skip(log, skip_order(log, name, batch_id, why=""), plan_skip(log, name, batch_id), take_over=TakeOver.ALWAYS)


def lost_batch(kind: str, sinks: list[str]) -> GoldenWal:
    """A WAL of three complete batches, of which nobody has the second. Its manifest is lost."""
    whole = GoldenWal(kind, "checks", sinks)
    run = whole.process()
    whole.batch(run, 2)
    run.deliver_all()
    whole.batch(run, 3)
    whole.batch(run, 1)
    whole.wal.delete([manifest_of(whole.wal, 1)[0]])
    return whole


def test_a_batch_that_every_sink_passed_over_is_no_fault_any_more() -> None:
    whole = lost_batch("passed", ["plain", "once"])
    assert told(whole.wal) == [(LOST, f"{paths.batch(1)}/")]
    skipping(whole.wal, "plain", 1)
    assert told(whole.wal) == [(LOST, f"{paths.batch(1)}/")]  # the other sink stops there
    skipping(whole.wal, "once", 1)
    assert findings(whole.wal, whole.checkpoint) == []
    check = Check(whole.wal)
    assert check.run() == []
    assert check.found.seen.skipped_batches == 2


@pytest.mark.parametrize("harm", ["lost", "damaged"])
def test_a_segment_of_a_batch_that_every_sink_passed_over_is_needed_no_more(harm: str) -> None:
    whole = GoldenWal(f"segment-{harm}", "checks", ["plain"])
    run = whole.process()
    whole.batch(run, 2)
    whole.batch(run, 3)
    whole.deliver_until("plain", "before write")
    segment = next(path for path in whole.wal.list("", recursive=True) if path.endswith(".parquet"))
    data = whole.wal.read(segment)
    whole.wal.delete([segment])
    if harm == "damaged":
        whole.wal.create(segment, data[:-1])
    assert [path for _, path in told(whole.wal)] == [segment]

    skipping(whole.wal, "plain", 0)

    assert told(whole.wal) == []


def test_a_released_batch_that_a_sink_passed_over() -> None:
    whole = GoldenWal("released", "checks", ["looked-up"])
    run = whole.process()
    whole.batch(run, 2)
    whole.batch(run, 3)
    whole.deliver_until("looked-up", "before write")
    manifest = manifest_of(whole.wal, 0)[0]
    whole.wal.delete([manifest])
    assert told(whole.wal) == [(LOST, manifest)]
    skipping(whole.wal, "looked-up", 0)
    comparison = AgainstTarget(LookedUp(whole.targets["looked-up"], lambda _: None), "looked-up")
    assert findings(whole.wal, whole.checkpoint, comparison) == []
    assert "skipped batch 0" in comparison.left_out()[0]


# --- dead letters


def test_a_letter_of_a_segment_that_the_batch_does_not_have() -> None:
    wal = world("dead_letters")
    path, found = manifest_of(wal, 1)
    other = msgspec.structs.replace(found, segments=())
    replaced(wal, path, encode(other))
    letters = [where for fault, where in told(wal) if fault is FOREIGN and "dead-letters" in where]
    assert letters
    assert all("0000000000000000001/" in where for where in letters)


def test_a_letter_that_is_deleted_meanwhile() -> None:
    wal = world("dead_letters")
    gone = [path for path in wal.list("", recursive=True) if "refusing-ledger/dead-letters" in path]

    def delete(what: str, path: str) -> None:
        if what == "before read" and path in gone:
            wal.delete(gone)

    assert Check(FaultyStore(wal, delete)).run() == []


# --- unknown objects, other formats


@pytest.mark.parametrize(
    "path",
    [
        "README.txt",
        "strange/folder/file",
        "batches/notes.txt",
        "batches/0000000000000000001/copy of release.json",
        "batches/shard-3/notes.txt",
        "low-water/1.json",
        "moves/one.json",
        "terms/stager/1.json",
        "sinks/plain/notes.txt",
        "sinks/plain/strange/file",
        "sinks/plain/markers/1.json",
        "sinks/plain/markers/old/1.json",
        "sinks/plain/progress/notes.txt",
        "sinks/plain/progress/0000000000000000002/notes.txt",
        "sinks/plain/dead-letters/notes.txt",
        "sinks/plain/dead-letters/0000000000000000001/notes.txt",
        "sinks/plain/begun/notes.txt",
        "sinks/plain/names/1.json",
        "sinks/plain/errors/1.json",
        "sinks/plain/changes/1.json",
    ],
)
def test_an_object_that_nothing_knows(path: str) -> None:
    wal = world()
    wal.create(path, b"{}")
    (found,) = findings(wal)
    assert (found.fault, path.startswith(found.where)) == (UNKNOWN, True)


def test_an_object_is_checked_by_its_kind_alone() -> None:
    wal = world("collected")
    look = Look(Known(Log(wal, SYSTEM, "")))
    look.folder("moves")
    look.object("batches/0000000000000000004/0000000001-0000000005/000000-0000-a.parquet")
    look.object("sinks/plain/errors/0000000001.json")  # it is gone
    assert (look.found, look.seen.records) == ([], 1)
    look.object("sinks/plain/changes/0000000001.json")
    assert [found.fault for found in look.found] == [LOST]


# --- listings that are too old


class Stale(FaultyStore):
    """A store whose first listing of a folder lacks a name."""

    def __init__(self, inner: Store, prefix: str, lacks: str) -> None:
        super().__init__(inner, lambda *_: None)
        self.prefix, self.lacks = prefix, lacks
        self.looks = 0

    def list(self, prefix: str, *, after: str = "", recursive: bool = False) -> list[str]:
        names = super().list(prefix, after=after, recursive=recursive)
        if prefix == self.prefix and self.looks == 0:
            self.looks += 1
            return [name for name in names if self.lacks not in name]
        return names


@pytest.mark.parametrize(
    ("name", "prefix", "lacks"),
    [
        ("kinds", paths.BATCHES, "0000000000000000001"),
        ("kinds", paths.batch(3), "manifest"),
        ("kinds", paths.batch(1), "release"),
        ("kinds", paths.terms("committer-plain"), "0000000002"),
        ("kinds", paths.markers("plain"), "0000000000000000001"),
        ("kinds", "sinks", "plain"),
        ("kinds", "", "wal.json"),
        ("kinds", "sinks/vault/begun", ".json"),
        ("collected", paths.markers("plain"), "0000000000000000005"),
        ("collected", "sinks", "anew"),
        ("collected", "low-water", "0000000000000000003"),
        ("dead_letters", paths.dead_letter_folder("refusing", 0), ".parquet"),
        ("passed_over", paths.BATCHES, "0000000000000000004"),
    ],
)
def test_a_listing_that_is_too_old_is_no_fault(name: str, prefix: str, lacks: str) -> None:
    store = Stale(world(name), prefix, lacks)
    assert Check(store).run() == []
    assert store.looks == 1 or prefix.startswith("terms")
