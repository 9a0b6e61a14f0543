"""Whether a table still shows the newest batch of a sink, after others restored, deleted, compacted or cleaned up."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.support.delta_tables import ROWS, at, deliver, entries, ids_in, made, opened, write_entry
from wal_sink.errors import HistoryError
from wal_sink_backends.delta import DeltaSink
from wal_sink_backends.delta.table import Table


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Return a table with batch 0 in version 1 and batch 1 in version 2."""
    made(tmp_path)
    with opened(tmp_path) as sink:
        deliver(sink, 0, 1)
    return tmp_path


def restore(table: Path, version: int | datetime) -> None:
    DeltaTable(str(table)).restore(version)


def append(table: Path) -> None:
    write_deltalake(str(table), ROWS, mode="append")


def shown(table: Path, batch_id: int = 1) -> bool:
    with opened(table) as sink:
        position = sink.position()
    assert position is not None
    held = None if position.is_shown else batch_id - 1
    assert position == at(batch_id, held=held), "RESTORE keeps the position, and shows the batch before"
    return position.is_shown


def test_a_restore_to_before_the_newest_batch_hides_it(table: Path) -> None:
    restore(table, 1)
    assert not shown(table)
    assert ids_in(table) == [1, 2, 3]
    append(table)
    assert not shown(table)


def test_a_restore_to_the_newest_batch_or_to_after_it_shows_it(table: Path) -> None:
    append(table)
    restore(table, 2)
    assert shown(table)
    append(table)
    append(table)
    restore(table, 4)
    assert shown(table)


def test_a_restore_that_undoes_a_restore_shows_the_newest_batch_again(table: Path) -> None:
    restore(table, 1)
    append(table)
    restore(table, 2)
    assert shown(table)
    assert ids_in(table) == [1, 1, 2, 2, 3, 3]
    restore(table, 4)
    assert not shown(table), "version 4 was made on the restored state"


def _delete(lake: DeltaTable) -> None:
    lake.delete("id > 1")


def _update(lake: DeltaTable) -> None:
    lake.update({"id": "id + 10"})


def _merge(lake: DeltaTable) -> None:
    merger = lake.merge(ROWS, "s.id = t.id and s.id = 77", source_alias="s", target_alias="t")
    merger.when_not_matched_insert_all().execute()


def _overwrite(lake: DeltaTable) -> None:
    write_deltalake(lake, ROWS, mode="overwrite")


def _vacuum(lake: DeltaTable) -> None:
    lake.optimize.compact()
    lake.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


@pytest.mark.parametrize("change", [_delete, _update, _merge, _overwrite, _vacuum])
def test_what_others_do_with_the_rows_is_no_restore(table: Path, change: Callable[[DeltaTable], None]) -> None:
    change(DeltaTable(str(table)))
    assert DeltaTable(str(table)).version() > 2
    assert shown(table)
    with opened(table) as sink:
        deliver(sink, 2)
        assert sink.position() == at(2)


def test_a_restore_to_a_time_is_found_by_the_files_that_it_shows(tmp_path: Path) -> None:
    made(tmp_path)
    with opened(tmp_path) as sink:
        for batch_id in range(3):
            deliver(sink, batch_id)
            time.sleep(0.02)  # commits within a millisecond have one time
    moments = [entries(tmp_path, number)[0]["commitInfo"]["timestamp"] + 5 for number in range(1, 4)]
    append(tmp_path)
    restore(tmp_path, datetime.fromtimestamp(moments[2] / 1000, UTC))
    assert "version" not in entries(tmp_path, 5)[0]["commitInfo"]["operationParameters"]
    assert shown(tmp_path, 2)
    append(tmp_path)
    restore(tmp_path, datetime.fromtimestamp(moments[1] / 1000, UTC))
    assert ids_in(tmp_path) == [1, 1, 2, 2, 3, 3]
    assert not shown(tmp_path, 2)


def test_an_entry_as_spark_writes_it_is_understood(table: Path) -> None:
    """Spark has both parameters, one of which is NULL, and the version as a text."""
    remove = [action["add"]["path"] for action in entries(table, 2) if "add" in action]
    parameters: dict[str, Any] = {"version": "1", "timestamp": None}
    info = {"commitInfo": {"operation": "RESTORE", "operationParameters": parameters}}
    write_entry(table, 3, *({"remove": {"path": path, "dataChange": True}} for path in remove), info)
    assert not shown(table)


def test_entries_without_information_build_on_the_one_before(table: Path) -> None:
    """`DeltaTable.history` counts entries that have information, and would give them the numbers of others."""
    write_entry(table, 3, {"txn": {"appId": "somebody", "version": 1}})
    write_entry(table, 4, {"txn": {"appId": "somebody", "version": 2}})
    assert shown(table)
    restore(table, 1)
    write_entry(table, 6, {"txn": {"appId": "somebody", "version": 3}})
    assert not shown(table)


def test_an_entry_that_removes_files_and_names_no_operation_may_be_a_restore(table: Path) -> None:
    """Spark leaves the information out with `spark.databricks.delta.commitInfo.enabled=false`."""
    (path,) = [action["add"]["path"] for action in entries(table, 2) if "add" in action]
    write_entry(table, 3, {"remove": {"path": path, "dataChange": True}})
    with (
        opened(table) as sink,
        pytest.raises(HistoryError, match=r"entry 3 .* names no operation.*rolled_back='accept'"),
    ):
        sink.position()


def test_a_position_behind_many_entries_of_others_is_found(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, ask = list[int](), Table.positions

    def noted(reached: Table, names: Sequence[str]) -> list[int | None]:
        asked.append(len(names))
        return ask(reached, names)

    monkeypatch.setattr(Table, "positions", noted)
    for _ in range(19):
        append(table)
    assert shown(table)
    assert asked == []
    append(table)
    assert shown(table)
    assert asked == [3]


def test_a_log_that_was_cleaned_up_cannot_tell(table: Path) -> None:
    append(table)
    append(table)
    DeltaTable(str(table)).create_checkpoint()
    for number in range(4):
        (table / "_delta_log" / f"{number:020}.json").unlink()
    with opened(table) as sink, pytest.raises(HistoryError, match=r"entry 3 of the log is gone.*rolled_back='accept'"):
        sink.position()
    with opened(table, rolled_back="accept") as sink:
        assert sink.position() == at(1)
        deliver(sink, 2)
    assert shown(table, 2), "the next start needs no option"


@pytest.mark.parametrize("version", range(4))
@pytest.mark.parametrize("others", [0, 30], ids=["alone", "behind many entries of others"])
def test_the_newest_batch_that_the_table_shows_is_told(tmp_path: Path, version: int, others: int) -> None:
    made(tmp_path)
    with opened(tmp_path) as sink:
        deliver(sink, 0, 1, 2)
        append(tmp_path)
        restore(tmp_path, version)
        for _ in range(others):
            append(tmp_path)
        assert sink.position() == at(2, held=version - 1 if version < 3 else None)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_number_that_falls_is_read_after_checkpoints_and_many_entries(tmp_path: Path, version: int) -> None:
    """The batches that are missing come again: the number of the position is lower than before."""
    made(tmp_path)
    with opened(tmp_path) as sink:
        deliver(sink, 0, 1, 2, 7)
        restore(tmp_path, version)
        deliver(sink, version)
        assert sink.position() == at(version)
    slot = "wal-sink/wal/default"
    for _ in range(2):
        assert DeltaTable(str(tmp_path)).transaction_version(slot) == version
        DeltaTable(str(tmp_path)).create_checkpoint()
        for _ in range(25):
            append(tmp_path)
    with opened(tmp_path) as sink:
        assert sink.position() == at(version)
        deliver(sink, 8)
    assert shown(tmp_path, 8)


def test_a_restore_to_before_the_commits_of_a_catch_up_shows_the_batches_that_were_there_then(table: Path) -> None:
    with opened(table) as sink:
        deliver(sink, 2)
    restore(table, 1)
    with opened(table) as sink:
        deliver(sink, 1)
    restore(table, 3)
    with opened(table) as sink:
        assert sink.position() == at(2), "newer than the number that the table has now"
        deliver(sink, 3)
    assert shown(table, 3)


def test_a_restore_to_a_state_that_no_version_shows_cannot_tell(table: Path) -> None:
    info = {"commitInfo": {"operation": "RESTORE", "operationParameters": {}}}
    add = next(action for action in entries(table, 2) if "add" in action)["add"]
    write_entry(table, 3, {"add": {**add, "path": "another.parquet"}}, info)
    with opened(table) as sink, pytest.raises(HistoryError, match=r"entry 3 .*rolled_back='accept'"):
        sink.position()


def test_a_restore_is_accepted_for_one_start(table: Path) -> None:
    restore(table, 1)
    with opened(table, rolled_back="accept") as sink:
        assert sink.position() == at(1)
        deliver(sink, 2)
    assert shown(table, 2)
    assert ids_in(table) == [1, 1, 2, 2, 3, 3]


def test_a_position_that_another_program_changed_is_refused(table: Path) -> None:
    write_entry(table, 3, {"txn": {"appId": "wal-sink/other/default", "version": 1}})
    sink = DeltaSink(str(table))
    with opened(table) as ours:
        context = ours._context
        assert context is not None
    sink.open(type(context)("other", "default", 1, 0, ("id", "note"), on_executor=False))
    with pytest.raises(HistoryError, match="the position of wal-sink/other/default is incomplete"):
        sink.position()


def test_rows_of_an_empty_table_and_its_restore_are_told_apart(tmp_path: Path) -> None:
    made(tmp_path)
    with opened(tmp_path) as sink:
        deliver(sink, 0)
    restore(tmp_path, 0)
    assert not shown(tmp_path, 0)
    assert pa.Table.from_pylist([]).num_rows == len(ids_in(tmp_path))
