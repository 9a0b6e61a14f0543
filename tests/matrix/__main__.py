"""`make matrix`: runs the cells that have not passed yet, and writes the report. Run as `python -m tests.matrix`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.matrix import results
from tests.matrix.cells import all_cells
from tests.matrix.report import write


def main(argv: Sequence[str] | None = None, *, place: Path = results.PLACE) -> int:
    """Run cells one after the other. Return 0 if every chosen cell passed, else 1."""
    cells = all_cells()
    names = [cell.name for cell in cells]
    parser = _parser(names)
    options = parser.parse_args(argv)
    if unknown := sorted(set(options.cells) - set(names)):
        parser.error(f"no cell is called {', '.join(unknown)}; there are {', '.join(names)}")
    place.mkdir(parents=True, exist_ok=True)
    known = results.read_results(place)
    wanted = [cell for cell in cells if cell.name in (options.cells or names)]
    sources = results.sources()
    for cell in wanted:
        earlier = known.get(cell.name)
        done = earlier is not None and (earlier.outcome, earlier.sources) == ("passed", sources)
        if options.only_report or (done and not options.cells):
            continue
        _say(f"{cell.name}: …")
        known[cell.name] = results.run(cell, place)
        results.keep(known[cell.name], place)
        write(cells, known, place)
        _say(results.summary([known[cell.name]]))
    out = write(cells, known, place)
    told = [known.get(cell.name) or results.Result(cell.name, "not run", "not yet") for cell in wanted]
    _say(f"\n{results.summary(told)}\nreport: {out}")
    return int(any(one.outcome != "passed" for one in told))


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - a command's output


def _parser(names: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tests.matrix", description=__doc__)
    told = f"run these, also if they passed: {', '.join(names)}"
    parser.add_argument("cells", nargs="*", metavar="CELL", help=told)
    parser.add_argument("--only-report", action="store_true", help="run nothing, only write the report")
    return parser


if __name__ == "__main__":
    sys.exit(main())
