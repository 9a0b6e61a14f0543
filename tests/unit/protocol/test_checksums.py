"""A dead letter is read as it was written, or not at all: no bit of its file may change unseen."""

from __future__ import annotations

import io
import itertools
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.house.kit import simulated_runtime
from tests.house.log import Log
from tests.house.protocol import keep_rejected, read_dead_letter
from tests.house.sinks import Chunk
from tests.house.stores import MemoryStore, StoreSpec
from tests.unit.protocol.test_dead_letters import REJECTED, chunk
from wal_sink.errors import CorruptError
from wal_sink.protocol import letters as files
from wal_sink.protocol.letters import DeadLetter

_numbers = itertools.count()
EVIL = f"{files.CHECKSUM.decode()}\x18\n{files.NO_CHECKSUM.decode()}"


def a_log() -> Log:
    return Log(MemoryStore(StoreSpec(f"memory://checksums-{next(_numbers)}")), simulated_runtime(0), "the-run")


def with_amounts(name: str = "amount") -> Chunk:
    """Values that a changed footer may change: a scale, a unit and a zone of time."""
    table = pa.table(
        {
            name: pa.array([Decimal("1.25"), Decimal("2.50")], pa.decimal128(9, 2)),
            "at": pa.array([1_000_000, 2_000_000], pa.timestamp("us", tz="UTC")),
            "text": [EVIL, "x"],
        }
    )
    plain = chunk()
    return Chunk(
        table=table,
        batch_id=plain.batch_id,
        key=plain.key,
        segment_id=plain.segment_id,
        rows=plain.rows,
        position=plain.position,
        term=plain.term,
        start=plain.start,
    )


def kept(given: Chunk, reasons: tuple[str, str] = (EVIL, "no")) -> bytes:
    log = a_log()
    keep_rejected(log, REJECTED, given, list(reasons), answered=True)
    return log.store.read(REJECTED)


def read(data: bytes) -> DeadLetter:
    log = a_log()
    log.store.create(REJECTED, data)
    return read_dead_letter(log.store, REJECTED)


def flipped(data: bytes, at: int, bit: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1 << bit
    return bytes(changed)


def test_no_changed_bit_of_the_whole_file_is_unseen() -> None:
    """Each byte, with another bit in turn; every bit of the name and the digits of the checksum.

    Without the checksum, a third of these bits was unseen, and one of them left no row in the file.
    """
    data = kept(with_amounts())
    assert read(data).chunk.table.column("amount").to_pylist() == [Decimal("1.25"), Decimal("2.50")]
    own = data.rfind(files.CHECKSUM)
    places = [(at, at % 8) for at in range(len(data))]
    places += [(at, bit) for at in range(own - 4, own + len(files.CHECKSUM) + 16) for bit in range(8)]
    unseen = []
    for at, bit in places:
        try:
            read(flipped(data, at, bit))
        except CorruptError:
            continue
        unseen.append((at, bit))
    assert unseen == []


@pytest.mark.parametrize("name", ["amount", EVIL, files.CHECKSUM.decode()])
def test_rows_reasons_and_names_may_hold_the_name_of_the_checksum(name: str) -> None:
    letter = read(kept(with_amounts(name)))
    assert letter.chunk.table.column_names == [name, "at", "text"]
    assert letter.reasons == (EVIL, "no")
    assert letter.chunk.table.column("text").to_pylist() == [EVIL, "x"]


@pytest.mark.parametrize("damage", [b"wal_sink.file_crc33", b"val_sink.file_crc32"])
def test_a_damaged_name_of_the_checksum_is_no_missing_checksum(damage: bytes) -> None:
    """Arrow keeps a second copy of all names in the metadata; here both are damaged."""
    data = kept(chunk(), ("", "too long"))
    with pytest.raises(CorruptError, match="the checksum of this dead letter does not match"):
        read(data.replace(files.CHECKSUM, damage))
    table = pq.read_table(io.BytesIO(data))
    metadata = {damage if name == files.CHECKSUM else name: value for name, value in table.schema.metadata.items()}
    buffer = io.BytesIO()
    pq.write_table(table.replace_schema_metadata(metadata), buffer)
    with pytest.raises(CorruptError, match="the checksum of this dead letter does not match"):
        read(buffer.getvalue())


def test_digits_that_are_none_are_no_checksum() -> None:
    data = kept(chunk(), ("", "too long"))
    at = data.rfind(files.CHECKSUM) + len(files.CHECKSUM) + 2
    with pytest.raises(CorruptError, match="the checksum of this dead letter does not match; restore the object"):
        read(data[:at] + b"x" * 10 + data[at + 10 :])


def test_a_file_without_a_place_for_it_is_not_written() -> None:
    with pytest.raises(AssertionError, match="no place"):
        files.with_checksum(b"PAR1")
