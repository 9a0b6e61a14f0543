"""Durations on the command line: `10s`, `500ms`, `2m`, `1h`, `30d`, or a plain number of seconds."""

from __future__ import annotations

import re

import click

_DURATION = re.compile(r"(\d+(?:\.\d+)?) ?(ms|s|m|h|d|)")
_SECONDS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def duration(text: str) -> float:
    """The seconds in a text such as `10s`. Raises click's `BadParameter` for any other text and for 0."""
    match = _DURATION.fullmatch(str(text).strip().lower())
    if match is None or float(match[1]) == 0:
        raise click.BadParameter(f"{text!r}: expected a duration above 0 such as 10s, 500ms or 2m")
    return float(match[1]) * _SECONDS[match[2]]
