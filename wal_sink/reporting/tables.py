"""Tables as plain text and as HTML, for objects that users print or that a notebook shows."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

Row = Sequence[str]


def text_table(headings: Row, rows: Sequence[Row]) -> str:
    """Columns of equal width, two blanks apart. Without headings if each heading is empty."""
    lines = [headings, *rows] if any(headings) else list(rows)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ["  ".join(value.ljust(width) for value, width in zip(line, widths, strict=True)) for line in lines]
    return "\n".join(line.rstrip() for line in padded)


def html_table(headings: Row, rows: Sequence[Row]) -> str:
    """The same as an HTML table. Every text is escaped: names and addresses come from users."""
    lines = [_html_line("th", headings)] if any(headings) else []
    lines += [_html_line("td", row) for row in rows]
    return f"<table>{''.join(lines)}</table>"


def _html_line(tag: str, values: Row) -> str:
    style = ' style="text-align: left"'
    return f"<tr>{''.join(f'<{tag}{style}>{escape(value)}</{tag}>' for value in values)}</tr>"
