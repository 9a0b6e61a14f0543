"""Batch ids on the command line."""

from __future__ import annotations

from typing import Any

import click

MOST_BATCHES = 1_000_000


class BatchRange(click.ParamType[range]):
    """A batch id, or a range such as `12-20`."""

    name = "batch"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> range:
        if isinstance(value, range):
            return value
        first, dash, last = str(value).partition("-")
        if not (first.isascii() and first.isdigit() and (not dash or (last.isascii() and last.isdigit()))):
            self.fail(f"{value!r}: expected a batch id such as 12, or a range such as 12-20", param, ctx)
        found = range(int(first), int(last or first) + 1)
        if not 0 < len(found) <= MOST_BATCHES:
            self.fail(f"{value!r}: expected a range of 1 to {MOST_BATCHES:,} batches, the lower one first", param, ctx)
        return found
