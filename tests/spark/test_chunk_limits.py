"""A sink whose target takes only small chunks: a query that would stage larger ones is refused before it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import wal_sink.spark.query  # noqa: F401 - a start imports it, and so PySpark
from wal_sink import Chunk, ConfigError, Settings, Sink, WalSink, wrap
from wal_sink.settings import check_chunks
from wal_sink_backends.dynamodb.sink import DynamoDbPutSink, DynamoDbSink

NO_WRITER: Any = object()
"""A writer without a session: a start of the query would fail on it."""
SMALL = Settings(chunk_rows=99, chunk_bytes=2_000_000)


class Narrow(Sink):
    max_chunk_rows = 10

    def write(self, chunk: Chunk) -> None:
        raise NotImplementedError


def wal_of(to: object, folder: Path, settings: Settings = Settings()) -> WalSink:  # noqa: B008 - frozen
    return WalSink(to, wal=str(folder / "wal"), checkpoint=str(folder / "checkpoint"), settings=settings)


@pytest.mark.parametrize("to", [DynamoDbSink("orders"), "dynamodb://orders?region=eu-central-1"])
def test_dynamodb_transactions_with_the_default_chunks_are_refused_before_anything_is_written(
    to: object, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"'default', DynamoDbSink.*Settings\(chunk_rows=99, chunk_bytes=2000000\)"):
        wal_of(to, tmp_path).start(NO_WRITER)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("to", "settings"),
    [
        (DynamoDbSink("orders"), SMALL),
        (DynamoDbPutSink("orders"), Settings()),
        ("dynamodb://orders?region=eu-central-1&mode=put", Settings()),
        (print, Settings()),
        (wrap.foreach_batch(print), Settings()),
    ],
)
def test_what_fits_goes_on(to: object, settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a DataStreamWriter"):  # which is looked at later
        wal_of(to, tmp_path, settings).start(NO_WRITER)


def test_a_sink_of_ones_own_may_name_its_limit(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sink 'narrow', Narrow: .*Settings\(chunk_rows=10, chunk_bytes=33554432\)"):
        wal_of({"wide": print, "narrow": Narrow()}, tmp_path).start(NO_WRITER)


def test_rows_that_are_small_enough_in_number_may_be_too_many_bytes() -> None:
    with pytest.raises(ConfigError, match=r"Settings\(chunk_rows=50, chunk_bytes=2000000\)"):
        check_chunks(Settings(chunk_rows=50), "sink 'default'", 99, 2_000_000)


def test_no_limit_refuses_nothing() -> None:
    check_chunks(Settings(), "sink 'default'", None, None)
