"""The WAL's folder is gone from the view of a process that delivers, while another machine still has it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.house.sinks import Chunk
from tests.house.stores import LocalStore, StoreSpec
from tests.support.small_run import Place, Recorder
from wal_sink.errors import StoreError


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.EMFILE])
@pytest.mark.parametrize("recursive", [False, True])
def test_a_listing_that_fails_is_no_empty_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, recursive: bool
) -> None:
    store = LocalStore(StoreSpec(str(tmp_path)))
    store.create("a/1", b"x")

    def fail(_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "scandir", fail)
    with pytest.raises(StoreError, match="cannot list"):
        store.list("a", recursive=recursive)


def test_a_process_whose_mount_was_lost_sends_no_more_than_the_chunk_in_its_hand(tmp_path: Path) -> None:
    here, there = tmp_path / "wal", tmp_path / "elsewhere"
    checkpoint = LocalStore(StoreSpec(str(tmp_path / "checkpoint")))

    def place(folder: Path) -> Place:
        return Place(wal=LocalStore(StoreSpec(str(folder))), checkpoint=checkpoint, rows=lambda _: [8])  # type: ignore[arg-type]

    newer = Recorder()

    def lose(chunk: Chunk) -> None:
        if (chunk.batch_id, chunk.start) == (1, 2):
            here.rename(there)
            place(there).open({"a": newer}).deliver_all()

    sink = Recorder(lose)
    run = place(here).open({"a": sink})

    with pytest.raises(StoreError, match="this folder is gone, or it is on another disk now"):
        place(here).stream(run, 3)

    assert [chunk.start for chunk in sink.chunks if chunk.batch_id == 1] == [0, 2]
    assert [chunk.start for chunk in newer.chunks] == [2, 4, 6]
    assert not here.exists()
