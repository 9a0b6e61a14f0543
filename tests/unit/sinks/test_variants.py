"""A VARIANT: Arrow has only its internal bytes, so no sink of chunks gets it."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest

from tests.house.sinks import Chunk
from wal_sink.sinks.base import FunctionSink, SegmentSink
from wal_sink.sinks.session import problem_of_variants

FIELD = {"name": "v", "type": "variant", "nullable": True, "metadata": {"type": "variant"}}
"""A field of Spark's JSON, with metadata that looks like a field."""


class Writer(SegmentSink):
    """Like a wrapped writer, which gets Spark's own values."""

    def write_segment(self, ordinal: int, batch_id: int, chunks: Iterable[Chunk]) -> None:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("kind", "refused"),
    [
        ("variant", True),
        ({"type": "array", "elementType": "variant", "containsNull": True}, True),
        ({"type": "map", "keyType": "string", "valueType": {"type": "struct", "fields": [FIELD]}}, True),
        ({"type": "udt", "class": "x", "sqlType": "variant"}, True),
        ("string", False),
    ],
)
def test_no_sink_of_chunks_gets_a_variant(kind: object, refused: bool) -> None:
    schema = json.dumps(
        {"type": "struct", "fields": [{**FIELD, "type": "string"}, {**FIELD, "name": "x", "type": kind}]}
    )
    assert not problem_of_variants(Writer(), schema)
    problem = problem_of_variants(FunctionSink(lambda _: None), schema)
    assert problem.startswith("column 'x' holds a VARIANT") if refused else not problem
