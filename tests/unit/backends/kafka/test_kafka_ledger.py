"""Records of Kafka's ledger, without a broker: the rule reads the same values that were written with a chunk's rows."""

from __future__ import annotations

import msgspec

from tests.house.kit import CASES, SLOT
from tests.house.sinks import LedgerEntry
from wal_sink_backends.kafka.client import Topic
from wal_sink_backends.kafka.ledger import LedgerRecord

TOPIC = Topic("flights", "an-id", 3, {})


def test_a_record_is_the_entry_of_its_chunk_and_tells_where_the_rows_went() -> None:
    faults = []
    for case in CASES:
        if case.verdict == "new":
            written = msgspec.json.encode(LedgerRecord.of(case.chunk(), TOPIC))
            record = msgspec.json.decode(written, type=LedgerRecord)
            told = (record.format, record.topic, record.topic_id)
            if record.entry(SLOT) != LedgerEntry.of(case.chunk()) or told != (1, "flights", "an-id"):
                faults.append(f"{case}: {record}")
    assert faults == []
