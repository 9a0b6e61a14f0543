"""Lists of CommonMark, indented as Python-Markdown reads them.

The documents are also read in the repository, where CommonMark holds: a list may follow a paragraph at once, and the
contents of an item stand under its text. Python-Markdown wants an empty line before a list and four spaces a level.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from markdown_it import MarkdownIt

INDENT = 4
APART = "<!-- -->"
"""Between two lists of different kinds: Python-Markdown would take them for one."""
_MARKER = re.compile(r"(?P<space> *)(?P<marker>[-*+]|\d+[.)])(?P<gap> +|$)")
_COMMONMARK = MarkdownIt("commonmark").enable("table")


@dataclass(frozen=True, slots=True)
class _Item:
    """An item of a list: its lines, the level of its list (1 for the outermost), the column of its text."""

    begin: int
    end: int
    level: int
    column: int


def indented(text: str) -> str:
    """Return the Markdown text with every list indented by four spaces a level, between empty lines."""
    lines = text.split("\n")
    items, lists = _items(text, lines)
    behind = {_next_text(lines, end) for end in lists.values()}
    within: list[_Item | None] = [None] * len(lines)
    for item in items:  # an inner item follows its outer one
        within[item.begin : item.end] = [item] * (item.end - item.begin)
    written: list[str] = []
    for number, line in enumerate(lines):
        if (number in lists or number in behind) and line.strip():
            written += [""] if written and written[-1] else []
            written += [APART, ""] if number in lists and number in behind else []
        written.append(_line(line, number, within[number]))
    return "\n".join(written)


def _items(text: str, lines: list[str]) -> tuple[list[_Item], dict[int, int]]:
    """The items in their order; and the outermost lists, by first line the line behind them."""
    items: list[_Item] = []
    lists: dict[int, int] = {}
    level = 0
    for token in _COMMONMARK.parse(text):
        if token.type in ("bullet_list_open", "ordered_list_open") and token.map:
            level += 1
            if level == 1:
                lists[token.map[0]] = token.map[1]
        elif token.type in ("bullet_list_close", "ordered_list_close"):
            level -= 1
        elif token.type == "list_item_open" and token.map:
            begin, end = token.map
            marker = _MARKER.match(lines[begin])
            if marker is None or any(item.begin == begin for item in items):
                raise ValueError(f"line {begin + 1}: expected the marker of one item of a list: {lines[begin]!r}")
            items.append(_Item(begin, end, level, marker.end()))
    return items, lists


def _next_text(lines: list[str], number: int) -> int:
    """The first line from this one on that is not empty."""
    return next((later for later in range(number, len(lines)) if lines[later].strip()), len(lines))


def _line(line: str, number: int, item: _Item | None) -> str:
    if item is None or not line.strip():
        return line if item is None else ""
    if number == item.begin:
        marker = _MARKER.match(line)
        assert marker is not None  # noqa: S101 - found in `_items`
        return " " * (INDENT * (item.level - 1)) + marker["marker"].ljust(INDENT) + line[marker.end() :]
    spaces = len(line) - len(line.lstrip(" "))
    return " " * (INDENT * item.level) + line[min(spaces, item.column) :]
