"""The report of the mutation tests: benchmarks/MUTATION.md, made from benchmarks/MUTATION.json.

The fates of the mutants stay on the machine that tried them. So MUTATION.json keeps the result of each file, with a
digest of the file's text. A run on another machine carries over the result of a file that did not change, as long as it
has tried none of the file's mutants.
"""

from __future__ import annotations

import fnmatch
import json
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

HERE = Path(__file__).parent
RESULTS = HERE.parent / "MUTATION.json"
PAGE = HERE.parent / "MUTATION.md"

_COLUMNS = "| file | mutants | killed | timed out | survived | not tried | score | tried on |"


class Tried(Protocol):
    """The parts of a mutant that a result needs."""

    @property
    def function(self) -> str: ...
    @property
    def change(self) -> str: ...
    @property
    def key(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Survivor:
    """A mutant on which no test failed."""

    function: str
    change: str
    """The removed and the added lines."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one file."""

    file: str
    text: str
    """A digest of the file's text."""
    date: str
    """The day of the report that was the first to have this result."""
    mutants: int
    killed: int
    timed_out: int
    survivors: tuple[Survivor, ...]
    carried_over: bool = False
    """Whether it was found on another machine: this one has tried no mutant of the file."""

    @property
    def tried(self) -> int:
        return self.killed + self.timed_out + len(self.survivors)


def result_of(file: str, text: str, mutants: Sequence[Tried], fates: Mapping[str, str], *, date: str) -> Result:
    """The result of a file whose mutants met these fates, by their keys."""
    found = Counter(fates.get(mutant.key, "not tried") for mutant in mutants)
    alive = [mutant for mutant in mutants if fates.get(mutant.key) in {"survived", "not reached"}]
    survivors = tuple(Survivor(mutant.function, mutant.change) for mutant in alive)
    return Result(file, text, date, len(mutants), found["killed"], found["timed out"], survivors)


def with_earlier(found: Result, earlier: Result | None) -> Result:
    """The result to report: the one that was found, or the one of an earlier report if nothing of the same text was
    tried. The same result keeps its day.
    """
    if earlier is None or (earlier.text, earlier.mutants) != (found.text, found.mutants):
        return found
    if not found.tried and earlier.tried:
        return replace(earlier, carried_over=True)
    same = replace(found, date=earlier.date)
    return same if same == replace(earlier, carried_over=False) else found


def read_results(path: Path = RESULTS) -> dict[str, Result]:
    """The results of the last report, by file."""
    if not path.exists():
        return {}
    found = (
        Result(**{**each, "survivors": tuple(Survivor(**one) for one in each["survivors"])})
        for each in json.loads(path.read_text())
    )
    return {result.file: result for result in found}


def write(results: Sequence[Result], *, path: Path = RESULTS, page: Path = PAGE) -> None:
    """Write the results, and the page that shows them."""
    path.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    page.write_text(shown(results, tomllib.loads((HERE / "survivors.toml").read_text()).get("survivor", [])))


def shown(results: Sequence[Result], reasons: Sequence[Mapping[str, str]]) -> str:
    """The page: the table of all files, and the survivors with their reasons."""
    lines = [(HERE / "HEAD.md").read_text(), _COLUMNS, "|---|--:|--:|--:|--:|--:|--:|---|"]
    lines += [_row(result.file, [result], _day(result)) for result in results]
    lines += [_row("**all**", results, ""), "", "## Survivors", ""]
    survivors = [_survivor(each, reasons) for result in results for each in result.survivors]
    return "\n".join([*lines, *(survivors or ["None."])]) + "\n"


def _row(name: str, results: Iterable[Result], day: str) -> str:
    counts = [(each.mutants, each.killed, each.timed_out, len(each.survivors), each.tried) for each in results]
    mutants, killed, timed_out, alive, tried = (sum(column) for column in zip(*counts, strict=True))
    score = f"{100 * (killed + timed_out) / tried:.1f} %" if tried else "none"
    return f"| {name} | {mutants} | {killed} | {timed_out} | {alive} | {mutants - tried} | {score} | {day} |"


def _day(result: Result) -> str:
    if not result.tried:
        return ""
    return f"{result.date}, carried over" if result.carried_over else result.date


def _survivor(survivor: Survivor, reasons: Sequence[Mapping[str, str]]) -> str:
    fitting = (known["why"] for known in reasons if _fits(survivor, known))
    change = "\n".join(f"      {line}" for line in survivor.change.splitlines())
    return f"- `{survivor.function}`: {next(fitting, 'no reason given yet')}\n\n{change}\n"


def _fits(survivor: Survivor, known: Mapping[str, str]) -> bool:
    return fnmatch.fnmatch(survivor.function, known["in"]) and known.get("change", "").strip() in survivor.change
