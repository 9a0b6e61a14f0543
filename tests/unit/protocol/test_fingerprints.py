"""Fingerprints: what they see, over checkpoints that Spark wrote and over made ones."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping
from pathlib import PurePosixPath

import pytest

from tests.house.protocol import Checkpoint
from tests.house.stores import MemoryStore, StoreSpec
from tests.support.golden.checkpoints import goldens, name_of
from wal_sink.errors import CorruptError, HistoryError
from wal_sink.protocol.checkpoint import Fingerprints, of_repartition
from wal_sink.protocol.checkpoint_formats import read_offsets
from wal_sink.testing import FaultyStore

CONF = '{"batchTimestampMs":1767225600000}'
_numbers = itertools.count()


def stored(files: Mapping[str, str]) -> MemoryStore:
    store = MemoryStore(StoreSpec(f"memory://fingerprints-{next(_numbers)}"))
    for path, text in files.items():
        store.create(path, text.encode())
    return store


def offsets(*sources: str, version: int = 1, conf: str = CONF) -> str:
    return "\n".join([f"v{version}", conf, *sources])


def entries(*files: str, number: int) -> str:
    lines = (json.dumps({"path": file, "timestamp": 5, "batchId": number}) for file in files)
    return "\n".join(["v1", *lines])


def fingerprint(
    *sources: str, files: Mapping[str, str] | None = None, version: int = 1, before: str | None = None
) -> str:
    """Of batch 3; `before` is the one source of batch 2, or none."""
    given = {"offsets/2": offsets(*([before] if before else []), version=version), **(files or {})}
    found = Checkpoint(stored({**given, "offsets/3": offsets(*sources, version=version)})).offsets(3)
    assert found is not None
    return found.fingerprint


def digest(*lines: str) -> str:
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


# Files that Spark wrote.


REFUSED = ("4.2.1", "named_in_log_1")
"""Version and kind of the checkpoint that tests/unit/protocol/test_spark_files.py shows to be refused."""


def test_the_files_of_a_batch_are_those_its_query_read() -> None:
    """Of every batch, by every Spark: plain and compacted logs, two entries in a batch, several and named sources."""
    faults, seen = [], 0
    for golden in goldens():
        for batch_id in set(golden.batches) & golden.read.keys() if (golden.version, golden.kind) != REFUSED else ():
            path = f"offsets/{batch_id}"
            if not (batch_id == 0 or f"offsets/{batch_id - 1}" in golden.files):
                continue  # the oldest that is kept: see the test of what Spark deleted
            seen += 1
            found = Fingerprints(golden.store()).files(batch_id, read_offsets(golden.files[path], path))
            names = sorted(PurePosixPath(file.path).name for files in found.values() for file in files)
            has_log = found or golden.kind == "rate" or "txt" not in str(golden.read[batch_id])
            if not has_log or names != [row for row in golden.read[batch_id] if not row.startswith("rate ")]:
                faults.append(f"{name_of(golden)}, batch {batch_id}: read {golden.read[batch_id]}, found {names}")
    assert faults == []
    assert seen > 100


def test_no_two_batches_of_a_query_have_one_fingerprint() -> None:
    twice, seen = [], 0
    for golden in goldens():
        checkpoint = Checkpoint(golden.store())
        numbers = [n for n in golden.batches if n == 0 or n - 1 in golden.batches]
        if (golden.version, golden.kind) == REFUSED:
            continue
        found = [(checkpoint.repartition(n) or checkpoint.require_offsets(n)).fingerprint for n in numbers]
        seen += len(found)
        if len(set(found)) < len(found):
            twice.append(name_of(golden))
    assert twice == []
    assert seen > 100


def test_a_fingerprint_is_fixed() -> None:
    files = {"sources/1/6": entries("y", "x", number=6), "sources/1/5": entries("z", number=5)}
    before = offsets('{"end":1}', '{"logOffset":4}')
    expected = digest('0:{"end":2}', '1:{"logOffset":6}', '[5,"z",5]', '[6,"x",5]', '[6,"y",5]')
    assert expected == "540f8c441f2b80cafcecdadf10917fcb002b986c13e7e5550b59e3da48bedbb6"

    assert fingerprint('{"end":2}', '{"logOffset":6}', "-", files={**files, "offsets/2": before}) == expected
    assert fingerprint() == digest()


def test_both_offset_logs_say_the_same_in_any_order() -> None:
    one = fingerprint('{"end":1}', "-", '{"end":2}')
    other = fingerprint('2:{"end":2}', '0:{"end":1}', version=2)

    assert one == other
    assert one != fingerprint('{"end":2}', "-", '{"end":1}')


def test_the_line_of_configuration_does_not_count() -> None:
    one, other = stored({"offsets/3": offsets("1", conf="{}")}), stored({"offsets/3": offsets("1")})

    assert Checkpoint(one).require_offsets(3).fingerprint == Checkpoint(other).require_offsets(3).fingerprint


def test_the_files_count_and_neither_their_order_nor_how_their_lines_are_written() -> None:
    offset, before = '{"logOffset":1}', '{"logOffset":0}'
    one = fingerprint(offset, before=before, files={"sources/0/1": entries("x", "y", number=1)})
    lines = ['{"batchId":1,"path":"y","timestamp":5,"unheard":"of"}', '{"timestamp":5,"path":"x","batchId":1}']

    assert one == fingerprint(offset, before=before, files={"sources/0/1": "\n".join(["v1", *lines])})
    assert one != fingerprint(offset, before=before, files={"sources/0/1": entries("x", number=1)})


def test_the_time_of_a_file_counts() -> None:
    files = {"sources/0/0": entries("x", number=0)}
    later = {"sources/0/0": files["sources/0/0"].replace('"timestamp": 5', '"timestamp": 6')}

    assert fingerprint('{"logOffset":0}', files=files) != fingerprint('{"logOffset":0}', files=later)


def test_each_source_has_a_log_of_its_own() -> None:
    both = ['{"logOffset":0}', '{"logOffset":0}']
    files = {"sources/0/0": entries("x", number=0), "sources/1/0": entries("y", number=0)}
    swapped = {"sources/0/0": files["sources/1/0"], "sources/1/0": files["sources/0/0"]}

    assert fingerprint(*both, files=files) != fingerprint(*both, files=swapped)


@pytest.mark.parametrize("before", [None, "-"])
def test_a_source_without_an_offset_before_is_read_from_the_beginning_of_its_log(before: str | None) -> None:
    files = {"sources/0/0": entries("x", number=0), "sources/0/1": entries("y", number=1)}
    other = {**files, "sources/0/0": entries("z", number=0)}

    assert fingerprint('{"logOffset":1}', files=files, before=before) != fingerprint(
        '{"logOffset":1}', files=other, before=before
    )


def test_a_source_that_did_not_go_on_reads_no_files() -> None:
    offset = '{"logOffset":4}'

    assert fingerprint(offset, before=offset) == digest(f"0:{offset}")
    assert fingerprint(offset, before='{"logOffset":5}') == digest(f"0:{offset}")


@pytest.mark.parametrize("batch_id", [0, 3])
def test_how_many_reads_a_batch_of_a_file_source_costs(batch_id: int) -> None:
    files = {"sources/0/4": entries("x", number=4), "offsets/2": offsets('{"logOffset":3}')}
    if batch_id == 0:
        files = {f"sources/0/{number}": entries("x", number=number) for number in range(5)}
    store = stored({f"offsets/{batch_id}": offsets('{"logOffset":4}'), **files})
    asked: list[str] = []
    checkpoint = Checkpoint(FaultyStore(store, lambda what, where: asked.append(f"{what} {where}")))

    checkpoint.require_offsets(batch_id)

    log = [f"sources/0/{number}" for number in ([4] if batch_id else [4, 3, 2, 1, 0])]
    first = [f"offsets/{batch_id}", *(["offsets/2"] if batch_id else [])]
    assert asked == [f"before read {path}" for path in [*first, *log]]


@pytest.mark.parametrize(
    "offset", ["logOffset", '["logOffset"]', '{"logOffset":"1"}', '{"logOffset":1.0}', '{"x":{"logOffset":1}}']
)
def test_an_offset_that_only_looks_like_a_log_is_taken_as_it_stands(offset: str) -> None:
    assert fingerprint(offset) == digest(f"0:{offset}")


# Compacted logs.


def test_the_oldest_compacted_log_that_holds_the_entries_is_read() -> None:
    offset, before = '{"logOffset":4}', '{"logOffset":2}'
    plain = {"sources/0/3": entries("w", number=3), "sources/0/4": entries("x", number=4)}
    older = "\n".join([entries("old", number=1), plain["sources/0/3"][3:], plain["sources/0/4"][3:]])
    compacted = {
        "sources/0/3.compact": entries("w", number=3),
        "sources/0/9.compact": older,
        "sources/0/19.compact": entries("later", number=4),
        "sources/0/notes.compact": "",
    }

    expected = fingerprint(offset, before=before, files=plain)
    assert fingerprint(offset, before=before, files=compacted) == expected
    assert fingerprint(offset, before=before, files={**compacted, "sources/0/4": plain["sources/0/4"]}) == expected


def test_a_compacted_log_that_spark_deletes_meanwhile_is_looked_for_in_the_next() -> None:
    store = stored({"offsets/0": offsets('{"logOffset":0}')})
    for number in (1, 3):
        store.create(f"sources/0/{number}.compact", entries("x", number=0).encode())

    def deleted(what: str, where: str) -> None:
        if (what, where) == ("before read", "sources/0/1.compact"):
            store.delete([where])

    found = Checkpoint(FaultyStore(store, deleted)).require_offsets(0)

    assert found.fingerprint == digest('0:{"logOffset":0}', '[0,"x",5]')


@pytest.mark.parametrize("name", ["4", "4.compact"])
def test_a_log_without_the_entry_is_named(name: str) -> None:
    files = {f"sources/0/{name}": entries("x", number=3)}

    with pytest.raises(CorruptError, match=rf"sources/0/{name}: expected files of .* 4 to 4, found none of \[4\]"):
        fingerprint('{"logOffset":4}', before='{"logOffset":3}', files=files)


def test_only_older_compacted_logs_are_no_log() -> None:
    files = {"sources/0/3.compact": entries("x", number=4)}

    with pytest.raises(CorruptError, match=r"according to \S*offsets/3, source 0 reads files up to entry 4 .*Restore"):
        fingerprint('{"logOffset":4}', before='{"logOffset":3}', files=files)


# A batch that no query ran.


def test_the_fingerprint_of_a_repartition_is_fixed() -> None:
    entry = read_offsets(offsets("5", "-", "7"), "here")

    assert of_repartition(entry) == digest("repartitioned", "0:5", "2:7")


# Input that is unknown.


def test_an_entry_before_that_is_not_there_leaves_open_which_files_are_read() -> None:
    store = stored({"offsets/3": offsets('{"logOffset":4}'), "sources/0/4": entries("x", number=4)})

    with pytest.raises(
        HistoryError, match=r"batch 3: .*/offsets/2 does not exist, so the files that batch 3 reads are"
    ):
        Checkpoint(store).require_offsets(3)


def test_a_source_of_another_kind_before_is_not_guessed_at() -> None:
    with pytest.raises(
        CorruptError, match=r"batch 3: .*offsets/3 does not match .*offsets/2: .* sources \['0'\] that read no"
    ):
        fingerprint('{"logOffset":4}', before='{"end":3}', files={"sources/0/4": entries("x", number=4)})


def test_an_entry_before_of_another_version_is_not_guessed_at() -> None:
    files = {"sources/0/4": entries("x", number=4), "offsets/2": offsets('0:{"logOffset":3}', version=2)}

    with pytest.raises(CorruptError, match=r"does not match .* found v1 after v2"):
        fingerprint('{"logOffset":4}', files=files)
