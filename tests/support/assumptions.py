"""The page docs/ASSUMPTIONS.md, made from docs/assumptions.toml: `python -m tests.support.assumptions --write`."""

from __future__ import annotations

import argparse
import tomllib
from dataclasses import dataclass
from typing import Any

from tests.support.processes import CHECKOUT

SOURCE = CHECKOUT / "docs/assumptions.toml"
PAGE = CHECKOUT / "docs/ASSUMPTIONS.md"
COMMAND = "python -m tests.support.assumptions --write"
HEAD = f"<!-- Made by `{COMMAND}` from assumptions.toml. Change that file. -->\n\n# Assumptions\n\n"
COLUMNS = "| taken for granted | what goes wrong | check |\n|---|---|---|\n"


@dataclass(frozen=True)
class Entry:
    """One thing that others do without promising it to us."""

    taken: str
    wrong: str
    """The consequence if it is false."""
    checks: tuple[str, ...]
    """They fail if it is false: places of the sources, tests, laws, scenarios. The first is on the page."""
    shown_false: tuple[str, ...]
    """Tests that make it false once."""
    covers: tuple[str, ...] = ()
    """The places of the sources that rely on it."""

    @property
    def row(self) -> str:
        return f"| {self.taken} | {self.wrong} | {_shown(self.checks[0])} |\n"


@dataclass(frozen=True)
class Section:
    """The entries about one kind of thing: a table of the page."""

    title: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Assumptions:
    """The file docs/assumptions.toml."""

    introduction: str
    sections: tuple[Section, ...]

    @classmethod
    def read(cls, text: str) -> Assumptions:
        """Read the file. Raises `KeyError` or `TypeError` if a part is missing or unknown."""
        found = tomllib.loads(text)
        return cls(found["introduction"], tuple(_section(**given) for given in found["section"]))

    @property
    def entries(self) -> list[Entry]:
        return [entry for section in self.sections for entry in section.entries]

    def page(self) -> str:
        """Return the whole page."""
        tables = (f"\n## {section.title}\n\n{COLUMNS}{_rows(section)}" for section in self.sections)
        return "".join([HEAD, self.introduction, *tables])


def _section(*, title: str, entry: list[dict[str, Any]]) -> Section:
    return Section(title, tuple(_entry(**given) for given in entry))


def _entry(*, taken: str, wrong: str, **named: list[str]) -> Entry:
    return Entry(taken, wrong, **{kind: tuple(names) for kind, names in named.items()})


def _rows(section: Section) -> str:
    return "".join(entry.row for entry in section.entries)


def _shown(check: str) -> str:
    """Return a check as the page shows it: a place by its name, a test by its file, since its name is too long."""
    file, _, name = check.partition("::")
    if file.startswith("tests/"):
        return f'[`{file.rpartition("/")[2]}`](../{file} "{name}")'
    return f"[`{name}`](../{file})" if file.endswith(".py") else f"`{check}`"


def read_file() -> Assumptions:
    """Read docs/assumptions.toml of this checkout."""
    return Assumptions.read(SOURCE.read_text())


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.assumptions", description="See above.")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(CHECKOUT)}")
    if parser.parse_args().write:
        PAGE.write_text(read_file().page())


if __name__ == "__main__":
    main()
