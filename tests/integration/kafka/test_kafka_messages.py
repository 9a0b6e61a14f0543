"""A Python without the client."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pyarrow as pa

from tests.support.processes import CHECKOUT
from wal_sink_backends.kafka.messages import Message, MessageFormat

TABLE = pa.table(
    {
        "id": pa.array([7, None], pa.int64()),
        "name": pa.array(["ü\n", None]),
        "raw": pa.array([b"\0\xff", None]),
        "at": pa.array([0, None], pa.timestamp("us", "UTC")),
    }
)


def messages(table: Any = TABLE, *, partitions: int = 3, most_bytes: int = 10_000, **options: Any) -> list[Message]:
    found, refused = MessageFormat(**options).messages(table, partitions=partitions, most_bytes=most_bytes)
    assert not refused
    assert len(found) == table.num_rows
    return list(found)


def test_without_the_client_the_extra_is_named() -> None:
    program = "import sys; sys.modules['confluent_kafka'] = None; import wal_sink_backends.kafka.sink"
    env = {**os.environ, "PYTHONPATH": f"{CHECKOUT}:{CHECKOUT / 'backends'}"}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False)
    assert "wal-sink with its extra kafka, or: pip install confluent-kafka" in done.stderr
