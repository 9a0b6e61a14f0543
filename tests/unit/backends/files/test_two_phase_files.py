"""`TwoPhaseFilesSink` on a local file system: one whole file a segment, which nobody sees too early or twice.

What every two-phase sink must do is tested in `tests/contract/test_two_phase_files.py`.
"""

from __future__ import annotations

import ctypes
import errno
import glob
import io
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.chaos.bad_disks import disk_of
from tests.contract.test_backends import READERS
from tests.house.kit import Held, chunks_of, commit, opened, prepare, three_batches
from tests.house.sinks import promise, sink_from_url
from tests.support.refusals import unrefused
from wal_sink import Chunk, ConfigError, Delivery, HandleGoneError, PermanentError, StoreError
from wal_sink.sinks import Transaction
from wal_sink.testing.contract.calls import attempt_at
from wal_sink_backends import FilesSink, TwoPhaseFilesSink
from wal_sink_backends.files import local as files_local
from wal_sink_backends.files.local import HELD_FOLDER

TEMPLATE = "{batch_id}-{partition}-{file_index}.{ext}"
FORMATS: list[Any] = ["jsonl", "json", "csv", "parquet"]
TABLE = three_batches()[0]
CHUNKS = chunks_of(TABLE)

Renameat2 = Callable[..., int]


def make_sink(folder: Path, **arguments: Any) -> TwoPhaseFilesSink:
    return TwoPhaseFilesSink(str(folder), **{"name_template": TEMPLATE, **arguments})


@contextmanager
def opened_at(folder: Path, **arguments: Any) -> Iterator[TwoPhaseFilesSink]:
    sink = make_sink(folder, **arguments)
    with opened(sink, CHUNKS[0]):
        yield sink


def size(file: Path) -> int:
    return file.stat().st_size


def prepared(folder: Path, chunks: list[Chunk] = CHUNKS, **arguments: Any) -> Held:
    with opened_at(folder, **arguments) as sink:
        return prepare(sink, chunks)


def committed(folder: Path, held: Held) -> None:
    with opened_at(folder) as sink:
        commit(sink, held)


def aborted(folder: Path, held: Held) -> None:
    with opened_at(folder) as sink:
        sink.abort(held.transaction, held.token)


def shown(folder: Path) -> dict[str, bytes]:
    """Return the files that a reader finds."""
    files = (path for path in folder.rglob("*") if path.is_file() and HELD_FOLDER not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(files)}


def held_files(folder: Path) -> list[Path]:
    return sorted((folder / HELD_FOLDER).iterdir()) if (folder / HELD_FOLDER).exists() else []


def _refuses(code: int) -> Renameat2:
    def renameat2(*_: object) -> int:
        ctypes.set_errno(code)
        return -1

    return renameat2


@pytest.fixture(params=["renamed", "linked", "linked since the kernel cannot"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How a file gets its name."""
    if request.param == "linked":
        monkeypatch.setattr(files_local, "_renameat2", None)
    if request.param == "linked since the kernel cannot":
        monkeypatch.setattr(files_local, "_renameat2", _refuses(errno.EINVAL))
    return str(request.param)


@pytest.mark.parametrize("format", FORMATS)
def test_a_segment_is_one_file_that_appears_whole(tmp_path: Path, way: str, format: Any) -> None:  # noqa: A002
    held = prepared(tmp_path, format=format)
    assert shown(tmp_path) == {}, way
    committed(tmp_path, held)
    ((name, data),) = shown(tmp_path).items()
    assert name == f"0-0-0.{format}"
    assert READERS[format](data) == TABLE.to_pylist()
    assert not held_files(tmp_path)


@pytest.mark.parametrize("format", FORMATS)
def test_the_formats_are_those_of_files_sink(tmp_path: Path, format: Any) -> None:  # noqa: A002
    committed(tmp_path / "one", prepared(tmp_path / "one", chunks_of(TABLE, chunk_rows=100), format=format))
    other = FilesSink(str(tmp_path / "other"), format=format)
    with opened(other, CHUNKS[0]):
        other.write(chunks_of(TABLE, chunk_rows=100)[0])
    assert list(shown(tmp_path / "one").values()) == list(shown(tmp_path / "other").values())


def test_parquet_makes_row_groups_of_many_chunks(tmp_path: Path) -> None:
    table = pa.table({"id": range(300_000)})
    committed(tmp_path, prepared(tmp_path, chunks_of(table, chunk_rows=1000), format="parquet"))
    file = pq.ParquetFile(io.BytesIO(shown(tmp_path)["0-0-0.parquet"]))
    assert file.num_row_groups == 3
    assert file.read().equals(table)


def test_nothing_of_rows_that_are_none(tmp_path: Path) -> None:
    held = prepared(tmp_path, chunks_of(TABLE.slice(0, 0)))
    assert not held_files(tmp_path)
    committed(tmp_path, held)
    assert shown(tmp_path) == {}


def test_a_file_of_the_same_bytes_under_that_name_is_another_one(tmp_path: Path, way: str) -> None:
    """A query that began anew writes the same rows in its batch 0, and these are other rows."""
    committed(tmp_path, prepared(tmp_path))
    before = shown(tmp_path)
    held = prepared(tmp_path)
    for _ in range(2):
        with pytest.raises(PermanentError, match=r"0-0-0.jsonl exists, but it is not the file .*\{wal_id\} in it"):
            committed(tmp_path, held)
    assert shown(tmp_path) == before, way
    assert len(held_files(tmp_path)) == 1
    (tmp_path / "0-0-0.jsonl").rename(tmp_path / "old.jsonl")
    committed(tmp_path, held)
    assert len(shown(tmp_path)) == 2


def test_a_file_of_the_same_bytes_does_not_stand_in_for_one_that_is_gone(tmp_path: Path) -> None:
    first, second = prepared(tmp_path), prepared(tmp_path)
    committed(tmp_path, first)
    aborted(tmp_path, second)
    with pytest.raises(HandleGoneError, match="the file with that name is another file, or was altered") as error:
        committed(tmp_path, second)
    assert not error.value.never_committed


def test_a_file_that_a_reader_took_away_is_not_committed_again(tmp_path: Path, way: str) -> None:
    held = prepared(tmp_path)
    committed(tmp_path, held)
    (tmp_path / "0-0-0.jsonl").unlink()
    with pytest.raises(HandleGoneError, match="is gone, and no file has that name") as error:
        committed(tmp_path, held)
    assert not error.value.never_committed, "it was"
    assert shown(tmp_path) == {}, way


@pytest.mark.parametrize("alter", [lambda file: os.truncate(file, 5), lambda file: file.write_bytes(b"X" * size(file))])
def test_a_held_file_that_was_altered_is_not_committed(tmp_path: Path, alter: Callable[[Path], object]) -> None:
    held = prepared(tmp_path)
    (file,) = held_files(tmp_path)
    alter(file)
    found = size(file)
    with pytest.raises(HandleGoneError, match=rf"or was altered: expected \d+ bytes, .* found {found} bytes") as error:
        committed(tmp_path, held)
    assert error.value.never_committed
    assert shown(tmp_path) == {}


def test_a_handle_of_another_store_is_not_held_in_this_one(tmp_path: Path) -> None:
    held = prepared(tmp_path)
    for handle in ('{"name":"x","upload":"y","parts":1,"digest":"","etags":[]}', "no handle at all"):
        with pytest.raises(HandleGoneError, match="does not belong to this store"):
            committed(tmp_path, Held(held.transaction, "", handle))


def test_a_process_that_died_between_link_and_unlink_has_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the newer process runs where files can be renamed."""
    held = prepared(tmp_path)
    (file,) = held_files(tmp_path)
    os.link(file, tmp_path / "0-0-0.jsonl")
    committed(tmp_path, held)
    assert len(shown(tmp_path)) == 1
    assert not held_files(tmp_path)
    committed(tmp_path, held)
    monkeypatch.setattr(files_local, "_renameat2", None)
    committed(tmp_path, held)


def test_a_folder_that_vanishes_is_made_again(tmp_path: Path) -> None:
    template = "{batch_id}/{partition}-{file_index}"
    held = prepared(tmp_path, name_template=template)
    other = prepared(tmp_path, chunks_of(TABLE, ordinal=1), name_template=template)
    committed(tmp_path, held)
    (tmp_path / "0" / "0-0").unlink()
    (tmp_path / "0").rmdir()
    committed(tmp_path, other)
    assert list(shown(tmp_path)) == ["0/1-0"]


def test_a_held_file_is_hidden_by_its_own_name_too(tmp_path: Path, way: str) -> None:
    """Hadoop's globs match hidden folders, and Spark then reads what in them is not hidden itself."""
    held = prepared(tmp_path)
    (file,) = held_files(tmp_path)
    assert file.name == f".{held.transaction.id}", way
    everything = glob.glob(str(tmp_path / "**"), recursive=True)  # noqa: PTH207 - the readers' own
    assert not [found for found in everything if Path(found).is_file()]


def test_files_can_be_held_where_no_reader_looks(tmp_path: Path, way: str) -> None:
    """fsspec's `**` and `Path.rglob` show hidden files."""
    folder, apart = tmp_path / "orders", tmp_path / "held"
    held = prepared(folder, held_folder=str(apart))
    assert not folder.exists() or not list(folder.rglob("*")), way
    assert [path.name for path in apart.iterdir()] == [f".{held.transaction.id}"]
    committed(folder, held)  # by a process that was told nothing of it: the handle says where
    committed(folder, held)
    assert list(shown(folder)) == ["0-0-0.jsonl"]
    assert not list(apart.iterdir())


def test_what_is_held_apart_is_found_to_be_aborted(tmp_path: Path) -> None:
    folder, apart = tmp_path / "orders", tmp_path / "held"
    with opened_at(folder, held_folder=str(apart)) as sink:
        transaction = attempt_at(CHUNKS[0])
        token = sink.begin(transaction)
        sink.write(CHUNKS[0])
    assert list(apart.iterdir())
    with opened_at(folder) as other:
        other.abort(transaction, token)
    assert not list(apart.iterdir())
    with opened_at(folder) as other, pytest.raises(ConfigError, match="not a token of a held file"):
        other.abort(transaction, "orders/held")


def test_a_folder_that_cannot_hold_is_refused() -> None:
    def make(url: str, given: str) -> None:
        TwoPhaseFilesSink(url, held_folder=given)

    cases: list[tuple[Any, ...]] = [
        ("/data/orders", "held", "expected the absolute path of a local folder outside of /data/orders"),
        ("/data/orders", "/data/orders/x", "outside of /data/orders"),
        ("/data/orders", "/data/x/../orders", "outside of /data/orders"),
        ("/data/orders", "", "outside of /data/orders"),
        (
            "s3://bucket/x",
            "/data",
            "held_folder is only for local folders, because S3 shows nothing of an unfinished upload",
        ),
    ]
    assert unrefused(ConfigError, make, cases) == []


@pytest.mark.parametrize("fails", ["fsync of the file", "fsync of the folder"])
def test_what_could_not_be_synced_is_not_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    real = os.fsync

    def fsync(descriptor: int) -> None:
        is_folder = Path(f"/proc/self/fd/{descriptor}").resolve().is_dir()
        if is_folder == (fails == "fsync of the folder") and held_files(tmp_path):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(StoreError, match="Input/output error"):
        prepared(tmp_path)
    assert not held_files(tmp_path), "it is aborted"


def test_what_is_synced_when(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The held file and its name before prepare returns; the final name before commit does."""
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink().relative_to(tmp_path)))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    held = prepared(tmp_path, name_template="x/" + TEMPLATE)
    assert synced[-2:] == [f"{HELD_FOLDER}/.{held.transaction.id}", HELD_FOLDER]
    assert "." in synced, "the folder of what is held has a durable name"
    for _ in range(2):
        synced.clear()
        committed(tmp_path, held)
        assert synced[-1] == "x"


@pytest.mark.parametrize(
    ("renaming", "linking", "message"),
    [
        (errno.EXDEV, None, "lies on another file system than"),
        (errno.EINVAL, errno.EPERM, "neither renames without replacing nor makes hard links"),
    ],
)
def test_a_file_system_that_cannot_commit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renaming: int, linking: int | None, message: str
) -> None:
    def link(*_: object) -> None:
        assert linking
        raise OSError(linking, os.strerror(linking))

    held = prepared(tmp_path)
    monkeypatch.setattr(files_local, "_renameat2", _refuses(renaming))
    monkeypatch.setattr(os, "link", link)
    with pytest.raises(ConfigError, match=message):
        committed(tmp_path, held)
    assert len(held_files(tmp_path)) == 1


@pytest.mark.parametrize("column", ["dt", "DT", "sink"])
def test_a_column_with_the_name_of_a_folder_is_refused(tmp_path: Path, column: str) -> None:
    """Spark and Arrow take its values from the folder `dt=…`, and not from the file."""
    template = "dt={date}/sink={sink}/" + TEMPLATE
    told = (
        rf"batch 0, chunk .*: column '{column}' has the same name as the folder '{column.lower()}=.*Rename the column"
    )
    with pytest.raises(ConfigError, match=told):
        prepared(tmp_path, chunks_of(pa.table({"id": [1], column: [1]})), name_template=template)
    assert not held_files(tmp_path)


def test_calls_out_of_order_say_so(tmp_path: Path) -> None:
    sink = make_sink(tmp_path)
    with pytest.raises(RuntimeError, match=r"call begin\(\) first"):
        sink.write(CHUNKS[0])
    with pytest.raises(RuntimeError, match=r"call begin\(\) first"):
        sink.prepare()
    with pytest.raises(RuntimeError, match=r"not open: call open\(\) first"):
        sink.abort(Transaction("1" * 32, "w", "s", 0, 0, 0), "")


def test_a_new_transaction_leaves_the_old_one_for_abort(tmp_path: Path) -> None:
    with opened_at(tmp_path) as sink:
        old = attempt_at(CHUNKS[0])
        sink.begin(old)
        sink.write(CHUNKS[0])
        commit(sink, prepare(sink, CHUNKS))
        assert len(held_files(tmp_path)) == 1
        sink.abort(old, "")
    assert not held_files(tmp_path)
    assert READERS["jsonl"](shown(tmp_path)["0-0-0.jsonl"]) == TABLE.to_pylist()


def test_the_sink_is_exactly_once_and_can_be_pickled(tmp_path: Path) -> None:
    sink = make_sink(tmp_path, storage_options={"auto_mkdir": True})
    assert promise(sink, Delivery(sink), "default").guarantee == "exactly_once"
    assert repr(pickle.loads(pickle.dumps(sink))) == repr(sink) == sink.describe()  # noqa: S301
    assert repr(sink) == f"TwoPhaseFilesSink('file://{tmp_path}', format='jsonl')"


def test_a_url_with_two_phase_commit_makes_this_sink(tmp_path: Path) -> None:
    sink = sink_from_url(
        f"files://{tmp_path}?format=csv&commit=two-phase&part_bytes=6000000"
        "&name_template=dt={date:%25Y}/{batch_id}-{partition}-{file_index}.{ext}"
    )
    assert repr(sink) == f"TwoPhaseFilesSink('file://{tmp_path}', format='csv')"
    on_s3 = sink_from_url("files+s3://bucket/orders?commit=two-phase&format=parquet")
    assert repr(on_s3) == "TwoPhaseFilesSink('s3://bucket/orders', format='parquet')"
    assert repr(sink_from_url(f"files://{tmp_path}?commit=chunk")) == f"FilesSink('file://{tmp_path}', format='jsonl')"


def test_a_url_that_cannot_work_is_refused() -> None:
    def make(query: str) -> None:
        sink_from_url(f"files:///folder?{query}")

    cases: list[tuple[Any, ...]] = [
        (
            "commit=two-phase&fromat=csv",
            "unknown options fromat; known are commit, format, options_from_env, name_template, maps, part_bytes, held",
        ),
        ("commit=2pc", "commit='2pc': expected one of 'chunk', 'two-phase'"),
        ("part_bytes=6000000", "commit=chunk has no options part_bytes; options of this mode: format, "),
        ("name_template=x", "expected {key} in it"),
        ("commit=two-phase&part_bytes=1", "part_bytes=1: expected a whole number from 5242880"),
        ("commit=two-phase&format=orc", "format='orc': expected one of"),
        ("commit=two-phase&name_template=x", "is missing"),
    ]
    assert unrefused(ConfigError, make, cases) == []


@pytest.mark.parametrize("url", ["memory://x", "ftp://me:hunter2@host/folder", "simplecache::s3://bucket/x"])
def test_a_store_that_cannot_hold_files_back_is_refused(url: str) -> None:
    with pytest.raises(
        ConfigError, match=r"two-phase commit of files works on a local file system and on S3 only\. Use FilesSink"
    ) as error:
        TwoPhaseFilesSink(url)
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize("given", [0, 5 * 2**20 - 1, 2**31, True, "8"])
def test_parts_that_s3_or_the_memory_cannot_take_are_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match="part_bytes="):
        TwoPhaseFilesSink("s3://bucket/x", part_bytes=given)


@pytest.mark.processes
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
