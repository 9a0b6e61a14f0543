"""The two-phase sink of `docs/writing-a-sink.md`, as it stands there, over a store with drafts."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

from tests.support.contracts import run
from tests.support.page import class_on_the_page
from wal_sink.testing import SinkContract

Row = dict[str, Any]


@dataclass
class Shelf:
    """The store: drafts by id, each open or sealed, and what was published."""

    open: dict[str, list[Row]] = field(default_factory=dict)
    sealed: dict[str, list[Row]] = field(default_factory=dict)
    published: dict[str, list[Row]] = field(default_factory=dict)


SHELVES: dict[str, Shelf] = {}
_numbers = itertools.count()


class Draft:
    def __init__(self, shelf: Shelf, number: str) -> None:
        self.shelf, self.number = shelf, number
        shelf.open[number] = []

    def add(self, rows: list[Row]) -> None:
        self.shelf.open[self.number] += rows

    def seal(self) -> str:
        self.shelf.sealed[self.number] = self.shelf.open.pop(self.number)
        return f"seal of {self.number}"


class Client:
    """The fictitious client of the page."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf

    def draft(self, *, id: str) -> Draft:  # noqa: A002 - the page's
        return Draft(self.shelf, id)

    def is_published(self, number: str) -> bool:
        return number in self.shelf.published

    def publish(self, number: str, handle: str) -> bool:
        if number not in self.shelf.sealed:
            return False
        assert handle == f"seal of {number}"
        self.shelf.published[number] = self.shelf.sealed.pop(number)
        return True

    def discard_draft(self, number: str) -> None:
        self.shelf.open.pop(number, None)
        self.shelf.sealed.pop(number, None)


ShelfSink = class_on_the_page("ShelfSink", connect=lambda address: Client(SHELVES[address]))


def new_target() -> str:
    address = f"shelf://{next(_numbers)}"
    SHELVES[address] = Shelf()
    return address


class ShelfContract(SinkContract):
    def make_sink(self, target: str) -> object:
        return ShelfSink(target)

    def rows_in(self, target: str) -> list[Row]:
        return [row for rows in SHELVES[target].published.values() for row in rows]


def test_the_sink_of_the_page_keeps_the_contract() -> None:
    done = run(ShelfContract(), new_target)
    assert done.failed == {}
    assert "test_a_commit_that_comes_again_changes_nothing" in done.passed
    assert len(done.passed) > 30


def test_a_fault_of_the_sink_is_told() -> None:
    class Forgetful(ShelfContract):
        def rows_in(self, target: str) -> list[Row]:
            return super().rows_in(target)[1:]

    Forgetful.every, Forgetful.each_line = 40, False
    assert "test_an_undisturbed_run_brings_every_row_once" in run(Forgetful(), new_target).failed
