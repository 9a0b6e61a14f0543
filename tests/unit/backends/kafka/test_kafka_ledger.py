"""Records of Kafka's ledger, without a broker: the rule reads the same values that were written with a chunk's rows."""

from __future__ import annotations

import msgspec
import pytest

from wal_sink.sinks.ledger import LedgerEntry
from wal_sink.testing.contract.ledger_cases import CASES, SLOT, Case
from wal_sink_backends.kafka.client import Topic
from wal_sink_backends.kafka.ledger import LedgerRecord


@pytest.fixture
def topic() -> Topic:
    return Topic("flights", "an-id", 3, {})


@pytest.mark.parametrize("case", [case for case in CASES if case.verdict == "new"], ids=str)
def test_a_record_is_the_entry_of_its_chunk_and_tells_where_the_rows_went(case: Case, topic: Topic) -> None:
    written = msgspec.json.encode(LedgerRecord.of(case.chunk(), topic))
    record = msgspec.json.decode(written, type=LedgerRecord)
    assert record.entry(SLOT) == LedgerEntry.of(case.chunk())
    assert (record.format, record.topic, record.topic_id) == (1, "flights", "an-id")
