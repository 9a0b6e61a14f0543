"""Other programs read the files that the sinks write."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.dataset as ds
import pytest

from tests.house.kit import Held, chunks_of, commit, opened, prepare
from wal_sink_backends import TwoPhaseFilesSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TEMPLATE = "batch={batch_id}/{partition}-{file_index}.{ext}"


def written(folder: Path, table: pa.Table, *, batch_id: int, committed: bool, format: Any = "jsonl") -> Held:  # noqa: A002
    sink = TwoPhaseFilesSink(str(folder), name_template=TEMPLATE, format=format)
    chunks = chunks_of(table, batch_id=batch_id)
    with opened(sink, chunks[0]):
        held = prepare(sink, chunks)
        if committed:
            commit(sink, held)
    return held


@pytest.mark.parametrize("recursive", ["true", "false"])
@pytest.mark.parametrize("pattern", ["", "/*", "/**", "/*/*", "/**/*"])
def test_spark_reads_no_row_that_is_held_back(
    spark: SparkSession, tmp_path: Path, pattern: str, recursive: str
) -> None:
    written(tmp_path, pa.table({"id": [1]}), batch_id=0, committed=True)
    written(tmp_path, pa.table({"id": [2]}), batch_id=1, committed=False)
    found = spark.read.option("recursiveFileLookup", recursive).json(f"{tmp_path}{pattern}").collect()
    assert [row["id"] for row in found] == [1]
    files: Any = ds.dataset(str(tmp_path), format="csv")
    assert len(files.files) == 1


# CSV.

TEXTS: list[str | None] = [
    'a"b',
    '"',
    '""',
    '"a"',
    "\\",
    "a\\",
    '\\"',
    'a\\"b',
    'x"\\',
    "a,b",
    "a\nb",
    "a\r\nb",
    "\r",
    "  pad ",
    "\t",
    "ü",
    "#c",
]
WORDS: list[str | None] = ["nan", "NaN", "NULL", "null", "\\N", "inf", "true", "1", "", None]
"""Texts that a reader may take for something else."""
FLOATS: list[float | None] = [math.nan, math.inf, -math.inf, 1e300, -0.1, 5e-324, None]
AS_DOCUMENTED = {"header": True, "multiLine": True, "escape": '"'}
AND_EMPTY = {**AS_DOCUMENTED, "nullValue": "\0", "emptyValue": ""}


def csv_of(folder: Path, texts: Sequence[str | None], floats: Sequence[float | None]) -> Path:
    """A file of both, in chunks of two rows."""
    rows = max(len(texts), len(floats))
    padded: dict[str, Any] = {
        "id": range(rows),
        "s": pa.array([*texts, *["-"] * (rows - len(texts))], pa.string()),
        "f": pa.array([*floats, *[0.0] * (rows - len(floats))], pa.float64()),
    }
    written(folder, pa.table(padded), batch_id=0, committed=True, format="csv")
    return folder / "batch=0" / "0-0.csv"


def by_spark(spark: SparkSession, file: Path, options: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    rows = spark.read.options(**options).schema("id INT, s STRING, f DOUBLE").csv(str(file)).orderBy("id").collect()
    return [row["s"] for row in rows], [row["f"] for row in rows]


def same(found: list[Any], wanted: Sequence[float | None]) -> bool:
    return list(map(repr, found)) == list(map(repr, wanted))


def test_spark_reads_every_text_and_number_with_the_documented_options(spark: SparkSession, tmp_path: Path) -> None:
    texts, floats = by_spark(spark, csv_of(tmp_path, TEXTS + WORDS, FLOATS), AND_EMPTY)
    assert texts == TEXTS + WORDS
    assert same(floats[: len(FLOATS)], FLOATS)


def test_spark_takes_an_empty_text_for_null_unless_told(spark: SparkSession, tmp_path: Path) -> None:
    texts, _ = by_spark(spark, csv_of(tmp_path, TEXTS + WORDS, FLOATS), AS_DOCUMENTED)
    assert texts == [text or None for text in TEXTS + WORDS]


def test_by_default_spark_reads_what_has_no_quote_backslash_nor_newline(spark: SparkSession, tmp_path: Path) -> None:
    plain = [text for text in TEXTS + WORDS if not text or not set(text) & set('"\\\n\r')] + ["\\N"]
    texts, floats = by_spark(spark, csv_of(tmp_path, plain, FLOATS), {"header": True})
    assert texts[: len(plain)] == [text or None for text in plain]
    assert same(floats[: len(FLOATS)], FLOATS)
    damaged, _ = by_spark(spark, csv_of(tmp_path / "other", ['a"b', "a\\"], []), {"header": True})
    assert damaged != ['a"b', "a\\"], "nobody needs to be told of the options"


def test_arrow_reads_every_text_and_number_with_the_documented_options(tmp_path: Path) -> None:
    arrow: Any = pa_csv
    table = arrow.read_csv(
        csv_of(tmp_path, TEXTS + WORDS, FLOATS),
        parse_options=arrow.ParseOptions(newlines_in_values=True),
        convert_options=arrow.ConvertOptions(
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            column_types={"s": pa.string(), "f": pa.float64()},
        ),
    )
    assert table["s"].to_pylist() == TEXTS + WORDS
    assert same(table["f"].to_pylist()[: len(FLOATS)], FLOATS)


def test_pandas_reads_every_text_and_number_with_the_documented_options(tmp_path: Path) -> None:
    """It cannot tell an empty text from NULL, nor NaN from NULL."""
    file = csv_of(tmp_path, TEXTS + WORDS, FLOATS)
    frame = pd.read_csv(
        file, dtype={"s": str}, keep_default_na=False, na_values={"f": ["", "NaN"]}, lineterminator="\n"
    )
    assert frame["s"].tolist() == [text or "" for text in TEXTS + WORDS]
    wanted = [math.nan if value is None else value for value in FLOATS]
    assert same(frame["f"].tolist()[: len(FLOATS)], wanted)


def test_python_reads_every_text(tmp_path: Path) -> None:
    with csv_of(tmp_path, TEXTS + WORDS, FLOATS).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["s"] for row in rows] == [text or "" for text in TEXTS + WORDS]
    assert [row["f"] for row in rows][:3] == ["NaN", "Infinity", "-Infinity"]
