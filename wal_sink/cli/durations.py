"""Durations on the command line (`10s`, `500ms`, `2m`, `1h`, `30d`, or a number of seconds), and ages for people."""

from __future__ import annotations

import re

import click

_DURATION = re.compile(r"(\d+(?:\.\d+)?) ?(ms|s|m|h|d|)")
_SECONDS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_UNITS = (("d", 86_400.0), ("h", 3600.0), ("min", 60.0))
"""An age is told in the largest unit of which it has at least two."""


def duration(text: str) -> float:
    """The seconds in a text such as `10s`. Raises click's `BadParameter` for any other text and for 0."""
    match = _DURATION.fullmatch(str(text).strip().lower())
    if match is None or float(match[1]) == 0:
        raise click.BadParameter(f"{text!r}: expected a duration above 0 such as 10s, 500ms or 2m")
    return float(match[1]) * _SECONDS[match[2]]


def age_text(seconds: float | None) -> str:
    """An age for people: `4 s`, `12 min`, `3 h`. A negative one says that the clocks differ."""
    if seconds is None:
        return "unknown"
    if seconds < 0:
        return f"-{age_text(-seconds)} (clocks differ)"
    unit, length = next(((unit, length) for unit, length in _UNITS if seconds >= 2 * length), ("s", 1.0))
    return f"{seconds / length:.0f} {unit}" if unit != "s" or seconds >= 10 else f"{seconds:.1f} s"
