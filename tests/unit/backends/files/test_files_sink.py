"""`FilesSink`: one object a chunk, whole, under a name that always means the same rows.

What every idempotent sink must do is tested in `tests/contract/test_backends.py`.
"""

from __future__ import annotations

import csv
import dataclasses
import datetime as dt
import io
import json
import math
import pickle
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.house.sinks import Chunk, Position, SinkContext
from tests.house.stores import Store, StoreSpec, open_store
from tests.support.refusals import unrefused
from wal_sink.errors import ConfigError, PermanentError, StoreError
from wal_sink_backends import FilesSink, TwoPhaseFilesSink

CONTEXT = SinkContext(wal_id="wal", sink="default", term=1, batch_id=0, columns=("id",), on_executor=False)
TABLE = pa.table({"id": [1, 2, None], "name": ["a", "", None]})
FORMATS: list[Any] = ["jsonl", "json", "csv", "parquet"]


def chunk(table: pa.Table = TABLE, *, batch: int = 0, ordinal: int = 0, first: int = 0, segment: str = "a") -> Chunk:
    end = first + table.num_rows
    return dataclasses.replace(
        Chunk.of(table, key=f"{segment}-{first}-{end}"),
        batch_id=batch,
        rows=range(first, end),
        position=Position(f"wal/default/{ordinal}", batch, end, segment),
    )


def opened(sink: FilesSink) -> FilesSink:
    sink.open(CONTEXT)
    return sink


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def written(folder: Path, some: Chunk, format: Any) -> bytes:  # noqa: A002 - the sink's own name for it
    opened(FilesSink(str(folder), format=format)).write(some)
    (data,) = files(folder).values()
    return data


@pytest.mark.parametrize("format", FORMATS)
def test_a_repeated_chunk_leaves_the_same_bytes(tmp_path: Path, format: Any) -> None:  # noqa: A002
    first = written(tmp_path, chunk(), format)
    assert written(tmp_path, chunk(), format) == first


def test_an_object_that_exists_is_left_alone(tmp_path: Path) -> None:
    sink = opened(FilesSink(str(tmp_path)))
    sink.write(chunk())
    path = tmp_path / sink.name_of(chunk())
    path.write_bytes(b"written by an older version, the same rows")
    sink.write(chunk())
    assert path.read_bytes() == b"written by an older version, the same rows"


def test_a_part_left_by_a_store_that_is_not_atomic_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Doubtful:
        """Creates in place, as fsspec does over FTP; otherwise the local store."""

        create_doubt = "looks first and writes then"

        def __init__(self, store: Store) -> None:
            self._store = store

        def __getattr__(self, name: str) -> Any:
            return getattr(self._store, name)

        def segment(self, path: str) -> Any:
            (tmp_path / path).unlink()
            return self._store.segment(path)

    store = Doubtful(open_store(StoreSpec(str(tmp_path))))
    monkeypatch.setattr("wal_sink_backends.files.folder.open_store", lambda _spec: store)
    sink = opened(FilesSink(str(tmp_path)))
    sink.write(chunk())
    (name,) = files(tmp_path)
    (tmp_path / name).write_bytes(b'{"id":1,"na')
    sink.write(chunk())
    assert len((tmp_path / name).read_bytes().splitlines()) == TABLE.num_rows


def test_a_store_that_shows_parts_of_files_is_warned_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for url in (f"dir::file://{tmp_path}", f"dir::file://{tmp_path}", str(tmp_path)):
        opened(FilesSink(url))
    (record,) = caplog.records
    assert f"dir::file://{tmp_path}: readers may see a part of a file" in record.getMessage()


def test_names_list_in_the_order_of_batches_segments_and_rows() -> None:
    sink = FilesSink("memory://x")
    ordered = [
        chunk(batch=batch, ordinal=ordinal, first=first, segment=segment)
        for batch, ordinal, first, segment in [
            (2, 0, 0, "z"),
            (2, 0, 9, "z"),
            (2, 0, 99, "z"),
            (2, 11, 0, "y"),
            (10, 0, 0, "a"),
        ]
    ]
    names = [sink.name_of(some) for some in ordered]
    assert names == sorted(names)
    assert names[0] == "batch=0000000000000000002/000000-000000000003-z-0-3.jsonl"


def test_other_rows_have_another_name() -> None:
    sink = FilesSink("memory://x")
    assert (
        len({sink.name_of(some) for some in (chunk(), chunk(first=3), chunk(segment="b"), chunk().without([1]))}) == 4
    )


def test_two_sinks_of_one_folder_leave_each_other_their_names(tmp_path: Path) -> None:
    for name in ("one", "two"):
        sink = FilesSink(str(tmp_path), name_template="{key}")
        sink.open(dataclasses.replace(CONTEXT, sink=name))
        sink.write(chunk())
    assert len(files(tmp_path)) == 2


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_rows_without_columns_are_refused_where_none_would_be_read(tmp_path: Path, format: Any) -> None:  # noqa: A002
    with pytest.raises(PermanentError, match="the rows have no columns: CSV and Parquet cannot hold them"):
        opened(FilesSink(str(tmp_path), format=format)).write(chunk(TABLE.select([])))


def test_a_template_that_cannot_work_is_refused() -> None:
    def make(template: str) -> None:
        FilesSink("memory://x", name_template=template)

    cases: list[tuple[Any, ...]] = [
        ("{batch}.{ext}", r"expected \{key\} in it"),
        ("/{key}", "not a path"),
        ("a//{key}", "not a path"),
        (".{key}", "not a path"),
        ("_{key}", "a name that begins with '_'"),
        ("day/_new/{key}", "a name that begins with '_'"),
        ("{country}/{key}", r"\{country\} is unknown; known are \{batch\}, \{ordinal\}, \{rows\}, \{key\}, \{ext\}"),
        ("{key}{}", r"\{\} is unknown; known are"),
        ("{key", "expected '}'"),
        ("{key:05d}", "format code 'd'"),
        ("{key:.4}", "without ':' or '!'"),
        ("{key!a:.2}", "without ':' or '!'"),
    ]
    worded = [(template, f"name_template=.*{message}") for template, message in cases]
    assert unrefused(ConfigError, make, worded) == []


@pytest.mark.parametrize("kind", [FilesSink, TwoPhaseFilesSink])
def test_a_folder_is_no_template(kind: type[FilesSink | TwoPhaseFilesSink]) -> None:
    with pytest.raises(ConfigError, match=r"url='/data/\{date\}': expected no braces"):
        kind("/data/{date}")


@pytest.mark.parametrize(
    ("thing", "expected"),
    [
        (Path.mkdir, "exists, but no file can be read there"),
        (lambda name: name.symlink_to("nowhere"), "exists, but no file can be read there"),
        (Path.touch, "exists and is empty"),
    ],
    ids=["folder", "dangling link", "empty file"],
)
def test_a_name_that_something_else_has_is_no_delivered_chunk(
    tmp_path: Path, thing: Callable[[Path], None], expected: str
) -> None:
    sink = opened(FilesSink(str(tmp_path), name_template="{key}.{ext}"))
    thing(tmp_path / sink.name_of(chunk()))
    with pytest.raises((PermanentError, StoreError), match=expected):
        sink.write(chunk())


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected one of 'jsonl', 'json', 'csv', 'parquet'"):
        FilesSink("memory://x", format="avro")  # type: ignore[arg-type]


def test_json(tmp_path: Path) -> None:
    wanted = TABLE.to_pylist()
    assert json.loads(written(tmp_path / "a", chunk(), "json")) == wanted
    assert [json.loads(line) for line in written(tmp_path / "b", chunk(), "jsonl").splitlines()] == wanted


def test_parquet_keeps_the_schema(tmp_path: Path) -> None:
    table = pa.table({"v": pa.array([{"a": [1]}, None]), "t": pa.array([1, 2], pa.timestamp("us", "UTC"))})
    assert pq.read_table(io.BytesIO(written(tmp_path, chunk(table), "parquet"))).equals(table)


def test_csv_tells_null_from_empty(tmp_path: Path) -> None:
    assert written(tmp_path, chunk(), "csv") == b'"id","name"\n1,"a"\n2,""\n,\n'


def test_csv_types(tmp_path: Path) -> None:
    table = pa.table(
        {
            "f": pa.array([0.1], pa.float32()),
            "n": [math.nan],
            "i": [-math.inf],
            "b": [True],
            "d": pa.array([Decimal("1E-7")], pa.decimal128(10, 7)),
            "day": [dt.date(2013, 1, 2)],
            "t": pa.array([0], pa.timestamp("us", "Asia/Tokyo")),
            "x": [b"\xff"],
            "s": ['a"b,\nc'],
            "z": pa.nulls(1),
        }
    )
    header, *rows = csv.reader(io.StringIO(written(tmp_path, chunk(table), "csv").decode()))
    assert header == table.column_names
    instant = "1970-01-01T00:00:00.000000Z"
    assert rows == [["0.1", "NaN", "-Infinity", "true", "0.0000001", "2013-01-02", instant, "/w==", 'a"b,\nc', ""]]


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
)
def test_csv_keeps_bytes_of_a_text_that_are_no_utf8(tmp_path: Path, kind: Any) -> None:
    """Which Arrow type Spark gives a text is a setting of Spark."""
    raw = pa.array([b"a\xffb"]).cast(pa.large_binary())
    text = raw.view(pa.large_string()).cast(pa.string())
    column = text.dictionary_encode().cast(kind) if pa.types.is_dictionary(kind) else text.cast(kind)
    assert written(tmp_path, chunk(pa.table({"v": column})), "csv") == b'"v"\n"a\xffb"\n'


def test_csv_refuses_a_null_of_the_only_column(tmp_path: Path) -> None:
    """Readers skip the empty line that it would be."""
    with pytest.raises(PermanentError, match="column 'v' is the only one and holds a NULL"):
        written(tmp_path, chunk(pa.table({"v": ["x", None]})), "csv")
    assert written(tmp_path, chunk(pa.table({"v": ["x", ""]})), "csv") == b'"v"\n"x"\n""\n'


@pytest.mark.parametrize("value", [[1], {"a": 1}])
def test_csv_refuses_nested_columns_by_name(tmp_path: Path, value: Any) -> None:
    with pytest.raises(
        PermanentError, match=r"chunk a-0-1 as csv: column 'v' has the type .* CSV has no nested values"
    ):
        written(tmp_path, chunk(pa.table({"v": [value]})), "csv")
    assert files(tmp_path) == {}


@pytest.mark.parametrize("format", FORMATS)
def test_names_that_stand_twice_are_refused_for_good(tmp_path: Path, format: Any) -> None:  # noqa: A002
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["id", "id"])
    with pytest.raises(PermanentError, match="'id' occurs 2 times"):
        written(tmp_path, chunk(table), format)
    assert files(tmp_path) == {}


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("WAL_TEST_TOKEN", "hunter2-from-env")
    return "hunter2-from-env"


def test_secrets_never_show(token: str) -> None:
    options = {"secret": "hunter2", "client_kwargs": {"token": "hunter2"}}
    sink = FilesSink("memory://x", storage_options=options, options_from_env={"token": "WAL_TEST_TOKEN"})
    sink.open(CONTEXT)
    assert repr(sink) == "FilesSink('memory://x', format='jsonl')"
    sink.close()
    assert token.encode() not in pickle.dumps(sink)


def test_a_missing_variable_is_named() -> None:
    sink = FilesSink("memory://x", options_from_env={"token": "WAL_TEST_MISSING"})
    with pytest.raises(PermanentError, match="variable WAL_TEST_MISSING is not set"):
        sink.open(CONTEXT)


# Columns that a reader would take from the name of a folder.


@pytest.mark.parametrize("column", ["batch", "BATCH", "Batch"])
@pytest.mark.parametrize("format", FORMATS)
def test_a_column_with_the_name_of_a_folder_is_refused(tmp_path: Path, format: Any, column: str) -> None:  # noqa: A002
    """Spark and Arrow take its values from the folder `batch=…`, and not from the file."""
    told = rf"batch 7, chunk a-0-1: column '{column}' .* folder 'batch=0000000000000000007'.*Rename the column"
    with pytest.raises(ConfigError, match=told):
        opened(FilesSink(str(tmp_path), format=format)).write(chunk(pa.table({column: [1]}), batch=7))
    assert files(tmp_path) == {}


@pytest.mark.parametrize("template", ["{batch}/{key}", "x/batch-{batch}/{key}", "batch={batch}-{key}"])
def test_a_column_named_batch_may_go_where_no_folder_has_its_name(tmp_path: Path, template: str) -> None:
    opened(FilesSink(str(tmp_path), name_template=template)).write(chunk(pa.table({"batch": [1]})))
    (data,) = files(tmp_path).values()
    assert json.loads(data) == {"batch": 1}


def test_every_folder_of_a_template_counts(tmp_path: Path) -> None:
    sink = opened(FilesSink(str(tmp_path), name_template="{batch}/r%65gion=eu/{key}"))
    with pytest.raises(ConfigError, match="column 'Region'"):
        sink.write(chunk(pa.table({"id": [1], "Region": ["us"]})))
