"""The commit sink of `docs/writing-a-sink.md`, as it stands there, over a table that keeps every version."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow.parquet as pq

from tests.support.contracts import run
from tests.support.page import class_on_the_page
from wal_sink.testing import SinkContract

Row = dict[str, Any]


@dataclass(frozen=True)
class Version:
    """The table as one commit left it."""

    files: tuple[str, ...] = ()
    properties: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    before: Version | None = None

    def notes_from_the_newest(self) -> Iterator[dict[str, Any]]:
        version: Version | None = self
        while version:
            yield version.notes
            version = version.before


@dataclass
class Table:
    """The fictitious client of the page, and the table itself."""

    written: dict[str, bytes] = field(default_factory=dict)
    head: Version = field(default_factory=Version)

    def put(self, name: str, data: bytes) -> None:
        self.written[name] = data

    def newest(self) -> Version:
        return self.head

    def commit(self, *, after: Version, add: tuple[str, ...], properties: Row, notes: Row) -> None:
        if after is not self.head:
            raise ConnectionError("the table has another version")
        self.head = Version((*after.files, *add), {**after.properties, **properties}, notes, after)

    def rows(self) -> list[Row]:
        return [row for name in self.head.files for row in pq.read_table(io.BytesIO(self.written[name])).to_pylist()]


TABLES: dict[str, Table] = {}
_numbers = itertools.count()
LogBookSink = class_on_the_page("LogBookSink", connect=TABLES.__getitem__)


def new_target() -> str:
    address = f"table://{next(_numbers)}"
    TABLES[address] = Table()
    return address


class LogBookContract(SinkContract):
    column_names = ("spaces", "quotes")  # a segment has not all names as they are
    every = 3

    def make_sink(self, target: str) -> object:
        return LogBookSink(target)

    def rows_in(self, target: str) -> list[Row]:
        return TABLES[target].rows()

    def another(self, target: str) -> str:  # noqa: ARG002
        return new_target()

    def snapshot(self, target: str) -> Version:
        return TABLES[target].head

    def restore(self, target: str, saved: Version) -> None:
        TABLES[target].head = saved

    def roll_back(self, target: str, saved: Version) -> None:
        TABLES[target].head = replace(saved, properties=TABLES[target].head.properties)


def test_the_sink_of_the_page_keeps_the_contract() -> None:
    done = run(LogBookContract(), new_target)
    assert done.failed == {}
    assert "test_a_commit_that_comes_late_is_refused" in done.passed
    assert "test_a_target_may_lose_rows_and_keep_their_position_at_any_point" in done.passed
