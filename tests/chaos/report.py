"""The report of `make chaos`: one row per scenario, then details. It names no host, user or path of the machine."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import msgspec

from tests.chaos.scenario import Scenario
from tests.support.processes import CHECKOUT
from wal_sink import ConfigError
from wal_sink.spark import check_java

GIB = 1 << 30
WHAT = """\
`make chaos` kills, races and damages wal-sink. The results are counted afterwards against the source: in each target
by that target's own client, or on the store. wal-sink's own counters are not used. `repeated` is the number of rows (or
objects) that a target has more than once. `permitted` is the number that the guarantees of the targets allow for these
faults. `code` is the commit that ran. A run of hours may consist of several parts (`--resume`). Each scenario ran
completely in one part."""
TESTED = ("wal_sink", "backends", "tests/chaos", "tests/simulation")
PACKAGES = ("pyspark", "pyarrow", "fsspec", "s3fs")
_PATH = re.compile(r"(?<![\w.*`])(?:file://)?/(?:[\w.+-]+/)+[\w.+-]*")


class Row(msgspec.Struct, frozen=True):
    """The result of one scenario."""

    name: str
    share: float
    seed: int
    rounds: int
    lost: int
    repeated: int
    allowed: int
    seconds: float
    holds: bool
    violations: list[str]
    detail: str
    date: str = ""
    """The date on which it began, in UTC."""
    code: str = ""
    """The commit that ran. A `+` says that the code differed from it."""


@dataclass(frozen=True)
class Report:
    """The results so far. `scenarios` are all scenarios of the command, whether they have run or not."""

    scenarios: Sequence[Scenario]
    command: str
    seed: int
    share: float
    rows: dict[str, Row] = field(default_factory=dict)

    @property
    def failed(self) -> list[Row]:
        return [row for row in self.rows.values() if not row.holds]

    @property
    def missing(self) -> list[str]:
        return [scenario.name for scenario in self.scenarios if scenario.name not in self.rows]

    def resume(self, earlier: Iterable[Row]) -> None:
        """Keep the rows of an earlier run of the same seed and share that hold."""
        names = {scenario.name for scenario in self.scenarios}
        for row in earlier:
            if row.holds and row.name in names and (row.seed, row.share) == (self.seed, self.share):
                self.rows[row.name] = row

    def text(self) -> str:
        """Return the whole report in Markdown."""
        parts = [self._head(), self._table(), *(self._details(scenario) for scenario in self.scenarios)]
        return without_paths("\n\n".join(part for part in parts if part)) + "\n"

    def write(self, path: Path) -> None:
        """Replace the report atomically, so that an interrupted run keeps its results."""
        path.parent.mkdir(parents=True, exist_ok=True)
        hidden = path.with_name(f".{path.name}")
        hidden.write_text(self.text())
        hidden.replace(path)

    def _head(self) -> str:
        what = [
            "# Chaos",
            WHAT,
            "\n".join(
                [
                    f"- Date: {self._dates()}",
                    f"- Command: `{self.command}`",
                    f"- Seed: {self.seed}; share of the whole: {self.share:g}",
                    *(f"- {name}: {value}" for name, value in machine().items()),
                    f"- Scenarios: {len(self.rows)} of {len(self.scenarios)} run, {len(self.failed)} failed",
                ]
            ),
        ]
        if self.missing:
            what.append(f"**Not run:** {', '.join(self.missing)}.")
        again = "python -m tests.chaos --only"
        what += [
            f"**Failed:** {row.name}; try again with `{again} '{row.name}' --seed {row.seed} --share {row.share:g}`."
            for row in self.failed
        ]
        return "\n\n".join(what)

    def _dates(self) -> str:
        dates = sorted({row.date for row in self.rows.values() if row.date})
        return " to ".join(dict.fromkeys([dates[0], dates[-1]])) if dates else "none"

    def _table(self) -> str:
        lines = [
            "| scenario | rounds | unit | lost | repeated | permitted | seconds | holds | code |",
            "|---|---:|---|---:|---:|---:|---:|---|---|",
        ]
        for scenario in self.scenarios:
            row = self.rows.get(scenario.name)
            if row is None:
                lines.append(f"| {scenario.name} | not run | | | | | | | |")
                continue
            counts = f"{row.lost:,} | {row.repeated:,} | {row.allowed:,} | {row.seconds:,.0f}"
            holds = "yes" if row.holds else "**no**"
            lines.append(f"| {scenario.name} | {row.rounds:,} | {scenario.unit} | {counts} | {holds} | {row.code} |")
        return "\n".join(lines)

    def _details(self, scenario: Scenario) -> str:
        row = self.rows.get(scenario.name)
        if row is None:
            return ""
        parts = [f"## {scenario.name}", f"{scenario.law[:1].upper()}{scenario.law[1:]}."]
        if row.violations:
            parts.append("\n".join(f"- **violated:** {_one_line(violation)}" for violation in row.violations))
        return "\n\n".join([*parts, row.detail] if row.detail else parts)


def machine() -> Mapping[str, str]:
    """Describe the machine and the versions, but nothing that identifies the machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return {
        "Machine": f"{os.cpu_count()} cores, {memory:.0f} GiB of memory, {platform.system()}",
        "Versions": f"Python {platform.python_version()}, {versions}, Java {_java()}",
    }


def code_version() -> str:
    """Return the commit of this checkout, with a `+` if the tested code differs. Empty outside of a repository."""
    commit = _git("rev-parse", "--short", "HEAD")
    return commit and commit + ("+" if _git("status", "--porcelain", "--", *TESTED) else "")


def _git(*arguments: str) -> str:
    try:
        command = ["git", *arguments]
        ran = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return ran.stdout.strip() if ran.returncode == 0 else ""


def save_rows(rows: Iterable[Row], path: Path) -> None:
    """Write the rows to a file for `--resume`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(list(rows))))


def read_rows(path: Path) -> list[Row]:
    """Read the rows that `save_rows` wrote. Empty if there is no such file."""
    return msgspec.json.decode(path.read_bytes(), type=list[Row]) if path.exists() else []


def _java() -> str:
    try:
        return check_java().version_text
    except ConfigError:
        return "absent"


def _one_line(text: str) -> str:
    return " ".join(text.split())[:500]


def without_paths(text: str) -> str:
    """Mask paths: a violation may quote an error, and an error may name its object by a path of this machine."""
    return _PATH.sub("…", text)
