"""Records: what was written is read, and nothing else ever is."""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.house.log import (
    FORMAT,
    LowWater,
    Manifest,
    Marker,
    Progress,
    Record,
    Release,
    SegmentRef,
    SinkRecord,
    Stamp,
    TermRecord,
    WalRecord,
    decode,
    encode,
    paths,
)
from tests.house.support import process_identity
from wal_sink.errors import ConfigError, CorruptError

STAMP = Stamp(id="0" * 32, created="2026-01-01T00:00:00.000+00:00")
SEGMENT = SegmentRef(path="batches/0/a.parquet", id="a" * 32, rows=3, bytes=100, crc32=7, chunk_ends=(2, 3))
RECORDS: Sequence[Record] = [
    WalRecord(wal_id="w", query_id="q", checkpoint="c", first_batch=0, location="file:///wal", **STAMP),
    TermRecord(role="stager", term=1, run_id="r", process="host:1", holder=process_identity(), **STAMP),
    Manifest(
        batch_id=0,
        term=1,
        attempt=1,
        run_id="r",
        fingerprint="f",
        offsets="v1\n{}\n{}",
        columns=("a.b", "ä", "a.b"),
        spark_schema="{}",
        chunk_rows=2,
        segments=(SEGMENT,),
        **STAMP,
    ),
    Release(batch_id=0, term=1, attempt=1, fingerprint="f", run_id="r", sink="a", **STAMP),
    Progress(batch_id=0, ordinal=0, rows=2, segment_id="a", term=1, run_id="r", **STAMP),
    Marker(batch_id=0, term=1, run_id="r", rows=3, last_delivered_batch=0, last_delivered_rows=(3, 4), **STAMP),
    SinkRecord(name="a", sink_kind="plain", first_batch=0, identity="i", **STAMP),
    LowWater(batch_id=0, marked={"a": 0}, **STAMP),
]


def test_a_record_comes_back_as_written() -> None:
    for record in RECORDS:
        assert decode(type(record), encode(record), "where") == record


def test_every_single_flipped_bit_is_found() -> None:
    for record in RECORDS:
        data = encode(record)
        for bit in range((len(data) - 1) * 8):  # the line's end has no meaning
            damaged = bytearray(data)
            damaged[bit // 8] ^= 1 << bit % 8
            with pytest.raises((CorruptError, ConfigError)):
                decode(type(record), bytes(damaged), "where")


def test_every_truncation_is_found() -> None:
    for record in RECORDS:
        data = encode(record)
        for end in range(len(data) - 1):
            with pytest.raises(CorruptError, match="where"):
                decode(type(record), data[:end], "where")


def test_a_record_of_another_kind_is_refused() -> None:
    for record in RECORDS:
        other = next(kind for kind in map(type, RECORDS) if kind is not type(record))

        with pytest.raises(CorruptError, match="checksum or kind"):
            decode(other, encode(record), "where")


def test_another_format_asks_for_the_version_that_wrote_it_whatever_else_it_holds() -> None:
    for found in [FORMAT - 1, FORMAT + 1]:
        data = json.dumps({"format": found, "shape": "unheard of"}).encode()

        with pytest.raises(
            ConfigError, match=f"where: format {found}, but this version of wal-sink reads format {FORMAT}"
        ):
            decode(LowWater, data, "where")


@given(st.binary(max_size=200))
def test_no_bytes_are_taken_for_a_record(data: bytes) -> None:
    with pytest.raises((CorruptError, ConfigError)):
        decode(LowWater, data, "where")


def test_the_message_shows_what_was_found_and_an_empty_object_as_such() -> None:
    with pytest.raises(
        CorruptError, match=rf"where: expected a low-water record of format {FORMAT}, found an empty obj"
    ):
        decode(LowWater, b"", "where")
    with pytest.raises(CorruptError, match=r"found 5 bytes starting with b'PAR1\\n'"):
        decode(LowWater, b"PAR1\n", "where")


def test_a_whole_record_that_lacks_what_the_format_asks_for_is_refused() -> None:
    class Lacking(Record, frozen=True, kw_only=True):
        kind = "low-water"

    with pytest.raises(
        CorruptError,
        match=f"where: this low-water record does not have the fields that format {FORMAT} requires: .*batch_",
    ):
        decode(LowWater, encode(Lacking(**STAMP)), "where")


def test_a_manifest_with_a_field_that_nobody_knows_is_refused_by_name() -> None:
    """Such a field may say that objects of the batch lie elsewhere."""

    class Elsewhere(Manifest, frozen=True, kw_only=True, omit_defaults=True):
        spread: bool = False

    [manifest] = [record for record in RECORDS if isinstance(record, Manifest)]
    data = encode(Elsewhere(**msgspec.structs.asdict(manifest), spread=True))

    with pytest.raises(CorruptError, match=r"where: this manifest record .* unknown field `spread`"):
        decode(Manifest, data, "where")


def test_a_record_belongs_at_its_own_path_alone() -> None:
    for record in RECORDS:
        places = [
            paths.WAL,
            paths.term("stager", 1),
            paths.manifest(0, 1, 1),
            paths.release(0),
            paths.progress("a", 0, 0, 2),
            paths.marker("a", 0),
            paths.sink("a"),
            paths.low_water(0),
        ]
        others = [
            paths.term("stager", 2),
            paths.term("committer-a", 1),
            paths.manifest(1, 1, 1),
            paths.manifest(0, 2, 1),
            paths.manifest(0, 1, 2),
            paths.release(1),
            paths.progress("a", 1, 0, 2),
            paths.progress("a", 0, 1, 2),
            paths.progress("a", 0, 0, 3),
            paths.marker("a", 1),
            paths.sink("b"),
            paths.low_water(1),
        ]
        assert [record.belongs_at(place) for place in places] == [other is record for other in RECORDS]
        assert not any(record.belongs_at(other) for other in others)


def test_a_kind_of_record_that_does_not_say_where_it_belongs_belongs_nowhere() -> None:
    class Lacking(Record, frozen=True, kw_only=True):
        kind = "lacking"

    assert not Lacking(**STAMP).belongs_at("anywhere")
