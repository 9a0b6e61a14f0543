"""The one printer of the verbs: dataclasses and rows of them, as JSON for machines or as lines for people.

Lines come in three forms: a sentence, facts (names and values, one below the other) and a table. The fields of a
dataclass tell how a value looks: `bytes` and `…_bytes` are sizes, `…age_s` and `lag_s` are ages, other `…_s` are
seconds, `…batch`, `…batch_id` and `…through` are batches. On a terminal every line fits, and no text is cut. In a pipe
no line is broken, unless `COLUMNS` says how wide the output is.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import click
import msgspec
from rich.cells import cell_len, chop_cells

GAP = "  "
"""Between two columns."""
INDENT = "    "
"""Before what stands below a row."""
HANG = "  "
"""Before the further lines of a long one."""
MOST_PADDED = 160
"""Columns that a cell is filled up to. In a pipe one long cell would otherwise fill up every row."""
NOTHING = "-"
NULL = "NULL"
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters except tab and newline, and characters that change the direction of writing. Rows, column names
and reasons may come from an attacker, and a terminal would obey these characters.
"""
_PIECES = re.compile(r"(?<=[\s/])(?![\s/,])|(?<=,)(?![\s/,\d])")
"""A line may break here: after blanks, slashes and commas, but not within a number."""
_AGES = (("d", 86_400.0), ("h", 3600.0), ("min", 60.0))
"""An age is told in the largest unit of which it has at least two."""

Column = str | tuple[str, Callable[[Any], object]]
"""A field, such as `rows`; with another heading, `size=bytes`; one of an inner dataclass, `pending.rows`. Or a heading
with the function that gives the value of a row.
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """The result of a verb."""

    document: object
    """The document that `--json` prints."""
    text: Iterable[str] = ()
    """Lines for people."""
    code: int = 0
    """The exit code."""


def print_answer(answer: Answer, *, as_json: bool) -> None:
    """Print an answer to stdout. Another exit code than 0 ends the process."""
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(answer.document)).decode())
    else:
        print_lines(answer.text)
    if answer.code:
        sys.exit(answer.code)


def print_lines(lines: Iterable[str]) -> None:
    """Print lines for people to stdout. One that is too wide is broken between words, and indented from there on."""
    for line in (part for told in lines for part in clean(told).split("\n")):
        if cell_len(line.rstrip()) <= width():
            click.echo(line.rstrip())
            continue
        hang = line[: len(line) - len(line.lstrip())] + HANG
        first, *others = broken(line, width() - len(hang))
        for part in (first, *(hang + other for other in others)):
            click.echo(part)


def fields_of(found: Any) -> dict[str, Any]:
    """The fields of a dataclass, by name."""
    return {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}


def facts(found: object, *columns: Column) -> Iterator[str]:
    """A line for each of these fields of a dataclass: its heading and its value."""
    return pairs((heading, _text(name, get(found))) for heading, name, get in map(_parsed, columns))


def pairs(told: Iterable[tuple[str, str]], indent: str = "") -> Iterator[str]:
    """A line for each name with its text. The texts are aligned, and broken where a line would be too wide."""
    shown = [(clean(name), clean(value)) for name, value in told]
    left = max((cell_len(name) for name, _ in shown), default=0)
    for name, value in shown:
        head = f"{indent}{_padded(name, left)}{GAP}"
        for part in broken(value, width() - cell_len(head)):
            yield f"{head}{part}"
            head = " " * cell_len(head)


def table(rows: Iterable[object], *columns: Column) -> Iterator[str]:
    """A line of headings, and one for each row. Columns of numbers are aligned at the right.

    If the table is too wide, each row is its first value, and below it the others as `heading: value`.
    """
    parsed = [_parsed(column) for column in columns]
    headings = [heading for heading, _, _ in parsed]
    values = [[get(row) for _, _, get in parsed] for row in rows]
    cells = [[_cell(name, value) for (_, name, _), value in zip(parsed, row, strict=True)] for row in values]
    widths = [max(map(cell_len, column)) for column in zip(headings, *cells, strict=True)]
    if sum(widths) + len(GAP) * (len(widths) - 1) <= width():
        is_number = [_is_numeric(column) for column in zip(*values, strict=True)] or [False] * len(widths)
        widths = [min(most, MOST_PADDED) for most in widths]
        for line in (headings, *cells):
            yield GAP.join(_padded(*cell) for cell in zip(line, widths, is_number, strict=True))
        return
    for first, *others in cells:
        yield f"{headings[0]} {first}"
        told = zip(headings[1:], others, strict=True)
        notes = "; ".join(f"{heading}: {value}" for heading, value in told if value not in {"", NOTHING})
        yield from (INDENT + part for part in broken(notes, width() - len(INDENT)))


def broken(text: str, width: int) -> list[str]:
    """The lines of a text that is at most `width` columns wide, broken after blanks, slashes and commas if possible."""
    return [part for line in text.split("\n") for part in _broken(line, max(width, len(INDENT)))]


def width() -> int:
    """How many columns a line on stdout may have. In a pipe without `COLUMNS` there is no limit."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit():
        return shutil.get_terminal_size().columns
    return sys.maxsize


def clean(text: str) -> str:
    """The text, in which control characters are escaped."""
    return _OBEYED.sub(lambda found: repr(found[0])[1:-1], text)


def value_text(value: object, *, longest: int | None = None) -> str:
    """A value of a user's row: NULL, a text, or nested values as JSON with their field names.

    A text that could be mistaken for something else is quoted, such as "NULL" or an empty one.
    """
    is_plain = isinstance(value, str) and value.isprintable() and value == value.strip() and value not in {"", NULL}
    if value is None:
        shown = NULL
    elif isinstance(value, str) and is_plain and value[0] not in '"[{':
        shown = value
    else:
        is_json = isinstance(value, (str, list, dict))
        shown = json.dumps(value, ensure_ascii=False, default=repr) if is_json else repr(value)
    return shown if longest is None or len(shown) <= longest else shown[: longest - 1] + "…"


def size(count: float | None) -> str:
    """A number of bytes with a readable unit."""
    if count is None:
        return NOTHING
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        count /= 1024
        if count < 1024:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:.1f} PiB"


def batch_text(batch_id: int | None) -> str:
    """A batch id as text; -1 and None mean that there is none."""
    return "none" if batch_id is None or batch_id < 0 else str(batch_id)


def age_text(seconds: float | None) -> str:
    """An age for people: `4 s`, `12 min`, `3 h`. A negative one says that the clocks differ."""
    if seconds is None:
        return "unknown"
    if seconds < 0:
        return f"-{age_text(-seconds)} (clocks differ)"
    unit, length = next(((unit, length) for unit, length in _AGES if seconds >= 2 * length), ("s", 1.0))
    return f"{seconds / length:.0f} {unit}" if unit != "s" or seconds >= 10 else f"{seconds:.1f} s"


def seconds_text(seconds: float | None) -> str:
    """Seconds that were measured; a time that no record holds is told as such."""
    return "not recorded" if seconds is None else f"{seconds:.3f} s"


_KINDS: Sequence[tuple[re.Pattern[str], Callable[[Any], str]]] = (
    (re.compile(r"(.*_)?bytes"), size),
    (re.compile(r".*age_s|lag_s"), age_text),
    (re.compile(r".*_s"), seconds_text),
    (re.compile(r"(.*_)?(batch|batch_id|through)|low_water"), batch_text),
)
"""How a value looks, by the name of its field."""


def _text(name: str, value: object) -> str:
    kind = next((kind for pattern, kind in _KINDS if pattern.fullmatch(name)), None)
    if kind is not None and (value is None or _is_number(value)):
        return kind(value)
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return NOTHING if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _cell(name: str, value: object) -> str:
    return clean(" ".join(_text(name, value).splitlines()))


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _is_numeric(column: Sequence[object]) -> bool:
    return all(map(_is_number, column)) and any(value is not None for value in column)


def _parsed(column: Column) -> tuple[str, str, Callable[[Any], object]]:
    """The heading of a column, the name of its field, and the value of a row. Nothing is a field of None."""
    if not isinstance(column, str):
        return column[0], "", column[1]
    heading, _, path = column.rpartition("=")
    names = path.split(".")

    def get(row: Any) -> object:
        for name in names:
            row = getattr(row, name, None) if row is None else getattr(row, name)
        return row

    return heading or names[-1].replace("_", " "), names[-1], get


def _padded(text: str, width: int, is_right: bool = False) -> str:  # noqa: FBT001, FBT002 - a cell of a line
    blank = " " * (width - cell_len(text))
    return blank + text if is_right else text + blank


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
