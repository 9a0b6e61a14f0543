"""The report of `make matrix`: a row per cell, then what was left out, skipped and failed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.chaos.report import machine, without_paths
from tests.matrix.cells import MEASURED, STORES, TESTS, Cell
from tests.matrix.results import Result
from tests.support.processes import CHECKOUT

OUT = CHECKOUT / "benchmarks" / "MATRIX.md"
NAME = "MATRIX.md"
COLUMNS = ("cell", "Spark", "Python", *MEASURED, "outcome", "passed", "failed", "skipped", "minutes", "date", "code")
WHAT = """\
`make matrix` runs the same tests of a real Spark in one environment after the other: on the newest patch of each
allowed Spark and on the first 4.0, on each allowed Python, and with the oldest and the newest allowed packages. Each
environment holds the PySpark of its cell alone. `code` is the commit that ran. A run may consist of several parts: what
passed on the same sources is not run again."""


def text(cells: Sequence[Cell], results: Mapping[str, Result]) -> str:
    """Return the whole report in Markdown."""
    parts = ["# Versions", WHAT, _machine(), _what_runs(), _table(cells, results), *_details(cells, results)]
    return without_paths("\n\n".join(parts)) + "\n"


def write(cells: Sequence[Cell], results: Mapping[str, Result], partial: Path) -> Path:
    """Write the report: over the committed one if every cell has a result, else below `partial`. Return its path."""
    whole = all(cell.name in results and results[cell.name].outcome != "not run" for cell in cells)
    out = OUT if whole else partial / NAME
    hidden = out.with_name(f".{out.name}")
    hidden.write_text(text(cells, results))
    hidden.replace(out)
    return out


def _machine() -> str:
    told = machine()
    java = told["Versions"].rpartition(", ")[2]
    return f"- Machine: {told['Machine']}\n- {java}"


def _what_runs() -> str:
    lines = [f"- `{file}`: {what}" for file, what in TESTS.items()]
    lines.append(f"- `{STORES}`, with the oldest and the newest packages: every store")
    return "Every cell runs:\n\n" + "\n".join(lines)


def _table(cells: Sequence[Cell], results: Mapping[str, Result]) -> str:
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for cell in cells:
        found = results.get(cell.name, Result(cell.name, "not run"))
        versions = [found.versions.get(name, "") for name in MEASURED]
        python = found.versions.get("python", cell.python)
        outcome = found.outcome if found.outcome == "passed" else f"**{found.outcome}**"
        counts = [str(found.passed), str(found.failed), str(found.skipped), f"{found.minutes:g}"]
        row = [cell.name, cell.spark, python, *versions, outcome, *counts, found.date, found.code]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def _details(cells: Sequence[Cell], results: Mapping[str, Result]) -> Iterator[str]:
    left_out = [f"- {cell.name}: `{test}`. {why}." for cell in cells for test, why in cell.left_out.items()]
    if left_out:
        yield "## Left out\n\n" + "\n".join(left_out)
    known = [results[cell.name] for cell in cells if cell.name in results]
    skipped = [f"- {one.cell}: {count} ({reason})" for one in known for reason, count in sorted(one.skips.items())]
    if skipped:
        yield "## Skipped by the tests themselves\n\n" + "\n".join(skipped)
    wrong = [f"- {one.cell}: {' '.join(line.split())}" for one in known for line in [one.why, *one.failures] if line]
    if wrong:
        yield "## Not passed\n\n" + "\n".join(wrong)
