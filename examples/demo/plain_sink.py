"""The plain sink of the demo: it appends whatever it is given, and remembers nothing."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.csv

from wal_sink import Chunk, Sink

ROW_KEY = "row_key"


class PlainSink(Sink):
    """Adds each chunk to a folder as one more file under a random name: a chunk that comes twice is there twice.

    The answer takes `answer_s` seconds after the rows are in, as that of a target across a network does. A driver that
    is killed meanwhile cannot know that they are in.
    """

    def __init__(self, folder: str, answer_s: float) -> None:
        self._folder = folder
        self._answer_s = answer_s

    def __repr__(self) -> str:
        return f"PlainSink({self._folder!r})"

    def write(self, chunk: Chunk) -> None:
        """Append, whole; then take a while to say so."""
        folder = Path(self._folder)
        name = f"batch-{chunk.batch_id:05d}-{uuid.uuid4().hex}.csv"
        keyed = chunk.table.add_column(0, ROW_KEY, pa.array(chunk.row_keys()))
        pyarrow.csv.write_csv(keyed, folder / f".{name}")
        os.replace(folder / f".{name}", folder / name)  # noqa: PTH105 - a rename is what makes it visible
        time.sleep(self._answer_s)
