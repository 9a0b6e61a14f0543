"""Faults of each kind of object of docs/FORMAT.md: missing, truncated, a bit changed, of another WAL, doubled.

A kind is one line of `CASES`. A fault that cannot be seen has its reason there.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import pytest

from tests.house.operate import KINDS, Fault
from tests.house.stores import MemoryStore
from tests.support.processes import CHECKOUT
from tests.unit.operate.worlds import copied, envelope, findings, kind_named, paths_of, replaced, world_of
from wal_sink.operate.kinds import kind_of

DAMAGED, LOST, FOREIGN, MISPLACED = Fault.DAMAGED, Fault.LOST, Fault.FOREIGN, Fault.MISPLACED
DANGLING, CONTRADICTION = Fault.DANGLING, Fault.CONTRADICTION
Expected = Fault | str
"""A fault that must be found, or the reason why none can be."""

ONLY_UNKNOWN = "no other object of this kind has a place"
NOT_NEEDED = "it need not exist, so nobody can tell"
NO_CONTENT = "nobody reads its content"
BY_PEOPLE = "people may delete it"
SAME = "both WALs have the same record but for its id"


@dataclass(frozen=True)
class Case:
    """The expectations for a kind."""

    pattern: str
    world: str
    part: str = ""
    """A part of the path of the object that is damaged."""
    missing: Expected = LOST
    broken: Expected = DAMAGED
    """Truncated, or one bit changed."""
    foreign: Expected = FOREIGN
    other: tuple[str, str] = ("", "")
    """A part of its path and the replacement, which make the path of another object of its kind."""
    doubled: Expected = MISPLACED


_SEGMENT = "<term:10>-<attempt:10>/<partition:6>-<file_index:4>-<id>.parquet"
_LETTER = "sinks/<name>/dead-letters/<batch:19>/<ordinal:6>-<first:12>-<end:12>"
_PREPARED = "prepared-<ordinal:6>-<number:6>.json"
_BEGUN = "<batch:19>-<transaction>"
_FREE_BATCH = ("0000000000000000000", "0000000000000000007")
_OWNERLESS = "nothing here tells to which of several it belongs"
_ROWS = "both WALs have the same rows, and so the same bytes"
_DEBRIS = "it is debris of a task that failed, as far as anybody can tell"
# fmt: off
CASES = (
    Case("wal.json", "kinds", doubled=ONLY_UNKNOWN),
    Case("terms/<role>/<term:10>.json", "kinds", "committer-plain/0000000001", other=("01.json", "99.json")),
    Case("terms/<role>/<term:10>.ended.json", "collected", "plain", missing=NOT_NEEDED, other=("01.ended", "09.ended")),
    Case("batches/<batch:19>/manifest-<term:10>-<attempt:10>.json", "kinds", other=("-0000000001.", "-0000000009.")),
    Case("batches/<batch:19>/release.json", "kinds", other=("0000000000000000000", "0000000000000000003")),
    Case("batches/<batch:19>/skipped.json", "skipped", foreign=SAME,
         other=("0000000000000000001", "0000000000000000002")),
    Case(f"batches/<batch:19>/{_SEGMENT}", "kinds", foreign=_ROWS,
         other=("000000-0000", "000009-0000"), doubled=_DEBRIS),
    Case("sinks/<name>/sink.json", "kinds", "plain", foreign=SAME, other=("plain", "new")),
    Case("sinks/<name>/progress/<batch:19>/<ordinal:6>-<rows:12>.json", "kinds", "plain", NOT_NEEDED,
         other=_FREE_BATCH),
    Case("sinks/<name>/markers/<batch:19>.json", "kinds", "plain/markers/0000000000000000001",
         other=("0000000000000000001", "0000000000000000002")),
    Case(f"{_LETTER}.parquet", "dead_letters", "", DANGLING, other=("-000000000000-", "-000000000001-")),
    Case(f"{_LETTER}-<number:6>.parquet", "dead_letters", "refusing-ledger", BY_PEOPLE,
         other=("-000000.p", "-000003.p")),
    Case(f"{_LETTER}.replayed.json", "dead_letters", "", NOT_NEEDED, other=("-000000000000-", "-000000000001-")),
    Case(f"{_LETTER}-<number:6>.replayed.json", "dead_letters", "", NOT_NEEDED, other=("-000000.r", "-000003.r")),
    Case(f"sinks/<name>/begun/{_BEGUN}.json", "kinds", "0000000000000000004", DANGLING, foreign=MISPLACED,
         other=("4-", "4-0")),
    Case(f"sinks/<name>/begun/{_BEGUN}.token.json", "kinds", "", NOT_NEEDED, foreign=MISPLACED, other=("2-", "2-0")),
    Case(f"sinks/<name>/progress/<batch:19>/{_PREPARED}", "kinds", "", NOT_NEEDED, other=("01.json", "02.json")),
    Case("sinks/<name>/progress/<batch:19>/roll.json", "rolled", "3/roll", NOT_NEEDED,
         other=("0000000000000000003", "0000000000000000004")),
    Case("sinks/<name>/progress/<batch:19>/<partition:6>-<file_index:4>-<id>.parquet", "rolled", "3/000",
         foreign=_ROWS, other=("000000-0000", "000009-0000"), doubled=_DEBRIS),
    Case("sinks/<name>/retired.json", "collected", "", NOT_NEEDED,
         other=("sinks/retired", "sinks/plain"), doubled=FOREIGN),
    Case("sinks/<name>/names/<number:10>.json", "collected", "", "the old name counts again", foreign=SAME,
         other=("1.", "2.")),
    Case("sinks/<name>/renamed.json", "collected", "", foreign=SAME, other=("anew", "newer")),
    Case("sinks/<name>/owner.json", "collected", "", foreign=SAME, other=("anew", "newer")),
    Case("sinks/<name>/forgotten", "others", "", missing=LOST, broken=NO_CONTENT, foreign=NO_CONTENT,
         doubled=ONLY_UNKNOWN),
    Case("sinks/<name>/changes/<number:10>.json", "skipped", "", NOT_NEEDED, foreign=SAME, other=("1.", "7.")),
    Case("sinks/<name>/errors/<number:10>.json", "failed", "", NOT_NEEDED, foreign=SAME, other=("1.", "2.")),
    Case("low-water/<batch:19>.json", "collected", foreign=SAME, other=("3.json", "2.json")),
    Case("moves/<number:10>.json", "collected", "", "then the WAL lies elsewhere, and that is told",
         foreign=CONTRADICTION,
         other=("1.", "2.")),
    Case("probe/<time>-<id>.json", "others", "", NOT_NEEDED, broken=NO_CONTENT, foreign=NO_CONTENT,
         other=("-0123", "-0124"),
         doubled="a crash may leave any number of them"),
)
# fmt: on

SHORT = {
    "sinks/<name>/dead-letters/<batch:19>/<the same>.replayed.json": [
        f"{_LETTER}.replayed.json",
        f"{_LETTER}-<number:6>.replayed.json",
    ],
}
"""Lines of docs/FORMAT.md that stand for two kinds."""
each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.pattern)


def documented() -> list[str]:
    """The patterns of docs/FORMAT.md."""
    text = (CHECKOUT / "docs" / "FORMAT.md").read_text()
    block = next(part for part in re.split(r"\n\n", text) if part.startswith("    wal.json"))
    lines = [re.sub("first name", "name", line.strip()) for line in block.splitlines()]
    found = [re.split(r"\s{2,}|(?<=[n…]) {3}", line)[0] for line in lines]
    return [pattern for line in found for pattern in SHORT.get(line, [line])]


def damaged(case: Case) -> tuple[MemoryStore, str]:
    """A copy of the case's WAL, and the path of the object that is to be damaged."""
    wal = copied(world_of(case.world).wal)
    found = [path for path in paths_of(wal, kind_named(case.pattern)) if case.part in path]
    with_token = [path for path in found if wal.list(path.rpartition("/")[0]).count(_token_of(path))]
    return wal, (with_token or found)[0]


def _token_of(path: str) -> str:
    return path.rpartition("/")[2].replace(".json", ".token.json")


def check(case: Case, wal: MemoryStore, expected: Expected, how: str = "") -> None:
    found = findings(wal, world_of(case.world).checkpoint)
    faults = {finding.fault for finding in found}
    told = (how, expected, [(finding.fault, finding.where, finding.what) for finding in found])
    assert (expected in faults) if isinstance(expected, Fault) else faults == set(), told


def test_every_kind_of_the_document_is_known_and_each_known_kind_has_its_cases() -> None:
    known = [kind.pattern for kind in KINDS]
    assert sorted(documented()) == sorted(known)
    assert [case.pattern for case in CASES] == known


@each
def test_a_healthy_wal_has_no_finding_and_an_object_that_is_missing_is_found(case: Case) -> None:
    wal, path = damaged(case)
    assert kind_of(path) == kind_named(case.pattern)
    check(case, wal, "it is healthy")
    wal.delete([path])
    check(case, wal, case.missing)


@each
def test_an_object_that_is_truncated_or_has_a_changed_bit_is_found(case: Case) -> None:
    wal, path = damaged(case)
    whole = wal.read(path)
    broken = {"truncated": whole[: len(whole) // 2]}
    for place in (0.2, 0.5, 0.8):
        data = bytearray(whole or b"\0")
        data[int(len(data) * place)] ^= 1
        broken[f"a bit changed at {place}"] = bytes(data)
    for how, content in broken.items():
        replaced(wal, path, content)
        check(case, wal, case.broken, how)


@each
def test_an_object_of_another_wal_is_found(case: Case) -> None:
    wal, path = damaged(case)
    other = world_of(case.world, of_another=True).wal
    kind = kind_named(case.pattern)
    theirs = next(found for found in paths_of(other, kind) if case.part in found)
    data = other.read(theirs)
    if kind.pattern.endswith(("retired.json", "replayed.json")):  # the writers of these have fixed ids of runs
        data = _by_another_run(data)
    replaced(wal, path, data)
    check(case, wal, case.foreign)


def _by_another_run(data: bytes) -> bytes:
    found = re.search(rb'"kind":"(\w+)","crc32":\d+,"body":(.*)\}', data, flags=re.DOTALL)
    assert found is not None
    body = json.loads(found[2])
    return envelope(found[1].decode(), **{**body, "run_id": "9" * 32})


@each
def test_an_object_that_stands_under_another_name_too_is_found(case: Case) -> None:
    wal, path = damaged(case)
    if case.other != ("", ""):
        head, _, tail = path.rpartition(case.other[0])
        other = head + case.other[1] + tail
        assert kind_of(other) == kind_named(case.pattern)
        assert other != path
        wal.create(other, wal.read(path))
        check(case, wal, case.doubled)
        wal.delete([other])
    wal.create(f"{path}-copy", wal.read(path))
    is_anything_allowed = path.startswith("sinks/gone/")
    check(case, wal, "nobody uses what lies there" if is_anything_allowed else Fault.UNKNOWN)
