"""Dead letters: what an at-most-once delivery may have lost is kept, once, with all that is needed to send it again."""

from __future__ import annotations

import io
import itertools

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from wal_sink import paths
from wal_sink.chunk import Chunk, Position
from wal_sink.dead_letters import count_unknown, keep_unknown
from wal_sink.stores.memory import MemoryStore
from wal_sink.stores.spec import StoreSpec

_numbers = itertools.count()


def store() -> MemoryStore:
    return MemoryStore(StoreSpec(f"memory://dead-letters-{next(_numbers)}"))


def chunk(first: int = 2, end: int = 4) -> Chunk:
    table = pa.table({"a.b": [1] * (end - first), "ä": ["x"] * (end - first)})
    return Chunk(
        table=table,
        batch_id=7,
        key="the-key",
        segment_id="s",
        rows=range(first, end),
        position=Position("slot", 7, end, "s"),
        term=1,
    )


def test_a_chunk_is_kept_under_its_batch_segment_and_rows() -> None:
    on = store()

    keep_unknown(on, "a", 3, chunk(), reason="no answer")

    assert on.list("", recursive=True) == [paths.dead_letter("a", 7, 3, 2, 4)]


def test_what_is_kept_says_whose_rows_they_are_and_why_they_are_here() -> None:
    on = store()
    keep_unknown(on, "a", 3, chunk(), reason="no answer")

    kept = pq.read_table(io.BytesIO(on.read(paths.dead_letter("a", 7, 3, 2, 4))))

    assert kept.to_pydict() == {"c0": [1, 1], "c1": ["x", "x"]}
    metadata = kept.schema.metadata
    assert metadata == {
        b"wal_sink.key": b"the-key",
        b"wal_sink.batch_id": b"7",
        b"wal_sink.outcome": b"unknown",
        b"wal_sink.reason": b"no answer",
        b"wal_sink.columns": "a.b\nä".encode(),
    }


def test_what_is_kept_is_compressed_and_every_page_has_a_checksum() -> None:
    on = store()
    keep_unknown(on, "a", 3, chunk(0, 1000), reason="no answer")
    data = on.read(paths.dead_letter("a", 7, 3, 0, 1000))

    column = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(0).column(0)
    assert column.compression == "ZSTD"
    spoilt = bytearray(data)
    begin = column.dictionary_page_offset or column.data_page_offset
    spoilt[begin + column.total_compressed_size - 1] ^= 1
    with pytest.raises(OSError, match="CRC"):
        pq.ParquetFile(io.BytesIO(spoilt), page_checksum_verification=True).read()


def test_keeping_again_changes_nothing() -> None:
    on = store()
    keep_unknown(on, "a", 3, chunk(), reason="the first time")
    before = on.read(paths.dead_letter("a", 7, 3, 2, 4))

    keep_unknown(on, "a", 3, chunk(), reason="again")

    assert on.read(paths.dead_letter("a", 7, 3, 2, 4)) == before


def test_it_is_told_where_and_why(caplog: pytest.LogCaptureFixture) -> None:
    on = store()
    keep_unknown(on, "a", 3, chunk(), reason="no answer")

    assert f"sink a: outcome unknown, kept as {on.url_of(paths.dead_letter('a', 7, 3, 2, 4))}: no answer" in caplog.text


def test_rows_are_counted_over_all_segments_of_one_batch_and_sink() -> None:
    on = store()
    keep_unknown(on, "a", 0, chunk(2, 4), reason="x")
    keep_unknown(on, "a", 1, chunk(2, 7), reason="x")
    keep_unknown(on, "b", 0, chunk(0, 9), reason="x")
    on.create(f"{paths.dead_letter_folder('a', 7)}/notes.txt", b"")

    assert count_unknown(on, "a", 7) == 7
    assert count_unknown(on, "a", 6) == 0
