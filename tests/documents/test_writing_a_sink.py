"""The sink of `docs/writing-a-sink.md`, as it stands there, over a target with transactions."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from tests.house.kit import CASES, REFUSALS, SLOT, STORED
from tests.support.contracts import run
from tests.support.page import class_on_the_page
from wal_sink import ConfigError, Rejected, SinkContext
from wal_sink.sinks import LedgerEntry, Position
from wal_sink.testing import SinkContract, SinkQuery

CONTEXT = SinkContext(wal_id="wal", sink="default", term=1, batch_id=0, columns=("id",), on_executor=False)


@dataclass
class Target:
    """Rows and a ledger. Whatever was committed since a transaction began makes it fail."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    ledgers: dict[str, SimpleNamespace] = field(default_factory=dict)
    commits: int = 0
    refuses: Callable[[dict[str, Any]], bool] = lambda _: False


TARGETS: dict[str, Target] = {}
_numbers = itertools.count()


def as_row(entry: LedgerEntry) -> SimpleNamespace:
    at = entry.position
    return SimpleNamespace(slot=at.slot, term=entry.term, batch_id=at.batch_id, rows=at.rows, segment_id=at.segment_id)


class Client:
    """The fictitious client of the page, and each of its transactions."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.inserted: list[dict[str, Any]] = []
        self.moved: dict[str, SimpleNamespace] = {}
        self.rolled_back = False

    def ledger(self, slot: str) -> SimpleNamespace | None:
        return self.target.ledgers.get(slot)

    def ledgers(self, slots: Sequence[str]) -> list[SimpleNamespace]:
        return [self.target.ledgers[slot] for slot in slots if slot in self.target.ledgers]

    @contextmanager
    def transaction(self) -> Iterator[Client]:
        step, began = Client(self.target), self.target.commits
        yield step
        if not step.rolled_back:
            assert self.target.commits == began, "somebody else has committed"
            self.target.rows += step.inserted
            self.target.ledgers |= step.moved
            self.target.commits += 1

    def insert(self, rows: list[dict[str, Any]]) -> dict[int, str]:
        self.inserted += rows
        return {index: "refused" for index, row in enumerate(rows) if self.target.refuses(row)}

    def put_ledger(self, entry: LedgerEntry) -> None:
        self.moved[entry.position.slot] = as_row(entry)

    def roll_back(self) -> None:
        self.rolled_back = True

    def close(self) -> None:
        del self.target


StockSink = class_on_the_page("StockSink", connect=lambda address: Client(TARGETS[address]))
ManySlotsSink = class_on_the_page("ManySlotsSink", StockSink=StockSink, Position=Position)


def opened(address: str) -> Any:
    sink = StockSink(address)
    sink.open(CONTEXT)
    return sink


def new_target() -> str:
    address = f"stock://{next(_numbers)}"
    TARGETS[address] = Target()
    return address


class StockContract(SinkContract):
    column_names = ("dots", "spaces")

    def make_sink(self, target: str) -> object:
        return StockSink(target)

    def rows_in(self, target: str) -> list[dict[str, Any]]:
        return TARGETS[target].rows


class ManySlotsContract(StockContract):
    every = 10
    """It adds one method to the other one, whose contract is tried at every point."""

    def make_sink(self, target: str) -> object:
        return ManySlotsSink(target)


def test_the_sink_of_the_page_keeps_the_contract() -> None:
    done = run(StockContract(), new_target)
    assert done.failed == {}
    assert "test_its_ledger_goes_by_the_rule" in done.passed
    assert len(done.passed) > 30


def test_the_sink_of_the_page_that_tells_many_slots_keeps_the_contract() -> None:
    done = run(ManySlotsContract(), new_target)
    assert done.failed == {}
    assert "test_positions_tells_every_slot_as_last_does" in done.passed


def test_the_sink_of_the_page_follows_the_rule_of_ledgers() -> None:
    address = new_target()
    for case in CASES:
        target = TARGETS[address] = Target(ledgers={SLOT: as_row(STORED)} if case.stored else {})
        sink, chunk = opened(address), case.chunk()
        if case.verdict in REFUSALS:
            kind, told = REFUSALS[case.verdict]
            with pytest.raises(kind, match=told):
                sink.write(chunk)
        else:
            assert sink.write(chunk) is None
        is_new = case.verdict == "new"
        assert [row["id"] for row in target.rows] == (list(case.rows) if is_new else []), case
        assert sink.last(SLOT) == (chunk.position if is_new else STORED.position if case.stored else None), case


def test_a_chunk_with_a_refused_row_leaves_nothing() -> None:
    address = new_target()
    target = TARGETS[address]
    target.refuses = lambda row: row["id"] == 5
    chunk = next(case for case in CASES if case.verdict == "new" and case.rows and not case.stored).chunk()
    sink = opened(address)
    assert sink.write(chunk) == Rejected({1: "refused"})
    assert (target.rows, sink.last(SLOT)) == ([], None)
    assert sink.write(chunk.without([1])) is None
    assert (target.rows, sink.last(SLOT)) == ([{"id": 4}], chunk.position)
    sink.close()


# --- found by a URL

SENT: list[tuple[str, str, bytes]] = []
ParcelSink = class_on_the_page("ParcelSink", send_parcel=lambda *parcel: SENT.append(parcel))
parcel_sink = vars(sys.modules[ParcelSink.__module__])["parcel_sink"]
URL = "parcel://me:hunter2-secret@host/x"


def test_the_sink_of_a_url_sends_rows_and_hides_the_password() -> None:
    SENT.clear()
    sink = parcel_sink(f"{URL}?depot=east")
    with SinkQuery(lambda: sink) as query:
        query.batch(pa.table({"id": [1]}))
    assert SENT == [(URL, "east", b'[{"id":1}]')]
    assert sink.describe() == "ParcelSink(parcel://host/x)"


def test_a_slip_in_a_url_is_explained_without_the_password() -> None:
    with pytest.raises(ConfigError, match=r"parcel://host/x: no option 'depto', only 'depot'") as of_the_url:
        parcel_sink(f"{URL}?depto=east")
    assert "hunter2" not in str(of_the_url.value)
