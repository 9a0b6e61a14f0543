"""A VARIANT: Arrow has only its internal bytes, so no sink of chunks gets it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import nullcontext

import pytest

from tests.house.sinks import Chunk, SinkContext
from wal_sink.deliveries import refuse_unfit_columns
from wal_sink.errors import ConfigError
from wal_sink.settings import Delivery
from wal_sink.sinks.base import FunctionSink, SegmentSink
from wal_sink.sinks.calls import SinkSession, problem_of_variants
from wal_sink.sinks.failures import SinkFailedError
from wal_sink.testing import simulated_runtime

FIELD = {"name": "v", "type": "variant", "nullable": True, "metadata": {"type": "variant"}}
"""A field of Spark's JSON, with metadata that looks like a field."""

SAID = "column 'x' holds a VARIANT"


class Writer(SegmentSink):
    """Like a wrapped writer, which gets Spark's own values."""

    def write_segment(self, ordinal: int, batch_id: int, chunks: Iterable[Chunk]) -> None:
        raise NotImplementedError


def test_no_sink_of_chunks_gets_a_variant() -> None:
    cases: list[tuple[object, bool]] = [
        ("variant", True),
        ({"type": "array", "elementType": "variant", "containsNull": True}, True),
        ({"type": "map", "keyType": "string", "valueType": {"type": "struct", "fields": [FIELD]}}, True),
        ({"type": "udt", "class": "x", "sqlType": "variant"}, True),
        ("string", False),
    ]
    for kind, refused in cases:
        schema = json.dumps(
            {"type": "struct", "fields": [{**FIELD, "type": "string"}, {**FIELD, "name": "x", "type": kind}]}
        )
        assert not problem_of_variants(Writer(), schema)
        sink = FunctionSink(print)
        context = SinkContext("wal", "a", term=1, batch_id=7, columns=("x",), on_executor=False, spark_schema=schema)
        session = SinkSession(sink, simulated_runtime().new_timed_call(), context, timeout_s=60)
        with pytest.raises(ConfigError, match=SAID) if refused else nullcontext():
            refuse_unfit_columns({"a": sink}, {"a": Delivery(sink)}, schema)
        with pytest.raises(SinkFailedError, match=f"print refused permanently: {SAID}") if refused else nullcontext():
            session.open()
        session.close()
