"""Tables as plain text, for objects that users print."""

from __future__ import annotations

from collections.abc import Sequence

Row = Sequence[str]


def text_table(headings: Row, rows: Sequence[Row]) -> str:
    """Columns of equal width, two blanks apart. Without headings if each heading is empty."""
    lines = [headings, *rows] if any(headings) else list(rows)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ["  ".join(value.ljust(width) for value, width in zip(line, widths, strict=True)) for line in lines]
    return "\n".join(line.rstrip() for line in padded)
