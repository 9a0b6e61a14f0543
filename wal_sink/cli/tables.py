"""Tables for people that stay readable on a terminal of 80 columns.

A table that fits is printed as it is. In a table that is too wide, long columns move below their row, as `name: value`.
No text is cut, and a line breaks between words or after a slash where it can.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from wal_sink.cli.output import clean, console, has_width

GAP = 2
"""Blanks between two columns."""
INDENT = "    "
HANG = "  "
"""Before the further lines of a long note."""
NOTHING = "-"
_WIDEST = 100_000
_PIECES = re.compile(r"(?<=[\s/,])(?![\s/,])")
"""A line may break here: after blanks, slashes and commas."""


class Listing:
    """A table of values. The first character of a heading describes its column: `>` a column of numbers, `+` a column
    that may stand below its row, `~` both.
    """

    def __init__(self, *headings: str) -> None:
        self._headings = [heading.lstrip(">+~") for heading in headings]
        self._is_number = [heading[0] in ">~" for heading in headings]
        self._may_move = [heading[0] in "+~" for heading in headings]
        self._rows: list[list[str]] = []

    def add(self, *values: object) -> None:
        """Add a row. Each value is shown as `clean` shows it."""
        self._rows.append([clean(value) for value in values])

    def print(self) -> None:
        """Print to stdout."""
        out = console()
        whole = _grid(self._headings, self._rows, right=self._is_number)
        if _fits(whole, out):
            out.print(whole)
            return
        for style, line in self._stacked(out.width):
            out.print(Text(line, style), soft_wrap=True)

    def _stacked(self, width: int) -> Iterator[tuple[str, str]]:
        """Each line with its style: the columns that stay, below each row the others."""
        kept = [index for index, may_move in enumerate(self._may_move) if not may_move]
        moved = [index for index, may_move in enumerate(self._may_move) if may_move]
        headings = [self._headings[index].split() for index in kept]
        widths = [
            max([max(map(cell_len, words)), *(_width(row[index]) for row in self._rows)])
            for words, index in zip(headings, kept, strict=True)
        ]
        widths[0] = max(len(INDENT), min(widths[0], width - sum(widths[1:]) - GAP * (len(widths) - 1)))
        for words in _bottom_aligned(headings):
            yield "bold", self._line(words, widths, kept)
        for row in self._rows:
            cells = [row[index] for index in kept]
            if _width(cells[0]) > widths[0]:
                yield from (("", line) for line in broken(cells[0], width))
                cells[0] = ""
            yield "", self._line(cells, widths, kept)
            told = [(self._headings[index], row[index]) for index in moved]
            notes = [
                f"{heading}: {' '.join(value.splitlines())}" for heading, value in told if value not in {"", NOTHING}
            ]
            yield from (("", INDENT + line) for line in _packed(notes, width - len(INDENT)))

    def _line(self, cells: Sequence[str], widths: Sequence[int], columns: Sequence[int]) -> str:
        padded = [
            " " * (width - cell_len(value)) + value
            if self._is_number[index]
            else value + " " * (width - cell_len(value))
            for value, width, index in zip(cells, widths, columns, strict=True)
        ]
        return (" " * GAP).join(padded).rstrip()


def print_facts(rows: Iterable[tuple[str, object]], *, indent: str = "") -> None:
    """Print names and values, one below the other."""
    out = console()
    shown = [(name, clean(value)) for name, value in rows]
    left = max((cell_len(name) for name, _ in shown), default=0)
    for name, value in shown:
        lines = broken(value, out.width - len(indent) - left - GAP)
        for number, line in enumerate(lines):
            head = name if number == 0 else ""
            margin = " " * (left - cell_len(head) + GAP)
            out.print(Text.assemble(indent, (head, "bold"), margin, line), soft_wrap=True)


def print_rows(title: str, names: Sequence[str], rows: Sequence[Sequence[str]], *, upright: bool = False) -> None:
    """Print rows of a user's table. If they are too wide, each row stands below the one before, with a value a line.

    `upright`: in a table, each row is a column.
    """
    out = console()
    upright_rows = [list(line) for line in zip(names, *rows, strict=True)]
    headings = ["column", *(f"{title} {number}" for number in range(len(rows)))] if upright else names
    whole = _grid(headings, upright_rows if upright else rows)
    if _fits(whole, out):
        out.print(whole)
        return
    for number, row in enumerate(rows):
        out.print(Text(f"{title} {number}", "bold"))
        print_facts(zip(names, row, strict=True), indent=INDENT)


def _grid(headings: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[bool] = ()) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
    for heading, is_right in zip(headings, right or [False] * len(headings), strict=True):
        table.add_column(Text(heading), justify="right" if is_right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _fits(table: Table, out: Console) -> bool:
    """Whether no cell has to be broken. rich measures at most the width that it is given."""
    return Measurement.get(out, out.options.update(width=_WIDEST), table).maximum <= out.width


def print_text(said: str, *, hang: str = "") -> None:
    """Print a sentence: on a terminal in lines of whole words, with `hang` before further ones; in a pipe as one."""
    out = console()
    if not has_width():
        out.print(Text(clean(said)), soft_wrap=True)
        return
    first, *others = broken(clean(said), out.width - len(hang))
    for line in (first, *(hang + other for other in others)):
        out.print(Text(line), soft_wrap=True)


def broken(shown: str, width: int) -> list[str]:
    """The lines of a text that is at most `width` columns wide, broken after blanks, slashes and commas if possible."""
    return [part for line in shown.split("\n") for part in _broken(line, max(width, len(INDENT)))]


def _broken(line: str, width: int) -> list[str]:
    if cell_len(line) <= width:
        return [line]
    lines = [""]
    for piece in _PIECES.split(line):
        if cell_len(lines[-1] + piece.rstrip()) <= width:
            lines[-1] += piece
        elif cell_len(piece.rstrip()) <= width:
            lines.append(piece)
        else:
            lines += chop_cells(piece, width)
    return [part.rstrip() for part in lines if part.strip()]


def _packed(notes: Sequence[str], width: int) -> Iterator[str]:
    """As many notes on a line as fit. A note that is longer than a line stands alone, on several lines."""
    line = ""
    for note in notes:
        joined = f"{line}; {note}" if line else note
        if _width(joined) <= width:
            line = joined
            continue
        if line:
            yield line
        line = note if _width(note) <= width else ""
        if not line:
            first, *others = broken(note, width - len(HANG))
            yield from (first, *(HANG + other for other in others))
    if line:
        yield line


def _bottom_aligned(headings: Sequence[Sequence[str]]) -> list[list[str]]:
    """The lines of headings that stand one word above the other."""
    upside_down = zip_longest(*(list(reversed(words)) for words in headings), fillvalue="")
    return [list(line) for line in upside_down][::-1]


def _width(shown: str) -> int:
    return max(map(cell_len, shown.split("\n")))
