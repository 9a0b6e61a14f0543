"""The content of one commit, and its refusals: another head, another position, a file that is gone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Barrier, Thread
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.catalog.sql import SqlCatalog

from tests.house.sinks import BatchCommit
from tests.support.iceberg_tables import (
    KEY,
    NAME,
    ROWS,
    arrow_rows,
    at,
    batch,
    catalog_in,
    context,
    deliver,
    digest,
    files_of,
    ids_in,
    loaded,
    made,
    named_files,
    opened,
    rows_in,
    segment,
    there,
)
from wal_sink.errors import PermanentError, StoreError
from wal_sink_backends.iceberg import IcebergSink

OTHER = pa.table({"id": pa.array([9], pa.int64()), "note": ["other"]})
Properties = dict[str, str]


@pytest.fixture
def catalog(tmp_path: Path) -> Properties:
    properties = catalog_in(tmp_path)
    made(properties)
    return properties


def other_writer(catalog: Properties) -> None:
    there(catalog).append(OTHER)


def snapshots(catalog: Properties) -> int:
    return len(there(catalog).metadata.snapshots)


def test_a_batch_is_one_commit_with_files_and_position(catalog: Properties) -> None:
    with opened(catalog) as sink:
        assert sink.position() is None
        sink.commit(batch(sink, 7, ROWS, OTHER))
        assert sink.position() == at(7)
    table = there(catalog)
    (snapshot,) = table.metadata.snapshots
    assert {*table.properties} == {KEY, "schema.name-mapping.default"}
    assert snapshot.summary is not None
    assert snapshot.summary[KEY] == table.properties[KEY]
    assert (snapshot.summary["added-data-files"], snapshot.summary["total-records"]) == ("2", "4")
    assert sorted(Path(task.file.file_path).name for task in table.scan().plan_files()) == [
        f"wal-sink-wal-default-{number:032x}.parquet" for number in (700, 701)
    ]
    assert rows_in(catalog) == arrow_rows(table) == [*ROWS.to_pylist(), *OTHER.to_pylist()]


def test_a_file_of_the_table_has_the_bytes_of_the_segment(catalog: Properties) -> None:
    rows = pa.table({"id": pa.array(range(1000), pa.int64()), "note": ["é" * 40] * 1000})
    staged = segment(
        rows, 5, compression="zstd", use_dictionary=["note"], column_encoding={"id": "DELTA_BINARY_PACKED"}
    )
    with opened(catalog) as sink:
        handle = sink.prepare(staged)
        assert sink.prepare(staged) == handle
        assert len(handle) <= 4096
        assert rows_in(catalog) == [], "files that are not committed show no rows"
        sink.commit(BatchCommit(0, digest(0), 1000, (handle,), None))
    (path,) = Path(urlsplit(there(catalog).location()).path).rglob("*.parquet")
    assert path.read_bytes() == staged.data
    assert rows_in(catalog) == rows.to_pylist()


def test_a_committed_file_is_not_opened_for_writing_again(catalog: Properties) -> None:
    """A superseded process may prepare a segment of the table once more, at any time, and die within."""
    with opened(catalog) as sink:
        deliver(sink, 0)
        (path,) = Path(urlsplit(there(catalog).location()).path).rglob("*.parquet")
        path.chmod(0o444)
        before = path.stat()
        sink.prepare(segment(ROWS, 0))
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize("version", [1, 2])
def test_tables_of_both_versions_take_batches_beside_those_of_others(tmp_path: Path, version: int) -> None:
    catalog = catalog_in(tmp_path)
    made(catalog, properties={"format-version": str(version)})
    with opened(catalog) as sink:
        other_writer(catalog)
        deliver(sink, 0)
        other_writer(catalog)
        deliver(sink, 1)
        assert sink.position() == at(1)
    assert ids_in(catalog) == sorted([1, 2, 3, 9] * 2)
    assert there(catalog).scan(row_filter="id > 3").to_arrow().num_rows == 2
    assert there(catalog).scan(row_filter="note is null").to_arrow().num_rows == 2
    assert files_of(there(catalog)) == named_files(there(catalog))


def test_a_commit_that_arrived_is_not_repeated(catalog: Properties) -> None:
    with opened(catalog) as sink:
        first = batch(sink, 0)
        sink.commit(first)
        sink.commit(first)
    assert ids_in(catalog) == [1, 2, 3]
    assert snapshots(catalog) == 1


def test_two_sinks_and_two_wals_have_separate_positions(catalog: Properties) -> None:
    contexts = [context(), context("other"), context(wal="other")]
    for place, given in enumerate(contexts):
        with opened(catalog, given) as sink:
            assert sink.position() is None
            deliver(sink, place)
    for place, given in enumerate(contexts):
        with opened(catalog, given) as sink:
            assert sink.position() == at(place)
    assert ids_in(catalog) == sorted([1, 2, 3] * 3)


# --- races


def _interrupt(monkeypatch: pytest.MonkeyPatch, call: str, events: list[Callable[[], object]]) -> list[bool]:
    """Let each event happen before one of the next calls to the catalogue, when the sink has looked."""
    owner: Any = MetastoreCatalog if call == "_write_metadata" else SqlCatalog
    real, done = getattr(owner, call), list[bool]()

    def interrupted(*given: Any, **named: Any) -> Any:
        if events:
            event = events.pop(0)
            with monkeypatch.context() as within:
                within.setattr(owner, call, staticmethod(real) if call == "_write_metadata" else real)
                event()
            done.append(True)
        return real(*given, **named)

    monkeypatch.setattr(owner, call, staticmethod(interrupted) if call == "_write_metadata" else interrupted)
    return done


@pytest.mark.parametrize("call", ["commit_table", "_write_metadata"], ids=["before the request", "within it"])
def test_another_writer_between_look_and_commit_is_seen_and_the_commit_tried_again(
    catalog: Properties, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    with opened(catalog) as sink:
        deliver(sink, 0)
        interrupted = _interrupt(monkeypatch, call, [lambda: other_writer(catalog)] * 3)
        deliver(sink, 1)
        assert sink.position() == at(1)
    assert interrupted == [True] * 3
    assert ids_in(catalog) == [1, 1, 2, 2, 3, 3, 9, 9, 9]
    assert snapshots(catalog) == 5


def test_a_column_that_is_renamed_between_look_and_commit_is_not_read_as_null(
    catalog: Properties, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rename() -> None:
        there(catalog).update_schema().rename_column("note", "text").commit()

    with opened(catalog) as sink:
        waiting = batch(sink, 0)
        _interrupt(monkeypatch, "commit_table", [rename])
        with pytest.raises(PermanentError, match="note"):
            sink.commit(waiting)
    assert ids_in(catalog) == []


def test_a_table_that_others_write_all_the_time_ends_the_call(
    catalog: Properties, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wal_sink_backends.iceberg.sink._TRIES", 3)
    with opened(catalog) as sink:
        waiting = batch(sink, 0)
        _interrupt(monkeypatch, "commit_table", [lambda: other_writer(catalog)] * 3)
        with pytest.raises(StoreError, match="other writers committed first 3 times in a row"):
            sink.commit(waiting)
        assert sink.position() is None


def test_one_of_four_processes_with_the_same_batch_commits_it(catalog: Properties) -> None:
    barrier, lost = Barrier(4, timeout=60), list[Exception]()

    def deliver_in_step() -> None:
        with opened(catalog) as sink:
            for batch_id in range(3):
                prepared = batch(sink, batch_id)
                barrier.wait()
                try:
                    sink.commit(prepared)
                except StoreError as error:
                    lost.append(error)
                barrier.wait()

    threads = [Thread(target=deliver_in_step) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lost == []
    assert ids_in(catalog) == sorted([1, 2, 3] * 3)
    assert snapshots(catalog) == 3
    assert files_of(there(catalog)) == named_files(there(catalog))


@pytest.mark.parametrize("call", ["commit_table", "_write_metadata"], ids=["before the request", "within it"])
def test_a_frozen_commit_is_refused_after_the_next_process_committed(
    catalog: Properties, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    with opened(catalog) as old, opened(catalog) as new:
        deliver(old, 0)
        frozen = batch(old, 1)
        _interrupt(monkeypatch, call, [lambda: deliver(new, 1, 2)])
        with pytest.raises(StoreError, match=r"expected CommitPosition.*batch_id=0.*found CommitPosition.*batch_id=2"):
            old.commit(frozen)
        assert new.position() == at(2)
    assert ids_in(catalog) == sorted([1, 2, 3] * 3)


def test_a_frozen_commit_finds_its_own_batch_committed_by_the_next_process(
    catalog: Properties, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(catalog) as old, opened(catalog) as new:
        frozen = batch(old, 0)
        _interrupt(monkeypatch, "commit_table", [lambda: deliver(new, 0)])
        old.commit(frozen)
    assert ids_in(catalog) == [1, 2, 3]
    assert snapshots(catalog) == 1


def test_another_position_than_expected_is_refused(catalog: Properties) -> None:
    with opened(catalog) as sink:
        early = batch(sink, 1)
        deliver(sink, 0)
        with pytest.raises(StoreError, match="Nothing was committed"):
            sink.commit(early)
    assert snapshots(catalog) == 1


@pytest.mark.parametrize("arrives", [True, False], ids=["the commit arrived", "the commit did not arrive"])
def test_a_lost_answer_is_looked_up_and_nothing_is_sent_again(
    catalog: Properties, monkeypatch: pytest.MonkeyPatch, *, arrives: bool
) -> None:
    calls, real = list[object](), SqlCatalog.commit_table
    with opened(catalog) as sink:
        waiting = batch(sink, 0)

        def lost(*given: Any) -> None:
            calls.append(given)
            if arrives:
                real(*given)
            raise OSError("the connection was reset")

        monkeypatch.setattr(SqlCatalog, "commit_table", lost)
        if arrives:
            sink.commit(waiting)
        else:
            with pytest.raises(StoreError, match="committing: OSError: the connection was reset"):
                sink.commit(waiting)
    assert len(calls) == 1
    assert ids_in(catalog) == ([1, 2, 3] if arrives else [])


# --- files and tables that are gone


@pytest.mark.parametrize("spoiled", ["gone", "cut"])
def test_a_file_that_is_not_as_it_was_prepared_is_refused(catalog: Properties, spoiled: str) -> None:
    with opened(catalog) as sink:
        waiting = batch(sink, 0)
        (path,) = Path(urlsplit(there(catalog).location()).path).rglob("*.parquet")
        content = path.read_bytes()
        path.unlink()
        if spoiled == "cut":
            path.write_bytes(content[:-1])
        found = "no such file" if spoiled == "gone" else f"one of {len(content) - 1}; remove it"
        with pytest.raises(StoreError, match=f"{found}. Orphan files must be retained for longer"):
            sink.commit(waiting)
        assert sink.position() is None
        path.unlink(missing_ok=True)
        deliver(sink, 0)
    assert ids_in(catalog) == [1, 2, 3]


def test_a_missing_table_is_refused_with_the_next_step(tmp_path: Path) -> None:
    with opened(catalog_in(tmp_path)) as sink:
        assert sink.position() is None
        for call in (lambda: sink.prepare(segment(ROWS, 1)), lambda: sink.examine(ROWS.schema)):
            with pytest.raises(PermanentError, match="Create it, or pass create=True"):
                call()


def test_a_table_that_was_dropped_or_made_anew_is_not_committed_to(catalog: Properties) -> None:
    with opened(catalog) as sink:
        deliver(sink, 0)
        second = batch(sink, 1)
        loaded(catalog).drop_table(NAME)
        assert sink.position() is None
        with pytest.raises(StoreError, match="found None"):
            sink.commit(second)
        with pytest.raises(StoreError, match="the table is gone since its files were written"):
            sink.commit(BatchCommit(1, digest(1), 3, second.handles, None))
        made(catalog)
        with pytest.raises(StoreError, match="found None"):
            sink.commit(second)


def test_a_table_is_made_once_by_the_first_of_several_processes(tmp_path: Path) -> None:
    catalog, barrier = catalog_in(tmp_path), Barrier(4, timeout=60)
    loaded(catalog)

    def deliver_to_no_table(name: str) -> None:
        with opened(catalog, context(name), create=True) as sink:
            barrier.wait()
            for _ in range(4):
                with suppress(StoreError):  # two processes make the namespace: the core tries again
                    deliver(sink, 0)
                    break

    threads = [Thread(target=deliver_to_no_table, args=(f"sink-{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ids_in(catalog) == sorted([1, 2, 3] * 4)
    assert snapshots(catalog) == 4
    assert [field.required for field in there(catalog).schema().fields] == [False, False]


def test_a_process_that_finds_its_table_made_meanwhile_uses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = catalog_in(tmp_path)
    sink = IcebergSink(NAME, catalog=catalog, create=True)
    sink.open(context())
    _interrupt(monkeypatch, "create_table", [lambda: made(catalog)])
    deliver(sink, 0)
    sink.close()
    assert ids_in(catalog) == [1, 2, 3]
