"""Output of the verbs: JSON for machines, tables for people. Terminal and pipe get the same text, except colours."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from typing import Any

import click
import msgspec
from rich.console import Console

PIPE_WIDTH = 160
"""The width of a table, in columns, where the output is no terminal and `COLUMNS` is not set."""
NULL = "NULL"
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters except tab and newline, and characters that change the direction of writing. Rows, column names
and reasons may come from an attacker, and a terminal would obey these characters.
"""


def print_json(value: object) -> None:
    """Print one JSON document to stdout."""
    click.echo(msgspec.json.format(msgspec.json.encode(plain(value))).decode())


def plain(value: object) -> Any:
    """Turn dataclasses and records into dictionaries; other values stay as they are."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return msgspec.to_builtins(value) if isinstance(value, msgspec.Struct) else value


def console() -> Console:
    """A console on stdout that never cuts text in a pipe. rich reads `COLUMNS` itself."""
    return Console(file=sys.stdout, width=None if has_width() else PIPE_WIDTH, highlight=False)


def has_width() -> bool:
    """Whether lines on stdout must fit a width: on a terminal, or if `COLUMNS` says how wide the output is."""
    return sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()


def clean(value: object) -> str:
    """A value as text: numbers with commas, `-` for None, control characters escaped."""
    shown = "-" if value is None else f"{value:,}" if type(value) is int else str(value)
    return _OBEYED.sub(_escaped, shown)


def _escaped(found: re.Match[str]) -> str:
    return repr(found[0])[1:-1]


def cell(value: object, *, longest: int | None = None) -> str:
    """A value of a row as text: NULL, a text, or nested values as JSON with their field names.

    A text that could be mistaken for something else is quoted, such as "NULL" or an empty one.
    """
    shown = NULL if value is None else _as_text(value) if isinstance(value, str) else _as_json(value)
    return clean(shown if longest is None or len(shown) <= longest else shown[: longest - 1] + "…")


def _as_text(value: str) -> str:
    is_plain = value.isprintable() and value == value.strip() and value not in {"", NULL} and value[0] not in '"[{'
    return value if is_plain else _as_json(value)


def _as_json(value: object) -> str:
    """JSON for texts and nested values; anything else as Python shows it."""
    if isinstance(value, (str, list, dict)):
        return json.dumps(value, ensure_ascii=False, default=repr)
    return repr(value)


def size(count: int) -> str:
    """A number of bytes with a readable unit."""
    if count < 1024:
        return f"{count} B"
    amount = float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        amount /= 1024
        if amount < 1024:
            return f"{amount:.1f} {unit}"
    return f"{amount / 1024:.1f} PiB"


def batch_text(batch_id: int | None) -> str:
    """A batch id as text; -1 and None mean that there is none."""
    return "none" if batch_id is None or batch_id < 0 else str(batch_id)
