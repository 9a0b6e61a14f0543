"""Durations on the command line: `10s`, `500ms`, `2m`, `1h`, or a number of seconds."""

from __future__ import annotations

import re
from typing import Any

import click

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|)")
_SECONDS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0}


class Duration(click.ParamType):
    """Seconds, as a float above 0."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The seconds in a text such as `10s`."""
        match = _DURATION.fullmatch(str(value).strip().lower())
        if match is None or float(match[1]) == 0:
            self.fail(f"{value!r}: expected a duration such as 10s, 500ms or 2m", param, ctx)
        return float(match[1]) * _SECONDS[match[2]]
