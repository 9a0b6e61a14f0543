"""`Delivery.columns`: one sink gets other columns, and nothing in the WAL changes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pytest

from tests.house.log import Log
from tests.house.protocol import Run
from tests.house.sinks import Chunk, Rejected, SegmentSink, Sink, SinkContext
from tests.support.forgetting import Forgetful
from tests.support.lake import Lake, LakeSink
from tests.support.small_run import Place, Recorder, served_sink
from tests.support.two_phase import Failing, place, staged
from tests.support.vault import Vault
from tests.unit.operate.test_catch_up import caught_up
from tests.unit.operate.test_catch_up_refused import wide
from wal_sink import ConfigError, DeadLetters, Delivery, DeliveryError, PermanentError
from wal_sink.deliveries import refuse_unfit_columns
from wal_sink.settings import Settings
from wal_sink.sinks.calls import refuse_unfit_targets
from wal_sink.sinks.renaming import SAME, Renaming
from wal_sink.testing import simulated_runtime
from wal_sink.testing.data.tables import spark_schema_of

COLUMNS: Mapping[str, str | None] = {"row": "id", "batch": None}
"""For the rows of `tests.support.small_run`, whose columns are `batch` and `row`."""


class Noting(Sink):
    """Notes the columns of each call."""

    def __init__(self) -> None:
        self.opened: list[SinkContext] = []
        self.chunks: list[Chunk] = []

    def open(self, context: SinkContext) -> None:
        self.opened.append(context)

    def write(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)


class Whole(SegmentSink):
    def __init__(self) -> None:
        self.names: list[list[str]] = []

    def write_segment(self, ordinal: int, batch_id: int, chunks: Iterable[Chunk]) -> None:
        assert (ordinal, batch_id) == (0, 0)
        self.names += [chunk.table.column_names for chunk in chunks]


def test_one_sink_gets_other_columns_under_the_same_keys() -> None:
    """kafka-connect-jdbc#845, sling-cli#585: a sink may rename columns and leave some out."""
    where, noting, other, whole = Place(rows=lambda _: [3]), Noting(), Recorder(), Whole()
    renamed = {
        "a": Delivery(noting, columns=COLUMNS, where="driver"),
        "c": Delivery(whole, columns=COLUMNS, where="driver"),
    }
    where.stream(where.open({**renamed, "b": other}), 0)

    assert [chunk.table.to_pydict() for chunk in noting.chunks] == [{"id": [0, 1]}, {"id": [2]}]
    assert [chunk.table.column_names for chunk in other.chunks] == [["batch", "row"]] * 2
    assert [chunk.key for chunk in noting.chunks] == other.keys
    assert {context.columns for context in noting.opened} == {("id",)}
    (schema,) = {context.spark_schema for context in noting.opened}
    assert [field["name"] for field in json.loads(schema)["fields"]] == ["id"]
    assert whole.names == [["id"]] * 2


def test_a_known_sink_gets_other_columns_after_a_restart() -> None:
    where, first, second = Place(), Noting(), Noting()
    where.stream(where.open({"a": Delivery(first, columns=COLUMNS, where="driver")}), 0)
    where.stream(where.open({"a": Delivery(second, columns={"batch": "b"}, where="driver")}), 1)
    names = [chunk.table.column_names for chunk in (*first.chunks, *second.chunks)]
    assert names == [["id"], ["b", "row"]]


class NotingVault(Failing):
    names: list[list[str]]

    def write(self, chunk: Any) -> None:
        self.names.append(chunk.table.column_names)
        super().write(chunk)


@pytest.mark.parametrize("failures", [0, 1])
def test_a_two_phase_sink_prepares_under_the_new_names_while_staging_and_at_delivery(failures: int) -> None:
    sink, where = NotingVault(Vault(), "begin", times=failures), place(3)
    sink.names = []
    run = where.open({"a": Delivery(sink, columns=COLUMNS)})
    staged(where, run)
    assert len(sink.names) == (0 if failures else 2)
    run.deliver_all()
    assert sink.names == [["id"]] * 2


def refusing(chunk: Chunk) -> Rejected:
    assert chunk.table.column_names == ["id"]
    return Rejected({0: "no good"})


def test_dead_letters_keep_the_names_of_the_query_and_a_replay_renames_again() -> None:
    where, seen, again = Place(rows=lambda _: [1]), Noting(), Noting()
    where.stream(where.open({"a": Delivery(refusing, columns=COLUMNS, on_rejected="dead_letter")}), 0)
    log = Log(where.wal, simulated_runtime(), "replay")
    (kept,) = DeadLetters(log, name="a").all()
    assert kept.chunk.table.column_names == ["batch", "row"]
    with pytest.raises(DeliveryError, match="the query has no column 'x'"):
        DeadLetters(log, name="a").replay(seen, columns={"x": "y"})
    with pytest.raises(ConfigError, match="two columns have the same name"):
        DeadLetters(log, name="a").replay(seen, columns={"x": "y", "z": "y"})
    assert DeadLetters(log, name="a").replay(again, columns=COLUMNS).rows == 1
    assert (seen.chunks, [chunk.table.to_pydict() for chunk in again.chunks]) == ([], [{"id": [0]}])


def test_a_catch_up_renames_too_and_also_a_chunk_without_rows_for_what_was_left_out() -> None:
    names: list[list[str]] = []

    class Named(Forgetful):
        def write(self, chunk: Chunk) -> Rejected | None:
            names.append(chunk.table.column_names)
            return super().write(chunk)

    where, target = wide()
    caught_up(where, Named(target), leave_out=[0, 1], columns={"row": "id"})
    assert names == [["batch", "id"]] * 4
    assert [row[0] for row in target.rows] == [0, 2, 3]


def test_a_sink_of_whole_segments_is_refused_at_start() -> None:
    run = Run(Place().wal, Place().checkpoint, Settings(), runtime=simulated_runtime())
    with pytest.raises(ConfigError, match=r"sink 'a': a commit sink gets whole segments .* columns\. Rename"):
        served_sink(run, "a", Delivery(LakeSink(Lake()), columns=COLUMNS))


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"id": "order"}, "columns: the query has no column 'id', only ['batch', 'row']"),
        ({"row": "batch"}, "columns: two columns have the name 'batch' after renaming"),
        ({"row": None, "batch": None}, "columns: no column is left"),
    ],
)
def test_columns_that_do_not_fit_are_refused_at_start_and_else_at_the_first_batch(
    columns: dict[str, str | None], said: str
) -> None:
    table = pa.table({"batch": [1], "row": [1]})
    with pytest.raises(ConfigError, match=re.escape(f"sink 'a': {said}")):
        refuse_unfit_columns({"a": Noting()}, {"a": Delivery(Noting(), columns=columns)}, spark_schema_of(table.schema))
    where, noting = Place(), Noting()
    run = where.open({"a": Delivery(noting, columns=columns, where="driver")})
    next(where.query().batches(run, 1))
    with pytest.raises(DeliveryError, match=re.escape(said)):
        run.deliver_all()
    assert (noting.opened, noting.chunks) == ([], [])


def test_a_target_is_examined_with_the_columns_that_it_will_get() -> None:
    class Looking(Noting):
        def examine(self, schema: Any) -> list[object]:
            seen.append(schema)
            return []

    seen: list[Any] = []
    sink, schema = Looking(), pa.schema([pa.field("batch", pa.int64()), pa.field("row", pa.int32(), nullable=False)])
    deliveries = {"a": Delivery(sink, columns=COLUMNS)}
    refuse_unfit_targets({"a": sink}, deliveries, schema, simulated_runtime())
    refuse_unfit_targets({"a": sink}, deliveries, None, simulated_runtime())
    assert seen == [pa.schema([pa.field("id", pa.int32(), nullable=False)]), None]


@pytest.mark.parametrize("wrong", ["id", {"a": ""}, {1: "a"}, {"a": 1}, {"a": "c", "b": "c"}])
def test_a_renaming_that_no_query_can_have_is_refused_where_it_is_made(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="columns="):
        Delivery(print, columns=wrong)


def test_without_names_nothing_is_touched() -> None:
    renaming = Renaming.of(COLUMNS)
    assert Renaming.of(None) == Renaming.of({}) == SAME
    table = pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])
    assert SAME.table(table) is table
    assert SAME.places(["a", "a"]) == [(0, "a"), (1, "a")]
    assert SAME.spark_schema("{") == "{"
    assert renaming.spark_schema("") == ""
    with pytest.raises(PermanentError, match="two columns have the name 'b'"):
        Renaming.of({"a": "b"}).table(table)
