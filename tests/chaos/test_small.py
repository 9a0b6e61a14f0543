"""A small part of `make chaos`, with a fixed seed: killed processes and disks in trouble.

Restored checkpoints are in `tests/integration/test_bad_input.py`, executors that outlive their driver in
`test_cluster_losses.py`.
"""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.chaos import backends, disks, orphans, processes
from tests.chaos.backend_deaths import Lives, Target, tell
from tests.chaos.bad_disks import Trouble, disk_of
from tests.chaos.lives import Chain, Ending
from tests.chaos.moments import Moment
from tests.chaos.processes import beyond_windows
from tests.chaos.scenario import Effort, Outcome, Scenario
from tests.chaos.targets import Plain, Sent
from tests.support.chunks import chunk
from tests.support.components import require
from tests.support.iceberg_tables import catalog_in, made

SEED = 20
SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario for module in (backends, disks, orphans, processes) for scenario in module.SCENARIOS
}
LONG_S = 600

needs_spark = pytest.mark.spark
long = pytest.mark.timeout(LONG_S)  # several drivers one after the other, each with a time limit


def outcome_of(name: str, share: float, folder: Path) -> Outcome:
    """Run a share of a scenario."""
    return SCENARIOS[name].run(Effort(seed=SEED, folder=folder, share=share))


@needs_spark
@long
def test_drivers_killed_at_random_moments_lose_nothing_and_repeat_a_chunk_of_each_segment_at_most(
    tmp_path: Path,
) -> None:
    outcome = outcome_of("drivers killed", 0.01, tmp_path)
    assert outcome.holds, outcome


@needs_spark
@long
def test_executors_killed_while_they_stage_and_deliver_lose_nothing(tmp_path: Path) -> None:
    outcome = outcome_of("executors killed", 0.04, tmp_path)
    assert outcome.holds, outcome


def test_two_chunks_of_a_segment_after_a_higher_term_are_one_too_many() -> None:
    def sent(*terms: int) -> list[Sent]:
        return [Sent(batch=0, ordinal=1, key=str(term), term=term, pid=1, end=10, rows=()) for term in terms]

    assert orphans.sent_too_late(sent(1, 1, 2, 1, 2, 3, 2)) == []
    assert orphans.sent_too_late(sent(1, 2, 1, 2, 1)) == [
        "term 1 sent 2 chunks of segment 1 after a higher term, expected at most 1"
    ]


@needs_spark
@long
def test_of_two_live_drivers_one_ends_with_an_error_and_nothing_is_lost(tmp_path: Path) -> None:
    outcome = outcome_of("two drivers, one WAL", 0.01, tmp_path)
    assert outcome.holds, outcome


@needs_spark
@long
def test_a_driver_that_slept_while_its_successor_finished_sends_no_more_than_the_chunks_in_its_hand(
    tmp_path: Path,
) -> None:
    require(hasattr(signal, "SIGSTOP"), "this system has no SIGSTOP")
    outcome = outcome_of("a driver that slept", 0.01, tmp_path)
    assert outcome.holds, outcome


@needs_spark
@long
def test_a_full_disk_under_a_query_loses_nothing_once_there_is_space(tmp_path: Path) -> None:
    require_disk("full", tmp_path / "probe", for_others=True)
    outcome = outcome_of("full disk under Spark", 0.1, tmp_path)
    assert outcome.holds, outcome


@pytest.mark.parametrize("trouble", ["full", "read-only"])
def test_a_disk_in_trouble_at_any_operation_is_told_as_such(trouble: Trouble, tmp_path: Path) -> None:
    require_disk(trouble, tmp_path / "probe")
    outcome = outcome_of(f"{trouble} disk", 0.04, tmp_path)
    assert outcome.holds, outcome


def test_a_process_that_dies_around_the_link_of_an_object_loses_and_doubles_nothing(tmp_path: Path) -> None:
    outcome = outcome_of("killed around a link", 0.03, tmp_path)
    assert outcome.holds, outcome


def require_disk(trouble: Trouble, folder: Path, *, for_others: bool = False) -> None:
    with disk_of(folder) as disk:
        able = disk.can(trouble, for_others=for_others)
    require(able, f"making a disk {trouble} needs a root user that may mount, or (for some) a user other than root")


NOT_KILLED_ELSEWHERE = ("PostgreSQL (upsert)", "files on S3 (moto), two-phase")
"""`tests/integration/test_dead_letters_on_servers.py` kills processes before the other servers, and
`test_backends_on_spark.py` before SQLite and files.
"""


@long
@pytest.mark.parametrize("name", NOT_KILLED_ELSEWHERE)
def test_processes_killed_before_a_server_lose_and_repeat_nothing(name: str, tmp_path: Path) -> None:
    outcome = outcome_of(f"killed before {name}", 0.01, tmp_path)
    assert outcome.holds, outcome


def test_rows_that_came_again_where_no_driver_had_them_in_hand_do_not_hold(tmp_path: Path) -> None:
    """The drivers together had that many rows in flight, but not of this batch."""
    chain = Chain(tmp_path / "chain", random.Random(SEED))
    plain, rows = Plain(chain.targets.plain), pa.table({"id": [7, 8, 9], "word": ["a", "b", "c"]})
    for batch, times in ((0, 2), (1, 2), (2, 1)):
        for _ in range(times):
            plain.write(chunk(rows, batch=batch, segment=str(batch)))
    in_hand = Moment(query="", delivery="", exact="", batch=0, window_rows=9, open_rows=3)
    chain.moments.append((Ending.KILL, in_hand))

    assert beyond_windows(chain) == ["chain: 3 rows of batch 1 were sent again, expected at most 0"]


def test_a_delta_table_with_a_file_too_many_or_a_batch_committed_twice_does_not_hold() -> None:
    rows = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": [7], "word": ["a"]}), rows)
    entry = b'{"add":{"path":"a.parquet"}}\n{"txn":{"appId":"wal-sink/1/exact","version":3}}'
    table = {"_delta_log/0.json": entry, "a.parquet": rows.getvalue().to_pybytes()}
    assert backends._rows_in_delta(table, table.__getitem__) == [(7, "a")]
    with pytest.raises(AssertionError, match=r"no entry of the log names: \['b\.parquet'\]"):
        backends._rows_in_delta([*table, "b.parquet"], table.__getitem__)
    table["_delta_log/1.json"] = entry
    with pytest.raises(AssertionError, match="positions with two commits"):
        backends._rows_in_delta(table, table.__getitem__)


def test_an_iceberg_table_with_a_file_too_many_or_a_batch_committed_twice_does_not_hold(tmp_path: Path) -> None:
    rows = pa.table({"id": [7], "word": ["a"]})
    table = made(catalog_in(tmp_path), rows.schema)
    table.append(rows, snapshot_properties={"wal-sink.1.exact": '{"batch": 3}'})
    assert backends._rows_in_iceberg(tmp_path, table.metadata_location) == [(7, "a")]
    (tmp_path / "b.parquet").touch()
    with pytest.raises(AssertionError, match=r"no snapshot names: \['b\.parquet'\]"):
        backends._rows_in_iceberg(tmp_path, table.metadata_location)
    (tmp_path / "b.parquet").unlink()
    table.append(rows, snapshot_properties={"wal-sink.1.exact": '{"batch": 3}'})
    with pytest.raises(AssertionError, match=r"batches with two commits: \[3\]"):
        backends._rows_in_iceberg(tmp_path, table.metadata_location)


def test_kills_that_met_no_work_do_not_hold(tmp_path: Path) -> None:
    lives = Lives(Effort(SEED, tmp_path), Target("", list))
    lives.outcome.rounds, lives.completed = 30, [0] * 30
    lives.met.update({"taking over": 18, "between two batches": 2, "its first batch: delivering": 1, "delivering": 9})
    tell(lives, 30, batches=1)
    assert not lives.outcome.holds
    lives.met.update({"taking over": -1, "delivering": 1})
    lives.outcome.violations.clear()
    tell(lives, 30, batches=1)
    assert lives.outcome.holds


def test_two_repeated_chunks_of_a_segment_at_one_take_over_are_one_too_many() -> None:
    def sent(*chunks: tuple[str, int]) -> list[Sent]:
        return [Sent(batch=0, ordinal=1, key=key, term=term, pid=1, end=10, rows=()) for key, term in chunks]

    once_each = sent(("a", 1), ("a", 2), ("b", 3), ("b", 2), ("b", 4))
    assert orphans.repeated_too_often(once_each) == []
    assert orphans.repeated_too_often(sent(("a", 1), ("b", 1), ("a", 2), ("b", 2))) == [
        "at the take-over of term 2, 2 chunks of segment 1 of batch 0 were repeated, expected at most 1"
    ]
