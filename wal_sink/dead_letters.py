"""Rows kept beside the WAL because a sink may not have them, under their original keys."""

from __future__ import annotations

import io
import logging

import pyarrow.parquet as pq

from wal_sink import paths
from wal_sink.chunk import Chunk
from wal_sink.stores.base import ObjectExists, Store

_logger = logging.getLogger(__name__)


def keep_unknown(store: Store, sink: str, ordinal: int, chunk: Chunk, *, reason: str) -> None:
    """Keep a chunk whose outcome an at-most-once delivery does not know, as Parquet. Repeating is harmless.

    Columns are positional (`c0`, …); key, batch, real names and the reason lie in the file's metadata under
    `wal_sink.*`.
    """
    path = paths.dead_letter(sink, chunk.batch_id, ordinal, chunk.rows[0], chunk.rows[-1] + 1)
    _logger.warning("sink %s: outcome unknown, kept as %s: %s", sink, store.url_of(path), reason)
    positional = chunk.table.rename_columns([f"c{index}" for index in range(chunk.table.num_columns)])
    metadata: dict[bytes, bytes] = {
        b"wal_sink.key": chunk.key.encode(),
        b"wal_sink.batch_id": str(chunk.batch_id).encode(),
        b"wal_sink.outcome": b"unknown",
        b"wal_sink.reason": reason.encode(),
        b"wal_sink.columns": "\n".join(chunk.table.column_names).encode(),
    }
    buffer = io.BytesIO()
    kept = positional.replace_schema_metadata(metadata)
    pq.write_table(kept, buffer, compression="zstd", compression_level=1, write_page_checksum=True, store_schema=True)
    try:
        store.create(path, buffer.getvalue())
    except ObjectExists:
        _logger.debug("%s was kept before", store.url_of(path))


def count_unknown(store: Store, sink: str, batch_id: int) -> int:
    """Rows of a batch kept so far, by any process. One listing."""
    folder = paths.dead_letter_folder(sink, batch_id)
    spans = (paths.parse_dead_letter(name) for name in store.list(folder))
    return sum(span.end_row - span.first_row for span in spans if span is not None)
