"""The page docs/troubleshooting.md, made from docs/troubleshooting.toml, and how much of the sources it covers.

`python -m tests.support.troubleshooting --write` writes the page. `--coverage` tells, for each class, how many of the
places that make this error have a text that the entry names, and lists the others.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tests.support.messages import Site, Sources, read_sources
from tests.support.processes import CHECKOUT

SOURCE = CHECKOUT / "docs/troubleshooting.toml"
PAGE = CHECKOUT / "docs/troubleshooting.md"
WIDTH = 100
BASE = "WalSinkError"
"""The class from which the errors of wal-sink derive."""
ANYTHING = "…"
"""Stands in a fragment for a part of the message that differs from case to case."""
_BETWEEN = "\x01"
"""Stands between the texts of the sources, so that no fragment reaches from one into the next."""
COMMAND = "python -m tests.support.troubleshooting --write"
HEAD = f"""\
<!-- Made by `{COMMAND}` from troubleshooting.toml. Change that file. -->

# Troubleshooting by message

"""


@dataclass(frozen=True)
class Cause:
    """One reason for an error or a warning: a row of the page."""

    seen: tuple[str, ...]
    """Parts of `messages` and `foreign` by which a reader recognises it. The page shows these alone."""
    why: str
    do: str
    messages: tuple[str, ...]
    foreign: tuple[str, ...] = ()
    """Texts of servers and of Spark, which stand in our messages as they came. No source of ours holds them."""

    def matches(self, text: str) -> bool:
        """Whether any of the fragments is in the text."""
        return any(pattern.search(text) for pattern in self._patterns)

    @cached_property
    def _patterns(self) -> list[re.Pattern[str]]:
        return [pattern_of(fragment) for fragment in self.messages]


@dataclass(frozen=True)
class Entry:
    """Everything the page says about an error class, and about the classes that a reader meets with it."""

    names: tuple[str, ...]
    meaning: str
    safe: str
    avoid: str
    causes: tuple[Cause, ...]

    @property
    def name(self) -> str:
        return self.names[0]

    def matches(self, site: Site) -> bool:
        """Whether each text of a place is found by a fragment of this entry."""
        return all(any(cause.matches(text) for cause in self.causes) for text in site.own_texts)


@dataclass(frozen=True)
class Troubleshooting:
    """The file docs/troubleshooting.toml."""

    introduction: str
    entries: tuple[Entry, ...]
    warnings: Entry
    not_met: dict[str, str]
    """Classes that no user meets, with the reason."""

    @classmethod
    def read(cls, text: str) -> Troubleshooting:
        """Read the file. Raises `KeyError` or `TypeError` if a part is missing or unknown."""
        found = tomllib.loads(text)
        entries = tuple(_entry(**given) for given in found["error"])
        warnings = _entry(names=["warning"], safe="", avoid="", **found["warnings"])
        return cls(found["introduction"], entries, warnings, found["not_met"])

    @property
    def fragments(self) -> list[str]:
        """The fragments of all messages."""
        every = (*self.entries, self.warnings)
        return [fragment for entry in every for cause in entry.causes for fragment in cause.messages]

    def uncovered(self, sources: Sources) -> list[Site]:
        """The places with words of ours whose texts no fragment of their entry finds."""
        owners = self._owners()
        mine = [site for site in sources.sites if site.what in owners and site.own_texts]
        return [site for site in mine if not owners[site.what].matches(site)]

    def coverage(self, sources: Sources) -> Iterator[str]:
        """A line for each class: places that make the error, those with words of ours, those that are found."""
        owners, missed = self._owners(), self.uncovered(sources)
        yield f"{'class':24} {'places':>6} {'with words':>10} {'found':>6}"
        for name in owners:
            places = [site for site in sources.sites if site.what == name]
            worded = [site for site in places if site.own_texts]
            found = [site for site in worded if site not in missed]
            yield f"{name:24} {len(places):6} {len(worded):10} {len(found):6}"

    def _owners(self) -> dict[str, Entry]:
        return {name: entry for entry in (*self.entries, self.warnings) for name in entry.names}

    def page(self, sources: Sources) -> str:
        """The whole page. The sources tell which classes derive from the base class."""
        others = [entry.name for entry in self.entries if BASE not in (entry.name, *sources.parents[entry.name])]
        caught = f"`except {BASE}` catches all classes of this page except {_named(others)}."
        parts = [HEAD, _wrapped(f"{self.introduction.strip()} {caught}")]
        parts += [_section(f"`{entry.name}`", entry) for entry in self.entries]
        return "".join([*parts, _section("Warnings in the log", self.warnings)])


def pattern_of(fragment: str) -> re.Pattern[str]:
    """The regular expression of a fragment: its words in this order, anything in the place of each `…`."""
    return re.compile(f"[^{_BETWEEN}]*?".join(map(re.escape, fragment.split(ANYTHING))))


def not_in_the_sources(fragments: Iterable[str], sources: Sources) -> list[str]:
    """The fragments that no text of the sources holds."""
    every = _BETWEEN.join(sources.strings)
    return [fragment for fragment in fragments if not pattern_of(fragment).search(every)]


def _entry(*, names: list[str], meaning: str, safe: str, avoid: str, cause: list[dict[str, Any]]) -> Entry:
    causes = tuple(_cause(**given) for given in cause)
    return Entry(tuple(names), meaning.strip(), safe.strip(), avoid.strip(), causes)


def _cause(*, seen: list[str], do: str, messages: list[str], why: str = "", foreign: Sequence[str] = ()) -> Cause:
    return Cause(tuple(seen), why, do, tuple(messages), tuple(foreign))


def _named(classes: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in classes)


def _section(heading: str, entry: Entry) -> str:
    others = _named(name for name in entry.names[1:] if not name.startswith("_"))
    about = f"{entry.meaning} Also {others}." if others else entry.meaning
    safety = f"\n{_wrapped(f'**Safe:** {entry.safe} **Do not** {entry.avoid}')}" if entry.safe else ""
    rows = "".join(map(_row, entry.causes))
    return f"\n## {heading}\n\n{_wrapped(about)}{safety}\n| message | why | do |\n|---|---|---|\n{rows}"


def _row(cause: Cause) -> str:
    return f"| {'<br>'.join(map(_code, cause.seen))} | {cause.why} | {cause.do} |\n"


def _code(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _wrapped(text: str) -> str:
    """Paragraphs in lines of 100 columns. Words in backticks may be broken at their blanks, as Markdown permits."""
    paragraphs = (" ".join(part.split()) for part in text.strip().split("\n\n"))
    filled = (textwrap.fill(part, WIDTH, break_long_words=False, break_on_hyphens=False) for part in paragraphs)
    return "\n\n".join(filled) + "\n"


def read_file() -> Troubleshooting:
    """Read docs/troubleshooting.toml of this checkout."""
    return Troubleshooting.read(SOURCE.read_text())


def main() -> None:
    """Write the page, or tell the coverage."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.troubleshooting", description="See above.")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(CHECKOUT)}")
    parser.add_argument("--coverage", action="store_true", help="count the places of the sources that are found")
    given = parser.parse_args()
    file = read_file()
    if given.write:
        PAGE.write_text(file.page(read_sources()))
    if given.coverage:
        sources = read_sources()
        sys.stdout.write("".join(f"{line}\n" for line in file.coverage(sources)))
        sys.stdout.write("".join(f"not found: {site}\n" for site in file.uncovered(sources)))
        gone = not_in_the_sources(file.fragments, sources)
        sys.stdout.write("".join(f"not in the sources: {fragment}\n" for fragment in gone))


if __name__ == "__main__":
    main()
