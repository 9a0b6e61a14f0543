"""`docs/decisions/`: the records are numbered, have their three parts, and are all in the index.

A record whose subject is gone goes, and its number is not used again.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.processes import CHECKOUT

FOLDER = CHECKOUT / "docs" / "decisions"
PARTS = ["Context", "Decision", "Consequence"]


def faults(folder: Path) -> list[str]:
    """Every way in which the records and their index do not fit."""
    index = (folder / "index.md").read_text()
    listed = re.findall(r"^- \[(.*)\]\((.*)\)$", index, flags=re.MULTILINE)
    records = sorted(path for path in folder.glob("*.md") if path.name != "index.md")
    found = [] if records else ["there is no record"]
    expected = []
    for path in records:
        text = path.read_text()
        title = text.partition("\n")[0].removeprefix("# ")
        expected.append((title, path.name))
        number = title.partition(". ")[0]
        if not (number.isdigit() and path.name.startswith(f"{int(number):04}-")):
            found.append(f"{path.name}: expected the same number in the name and in the title")
        if re.findall(r"^\*\*(\w+)\.\*\* ", text, flags=re.MULTILINE) != PARTS:
            found.append(f"{path.name}: expected the parts {PARTS}")
    return found if listed == expected else [*found, f"index.md: {sorted(set(listed) ^ set(expected)) or 'the order'}"]


def test_every_record_is_whole_and_in_the_index() -> None:
    assert faults(FOLDER) == []
