"""Numbers of things, as messages and tables tell them."""

from __future__ import annotations

from collections.abc import Sequence

_PLURALS = {"batch": "batches"}


def counted(count: int, thing: str) -> str:
    """A number with its noun: `1 row`, `1,200 rows`. `thing` is the singular."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {_PLURALS.get(thing, f'{thing}s')}"


def in_ranges(numbers: Sequence[int]) -> list[str]:
    """Ascending numbers as few texts, such as `3-7`."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return [str(first) if first == last else f"{first}-{last}" for first, last in found]


def pending_text(batches: int) -> str:
    """The batches that wait for the next start, at the end of a run that a signal ended."""
    if not batches:
        return "no batch is pending"
    return f"{counted(batches, 'batch')} pending, delivered at the next start"


def text_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as plain text: columns of equal width, two blanks apart. Without headings if each heading is empty."""
    lines = [headings, *rows] if any(headings) else list(rows)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ["  ".join(value.ljust(width) for value, width in zip(line, widths, strict=True)) for line in lines]
    return "\n".join(line.rstrip() for line in padded)
