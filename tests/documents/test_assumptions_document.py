"""docs/ASSUMPTIONS.md is held to checks that exist, and to the sources: whatever they rely on has an entry."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tests.support import taken_for_granted
from tests.support.documents import check_exists, is_test, places
from tests.support.processes import CHECKOUT

DOCUMENT = "docs/ASSUMPTIONS.md"
SECTIONS = ["Spark", "Spark's private interface", "Stores", "Targets", "Process"]
_FALSE = "If it is false: "
_NAMED = re.compile(r"- (check|shown false|covers): `([^`]+)`")
_LOOKS_NAMED = re.compile(r"(check|shown false|covers)\w*: *`")


@dataclass
class Entry:
    section: str
    title: str
    text: str = ""
    if_false: str = ""
    named: dict[str, list[str]] = field(default_factory=lambda: {"check": [], "shown false": [], "covers": []})

    def take(self, line: str) -> None:
        """One line of the entry, in order: the text, what follows if it is false, what is named."""
        if match := _NAMED.fullmatch(line):
            assert self.if_false, f"{self.title}: {line} stands before '{_FALSE}'"
            self.named[match[1]].append(match[2])
            return
        assert not any(self.named.values()), f"{self.title}: expected '- check|shown false|covers: `…`', found {line!r}"
        prose = not line.startswith((" ", "-", "#", "*", "Text:")) and not _LOOKS_NAMED.search(line)
        assert prose, f"{self.title}: what kind of line is {line!r}?"
        if line.startswith(_FALSE):
            assert self.text, f"{self.title}: what is taken for granted?"
            self.if_false = line.removeprefix(_FALSE)
        elif self.if_false:
            self.if_false += f" {line}"
        else:
            self.text += f"{' ' if self.text else ''}{line}"


def parsed(document: str) -> list[Entry]:
    """Return every entry. The text before the first section is for people."""
    found: list[Entry] = []
    _, *sections = re.split(r"^## ", document, flags=re.MULTILINE)
    names = [section.partition("\n")[0] for section in sections]
    assert names == SECTIONS, f"expected the sections {SECTIONS}, found {names}"
    for name, section in zip(names, sections, strict=True):
        for line in filter(None, section.splitlines()[1:]):
            if line.startswith("### "):
                found.append(Entry(name, line.removeprefix("### ")))
            else:
                assert found, f"{line!r} belongs to no entry"
                assert found[-1].section == name, f"{line!r} belongs to no entry of section {name}"
                found[-1].take(line)
    return found


def entries() -> list[Entry]:
    return parsed((CHECKOUT / DOCUMENT).read_text())


def place_exists(name: str) -> bool:
    """Whether `file.py::function`, `file.py::Class.method` or `file.py::CONSTANT` is in the package."""
    file, _, place = name.partition("::")
    return file.startswith(("wal_sink/", "backends/")) and (CHECKOUT / file).is_file() and place in places(file)


def holds(check: str) -> bool:
    return place_exists(check) if check.startswith(("wal_sink/", "backends/")) else check_exists(check)


def faults(entry: Entry) -> list[str]:
    """Return everything that an entry lacks, and what it names that does not exist."""
    found = [] if entry.text.endswith((".", ")")) else ["its text does not end"]
    if not entry.if_false.endswith((".", ")")):
        found.append("what follows if it is false?")
    if not entry.named["check"]:
        found.append("nothing would fail if this were false")
    if not entry.named["shown false"]:
        found.append("nobody has seen its check fail")
    missing = [check for check in entry.named["check"] if not holds(check)]
    missing += [test for test in entry.named["shown false"] if not is_test(test)]
    missing += [place for place in entry.named["covers"] if not place_exists(place)]
    found += [f"{name} does not exist" for name in missing]
    return [f"{entry.title}: {fault}" for fault in found]


def test_every_entry_names_its_check_and_what_falsified_it() -> None:
    assert [fault for entry in entries() for fault in faults(entry)] == []


def test_no_two_entries_have_one_title() -> None:
    titles = [entry.title for entry in entries()]
    assert len(titles) == len(set(titles))


def test_whatever_the_sources_rely_on_has_an_entry() -> None:
    found = taken_for_granted.reliances() | taken_for_granted.store_primitives() | taken_for_granted.sinks()
    covered = {place for entry in entries() for place in entry.named["covers"]}
    missing = found - covered
    assert not missing, f"{DOCUMENT} has no entry that covers {sorted(missing)}"


ENTRY = f"""# Title

## {SECTIONS[0]}

### It rains
Water falls.
{_FALSE}it is dry.
- check: `wal_sink/protocol/run.py::Run.open`
- shown false: `tests/documents/test_assumptions_document.py::test_no_two_entries_have_one_title`
""" + "".join(f"\n## {name}\n" for name in SECTIONS[1:])


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
    (entry,) = parsed(ENTRY)
    assert faults(entry) == []
    entry.named["check"].append(absent[0])
    assert faults(entry) == [f"It rains: {absent[0]} does not exist"]
    assert len(faults(Entry("Spark", "It rains"))) == 4
