"""What is taken for granted of client libraries under names that are not public: see docs/ASSUMPTIONS.md."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from pymysql.connections import Connection

from tests.support.processes import python_environment
from wal_sink_backends.sql.mariadb.session import Session

OLDER = """
import confluent_kafka
known = {{name: code for name, code in vars(confluent_kafka.KafkaError).items() if isinstance(code, int)}}
known.pop({name!r}, None)
confluent_kafka.KafkaError = type("KafkaError", (), known)
import wal_sink_backends.kafka.client, wal_sink_backends.kafka.ledger, wal_sink_backends.kafka.producer
"""
CODES = ["_FENCED", "_AUTHENTICATION", "_INVALID_ARG", "_UNSUPPORTED_FEATURE", "_PARTITION_EOF", "_PURGE_QUEUE"]


@pytest.mark.parametrize("name", ["", *CODES])
def test_an_error_code_that_the_kafka_client_lost_is_told_when_the_sink_is_made(name: str) -> None:
    """Otherwise the first fenced producer would show it, and its error would be taken for one that may pass."""
    done = subprocess.run(
        [sys.executable, "-c", OLDER.format(name=name)],
        env=python_environment(), capture_output=True, text=True, check=False, timeout=180,
    )  # fmt: skip
    assert done.returncode == (1 if name else 0), done.stderr
    assert not name or f"has no attribute '{name}'" in done.stderr


def test_pymysql_closes_a_connection_at_once_or_says_that_it_cannot() -> None:
    """A connection that is only dropped may keep the lock of its slot until the server looks."""
    session = object.__new__(Session)
    closed: list[str] = []
    known: Any = SimpleNamespace(_force_close=lambda: closed.append("at once"))
    session._connection = known
    session.give_up()
    assert closed == ["at once"]
    assert callable(Connection._force_close)  # type: ignore[attr-defined]
    lacking: Any = SimpleNamespace()
    session._connection = lacking
    with pytest.raises(AttributeError, match="_force_close"):
        session.give_up()
