"""Files that are held on a full disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.chaos.bad_disks import disk_of
from wal_sink import Chunk, StoreError
from wal_sink.testing.contract.calls import Held, chunks_of, commit, opened, prepare
from wal_sink.testing.data.tables import three_batches
from wal_sink_backends import TwoPhaseFilesSink
from wal_sink_backends.files.local import HELD_FOLDER

TEMPLATE = "{batch_id}-{partition}-{file_index}.{ext}"

TABLE = three_batches()[0]
CHUNKS = chunks_of(TABLE)


def make_sink(folder: Path, **arguments: Any) -> TwoPhaseFilesSink:
    return TwoPhaseFilesSink(str(folder), **{"name_template": TEMPLATE, **arguments})


@contextmanager
def opened_at(folder: Path, **arguments: Any) -> Iterator[TwoPhaseFilesSink]:
    sink = make_sink(folder, **arguments)
    with opened(sink, CHUNKS[0]):
        yield sink


def prepared(folder: Path, chunks: list[Chunk] = CHUNKS, **arguments: Any) -> Held:
    with opened_at(folder, **arguments) as sink:
        return prepare(sink, chunks)


def committed(folder: Path, held: Held) -> None:
    with opened_at(folder) as sink:
        commit(sink, held)


def shown(folder: Path) -> dict[str, bytes]:
    """Return the files that a reader finds."""
    files = (path for path in folder.rglob("*") if path.is_file() and HELD_FOLDER not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(files)}


def held_files(folder: Path) -> list[Path]:
    return sorted((folder / HELD_FOLDER).iterdir()) if (folder / HELD_FOLDER).exists() else []


def test_a_full_disk_is_told_and_may_be_tried_again(tmp_path: Path) -> None:
    long = chunks_of(pa.table({"text": ["x" * 100] * 30_000}), ordinal=1, chunk_rows=10_000)
    with disk_of(tmp_path / "disk") as disk:
        folder = disk.folder / "out"
        committed(folder, prepared(folder))
        assert disk.begin("full", free_pages=20)
        with pytest.raises(StoreError, match="cannot write") as error:
            prepared(folder, long)
        assert "free space" in str(error.value) or "too large" in str(error.value)
        assert shown(folder).keys() == {"0-0-0.jsonl"}
        assert not held_files(folder)
        disk.end()
        committed(folder, prepared(folder, long[:1]))
        assert len(shown(folder)) == 2
