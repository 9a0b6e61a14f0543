"""Rolled-back tables, expired snapshots, and what others do to a table that is no rollback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from pyiceberg.types import StringType

from tests.house.sinks import BatchCommit, CommitPosition
from tests.support.iceberg_tables import (
    KEY,
    ROWS,
    at,
    batch,
    catalog_in,
    deliver,
    digest,
    ids_in,
    made,
    opened,
    segment,
    there,
)
from wal_sink.errors import HistoryError, StoreError

OTHER = pa.table({"id": pa.array([9], pa.int64()), "note": ["other"]})


@pytest.fixture
def catalog(tmp_path: Path) -> dict[str, str]:
    """Return a catalogue with a table that has three batches."""
    properties = catalog_in(tmp_path)
    made(properties)
    with opened(properties) as sink:
        deliver(sink, 0, 1, 2)
    return properties


def ids_of(table: Table) -> list[int]:
    return [snapshot.snapshot_id for snapshot in table.metadata.snapshots]


def hidden(batch_id: int, held_through: int) -> CommitPosition:
    return CommitPosition(batch_id, digest(batch_id), is_shown=False, held_through=held_through)


def roll_back(table: Table, place: int) -> None:
    table.manage_snapshots().set_current_snapshot(ids_of(table)[place]).commit()


def test_a_rollback_is_seen_and_the_next_commit_builds_on_it(catalog: dict[str, str]) -> None:
    roll_back(there(catalog), 0)
    with opened(catalog) as sink:
        assert sink.position() == hidden(2, 0)
        with pytest.raises(StoreError, match="is_shown=False, held_through=0"):
            sink.commit(BatchCommit(3, digest(3), 3, (sink.prepare(segment(ROWS, 300)),), at(2)))
        deliver(sink, 1)  # as catch-up does
        assert sink.position() == at(1)
        deliver(sink, 2)
        assert sink.position() == at(2)
    assert ids_in(catalog) == sorted([1, 2, 3] * 3)


def test_a_commit_that_was_frozen_before_a_rollback_is_refused_after_the_batch_came_back(
    catalog: dict[str, str],
) -> None:
    """It would build on the snapshot that is the newest again."""
    table = there(catalog)
    with opened(catalog) as old, opened(catalog) as new:
        frozen = batch(old, 3)
        deliver(new, 3)
        roll_back(table.refresh(), 2)
        with pytest.raises(StoreError, match="is_shown=False"):
            old.commit(frozen)


def test_a_table_without_its_branch_shows_nothing(catalog: dict[str, str]) -> None:
    there(catalog).manage_snapshots().remove_branch("main").commit()
    with opened(catalog) as sink:
        assert sink.position() == hidden(2, -1)


def test_a_rollback_is_undone_by_the_snapshot_of_the_batch(catalog: dict[str, str]) -> None:
    table = there(catalog)
    roll_back(table, 0)
    roll_back(table, 2)
    with opened(catalog) as sink:
        assert sink.position() == at(2)


def test_a_rollback_that_is_undone_after_a_catch_up_began_shows_what_was_there(catalog: dict[str, str]) -> None:
    table = there(catalog)
    roll_back(table, 0)
    with opened(catalog) as sink:
        deliver(sink, 1)
        roll_back(table.refresh(), 2)
        assert sink.position() == at(2)


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.append(OTHER),
        lambda table: table.delete("id = 2"),
        lambda table: table.delete(),
        lambda table: table.overwrite(OTHER),
        lambda table: table.update_schema().add_column("more", StringType()).commit(),
        lambda table: table.manage_snapshots().create_tag(ids_of(table)[0], "old").commit(),
        lambda table: table.maintenance.expire_snapshots().by_ids(ids_of(table)[:2]).commit(),
    ],
    ids=["append", "delete", "delete all", "overwrite", "column", "tag", "expiry"],
)
@pytest.mark.parametrize("version", ["1", "2"])
def test_a_change_by_others_is_no_rollback(tmp_path: Path, version: str, change: Callable[[Table], object]) -> None:
    properties = catalog_in(tmp_path)
    made(properties, properties={"format-version": version})
    with opened(properties) as sink:
        deliver(sink, 0, 1, 2)
        change(there(properties))
        assert sink.position() == at(2)
        deliver(sink, 3)
        assert sink.position() == at(3)


@pytest.mark.parametrize("parent", ["kept", "cut"])
def test_expired_snapshots_stop_the_sink_where_nobody_can_tell(
    catalog: dict[str, str], monkeypatch: pytest.MonkeyPatch, parent: str
) -> None:
    """pyiceberg takes the parent from a snapshot whose parent is expired; Iceberg's own library keeps it."""
    table = there(catalog)
    table.append(OTHER)
    table.append(OTHER)
    old, newest = ids_of(table)[:-1], ids_of(table)[-1]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    (head,) = there(catalog).metadata.snapshots
    assert head.parent_snapshot_id is None
    if parent == "kept":
        monkeypatch.setattr(
            "pyiceberg.table.metadata.TableMetadataCommonFields.snapshot_by_id",
            lambda _, number: head.model_copy(update={"parent_snapshot_id": old[-1]}) if number == newest else None,
        )
    with opened(catalog) as sink:
        waiting = (sink.prepare(segment(ROWS, 300)),)
        with pytest.raises(HistoryError, match=r"the one before it is expired.*start once with rolled_back='accept'"):
            sink.position()
    monkeypatch.undo()
    with opened(catalog, rolled_back="accept") as sink:
        assert sink.position() == at(2)
        sink.commit(BatchCommit(3, digest(3), 3, waiting, at(2)))
    with opened(catalog) as sink:
        assert sink.position() == at(3)


def test_a_rollback_is_accepted_by_order(catalog: dict[str, str]) -> None:
    roll_back(there(catalog), 1)
    with opened(catalog, rolled_back="accept") as sink:
        assert sink.position() == at(2)
        deliver(sink, 3)
        assert sink.position() == at(3)
    assert ids_in(catalog) == sorted([1, 2, 3] * 3)


def test_a_rollback_is_found_after_the_batch_expired(tmp_path: Path) -> None:
    properties = catalog_in(tmp_path)
    made(properties)
    with opened(properties) as sink:
        deliver(sink, 0, 1, 2)
        table = there(properties)
        first, second, third = ids_of(table)
        roll_back(table, 1)
        table.maintenance.expire_snapshots().by_ids([first, third]).commit()
        assert ids_of(there(properties)) == [second]
        assert sink.position() == hidden(2, 1)


def test_a_rollback_to_before_all_that_is_left_cannot_be_told(tmp_path: Path) -> None:
    properties = catalog_in(tmp_path)
    table = made(properties)
    table.append(OTHER)
    table.append(OTHER)
    with opened(properties) as sink:
        deliver(sink, 0)
        table.refresh()
        roll_back(table, 1)
        table.maintenance.expire_snapshots().by_ids(ids_of(table)[:1]).commit()
        with pytest.raises(HistoryError, match="nobody can tell"):
            sink.position()


def test_a_table_of_version_1_has_no_numbers_that_tell_its_first_snapshot(tmp_path: Path) -> None:
    properties = catalog_in(tmp_path)
    table = made(properties, properties={"format-version": "1"})
    table.append(OTHER)
    with opened(properties) as sink:
        deliver(sink, 0, 1)
        roll_back(table.refresh(), 1)
        assert sink.position() == hidden(1, 0)
        roll_back(table.refresh(), 0)
        with pytest.raises(HistoryError, match="nobody can tell"):
            sink.position()


@pytest.mark.parametrize("spoiled", ["", "{}", '{"batch": "x"}', "null"])
def test_a_position_that_another_program_changed_is_refused(catalog: dict[str, str], spoiled: str) -> None:
    with there(catalog).transaction() as transaction:
        transaction.set_properties({KEY: spoiled})
    with opened(catalog) as sink, pytest.raises(HistoryError, match=f"the property {KEY} of the table is not as"):
        sink.position()


def test_a_position_that_was_removed_is_none(catalog: dict[str, str]) -> None:
    with there(catalog).transaction() as transaction:
        transaction.remove_properties(KEY)
    with opened(catalog) as sink:
        assert sink.position() is None
