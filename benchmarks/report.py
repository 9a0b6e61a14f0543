"""RESULTS.md and its plots, made from `results.json` alone."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.breakdown import breakdown
from benchmarks.contests import WITHOUT_TARGET
from benchmarks.measure import NAME, Measured, Ratio, ratio
from benchmarks.plots import bar_chart, number_text
from benchmarks.results import Results, Verdict


def write_report(runs: Sequence[Results], folder: Path, plots: Path) -> None:
    """Write RESULTS.md about all runs into a folder, and one plot per contest into the folder `plots`."""
    plots.mkdir(parents=True, exist_ok=True)
    for results in runs:
        for key, title in results.titles.items():
            if measured := results.of_contest(key):
                (plots / f"{key}.svg").write_text(bar_chart(title, measured, ours=NAME))
    link = Path(os.path.relpath(plots, folder)).as_posix()
    (folder / "RESULTS.md").write_text("\n".join(_lines(runs, link)))


def images(results: Results, plots: str) -> Iterator[str]:
    """Yield one image per measured contest. `plots` is the link to their folder."""
    for key, title in results.titles.items():
        if results.of_contest(key):
            yield f"![{title}]({plots}/{key}.svg)"


def _lines(runs: Sequence[Results], plots: str) -> Iterator[str]:
    yield "# Results of `make bench`"
    yield ""
    yield "`make bench` writes this file from the numbers of its runs; do not edit it. [README.md](README.md) describes"
    yield "the measurements. A ratio is the median of the ratios of all rounds, with the least and the most in"
    yield "parentheses."
    for results in runs:
        yield from _run(results, plots)


def _run(results: Results, plots: str) -> Iterator[str]:
    yield ""
    yield f"## Measured by `{results.command}`"
    yield ""
    yield from (f"- {what}: {value}" for what, value in results.machine.items())
    yield f"- sizes: {results.sizes}"
    yield f"- date: {results.date}"
    yield from (f"- {note}" for note in results.notes)
    yield ""
    yield "### Targets"
    yield ""
    yield from verdict_table(results)
    if lines := list(breakdown(results)):
        yield from ("", "### Where the time of the table goes", "", *lines)
    for key, title in results.titles.items():
        if measured := results.of_contest(key):
            yield from _contest(f"![{title}]({plots}/{key}.svg)", title, measured)


def verdict_table(results: Results) -> Iterator[str]:
    """Yield the table of all targets, with what was measured."""
    yield "| what | wanted | found | reached | Spark alone |"
    yield "|---|---|---|---|---|"
    verdicts = results.verdicts()
    yield from map(_verdict, verdicts)
    if any(verdict.floor for verdict in verdicts):
        yield ""
        yield "*Spark alone* is the same Spark without any log. It moves the rows to Python and drops them (staging),"
        yield "or its `foreachBatch` calls the same sink (the whole path). No log on Spark can do better."


def table_without_targets(results: Results) -> Iterator[str]:
    """Yield the table of the contests without a target."""
    yield "| what | rival | found |"
    yield "|---|---|---|"
    for key, title in results.titles.items():
        if key in WITHOUT_TARGET:
            measured = results.of_contest(key)
            for rival in measured[1:]:
                yield f"| {title} | {rival.name} | {_spread(ratio(measured[0].values, rival.values))} |"


def _verdict(verdict: Verdict) -> str:
    target, found = verdict.target, verdict.found
    sign = "≥" if verdict.unit.more_is_better else "≤"
    wanted = f"| {target.what} | {sign} {target.bound:g} |"
    if found is None:
        return f"{wanted} not measured | | |"
    floor = number_text(verdict.floor.median) if verdict.floor else ""
    return f"{wanted} {_spread(found)} | {'yes' if verdict.holds else '**no**'} | {floor} |"


def _spread(found: Ratio) -> str:
    return f"{number_text(found.median)} ({number_text(found.least)} to {number_text(found.most)})"


def _contest(image: str, title: str, measured: list[Measured]) -> Iterator[str]:
    unit, first = measured[0].unit, measured[0]
    yield ""
    yield f"### {title}"
    yield ""
    yield image
    yield ""
    yield f"| who | median, {unit} | least | most | rounds | {first.name} to it |"
    yield "|---|---|---|---|---|---|"
    for one in measured:
        numbers = " | ".join(number_text(value) for value in (one.median, min(one.values), max(one.values)))
        against = "" if one is first else f"{ratio(first.values, one.values).median:.2f}"
        yield f"| {one.name} | {numbers} | {len(one.values)} | {against} |"
