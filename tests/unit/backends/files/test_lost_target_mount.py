"""The folder that files are delivered to is lost in mid-run: moved, deleted, or another disk lies under it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.house.kit import chunks_of, opened, prepare, three_batches
from tests.house.stores import LocalStore
from tests.support.chunks import CONTEXT, chunk, ids
from wal_sink.errors import StoreError
from wal_sink_backends import FilesSink, TwoPhaseFilesSink

CHUNKS = chunks_of(three_batches()[0])
LOST = "this folder is gone, or it is on another disk now.* then start the query or command again"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "target"
    made.mkdir()
    return made


def lose(folder: Path) -> Path:
    """Take the folder out of sight. Nothing lies under its path then."""
    return folder.rename(folder.with_name("elsewhere"))


def another_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let another disk lie under the path, such as that of the empty mount point."""
    monkeypatch.setattr(LocalStore, "_found_device", lambda _: -1)


def files_sink(folder: Path, term: int = 1) -> FilesSink:
    """A new instance, as each attempt has one."""
    sink = FilesSink(str(folder))
    sink.open(replace(CONTEXT, term=term))
    return sink


@contextmanager
def held_sink(folder: Path) -> Iterator[TwoPhaseFilesSink]:
    sink = TwoPhaseFilesSink(str(folder))
    with opened(sink, CHUNKS[0]):
        yield sink


def test_a_chunk_is_not_written_to_the_disk_below(folder: Path) -> None:
    sink = files_sink(folder)
    sink.write(chunk(ids(1)))
    there = lose(folder)
    with pytest.raises(StoreError, match=f"{folder}: {LOST}"):
        sink.write(chunk(ids(2), first=1))
    assert not folder.exists()
    there.rename(folder)
    sink.write(chunk(ids(2), first=1))
    assert len(list(folder.rglob("*.jsonl"))) == 2


def test_a_chunk_is_not_written_to_an_empty_mount_point(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = files_sink(folder)
    another_disk(monkeypatch)
    with pytest.raises(StoreError, match=LOST):
        sink.write(chunk(ids(1)))
    assert list(folder.iterdir()) == []


def test_an_attempt_that_opens_the_sink_anew_does_not_take_the_disk_below(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files_sink(folder).close()
    another_disk(monkeypatch)
    with pytest.raises(StoreError, match=LOST):
        files_sink(folder).write(chunk(ids(1)))
    assert list(folder.iterdir()) == []


def test_a_folder_that_the_sink_made_is_not_made_again_once_it_is_lost(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "later"
    sink = files_sink(folder)
    sink.write(chunk(ids(1)))
    lose(folder)
    with pytest.raises(StoreError, match=LOST):
        sink.write(chunk(ids(2), first=1))
    assert not folder.exists()


def test_a_new_start_takes_the_folder_as_it_is(folder: Path) -> None:
    files_sink(folder).write(chunk(ids(1)))
    lose(folder)
    files_sink(folder, term=2).write(chunk(ids(2)))
    assert folder.exists()


def test_a_file_is_not_held_on_the_disk_below(folder: Path) -> None:
    with held_sink(folder) as sink:
        prepare(sink, CHUNKS)
        lose(folder)
        with pytest.raises(StoreError, match=LOST):
            prepare(sink, CHUNKS)
    assert not folder.exists()


def test_a_held_file_that_is_out_of_sight_is_not_gone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it were taken for gone, its rows would be prepared again, or the transaction would count as aborted."""
    with held_sink(folder) as sink:
        held = prepare(sink, CHUNKS)
        with monkeypatch.context() as patch:
            another_disk(patch)
            there = lose(folder)
            folder.mkdir()
            with pytest.raises(StoreError, match=LOST):
                sink.commit(held.transaction, held.handle)
            with pytest.raises(StoreError, match=LOST):
                sink.abort(held.transaction, held.token)
            folder.rmdir()
            there.rename(folder)
        sink.commit(held.transaction, held.handle)
    assert len(list(folder.rglob("*.jsonl"))) == 1
