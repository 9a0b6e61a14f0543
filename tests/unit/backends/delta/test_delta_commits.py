"""The content of one commit, and its refusals: another version, another position, a file that is gone."""

from __future__ import annotations

import shutil
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction

from tests.house.sinks import BatchCommit
from tests.support.delta_tables import (
    ROWS,
    at,
    batch,
    context,
    deliver,
    digest,
    entries,
    ids_in,
    made,
    opened,
    rows_in,
    segment,
)
from wal_sink.errors import PermanentError, StoreError
from wal_sink.stores.spec import StoreSpec
from wal_sink_backends.delta import DeltaSink
from wal_sink_backends.delta.table import Table

OTHER = pa.table({"id": pa.array([9], pa.int64()), "note": ["other"]})
SLOT = "wal-sink/wal/default"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    made(tmp_path / "table")
    return tmp_path / "table"


def other_writer(table: Path) -> None:
    write_deltalake(str(table), OTHER, mode="append")


def test_a_batch_is_one_commit_with_files_and_position(table: Path) -> None:
    with opened(table) as sink:
        assert sink.position() is None
        sink.commit(batch(sink, 7, ROWS, OTHER))
        assert sink.position() == at(7)
    info, *actions = entries(table, 1)
    assert info["commitInfo"]["walSink"] == {"sink": SLOT, "batch": 7, "rows": 4}
    assert info["commitInfo"]["isBlindAppend"] is True
    assert [action["add"]["path"] for action in actions if "add" in action] == [
        f"wal-sink-wal-default-{number:032x}.parquet" for number in (700, 701)
    ]
    positions = {action["txn"]["appId"]: action["txn"]["version"] for action in actions if "txn" in action}
    assert positions == {SLOT: 7, f"{SLOT}/version": 1, f"{SLOT}/digest": int(digest(7), 16)}
    assert rows_in(table) == [*ROWS.to_pylist(), *OTHER.to_pylist()]
    assert DeltaTable(str(table)).version() == 1


def test_a_file_of_the_table_has_the_bytes_of_the_segment(table: Path) -> None:
    rows = pa.table({"id": pa.array(range(1000), pa.int64()), "note": ["é" * 40] * 1000})
    staged = segment(
        rows, 5, compression="zstd", use_dictionary=["note"], column_encoding={"id": "DELTA_BINARY_PACKED"}
    )
    with opened(table) as sink:
        handle = sink.prepare(staged)
        assert sink.prepare(staged) == handle
        assert len(handle) <= 4096
        (path,) = table.glob("*.parquet")
        assert path.read_bytes() == staged.data
        sink.commit(BatchCommit(0, digest(0), 1000, (handle,), None))
    assert rows_in(table) == rows.to_pylist()
    assert DeltaTable(str(table)).scan().read_all().num_rows == 1000


def test_files_that_are_prepared_and_not_committed_show_no_rows(table: Path) -> None:
    with opened(table) as sink:
        sink.prepare(segment(ROWS, 1))
    assert rows_in(table) == []


def test_a_committed_file_stays_whole_while_it_is_written_again(table: Path) -> None:
    """A superseded process may prepare a segment of the table once more, at any time, and die within."""
    with opened(table) as sink:
        deliver(sink, 0)
    (path,) = table.glob("*.parquet")
    before = path.read_bytes()
    stream = Table(StoreSpec(str(table)), "the test")._files({}).open_output_stream(path.name)
    stream.write(b"x" * (6 << 20))  # more than the library holds back
    assert len(list(table.glob(f"{path.name}*"))) == 2, "the library writes beside the file"
    assert path.read_bytes() == before


def test_a_commit_that_arrived_is_not_repeated(table: Path) -> None:
    with opened(table) as sink:
        first = batch(sink, 0)
        sink.commit(first)
        sink.commit(first)
    assert ids_in(table) == [1, 2, 3]
    assert DeltaTable(str(table)).version() == 1


def test_two_sinks_and_two_wals_have_positions_of_their_own(table: Path) -> None:
    contexts = [context(), context("other"), context(wal="other")]
    for place, given in enumerate(contexts):
        with opened(table, given) as sink:
            assert sink.position() is None
            deliver(sink, place)
    for place, given in enumerate(contexts):
        with opened(table, given) as sink:
            assert sink.position() == at(place)
    assert ids_in(table) == [1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_positions_survive_checkpoints_compaction_and_vacuum(table: Path) -> None:
    with opened(table) as sink:
        deliver(sink, 0, 1, 2)
        lake = DeltaTable(str(table))
        lake.optimize.compact()
        lake.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        lake.create_checkpoint()
        assert sink.position() == at(2)
        deliver(sink, 3)
    for entry in (table / "_delta_log").glob("*000[0-3].json"):
        entry.unlink()
    with opened(table) as sink:
        assert sink.position() == at(3)
    assert ids_in(table) == sorted([1, 2, 3] * 4)


# --- races


def test_another_writer_between_look_and_commit_is_seen_and_the_commit_tried_again(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(table) as sink:
        deliver(sink, 0)
        interrupted = _interrupt(sink, monkeypatch, [lambda: other_writer(table)] * 3)
        deliver(sink, 1)
        assert sink.position() == at(1)
    assert interrupted == [True] * 3
    assert ids_in(table) == [1, 1, 2, 2, 3, 3, 9, 9, 9]
    assert {action["txn"]["version"] for action in entries(table, 5) if "txn" in action} >= {1, 5}


def _interrupt(sink: DeltaSink, monkeypatch: pytest.MonkeyPatch, events: list[Any]) -> list[bool]:
    """Let each event happen before one of the next calls of `append`, when the sink has looked."""
    table, done = sink.opened(sink._table), list[bool]()
    append = table.append

    def interrupted(*given: Any) -> None:
        if events:
            events.pop(0)()
            done.append(True)
        append(*given)

    monkeypatch.setattr(table, "append", interrupted)
    return done


def test_a_table_that_others_write_all_the_time_ends_the_call(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wal_sink_backends.delta.sink._TRIES", 3)
    with opened(table) as sink:
        waiting = batch(sink, 0)
        _interrupt(sink, monkeypatch, [lambda: other_writer(table)] * 3)
        with pytest.raises(StoreError, match="other writers made the next version 3 times in a row"):
            sink.commit(waiting)
        assert sink.position() is None


def test_one_of_two_processes_with_the_same_batch_commits_it(table: Path) -> None:
    barrier = Barrier(4)

    def deliver_in_step() -> None:
        with opened(table) as sink:
            for batch_id in range(5):
                prepared = batch(sink, batch_id)
                barrier.wait()
                sink.commit(prepared)
                barrier.wait()

    threads = [Thread(target=deliver_in_step) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ids_in(table) == sorted([1, 2, 3] * 5)
    assert DeltaTable(str(table)).version() == 5


def test_a_frozen_commit_is_refused_after_the_next_process_committed(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library itself is frozen just before its request, when it has compared all that it compares."""
    with opened(table) as old, opened(table) as new:
        deliver(old, 0)
        frozen = batch(old, 1)
        _interrupt(old, monkeypatch, [lambda: deliver(new, 1, 2)])
        with pytest.raises(StoreError, match=r"expected CommitPosition.*batch_id=0.*found CommitPosition.*batch_id=2"):
            old.commit(frozen)
        assert new.position() == at(2)
    assert ids_in(table) == sorted([1, 2, 3] * 3)


def test_a_frozen_commit_finds_its_own_batch_committed_by_the_next_process(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(table) as old, opened(table) as new:
        frozen = batch(old, 0)
        _interrupt(old, monkeypatch, [lambda: deliver(new, 0)])
        old.commit(frozen)
    assert ids_in(table) == [1, 2, 3]


def test_a_frozen_commit_lands_in_an_older_copy_of_the_table_that_has_grown_to_its_version(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version is a number. Nobody can see that batch 0 is missing."""
    backup = shutil.copytree(table / "_delta_log", table.with_name("backup"))

    def an_older_copy_comes_back() -> None:
        shutil.rmtree(table / "_delta_log")
        shutil.copytree(backup, table / "_delta_log")
        other_writer(table)

    with opened(table) as old, opened(table) as new:
        deliver(old, 0)
        frozen = batch(old, 1, OTHER)
        _interrupt(old, monkeypatch, [an_older_copy_comes_back])
        old.commit(frozen)
        assert new.position() == at(1)
    assert ids_in(table) == [9, 9]


def test_another_position_than_expected_is_refused(table: Path) -> None:
    with opened(table) as sink:
        early = batch(sink, 1)
        deliver(sink, 0)
        with pytest.raises(StoreError, match="Nothing was committed"):
            sink.commit(early)
    assert DeltaTable(str(table)).version() == 1


def test_a_restore_between_look_and_commit_is_refused(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(table) as sink:
        deliver(sink, 0)
        waiting = batch(sink, 1)
        _interrupt(sink, monkeypatch, [lambda: DeltaTable(str(table)).restore(0)])
        with pytest.raises(StoreError, match="is_shown=False"):
            sink.commit(waiting)
    assert ids_in(table) == []


@pytest.mark.parametrize("arrives", [True, False], ids=["the commit arrived", "the commit did not arrive"])
def test_a_lost_answer_is_looked_up(table: Path, monkeypatch: pytest.MonkeyPatch, *, arrives: bool) -> None:
    with opened(table) as sink:
        waiting = batch(sink, 0)
        real = DeltaTable.create_write_transaction

        def lost(*given: Any, **named: Any) -> None:
            if arrives:
                real(*given, **named)
            raise OSError("the connection was reset")

        monkeypatch.setattr(DeltaTable, "create_write_transaction", lost)
        if arrives:
            sink.commit(waiting)
        else:
            with pytest.raises(StoreError, match="committing version 1: the connection was reset"):
                sink.commit(waiting)
    assert ids_in(table) == ([1, 2, 3] if arrives else [])


# --- what the library does


def _add(table: Path, name: str) -> AddAction:
    pq.write_table(OTHER, table / name)
    return AddAction(name, (table / name).stat().st_size, {}, 1, data_change=True, stats='{"numRecords": 1}')


@pytest.mark.parametrize("retries", [0, None], ids=["without retries", "with the library's retries"])
def test_the_library_lands_on_the_next_version_or_fails_only_without_retries(table: Path, retries: int | None) -> None:
    stale = DeltaTable(str(table))
    other_writer(table)
    properties = CommitProperties(app_transactions=[Transaction("a", 1)], max_commit_retries=retries)
    if retries is None:
        stale.create_write_transaction(
            [_add(table, "x.parquet")], "append", stale.schema(), commit_properties=properties
        )
        assert DeltaTable(str(table)).version() == 2, "it landed on a version after the expected one"
        return
    with pytest.raises(CommitFailedError):
        stale.create_write_transaction(
            [_add(table, "x.parquet")], "append", stale.schema(), commit_properties=properties
        )
    assert DeltaTable(str(table)).version() == 1
    assert DeltaTable(str(table)).transaction_version("a") is None


def test_the_library_commits_a_file_that_is_missing(table: Path) -> None:
    lake = DeltaTable(str(table))
    add = _add(table, "gone.parquet")
    (table / "gone.parquet").unlink()
    lake.create_write_transaction([add], "append", lake.schema())
    with pytest.raises(FileNotFoundError):
        rows_in(table)


# --- files and tables that are gone


@pytest.mark.parametrize("spoiled", ["gone", "cut"])
def test_a_file_that_is_not_as_it_was_prepared_is_refused_and_prepared_again(table: Path, spoiled: str) -> None:
    with opened(table) as sink:
        waiting = batch(sink, 0)
        (path,) = table.glob("*.parquet")
        if spoiled == "gone":
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(StoreError, match="VACUUM must retain files for longer than a delivery"):
            sink.commit(waiting)
        assert sink.position() is None
        deliver(sink, 0)
    assert ids_in(table) == [1, 2, 3]


def test_a_missing_table_is_refused_by_its_way_out(tmp_path: Path) -> None:
    (tmp_path / "table").mkdir()
    with opened(tmp_path / "table") as sink:
        assert sink.position() is None
        waiting = batch(sink, 0)
        with pytest.raises(PermanentError, match="Create it, or pass create=True"):
            sink.commit(waiting)
        with pytest.raises(PermanentError, match="Create it, or pass create=True"):
            sink.examine(ROWS.schema)


def test_a_table_made_anew_has_no_position(table: Path) -> None:
    with opened(table, create=True) as sink:
        deliver(sink, 0, 1)
        waiting = batch(sink, 2)
        shutil.rmtree(table)
        assert sink.position() is None
        made(table)
        with opened(table, context("other")) as other:
            deliver(other, 0, 1, 2)
        assert sink.position() is None
        with pytest.raises(StoreError, match="found None"):
            sink.commit(waiting)


def test_a_table_made_anew_between_two_calls_is_not_taken_for_the_known_one(table: Path) -> None:
    """A state is kept from one open sink to the next. The new table has more versions than the old one."""
    with opened(table) as sink:
        deliver(sink, 0, 1)
    shutil.rmtree(table)
    made(table)
    with opened(table, context("other")) as other:
        deliver(other, 0, 1, 2)
    with opened(table) as sink:
        assert sink.position() is None


def test_a_state_is_read_once_and_then_brought_up_to_date(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads, load = list[str](), DeltaTable.__init__

    def noted(lake: DeltaTable, *given: Any, **named: Any) -> None:
        loads.append(str(given))
        load(lake, *given, **named)

    monkeypatch.setattr(DeltaTable, "__init__", noted)
    for batch_id in range(5):
        with opened(table) as sink:
            deliver(sink, batch_id)
    assert len(loads) == 1
    with opened(table) as first, opened(table) as second:
        assert first.position() == second.position() == at(4)
    assert len(loads) == 2, "no two open sinks share a state"


def test_a_table_is_made_by_the_first_commit_of_any_process(tmp_path: Path) -> None:
    barrier, table = Barrier(4), tmp_path / "new" / "table"

    def deliver_to_no_table(name: str) -> None:
        with opened(table, context(name), create=True) as sink:
            prepared = batch(sink, 0)
            barrier.wait()
            sink.commit(prepared)

    threads = [Thread(target=deliver_to_no_table, args=(f"sink-{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ids_in(table) == sorted([1, 2, 3] * 4)
    assert DeltaTable(str(table)).version() == 4
    assert [field.nullable for field in DeltaTable(str(table)).schema().fields] == [True, True]


def test_a_table_that_another_process_made_and_filled_meanwhile_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, create=True) as slow, opened(tmp_path, create=True) as fast:
        waiting = batch(slow, 0)
        table = slow.opened(slow._table)
        create = table.create

        def overtaken(schema: Any) -> None:
            deliver(fast, 0)
            create(schema)

        monkeypatch.setattr(table, "create", overtaken)
        slow.commit(waiting)
    assert DeltaTable(str(tmp_path)).version() == 1
    assert ids_in(tmp_path) == [1, 2, 3]
