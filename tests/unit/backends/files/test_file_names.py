"""Names of files from templates: an accepted template gives each segment another name."""

from __future__ import annotations

import datetime as dt
import itertools
from typing import Any

import pytest

from tests.support.refusals import unrefused
from wal_sink import ConfigError
from wal_sink.sinks import Transaction
from wal_sink_backends import TwoPhaseFilesSink
from wal_sink_backends.files.names import SEGMENT_TEMPLATE, SegmentNames

WAL = "ab" * 16
DAY = dt.date(2026, 11, 22)


def transaction(batch_id: int = 5, partition: int = 3, file_index: int = 1) -> Transaction:
    return Transaction("1" * 32, WAL, "archive", batch_id, partition, file_index)


def named(template: str, given: Transaction | None = None) -> str:
    return SegmentNames(template, ext="csv").name_of(given or transaction(), today=lambda: DAY)


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        ("{batch_id}-{partition}-{file_index}", "5-3-1"),
        ("dt={date}/part-{batch_id}-{partition}-{file_index}.{ext}", "dt=2026-11-22/part-5-3-1.csv"),
        ("{date:%Y/%m}/{sink}.{batch_id:04d}.{partition:02}.{file_index:d}", "2026/11/archive.0005.03.1"),
        ("{wal_id}/{file_index}_{partition}_{batch_id}", f"{WAL}/1_3_5"),
        (SEGMENT_TEMPLATE, f"batch=0000000000000000005/000003-0001-{WAL}.csv"),
    ],
)
def test_names(template: str, wanted: str) -> None:
    assert named(template) == wanted


@pytest.mark.parametrize("missing", ["batch_id", "partition", "file_index"])
def test_a_template_must_tell_segments_apart(missing: str) -> None:
    fields = [f"{{{name}}}" for name in ("batch_id", "partition", "file_index") if name != missing]
    with pytest.raises(ConfigError, match=rf"name_template=.*\{{{missing}\}} is missing"):
        TwoPhaseFilesSink("folder", name_template="-".join(fields))


def test_a_template_that_cannot_work_is_refused() -> None:
    def make(template: str) -> None:
        named(template)

    cases: list[tuple[Any, ...]] = [
        ("{batch_id}{partition}-{file_index}", r"\{batch_id\} and \{partition\} need a character between them"),
        ("{batch_id}-{partition}0{file_index}", r"\{partition\} and \{file_index\} need a character"),
        (
            "{batch_id}-{partition}-{file_index}-{key}",
            r"\{key\} is unknown; known are \{batch_id\}, \{partition\}, \{file_index\}",
        ),
        ("{batch_id}-{partition}-{file_index}-{}", r"\{\} is unknown"),
        ("{batch_id.real}-{partition}-{file_index}", r"\{batch_id.real\} is unknown"),
        ("{batch_id:.1}-{partition}-{file_index}", r"\{batch_id:.1\} could shorten a value"),
        ("{batch_id!s:.1}-{partition}-{file_index}", r"\{batch_id!s:.1\} could shorten"),
        ("{batch_id:x}-{partition}-{file_index}", r"\{batch_id:x\} could shorten"),
        ("{batch_id}-{partition}-{file_index}-{sink:.2}", r"\{sink:.2\} could shorten"),
        ("{batch_id}-{partition}-{file_index}-{date:{sink}}", "could shorten"),
        ("{batch_id}-{partition}-{file_index", "expected '}'"),
        ("/{batch_id}-{partition}-{file_index}", "not a path of an object"),
        ("../{batch_id}-{partition}-{file_index}", "not a path of an object"),
        (".{batch_id}-{partition}-{file_index}", "not a path of an object"),
        ("_{batch_id}-{partition}-{file_index}", "a name that begins with '_'"),
        ("{date:_%Y}/{batch_id}-{partition}-{file_index}", "a name that begins with '_'"),
        ("{batch_id}-{partition}-{file_index}?x", "not a path of an object"),
    ]
    worded = [(template, f"(?s){message}.*expected something like") for template, message in cases]
    assert unrefused(ConfigError, make, worded) == []


@pytest.mark.parametrize(
    "template", ["{batch_id}-{partition}-{file_index}", "{file_index:02d}x{batch_id:03d}1/{partition}"]
)
def test_no_two_segments_have_one_name(template: str) -> None:
    numbers = [0, 1, 2, 10, 11, 12, 100, 101, 110, 111, 1000, 1011, 1100, 11011]
    segments = list(itertools.product(numbers, repeat=3))
    assert len({named(template, transaction(*segment)) for segment in segments}) == len(segments)


def test_the_day_is_that_of_today_in_utc() -> None:
    before = dt.datetime.now(dt.UTC).date()
    name = SegmentNames("{date}/{batch_id}-{partition}-{file_index}", ext="csv").name_of(transaction())
    assert before <= dt.date.fromisoformat(name.partition("/")[0]) <= dt.datetime.now(dt.UTC).date()
