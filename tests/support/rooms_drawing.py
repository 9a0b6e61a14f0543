"""The drawing of the rooms, docs/assets/rooms.svg: a row of boxes for each floor, users at the top.

Each box has the name of a room and the beginning of the docstring that says what happens there. Arrows are not drawn:
they would be too many to follow, and they all lead to floors below. `python -m tests.support.rooms --write` writes it.
The drawing has its own background, so that it is readable on a page of any colour.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from xml.sax.saxutils import escape

DRAWING = "docs/assets/rooms.svg"
WIDTH, MARGIN, GAP, COLUMNS = 360, 8, 6, 2
LINE, NAME_LINE, PADDING = 13, 15, 6
BOX = (WIDTH - 2 * MARGIN - (COLUMNS - 1) * GAP) // COLUMNS
LETTER = 6.1
"""The mean width of a letter of a wide font."""
MOST_LINES = 4
LEGEND = "Green: the core and what is over it. Violet: the test kit. Grey: ready sinks."
STYLE = """\
<style>
  @media (prefers-color-scheme: dark) {
    .page { fill: #111827 } .core { fill: #134e4a; stroke: #2dd4bf } .kit { fill: #312e81; stroke: #a5b4fc }
    .ready { fill: #1f2937; stroke: #9ca3af } text { fill: #f3f4f6 } .quiet { fill: #d1d5db }
  }
</style>"""
KINDS = {"backends": ("ready", "#f3f4f6", "#6b7280"), "testing": ("kit", "#e0e7ff", "#4f46e5")}
"""The class and the colours of the rooms in a folder. Others are of the core."""
CORE = ("core", "#ccfbf1", "#0f766e")


@dataclass(frozen=True)
class Box:
    """A room, with its purpose in lines."""

    room: str
    width: int
    lines: list[str]

    @property
    def height(self) -> int:
        return 2 * PADDING + NAME_LINE + LINE * len(self.lines)


def purpose(docstring: str) -> str:
    """Return what a docstring says first: its first clause, or the second one if the first is only a name."""
    sentence = " ".join(docstring.partition("\n\n")[0].split())
    name, colon, rest = sentence.partition(": ")
    if colon and re.fullmatch(r"`\w+`", name):
        sentence = rest
    found = re.split(r"[:;.](?: |$)", sentence)[0].replace("`", "")
    return found[:1].upper() + found[1:]


def drawing(floors: Mapping[str, int], docstrings: Mapping[str, str]) -> str:
    """Return the drawing as SVG. A purpose of more than four lines raises `ValueError`."""
    parts: list[str] = []
    y = MARGIN + LINE
    parts.append(_text(MARGIN, y, "A room imports only rooms of floors below.", is_name=True))
    for line in textwrap.wrap(LEGEND, int((WIDTH - 2 * MARGIN) / LETTER)):
        y += LINE
        parts.append(_text(MARGIN, y, line))
    for floor in sorted(set(floors.values()), reverse=True):
        y += 2 * LINE - 2
        parts.append(_text(MARGIN, y, f"Floor {floor}", quiet=True))
        y += PADDING
        for rooms in _rows([room for room, its in floors.items() if its == floor]):
            row = [_box(room, docstrings[room], alone=len(rooms) == 1) for room in rooms]
            height = max(box.height for box in row)
            for column, box in enumerate(row):
                parts += _drawn(box, MARGIN + column * (BOX + GAP), y, height)
            y += height + GAP
        y -= GAP
    y += MARGIN
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH * 3 // 2}" role="img"'
    fonts = 'font-family="system-ui, \'Segoe UI\', Roboto, Helvetica, Arial, sans-serif" font-size="11"'
    page = f'<rect class="page" width="{WIDTH}" height="{y}" rx="6" fill="#ffffff"/>'
    title = "<title>The rooms of wal-sink, floor by floor</title>"
    return "\n".join([f"{head} {fonts}>", title, STYLE, page, *parts, "</svg>\n"])


def _rows(rooms: list[str]) -> list[list[str]]:
    """Return the rooms of a floor in rows, those of the core first."""
    order = sorted(rooms, key=lambda room: (_kind(room) != CORE, room.startswith("backends/"), room))
    return [order[start : start + COLUMNS] for start in range(0, len(order), COLUMNS)]


def _kind(room: str) -> tuple[str, str, str]:
    return KINDS.get(room.partition("/")[0], CORE)


def _box(room: str, docstring: str, *, alone: bool) -> Box:
    width = WIDTH - 2 * MARGIN if alone else BOX
    lines = textwrap.wrap(purpose(docstring), int((width - 2 * PADDING) / LETTER))
    if len(lines) > MOST_LINES:
        raise ValueError(f"{room}: shorten the first clause of its docstring: it takes {len(lines)} lines")
    return Box(room, width, lines)


def _drawn(box: Box, x: int, y: int, height: int) -> Iterator[str]:
    kind, fill, stroke = _kind(box.room)
    place = f'x="{x}" y="{y}" width="{box.width}" height="{height}" rx="4"'
    yield f'<rect class="{kind}" {place} fill="{fill}" stroke="{stroke}"/>'
    y += PADDING + LINE - 2
    yield _text(x + PADDING, y, box.room, is_name=True)
    for number, line in enumerate(box.lines):
        yield _text(x + PADDING, y + NAME_LINE + number * LINE, line)


def _text(x: int, y: int, text: str, *, is_name: bool = False, quiet: bool = False) -> str:
    look = 'class="quiet" fill="#4b5563"' if quiet else 'fill="#111827"'
    if is_name:
        look += ' font-weight="600"'
    return f'<text x="{x}" y="{y}" {look}>{escape(text)}</text>'
