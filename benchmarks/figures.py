"""The README's section of figures, made from `results.json` alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.report import PLOTS, table_without_targets, verdict_table
from benchmarks.results import HERE, RESULTS_JSON, Results

README = HERE.parent / "README.md"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


def write_figures(results: Results, readme: Path) -> None:
    """Replace the figures between the markers."""
    before, _, after = _parted(readme.read_text())
    readme.write_text(before + figures(results) + after)


def figures_in(text: str) -> str:
    """The text between the markers of a README."""
    return _parted(text)[1]


def figures(results: Results) -> str:
    """The text that must stand between the markers."""
    return "\n" + "\n".join(_lines(results)) + "\n"


def committed_figures() -> str:
    """The figures for the results in this checkout; a single newline if there are none."""
    path = HERE / RESULTS_JSON
    return figures(Results.load(path)) if path.exists() else "\n"


def _parted(text: str) -> tuple[str, str, str]:
    before, begin, rest = text.partition(BEGIN)
    between, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"expected the lines {BEGIN} and {END}, in this order")
    return before + begin, between, end + after


def _lines(results: Results) -> Iterator[str]:
    folder = HERE.name
    yield "## What it costs"
    yield ""
    yield f"Measured by `{results.command}` on {results.date}: {_machine(results)}."
    yield "Found is our own number divided by the rival's: the median of the rounds, with the least and the most; or"
    yield f"milliseconds, where the line says so. [Rivals and conditions]({folder}/README.md),"
    yield f"[all numbers]({folder}/RESULTS.md)."
    yield ""
    yield from verdict_table(results)
    yield ""
    yield "Contests without a target, rows per second against rows per second:"
    yield ""
    yield from table_without_targets(results)
    yield ""
    yield from (f"- {note}" for note in results.notes)
    yield ""
    yield "<details><summary>Every contest as a picture</summary>"
    yield ""
    for key, title in results.titles.items():
        if results.of_contest(key):
            yield f"![{title}]({folder}/{PLOTS}/{key}.svg)"
    yield ""
    yield "</details>"


def _machine(results: Results) -> str:
    """The machine in one line: versions with their names, other facts without."""
    told = {"cores": "{} cores", "processor": "{}", "memory": "{}", "system": "{}"}
    return ", ".join(told.get(what, f"{what} {{}}").format(value) for what, value in results.machine.items())
