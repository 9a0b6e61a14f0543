"""The most that this checkout may weigh: `make check` fails above the figures of docs/budgets.toml.

    python -m tests.support.budgets            # fail if a figure is above its budget
    python -m tests.support.budgets --write    # write the budgets that this checkout needs

A figure may rise only in a change that raises its budget too, where a reviewer sees it. Budgets of lines are multiples
of 100, so that a repair of a few lines needs no new one.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.support.processes import CHECKOUT
from tests.support.weigh import Weight, weigh

BUDGETS = CHECKOUT / "docs" / "budgets.toml"
STEP = 100
"""Lines and words are rounded up to multiples of it."""
HEAD = """\
# The most that this checkout may weigh: `make weigh` counts, and `make check` fails above a figure of this file.
# A change that raises a figure says why. `python -m tests.support.budgets --write` writes the file.
"""

Figures = Mapping[str, Mapping[str, int]]


def figures_of(weight: Weight) -> Figures:
    """Return the figures that have a budget, by table and name."""
    trip = weight.trip
    return {
        "lines": {name: sources.lines for name, sources in weight.tops.items()},
        "lines-of-rooms": {name: sources.lines for name, sources in weight.rooms.items()},
        "documents": {"pages": weight.documents.pages, "words": weight.documents.words},
        "tests": {"ids": weight.ids.all, "quick-ids": weight.ids.quick},
        "store": {"kinds-of-objects": weight.kinds_of_objects, "classes-of-records": weight.classes_of_records},
        "command-line": {"verbs": weight.command_line.verbs, "options": weight.command_line.options},
        "one-batch": {
            "files-staging": len(trip.staging),
            "files-delivering": len(trip.delivering),
            "frames": trip.frames,
        },
    }


def excesses(found: Figures, budgets: Figures) -> Iterator[str]:
    """Yield what is wrong, in words: a figure above its budget, one without a budget, a budget without a figure."""
    named = {(table, name) for side in (found, budgets) for table, figures in side.items() for name in figures}
    for table, name in sorted(named):
        figure, budget = (side.get(table, {}).get(name) for side in (found, budgets))
        if budget is None:
            yield f"{table}, {name}: {figure:,}, and no budget"
        elif figure is None:
            yield f"{table}, {name}: a budget of {budget:,} for what is no longer there"
        elif figure > budget:
            yield f"{table}, {name}: {figure:,}, the budget is {budget:,}"


def text_of(found: Figures) -> str:
    """Return the file that has the budgets that these figures need."""
    tables = (
        "\n".join(
            [f"[{table}]", *(f'"{name}" = {_rounded(table, name, figure)}' for name, figure in figures.items()), ""]
        )
        for table, figures in found.items()
    )
    return "\n".join([HEAD, *tables])


def _rounded(table: str, name: str, figure: int) -> int:
    return -(-figure // STEP) * STEP if table.startswith("lines") or name == "words" else figure


def main(arguments: list[str] | None = None, budgets: Path = BUDGETS) -> int:
    """Compare this checkout with its budgets, or write them. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.budgets", description="Compare with the budgets.")
    parser.add_argument("--write", action="store_true", help="write the budgets that this checkout needs")
    given = parser.parse_args(arguments)
    found = figures_of(weigh(CHECKOUT))
    if given.write:
        budgets.write_text(text_of(found), encoding="utf-8")
        return 0
    faults = list(excesses(found, tomllib.loads(budgets.read_text(encoding="utf-8"))))
    for fault in faults:
        sys.stdout.write(f"{fault}\n")
    if faults:
        sys.stdout.write(f"above the budgets: delete something, or change {budgets.name} and say why\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
