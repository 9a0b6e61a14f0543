"""docs/assumptions.toml is held to checks that exist, and to the sources: whatever they rely on has an entry."""

from __future__ import annotations

from dataclasses import replace

from tests.support import taken_for_granted
from tests.support.assumptions import COMMAND, PAGE, SOURCE, Assumptions, Entry, read_file
from tests.support.documents import check_exists, is_test, places
from tests.support.processes import CHECKOUT

FILE = read_file()
MOST_WORDS = 5_200
"""Of the page. Why something is so belongs beside the code, what a user must do on a page for users."""


def place_exists(name: str) -> bool:
    """Whether `file.py::function`, `file.py::Class.method` or `file.py::CONSTANT` is in the package."""
    file, _, place = name.partition("::")
    return file.startswith(("wal_sink/", "backends/")) and (CHECKOUT / file).is_file() and place in places(file)


def holds(check: str) -> bool:
    return place_exists(check) if check.startswith(("wal_sink/", "backends/")) else check_exists(check)


def faults(entry: Entry) -> list[str]:
    """Return everything that an entry lacks, and what it names that does not exist."""
    found = [] if entry.taken.endswith((".", ")")) else ["what is taken for granted is no sentence"]
    if not entry.wrong.endswith((".", ")")):
        found.append("what follows if it is false?")
    if not entry.checks:
        found.append("nothing would fail if this were false")
    if not entry.shown_false:
        found.append("nobody has seen its check fail")
    missing = [check for check in entry.checks if not holds(check)]
    missing += [test for test in entry.shown_false if not is_test(test)]
    missing += [place for place in entry.covers if not place_exists(place)]
    found += [f"{name} does not exist" for name in missing]
    return [f"{entry.taken}: {fault}" for fault in found]


def test_every_entry_names_its_check_and_what_falsified_it() -> None:
    assert [fault for entry in FILE.entries for fault in faults(entry)] == []


def test_no_two_entries_take_the_same_for_granted() -> None:
    taken = [entry.taken for entry in FILE.entries]
    assert len(taken) == len(set(taken))


def test_whatever_the_sources_rely_on_has_an_entry() -> None:
    found = taken_for_granted.reliances() | taken_for_granted.store_primitives() | taken_for_granted.sinks()
    covered = {place for entry in FILE.entries for place in entry.covers}
    missing = found - covered
    assert not missing, f"{SOURCE.name} has no entry that covers {sorted(missing)}"


def test_the_page_is_made_from_the_file_and_stays_short() -> None:
    page = FILE.page()
    assert PAGE.read_text() == page, COMMAND
    assert len(page.split()) <= MOST_WORDS
    fields = [text for entry in FILE.entries for text in (entry.taken, entry.wrong)]
    assert [text for text in fields if "|" in text or "\n" in text] == []


ENTRY = """
introduction = "It rains."

[[section]]
title = "Weather"

[[section.entry]]
taken = "Water falls."
wrong = "It is dry."
checks = ["wal_sink/protocol/run.py::Run.open", "chaos::no such scenario"]
shown_false = ["tests/documents/test_assumptions_document.py::test_no_two_entries_take_the_same_for_granted"]
"""


def test_what_does_not_exist_or_is_left_out_is_noticed() -> None:
    absent = [
        "wal_sink/protocol/run.py::Run.opens",
        "wal_sink/running.py::Run.open",
        "tests/documents/test_assumptions_document.py::Entry",
        "tests/documents/test_assumptions_document.py::test_that_was_never_written",
        "spec::I9_NeverStated",
        "chaos::nothing at all happens",
    ]
    assert [check for check in absent if holds(check) or is_test(check)] == []
    (entry,) = Assumptions.read(ENTRY).entries
    assert entry.row == "| Water falls. | It is dry. | [`Run.open`](../wal_sink/protocol/run.py) |\n"
    tested = replace(entry, checks=("tests/unit/test_rain.py::test_it_rains",))
    assert tested.row.endswith('| [`test_rain.py`](../tests/unit/test_rain.py "test_it_rains") |\n')
    assert faults(entry) == ["Water falls.: chaos::no such scenario does not exist"]
    assert faults(replace(entry, checks=entry.checks[:1])) == []
    assert len(faults(Entry("It rains", "", (), ()))) == 4
