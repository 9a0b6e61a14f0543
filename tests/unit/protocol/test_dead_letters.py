"""Dead letters: rows that a sink may not have, or refuses, are kept once, with all that it takes to send them again."""

from __future__ import annotations

import io
import itertools
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.house.kit import simulated_runtime
from tests.house.log import Log, paths
from tests.house.protocol import keep_rejected, keep_unknown, read_dead_letter
from tests.house.sinks import Chunk, Position
from tests.house.stores import MemoryStore, StoreSpec
from wal_sink.errors import CorruptError, StoreError
from wal_sink.protocol import letters as files
from wal_sink.protocol.letters import count_rows, find_dead_letter
from wal_sink.testing.simulation.faults import FaultyStore

_numbers = itertools.count()
UNKNOWN = paths.dead_letter("a", 7, 3, 2, 4)
REJECTED = paths.dead_letter("a", 7, 3, 2, 4, number=0)


@pytest.fixture
def log() -> Log:
    return Log(MemoryStore(StoreSpec(f"memory://dead-letters-{next(_numbers)}")), simulated_runtime(0), "the-run")


def chunk(first: int = 2, end: int = 4) -> Chunk:
    table = pa.table({"a.b": [1] * (end - first), "ä": [f"x{row}" for row in range(first, end)]})
    return Chunk(
        table=table,
        batch_id=7,
        key="the-key",
        segment_id="s",
        rows=range(first, end),
        position=Position("slot", 7, end, "s"),
        term=1,
        start=first,
    )


def test_what_is_kept_says_whose_rows_they_are_and_why_they_are_here(log: Log) -> None:
    keep_unknown(log, "a", 3, chunk(), reason="no answer")

    kept = pq.read_table(io.BytesIO(log.store.read(UNKNOWN)))

    assert kept.to_pydict() == {"c0": [1, 1], "c1": ["x2", "x3"], "row": [2, 3], "reason": ["no answer"] * 2}
    metadata = {name.decode(): value.decode() for name, value in kept.schema.metadata.items()}
    assert len(metadata.pop("wal_sink.id")) >= 16
    assert metadata.pop("wal_sink.created").endswith("+00:00")
    assert metadata.pop("wal_sink.file_crc32") == "0000000000", "Arrow's copy of the place for the checksum"
    assert json.loads(metadata.pop("wal_sink.columns")) == ["a.b", "ä"]
    assert metadata == {
        "wal_sink.kept": "unknown",
        "wal_sink.key": "the-key",
        "wal_sink.batch_id": "7",
        "wal_sink.segment_id": "s",
        "wal_sink.slot": "slot",
        "wal_sink.end": "4",
        "wal_sink.term": "1",
        "wal_sink.run_id": "the-run",
        "wal_sink.answered": "false",
        "wal_sink.replay_of": "",
    }


def test_rows_come_back_under_their_keys(log: Log) -> None:
    refused = chunk(2, 9).without([0, 2, 3, 5])
    keep_rejected(log, REJECTED, refused, ["too long", "too large", "no such day"], answered=True)

    letter = read_dead_letter(log.store, REJECTED)

    assert (letter.path, letter.kept, letter.replay_of) == (REJECTED, "rejected", "")
    assert letter.reasons == ("too long", "too large", "no such day")
    assert letter.created.endswith("+00:00")
    assert len(letter.id) >= 16
    assert letter.chunk.table.equals(refused.table)
    assert letter.chunk.row_keys() == ["s-3", "s-6", "s-8"]
    facts = ("key", "batch_id", "segment_id", "rows", "position", "term")
    assert [getattr(letter.chunk, name) for name in facts] == [getattr(refused, name) for name in facts]
    assert find_dead_letter(log.store, REJECTED) == letter


def test_no_rows_are_kept_too(log: Log) -> None:
    assert keep_rejected(log, REJECTED, chunk().without([0, 1]), [], answered=True)

    assert read_dead_letter(log.store, REJECTED).chunk.num_rows == 0
    assert count_rows(log.store, "a", 7) == {"rejected": 0, "unknown": 0}
    schema = pq.read_schema(io.BytesIO(log.store.read(REJECTED)))
    assert [str(kind) for kind in schema.types] == ["int64", "string", "int64", "string"]


def test_a_create_that_fails_is_repeated(log: Log) -> None:
    failures = [StoreError("the connection broke")]

    def fail_once(what: str, _where: str) -> None:
        if what == "before create" and failures:
            raise failures.pop()

    broken = Log(FaultyStore(log.store, fail_once), log.runtime, "the-run")
    assert keep_rejected(broken, REJECTED, chunk(), ["", ""], answered=True)
    assert read_dead_letter(log.store, REJECTED).chunk.num_rows == 2


def test_a_number_is_taken_once(log: Log) -> None:
    assert keep_rejected(log, REJECTED, chunk(), ["first", "first"], answered=True)
    assert not keep_rejected(log, REJECTED, chunk(), ["second", "second"], answered=True)

    assert read_dead_letter(log.store, REJECTED).reasons == ("first", "first")


def test_damage_is_found(log: Log) -> None:
    keep_rejected(log, REJECTED, chunk(), ["", "too long"], answered=True)
    whole, unseen = log.store.read(REJECTED), []
    for place in range(0, len(whole), 37):
        data = bytearray(whole)
        data[place] ^= 4
        log.store.delete([REJECTED])
        log.store.create(REJECTED, bytes(data))
        try:
            read_dead_letter(log.store, REJECTED)
        except CorruptError as error:
            if REJECTED in str(error):
                continue
        unseen.append(place)
    assert unseen == []
    assert len(whole) > 2_000


@pytest.mark.parametrize("data", [b"", b"{}", b"PAR1PAR1"])
def test_what_is_no_dead_letter_is_corrupt(log: Log, data: bytes) -> None:
    log.store.create(REJECTED, data)

    with pytest.raises(CorruptError, match=f"expected a dead letter, found {len(data)} other bytes"):
        read_dead_letter(log.store, REJECTED)


def test_another_parquet_file_is_corrupt(log: Log) -> None:
    told = {
        "x": "the checksum of this dead letter does not match",
        "y": "expected the columns",
        "z": r"expected a dead letter, found \d+ other bytes",
        "too few": "expected the columns",
        "other order": "expected the columns",
    }
    tables = {
        "x": pa.table({"c0": [1]}),
        "y": _with_facts(log, pa.table({"c0": [1], "row": [2]})),
        "z": pa.table({"c0": [1]}).replace_schema_metadata({files.CHECKSUM: files.NO_CHECKSUM}),
        "too few": _with_facts(log, pa.table({"c0": [1], "row": [2], "reason": [""]})),
        "other order": _with_facts(log, pa.table({"c0": [1], "c1": [""], "reason": [""], "row": [2]})),
    }
    for name, table in tables.items():
        buffer = io.BytesIO()
        pq.write_table(table, buffer)
        log.store.create(name, buffer.getvalue() if name == "x" else files.with_checksum(buffer.getvalue()))

        with pytest.raises(CorruptError, match=told[name]):
            read_dead_letter(log.store, name)


def _with_facts(log: Log, table: pa.Table) -> pa.Table:
    keep_unknown(log, "a", 3, chunk(), reason="")
    metadata = pq.read_table(io.BytesIO(log.store.read(UNKNOWN))).schema.metadata
    return table.replace_schema_metadata(metadata)


def test_what_is_kept_is_compressed_and_every_page_has_a_checksum(log: Log) -> None:
    keep_unknown(log, "a", 3, chunk(0, 1000), reason="no answer")
    data = log.store.read(paths.dead_letter("a", 7, 3, 0, 1000))

    column = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(0).column(0)
    assert column.compression == "ZSTD"
    spoilt = bytearray(data)
    begin = column.dictionary_page_offset or column.data_page_offset
    spoilt[begin + column.total_compressed_size - 1] ^= 1
    with pytest.raises(OSError, match="CRC"):
        pq.ParquetFile(io.BytesIO(spoilt), page_checksum_verification=True).read()


def test_rows_are_counted_over_all_segments_of_one_batch_and_sink(log: Log) -> None:
    keep_unknown(log, "a", 0, chunk(2, 4), reason="x")
    keep_unknown(log, "a", 1, chunk(2, 7), reason="x")
    keep_unknown(log, "b", 0, chunk(0, 9), reason="x")
    keep_rejected(log, REJECTED, chunk().without([1]), ["too long"], answered=True)
    log.store.create(f"{paths.dead_letter_folder('a', 7)}/notes.txt", b"")

    assert count_rows(log.store, "a", 7) == {"unknown": 7, "rejected": 1}
    assert count_rows(log.store, "a", 6) == {"unknown": 0, "rejected": 0}
