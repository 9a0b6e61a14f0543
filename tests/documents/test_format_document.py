"""docs/FORMAT.md: the fields of every record are those that stand on a store, by the names that they have there."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator

import msgspec

import wal_sink
from tests.house.log import Record
from tests.house.operate import KINDS
from tests.support.processes import CHECKOUT

DOCUMENT = (CHECKOUT / "docs" / "FORMAT.md").read_text()
OF_EVERY_BODY = {"id", "created"}
_NAME = re.compile(r'`"?([a-z][a-z0-9_]*)"?(?::true)?`')


def rows_of(document: str) -> dict[str, str]:
    """The table of kinds: the text of the fields by the kind."""
    table = document.split("| kind | further fields |\n|---|---|\n")[1].split("\n\n", maxsplit=1)[0]
    cells = (re.fullmatch(r"\| `([a-z-]+)` \| (.*) \|", line) for line in table.splitlines())
    return {cell[1]: cell[2] for cell in cells if cell}


def without_parentheses(text: str) -> str:
    """The text without everything that stands in parentheses, also in nested ones."""
    while (shorter := re.sub(r"\([^()]*\)", "", text)) != text:
        text = shorter
    return text


def documented(row: str) -> set[str]:
    """The fields that a row names: words in backticks outside of parentheses."""
    return set(_NAME.findall(without_parentheses(row)))


def on_the_store(struct: type[msgspec.Struct]) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(struct)}


def parts_of(kind: typing.Any) -> Iterator[type[msgspec.Struct]]:
    """The structs inside a type, at any depth."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
        for field in msgspec.structs.fields(kind):
            yield from parts_of(field.type)
    for inner in typing.get_args(kind):
        yield from parts_of(inner)


RECORDS = {kind.record.kind: kind.record for kind in KINDS if kind.record is not None}
ROWS = rows_of(DOCUMENT)


def all_records(of: type[Record] = Record) -> Iterator[type[Record]]:
    for each in of.__subclasses__():
        yield each
        yield from all_records(each)


def test_every_kind_of_record_has_a_row_and_no_other_has_one() -> None:
    of_the_package = {each.kind for each in all_records() if each.__module__.startswith(wal_sink.__name__)}
    assert ROWS.keys() == RECORDS.keys() == of_the_package


def test_every_row_names_the_fields_that_stand_on_the_store() -> None:
    fields = {kind: on_the_store(record) - OF_EVERY_BODY for kind, record in RECORDS.items()}
    assert {kind: documented(row) for kind, row in ROWS.items()} == fields


def test_the_fields_inside_a_field_are_named_somewhere() -> None:
    named = set(_NAME.findall(DOCUMENT))
    parts = [(kind, part) for kind, record in RECORDS.items() for part in parts_of(record)]
    assert [f"{part.__name__} of {kind}" for kind, part in parts if not on_the_store(part) <= named] == []
