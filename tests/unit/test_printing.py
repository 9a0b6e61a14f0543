"""Printing a status, a guarantee or a dead letter, and looking at one in a notebook."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import wal_sink.walsink
from tests.house.protocol import Run
from tests.house.stores import StoreSpec, open_store
from wal_sink import Chunk, Delivery, Rejected, Status, WalSink
from wal_sink.log.holders import TakeOver
from wal_sink.operate.replay import DeadLetters, KeptLetter, ReplayResult
from wal_sink.operate.status import SinkStatus
from wal_sink.settings import Settings
from wal_sink.testing import FakeQuery

SECRET = "hush-hush-0123"  # noqa: S105 - a dummy
SINK = SinkStatus(
    name="orders-warehouse-postgresql", kind="transactional", identity="SqlSink('postgresql://db/shop', 'orders')",
    delivered_through=41, pending_batches=3, term=7, held_by="host:17", held_since="2026-11-01T10:00:00.000+00:00",
    state="running", folder="orders",
)  # fmt: skip
FILES = replace(SINK, name="files", kind="idempotent", state="gone", delivered_through=-1, pending_batches=45)
STATUS = Status(
    wal="s3://lake/wal/orders", wal_id="w", query_id="q", checkpoint="s3://lake/checkpoints/orders", first_batch=0,
    location="s3://lake/wal/orders", newest_batch=44, low_water=-1, stager_term=2,
    sinks=(SINK, FILES),
)  # fmt: skip
ATTACK = "<img src=x onerror=alert(1)>"


def post(_chunk: Chunk) -> None:
    return


def refuse(_chunk: Chunk) -> Rejected:
    return Rejected({0: "not this one"})


def test_a_status_is_printed_as_a_table_of_80_columns() -> None:
    assert str(STATUS).splitlines() == [
        "WAL              s3://lake/wal/orders",
        "checkpoint       s3://lake/checkpoints/orders",
        "newest batch     44",
        "deleted through  none",
        "",
        "sink                         kind           state    delivered through  pending",
        "orders-warehouse-postgresql  transactional  running  41                 3",
        "files                        idempotent     gone     none               45",
    ]
    assert all(len(line) <= 80 for line in str(STATUS).splitlines())


def test_a_status_without_sinks_or_without_a_wal_says_so() -> None:
    assert str(replace(STATUS, sinks=())).endswith("\n\nno sink is registered")
    nothing = replace(STATUS, wal_id=None, sinks=())
    assert str(nothing) == "WAL  s3://lake/wal/orders (no batch was staged here yet)\n\nno sink is registered"


def test_repr_is_one_line_with_the_state_of_each_sink() -> None:
    assert repr(STATUS) == (
        "Status(wal='s3://lake/wal/orders', newest_batch=44, low_water=-1, sinks=("
        "SinkStatus('orders-warehouse-postgresql', kind='transactional', state='running', delivered_through=41, "
        "pending_batches=3), "
        "SinkStatus('files', kind='idempotent', state='gone', delivered_through=-1, pending_batches=45)))"
    )
    assert str(SINK) == repr(SINK)


def test_guarantees_are_printed_one_below_the_other_and_stay_a_mapping_of_texts() -> None:
    to = {"api": post, "table": "sqlite:///t.db?table=t"}
    found = WalSink(to, wal="wal", checkpoint="checkpoint").guarantee()
    assert str(found) == f"api: {found['api']}\ntable: {found['table']}"
    assert found["table"].startswith("exactly once: ")
    assert found == dict(found)
    assert json.loads(json.dumps(found)) == found
    assert repr(found) == repr(dict(found))


def test_a_wal_sink_that_only_stages_has_no_guarantee_to_show() -> None:
    found: Any = WalSink(None, wal="wal", checkpoint="checkpoint").guarantee()
    assert str(found) == "no sink: batches are only staged"


@pytest.fixture
def rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[KeptLetter, Status]:
    """A dead letter of a row with a secret, and the status of its WAL, whose store has a secret option."""
    monkeypatch.setattr(wal_sink.walsink, "current_session", lambda: None)
    wal, checkpoint = str(tmp_path / "wal"), str(tmp_path / "checkpoint")
    run = Run(open_store(StoreSpec(wal)), open_store(StoreSpec(checkpoint)), Settings())
    run.open()
    run.become_stager()
    table = pa.table({"card": [SECRET]})
    assert list(FakeQuery(open_store(StoreSpec(checkpoint)), lambda *_: [table]).batches(run, 1)) == [0]
    to = Delivery(refuse, on_rejected="dead_letter", start_from="earliest")
    with WalSink(to, wal=wal, checkpoint=checkpoint, storage_options={"token": SECRET}) as sink:
        status = sink.status()
    (letter,) = DeadLetters(wal).all()
    return letter, status


def test_nothing_shows_a_row_or_a_secret(rejected: tuple[KeptLetter, Status]) -> None:
    letter, status = rejected
    assert "000000-000000000000-000000000001-" in repr(letter)
    assert repr(letter).endswith("batch_id=0, rows=1, kept='rejected', replayed=False)")
    assert f"{letter}" == repr(letter)
    assert SECRET not in f"{letter} {status} {status!r}"
    assert "delivered_through=0" in repr(status)


def test_small_values_are_shown_as_python_does() -> None:
    assert str(ReplayResult(letters=1, rows=2, rejected=3)) == "ReplayResult(letters=1, rows=2, rejected=3)"
    assert str(TakeOver.IF_GONE) == "if_gone"
