"""The figures of README.md and of docs/cost.md, between two markers, made from the committed runs alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.contests import LAKE_TARGETS
from benchmarks.plots import number_text
from benchmarks.report import images, table_without_targets, verdict_table
from benchmarks.results import HERE, Results

README, COST_PAGE = "README.md", "docs/cost.md"
PLOTS = HERE.parent / "docs" / "plots"
"""The plots of the committed results. They lie beside the page, so that a code host and a site show them."""
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
THREE_FIGURES = {
    "whole path, PostgreSQL by COPY": "**{}** of the rows per second of `foreachBatch` with the same sink: PostgreSQL",
    "micro-batches of 1,000 rows, batch time against foreachBatch": (
        "**{}** times the batch time of `foreachBatch` with `df.write.parquet`: batches of 1,000 rows"
    ),
    "from commits/N to the sink, every 500 ms, ms": "**{} ms** from Spark's completion of a batch to its sink",
}
"""The figures of README: the name of a target, and the text that tells what was found."""


def write_figures(runs: Sequence[Results], checkout: Path) -> None:
    """Replace the figures between the markers of every document. The first run is the general one."""
    for document in DOCUMENTS:
        before, _, after = _parted((checkout / document).read_text())
        (checkout / document).write_text(before + figures(runs, document) + after)


def figures_in(text: str) -> str:
    """The text between the markers of a document."""
    return _parted(text)[1]


def figures(runs: Sequence[Results], document: str) -> str:
    """The text that must stand between the markers of a document."""
    return "\n" + "\n".join(DOCUMENTS[document](runs)) + "\n"


def committed_figures(document: str) -> str:
    """The figures for the results in this checkout; a single newline if there are none."""
    runs = Results.load_all(HERE)
    return figures(runs, document) if runs else "\n"


def _parted(text: str) -> tuple[str, str, str]:
    before, begin, rest = text.partition(BEGIN)
    between, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"expected the lines {BEGIN} and {END}, in this order")
    return before + begin, between, end + after


def _of_readme(runs: Sequence[Results]) -> Iterator[str]:
    results = runs[0]
    verdicts = [verdict for each in runs for verdict in each.verdicts()]
    found = {verdict.target.what: verdict.found for verdict in verdicts}
    for what, text in THREE_FIGURES.items():
        ratio = found[what]
        yield f"- not measured: {what}" if ratio is None else f"- {text.format(number_text(ratio.median))}"
    missed = sum(not verdict.holds for verdict in verdicts)
    goals = f"{missed} of {len(verdicts)} performance goals are"
    told = f"{goals} **not reached**" if missed else "every performance goal is reached"
    yield f"- {told}: [all numbers](docs/cost.md). Medians, {results.machine['cores']} cores, {results.date}."


def _of_cost_page(runs: Sequence[Results]) -> Iterator[str]:
    yield from _general(runs[0])
    for results in runs[1:]:
        yield from _of_lakes(results) if results.targets is LAKE_TARGETS else _on_object_stores(results)


def _on_object_stores(results: Results) -> Iterator[str]:
    yield "## A log on an object store"
    yield ""
    yield f"Measured by `{results.command}` on {results.date}: {_machine(results)}."
    yield ""
    yield from (f"- {note}" for note in results.notes)
    yield ""
    yield from verdict_table(results)
    yield ""
    yield from images(results, PLOTS.name)
    yield ""


def _of_lakes(results: Results) -> Iterator[str]:
    yield "## Tables of lakes"
    yield ""
    yield f"Measured by `{results.command}` on {results.date}: {_machine(results)}."
    yield "Bytes are those written to files, and all that was read, from files and between processes."
    yield ""
    yield from (f"- {note}" for note in results.notes)
    yield ""
    yield from verdict_table(results)
    yield ""
    yield "| what | wal-sink | rival |"
    yield "|---|---|---|"
    for key, title in results.titles.items():
        if measured := results.of_contest(key):
            unit = measured[0].unit
            yield f"| {title}, {unit} | {' | '.join(number_text(one.median) for one in measured)} |"
    yield ""


def _general(results: Results) -> Iterator[str]:
    folder = f"../{HERE.name}"
    yield ""
    yield f"Measured by `{results.command}` on {results.date}: {_machine(results)}."
    yield "Found is our own number divided by the rival's: the median of the rounds, with the least and the most; or"
    yield f"milliseconds, where the line says so. [Rivals and conditions]({folder}/README.md),"
    yield f"[all numbers]({folder}/RESULTS.md)."
    yield ""
    yield from (f"- {note}" for note in results.notes)
    yield ""
    yield "## Targets, reached and missed"
    yield ""
    yield from verdict_table(results)
    yield ""
    yield "## Contests without a target"
    yield ""
    yield "Rows per second against rows per second:"
    yield ""
    yield from table_without_targets(results)
    yield ""
    yield "## Every contest as a picture"
    yield ""
    yield from images(results, PLOTS.name)
    yield ""


DOCUMENTS: Mapping[str, Callable[[Sequence[Results]], Iterator[str]]] = {README: _of_readme, COST_PAGE: _of_cost_page}
"""The documents with figures, by their path from the top of the checkout."""


def _machine(results: Results) -> str:
    """The machine in one line: versions with their names, other facts without."""
    told = {"cores": "{} cores", "processor": "{}", "memory": "{}", "system": "{}"}
    return ", ".join(told.get(what, f"{what} {{}}").format(value) for what, value in results.machine.items())
