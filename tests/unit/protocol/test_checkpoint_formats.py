"""Spark's files, read strictly: every version that is known, and a refusal of everything else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.house.protocol import Checkpoint
from tests.support.golden.checkpoints import Golden, goldens, name_of
from wal_sink.errors import ConfigError, CorruptError
from wal_sink.protocol.checkpoint_formats import (
    COMMIT_LOG_VERSIONS,
    OFFSET_LOG_VERSIONS,
    read_commit,
    read_file_log,
    read_offsets,
    read_query_id,
)

ID = "00000000-0000-4000-8000-000000000000"


def not_understood(golden: Golden) -> Iterator[str]:
    """A part of a checkpoint that is read wrong."""
    checkpoint = Checkpoint(golden.store())
    if (found := checkpoint.query_id()) != ID:
        yield f"the query {found}"
    if (newest := checkpoint.newest_commit()) != golden.batches[-1]:
        yield f"the newest commit {newest}"
    yield from (f"commits/{batch}" for batch in golden.batches if not checkpoint.is_completed(batch))
    for path, text in golden.files.items():
        try:
            if path.startswith("offsets/") and not read_offsets(text, path).sources:
                yield f"{path}: no sources"
            if path.startswith("sources/") and not read_file_log(text.encode(), path):
                yield f"{path}: no files"
        except (ConfigError, CorruptError) as error:
            yield str(error)


def test_every_file_that_spark_wrote_is_understood() -> None:
    assert [f"{name_of(golden)}: {fault}" for golden in goldens() for fault in not_understood(golden)] == []


def test_the_golden_checkpoints_have_every_version_there_is() -> None:
    versions = {
        log: {
            text.split("\n")[0] for golden in goldens() for path, text in golden.files.items() if path.startswith(log)
        }
        for log in ("offsets", "commits", "sources")
    }

    assert versions["offsets"] == {f"v{number}" for number in OFFSET_LOG_VERSIONS}
    assert versions["commits"] == {f"v{number}" for number in COMMIT_LOG_VERSIONS}
    assert versions["sources"] == {"v1"}


def test_a_source_without_an_offset_is_no_source_of_the_batch() -> None:
    assert read_offsets('v1\n\n-\n{"end":1}', "x").sources == {"1": '{"end":1}'}
    assert read_offsets('v2\n{}\na:-\nb:{"end":1}', "x").sources == {"b": '{"end":1}'}


@pytest.mark.parametrize(
    "text", ["", "v1", "1\n{}", "v1x\n{}", "v1\n[]", "v1\n{", "v2\n", "v2\n{}\n{}", "v2\n{}\na b:1"]
)
def test_what_is_no_entry_of_the_offset_log_is_named(text: str) -> None:
    with pytest.raises(CorruptError, match=r"place/offsets/1: expected .* found .*; restore the checkpoint"):
        read_offsets(text, "place/offsets/1")


def test_a_source_that_stands_twice_is_named() -> None:
    with pytest.raises(
        CorruptError, match="offsets/1: expected one line '<source id>:<offset>' for each source, found 'a:2'"
    ):
        read_offsets("v2\n{}\na:1\na:2", "offsets/1")


@pytest.mark.parametrize("number", [0, 3, 12])
def test_another_version_of_the_offset_log_asks_for_one_that_knows_it(number: int) -> None:
    with pytest.raises(
        ConfigError, match=rf"expected v1 or v2 of .*, found v{number}\. Nothing was read from this file\. Use a"
    ):
        read_offsets(f"v{number}\nwhatever", "x")


@pytest.mark.parametrize(
    "data", [b"v1\n{}", b'v1\n{"nextBatchWatermarkMs":5}', b'v2\n{"stateUniqueIds":{}}\n', b"v3\n{}"]
)
def test_a_whole_commit_is_read(data: bytes) -> None:
    assert read_commit(data, "x") is not None


@pytest.mark.parametrize("size", range(len(b'v1\n{"a":5}')))
def test_the_beginning_of_a_commit_is_not_complete_yet(size: int) -> None:
    assert read_commit(b'v1\n{"a":5}'[:size], "x") is None


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"w1", "a version line and a line of JSON, found 'w1'"),
        (b"v1.", "a version line and a line of JSON, found 'v1.'"),
        (b"xv1x\n{}", "a version line such as 'v1' of Spark's commit log, found 'xv1x'"),
        (b"v1\nx", "a line of JSON, found 'x'"),
        (b"v1\n{x}", "a JSON object, found '{x}'"),
        (b"\xff", "a version line and a line of JSON, found '\ufffd'"),
        (b"\xff\n{}", "a version line such as 'v1' of Spark's commit log, found '\ufffd'"),
        (b"v1\n\xff", "a line of JSON, found '\ufffd'"),
        (b"v1\n{\xff}", "a JSON object, found '{\ufffd}'"),
    ],
)
def test_what_begins_no_commit_is_named(data: bytes, said: str) -> None:
    with pytest.raises(CorruptError) as caught:
        read_commit(data, "commits/3")

    assert str(caught.value) == f"commits/3: expected {said}; restore the checkpoint"


def test_a_commit_of_another_version_asks_for_one_that_knows_it() -> None:
    with pytest.raises(ConfigError, match=r"commits/3: expected v1 or v2 or v3 of Spark's commit log, found v4\."):
        read_commit(b"v4\n{}", "commits/3")


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"v1\n", "batchId in each line"),
        (b"1\n{}", "a version line such as 'v1'"),
        (b"v1\n{}", "a file with path, timestamp and batchId in each line"),
        (b'v1\n{"path":"a","timestamp":1,"batchId":"1"}', "batchId in each line"),
        (b'v1\n{"path":"a","batchId":1}', "batchId in each line"),
        (b"v1\n[1]", "batchId in each line"),
        (b"v1\n\xff", "found bytes that are not UTF-8 text"),
    ],
)
def test_what_is_no_log_of_a_file_source_is_named(data: bytes, found: str) -> None:
    with pytest.raises(CorruptError, match=rf"sources/0/1: expected .*{found}"):
        read_file_log(data, "sources/0/1")


@pytest.mark.parametrize("data", [b"", b"{}", b'{"id":5}', b"[]", b"id", b"\xff"])
def test_what_holds_no_query_id_is_named(data: bytes) -> None:
    with pytest.raises(
        CorruptError, match=r"x/metadata: expected Spark's query id, found b'.*'; restore the file\. Or write into it"
    ):
        read_query_id(data, "x/metadata")


def test_of_a_long_line_60_characters_are_shown() -> None:
    with pytest.raises(CorruptError) as caught:
        read_commit(f"v1\n{'x' * 61}".encode(), "commits/3")

    assert str(caught.value) == f"commits/3: expected a line of JSON, found '{'x' * 60}'; restore the checkpoint"
