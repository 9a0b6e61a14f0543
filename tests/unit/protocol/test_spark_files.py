"""Faults that were found where Spark's files were read half. The first tests of each part failed before that was so."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.house.kit import stage_tables
from tests.house.log import paths
from tests.house.protocol import Checkpoint, Run, planned_ms
from tests.house.stores import MemoryStore
from tests.house.support import SYSTEM
from tests.support.golden.checkpoints import Golden, goldens, name_of
from tests.support.small_run import Place, Recorder, numbers
from tests.support.waiting import PATIENCE_S
from tests.unit.protocol.test_threads import committing, ended
from wal_sink import idempotent
from wal_sink.errors import ConfigError, CorruptError, HistoryError
from wal_sink.protocol.checkpoint_formats import SHUFFLE_PARTITIONS
from wal_sink.protocol.dispatch import WholeBatchDispatcher
from wal_sink.protocol.history import pass_over
from wal_sink.testing import FaultyStore

OTHER = "other.txt"
LOG_2 = goldens("offset_log_2", "named")


def fingerprint(store: MemoryStore, batch_id: int) -> str:
    return Checkpoint(store).require_offsets(batch_id).fingerprint


def overwrite(store: MemoryStore, path: str, text: str) -> None:
    store.delete([path])
    store.create(path, text.encode())


def with_other_file(golden: Golden, path: str) -> MemoryStore:
    """A restored checkpoint, in which this entry of a source's log names another file."""
    store = golden.store()
    entry = json.loads(golden.files[path].split("\n")[1])
    overwrite(store, path, "v1\n" + json.dumps({**entry, "path": OTHER}, separators=(",", ":")))
    return store


@pytest.mark.parametrize("golden", LOG_2, ids=name_of)
def test_other_files_of_a_source_in_offset_log_2_are_another_batch(golden: Golden) -> None:
    """Before: the log of no source was found, so that a restored checkpoint's rows were dropped as a replay."""
    entry = {"offset_log_2": "sources/0/0", "named": "sources/clicks/1"}[golden.kind]

    assert fingerprint(golden.store(), 1) != fingerprint(with_other_file(golden, entry), 1)


@pytest.mark.parametrize("golden", goldens("two_entries"), ids=name_of)
def test_other_files_in_an_earlier_entry_of_the_batch_are_another_batch(golden: Golden) -> None:
    """Before: of the two entries that batch 1 reads, the first one was not looked at."""
    assert golden.read[1] == ["b.txt", "c.txt"]

    assert fingerprint(golden.store(), 1) != fingerprint(with_other_file(golden, "sources/0/1"), 1)
    assert fingerprint(golden.store(), 2) == fingerprint(with_other_file(golden, "sources/0/1"), 2)


@pytest.mark.parametrize("golden", goldens("file", "compacted"), ids=name_of)
def test_a_log_that_is_not_there_is_no_log_without_files(golden: Golden) -> None:
    """Before: `[]` was taken for it, so that every checkpoint without its `sources` looked alike."""
    store = golden.store()
    store.delete([path for path in golden.files if path.startswith("sources/")])

    with pytest.raises(
        CorruptError, match=r"according to \S*offsets/\d+, source 0 reads files .* nor a '.compact' file"
    ):
        fingerprint(store, golden.batches[-1])


@pytest.mark.parametrize("golden", goldens("named_in_log_1", version="4.2.1"), ids=name_of)
def test_named_sources_in_offset_log_1_are_refused(golden: Golden) -> None:
    """Which of the named logs belongs to which line, the files do not tell."""
    with pytest.raises(CorruptError, match=r"If the sources of the query have names.*offsetLog\.formatVersion=2"):
        fingerprint(golden.store(), 0)


@pytest.mark.parametrize(
    ("path", "text", "found"),
    [
        ("offsets/0", 'v3\n{}\n{"end":1}', "expected v1 or v2 of Spark's offset log, found v3"),
        ("commits/0", "v4\n{}", "expected v1 or v2 or v3 of Spark's commit log, found v4"),
        ("sources/0/0", 'v2\n{"path":"a","timestamp":1,"batchId":0}', "expected v1 of Spark's log of a file source"),
    ],
)
def test_an_unknown_version_is_refused(path: str, text: str, found: str) -> None:
    store = goldens("file", version="4.3.0")[0].store()
    overwrite(store, path, text)

    ask = Checkpoint(store).is_completed if path == "commits/0" else Checkpoint(store).offsets
    with pytest.raises(ConfigError, match=rf"memory://.*/{path}: {found}"):
        ask(0)


def test_a_batch_that_spark_marks_as_an_operation_of_its_own_is_refused() -> None:
    store = goldens("offset_log_2", version="4.3.0")[0].store()
    lines = store.read("offsets/2").decode().split("\n")
    metadata = {**json.loads(lines[1]), "controlBatchInfo": {"operationType": "rewrite"}}
    overwrite(store, "offsets/2", "\n".join([lines[0], json.dumps(metadata), *lines[2:]]))

    with pytest.raises(ConfigError, match=r"a batch that Spark wrote for a special operation: .*rewrite"):
        fingerprint(store, 2)


# The repartition of state, offline.

REPARTITIONED = goldens("repartitioned", "repartitioned_ids")
NOT_RUN = [1, 3]
"""Batches of them that no query ran."""


class ReplayedQuery:
    """The query whose checkpoint a golden one is, played again up to a batch."""

    def __init__(self, golden: Golden) -> None:
        self.golden = golden
        self.place = Place()
        self.sink = Recorder()
        for path, text in golden.files.items():
            if not path.startswith(("offsets/", "commits/")):
                self.place.checkpoint.create(path, text.encode())

    def start(self) -> Run:
        return self.place.open({"a": self.sink})

    def write(self, *paths: str) -> None:
        for path in paths:
            self.place.checkpoint.create(path, self.golden.files[path].encode())

    def batch(self, run: Run, batch_id: int) -> None:
        """A batch that a query runs."""
        self.write(f"offsets/{batch_id}")
        planned = planned_ms(self.golden.files[f"offsets/{batch_id}"])
        assert planned is not None
        attempt = run.begin_staging(batch_id, planned_ms=planned)
        if attempt is not None:
            run.end_staging(attempt, stage_tables(run, attempt, [numbers(batch_id, 2)]))
        self.write(f"commits/{batch_id}")

    def repartition(self, batch_id: int) -> None:
        self.write(f"offsets/{batch_id}", f"commits/{batch_id}")

    def marked(self) -> list[int]:
        return [int(name.removesuffix(".json")) for name in self.place.wal.list("sinks/a/markers")]


@pytest.mark.parametrize("golden", REPARTITIONED, ids=name_of)
def test_a_query_goes_on_after_its_state_was_repartitioned(golden: Golden) -> None:
    """Before: staging the next batch raised `HistoryError`, at this start and every later one."""
    life = ReplayedQuery(golden)
    run = life.start()
    life.batch(run, 0)
    run.deliver_all()
    life.repartition(1)

    run = life.start()
    life.batch(run, 2)
    run.deliver_all()

    assert life.sink.batches == [0, 2]
    assert life.marked() == [0, 1, 2]


@pytest.mark.parametrize("golden", REPARTITIONED, ids=name_of)
def test_a_committer_that_meets_a_repartition_first_passes_over_it(golden: Golden) -> None:
    """Before: a drain, and the recovery before every later start, raised `HistoryError`."""
    life = ReplayedQuery(golden)
    run = life.start()
    life.batch(run, 0)
    life.repartition(1)
    run = life.start()
    run.deliver_all()
    assert life.marked() == [0, 1]

    life.batch(run, 2)
    life.repartition(3)
    run.deliver_all()
    life.batch(life.start(), 4)
    life.start().deliver_all()

    assert life.sink.batches == [0, 2, 4]
    assert life.marked() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("golden", REPARTITIONED, ids=name_of)
def test_a_group_that_waits_for_a_repartition_gets_its_marker(golden: Golden) -> None:
    """Before: an idle query left it without one, until the next batch was staged."""
    life = ReplayedQuery(golden)
    run = life.place.open({"a": idempotent(life.sink)})
    life.batch(run, 0)
    life.repartition(1)
    run = life.place.open({"a": idempotent(life.sink)}, runtime=SYSTEM)
    thread = committing(run)

    assert thread.caught_up.wait(PATIENCE_S)

    assert life.sink.batches == [0]
    assert life.marked()[-1] == 1
    ended(thread)


@pytest.mark.parametrize("golden", REPARTITIONED, ids=name_of)
def test_exactly_the_batches_that_no_query_ran_are_known_as_such(golden: Golden) -> None:
    checkpoint = Checkpoint(golden.store())

    found = {batch: offsets.text for batch in golden.batches if (offsets := checkpoint.repartition(batch))}
    assert found == {batch: golden.files[f"offsets/{batch}"] for batch in NOT_RUN}
    assert not set(NOT_RUN) & golden.read.keys()


@pytest.mark.parametrize("damaged", ["offsets/0", "offsets/1"])
@pytest.mark.parametrize("golden", REPARTITIONED[:1], ids=name_of)
def test_a_damaged_entry_beside_a_batch_that_no_query_ran_is_named(golden: Golden, damaged: str) -> None:
    store = golden.store()
    overwrite(store, damaged, "damaged")

    with pytest.raises(CorruptError, match=rf"^memory://\S+/{damaged}: "):
        Checkpoint(store).repartition(1)


def test_no_batch_that_a_query_ran_is_taken_for_a_repartition() -> None:
    found = [(golden, batch) for golden in goldens() for batch in golden.read]
    taken = [(golden, batch) for golden, batch in found if Checkpoint(golden.store()).repartition(batch)]

    assert [f"{name_of(golden)}: batch {batch}" for golden, batch in taken] == []
    assert len(found) > 100


def changed(text: str, **metadata: object) -> str:
    version, line, *sources = text.split("\n")
    return "\n".join([version, json.dumps({**json.loads(line), **metadata}), *sources])


def unplanned(store: MemoryStore, golden: Golden, *batches: int) -> None:
    for batch in batches:
        overwrite(store, f"offsets/{batch}", changed(golden.files[f"offsets/{batch}"], batchTimestampMs=0))


def partitioned(store: MemoryStore, golden: Golden, *partitions: str) -> None:
    """Let the first batches name these numbers of partitions of their state, and no other setting."""
    for batch, found in enumerate(partitions):
        text = changed(golden.files[f"offsets/{batch}"], conf={SHUFFLE_PARTITIONS: found})
        overwrite(store, f"offsets/{batch}", text)


DOUBTS: dict[str, Callable[[MemoryStore, Golden], None]] = {
    "another time of planning": lambda store, golden: overwrite(
        store, "offsets/1", changed(golden.files["offsets/1"], batchTimestampMs=1)
    ),
    "no time of planning": lambda store, golden: unplanned(store, golden, 0, 1),
    "another watermark": lambda store, golden: overwrite(
        store, "offsets/1", changed(golden.files["offsets/1"], batchWatermarkMs=1)
    ),
    "the same number of partitions": lambda store, golden: overwrite(store, "offsets/1", golden.files["offsets/0"]),
    "no number of partitions": lambda store, golden: overwrite(
        store, "offsets/0", changed(golden.files["offsets/0"], conf={})
    ),
    "numbers of partitions that are none": lambda store, golden: partitioned(store, golden, "many", "more"),
    "another setting": lambda store, golden: overwrite(
        store, "offsets/0", changed(golden.files["offsets/0"], conf={SHUFFLE_PARTITIONS: "77", "another": "x"})
    ),
    "no settings": lambda store, golden: overwrite(store, "offsets/0", changed(golden.files["offsets/0"], conf=None)),
    "other offsets": lambda store, golden: overwrite(
        store, "offsets/1", golden.files["offsets/1"].replace('"logOffset":0', '"logOffset":1')
    ),
    "no entry before": lambda store, _: store.delete(["offsets/0"]),
    "no commit before": lambda store, _: store.delete(["commits/0"]),
    "not complete": lambda store, _: store.delete(["commits/1"]),
    "another watermark for the next": lambda store, _: overwrite(store, "commits/1", 'v1\n{"nextBatchWatermarkMs":5}'),
}


@pytest.mark.parametrize("doubt", DOUBTS)
@pytest.mark.parametrize("golden", REPARTITIONED, ids=name_of)
def test_what_is_not_certainly_a_repartition_stays_missing(golden: Golden, doubt: str) -> None:
    life = ReplayedQuery(golden)
    run = life.start()
    life.batch(run, 0)
    run.deliver_all()
    life.repartition(1)
    DOUBTS[doubt](life.place.checkpoint, golden)

    assert Checkpoint(life.place.checkpoint).repartition(1) is None
    with pytest.raises(HistoryError, match="batch 2 follows batch 0"):
        life.batch(life.start(), 2)


def test_the_first_batch_is_no_repartition_whatever_the_checkpoint_holds() -> None:
    asked: list[str] = []
    store = FaultyStore(REPARTITIONED[0].store(), lambda what, path: asked.append(f"{what} {path}"))
    assert Checkpoint(store).repartition(0) is None
    assert asked == []


def test_a_batch_whose_manifest_was_listed_and_is_gone_is_missing_and_no_repartition() -> None:
    life = ReplayedQuery(REPARTITIONED[0])
    run = life.start()
    life.batch(run, 0)
    run.deliver_all()
    life.repartition(1)
    listed = life.place.wal.list

    def with_a_manifest(prefix: str, **how: Any) -> list[str]:
        found = listed(prefix, **how)
        return [*found, paths.manifest(1, 1, 1).rpartition("/")[2]] if prefix == paths.batch(1) else found

    life.place.wal.list = with_a_manifest  # type: ignore[method-assign]

    with pytest.raises(HistoryError, match="Spark completed batch 1 in"):
        run.deliver_all()


def test_a_query_that_runs_a_number_that_was_passed_over_is_another_history() -> None:
    """A checkpoint restored to before the repartition: the same offsets may be read, but its rows are not known."""
    life = ReplayedQuery(REPARTITIONED[0])
    run = life.start()
    life.batch(run, 0)
    life.repartition(1)
    run = life.start()
    run.deliver_all()
    life.place.checkpoint.delete(["offsets/1", "commits/1"])

    with pytest.raises(HistoryError, match="batch 1 of"):
        life.batch(life.start(), 1)


def test_a_batch_that_was_staged_is_not_passed_over_for_a_repartition_under_its_number() -> None:
    """The reverse: what the query staged of batch 1 is of a history that the restored checkpoint has lost."""
    life = ReplayedQuery(REPARTITIONED[0])
    run = life.start()
    life.batch(run, 0)
    text = changed(life.golden.files["offsets/0"], batchTimestampMs=1_767_225_600_500)
    life.place.checkpoint.create("offsets/1", text.encode())
    attempt = run.begin_staging(1, planned_ms=1_767_225_600_500)
    assert attempt is not None
    run.end_staging(attempt, stage_tables(run, attempt, [numbers(1, 2)]))
    life.place.checkpoint.delete(["offsets/1"])
    life.repartition(1)

    with pytest.raises(HistoryError, match="batch 1 of"):
        life.start().deliver_all()
    assert life.sink.batches == [0]


def test_a_repartition_calls_no_writer_of_whole_batches() -> None:
    """Neither does Spark; an empty batch that a query ran is another thing."""
    life = ReplayedQuery(REPARTITIONED[0])
    run = life.start()
    called: list[int] = []
    dispatcher = WholeBatchDispatcher(
        lambda _, manifest: called.append(manifest.batch_id), run.log, what="w", limit_s=9.0
    )
    run.committers[0]._served_sink = replace(run.committers[0].served_sink, dispatcher=dispatcher)
    life.batch(run, 0)
    life.repartition(1)

    run.deliver_all()

    assert called == [0]
    assert life.marked() == [0, 1]


def test_two_who_meet_a_repartition_at_once_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    life = ReplayedQuery(REPARTITIONED[0])
    run = life.start()
    life.batch(run, 0)
    life.repartition(1)

    mine, others = pass_over(run.log, run.checkpoint, 1), pass_over(life.start().log, run.checkpoint, 1)

    assert mine == others
    monkeypatch.setattr(type(run.log), "find", lambda *_: None)
    with pytest.raises(CorruptError, match="disappeared while it was read"):
        pass_over(run.log, run.checkpoint, 1)
