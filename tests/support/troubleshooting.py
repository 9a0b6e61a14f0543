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
    """One reason for an error or a warning, with the messages by which a reader recognises it."""

    title: str
    messages: tuple[str, ...]
    why: str
    do: str
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
        """The whole page. The sources tell from which classes each error derives."""
        parts = [HEAD, _wrapped(self.introduction), "\n| class | meaning |\n|---|---|\n"]
        parts += [f"| [`{entry.name}`](#{entry.name.lower()}) | {_first(entry.meaning)} |\n" for entry in self.entries]
        parts.append("| [warnings in the log](#warnings-in-the-log) | The run goes on. |\n")
        parts += [_section(f"`{entry.name}`", entry, _caught_by(entry.name, sources)) for entry in self.entries]
        parts.append(_section("Warnings in the log", self.warnings))
        return "".join(parts)


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


def _cause(*, title: str, messages: list[str], why: str, do: str, foreign: Sequence[str] = ()) -> Cause:
    return Cause(title, tuple(messages), why.strip(), do.strip(), tuple(foreign))


def _caught_by(name: str, sources: Sources) -> str:
    """Which `except` clauses catch an error, apart from its own."""
    if name == BASE:
        return ""
    parents = sources.parents[name]
    if BASE not in parents:
        return f"`except {BASE}` does not catch this class."
    caught = " and ".join(f"`except {parent}`" for parent in parents)
    return f"{caught} {'catches' if len(parents) == 1 else 'catch'} it too."


def _section(heading: str, entry: Entry, caught_by: str = "") -> str:
    parts = [f"\n## {heading}\n\n{_wrapped(entry.meaning)}"]
    others = ", ".join(f"`{name}`" for name in entry.names[1:] if not name.startswith("_"))
    if others:
        parts.append("\n" + _wrapped(f"The same holds for {others}."))
    if caught_by:
        parts.append("\n" + _wrapped(caught_by))
    if entry.safe:
        parts.append("\n" + _wrapped(f"**Safe:** {entry.safe}"))
    if entry.avoid:
        parts.append("\n" + _wrapped(f"**Do not** {entry.avoid}"))
    return "".join([*parts, *(_of_cause(cause) for cause in entry.causes)])


def _of_cause(cause: Cause) -> str:
    texts = (*cause.messages, *cause.foreign)
    lines = "\n" + "".join(f"- {_code(fragment)}\n" for fragment in texts) if texts else ""
    why = "\n" + _wrapped(cause.why) if cause.why else ""
    return f"\n### {cause.title}\n{lines}{why}\n{_wrapped(f'**Remedy:** {cause.do}')}"


def _code(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _wrapped(text: str) -> str:
    """Paragraphs in lines of 100 columns. Words in backticks may be broken at their blanks, as Markdown permits."""
    paragraphs = (" ".join(part.split()) for part in text.strip().split("\n\n"))
    filled = (textwrap.fill(part, WIDTH, break_long_words=False, break_on_hyphens=False) for part in paragraphs)
    return "\n\n".join(filled) + "\n"


def _first(text: str) -> str:
    """The first sentence of a text, on one line."""
    return re.split(r"(?<=\.)\s", " ".join(text.split()), maxsplit=1)[0]


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
