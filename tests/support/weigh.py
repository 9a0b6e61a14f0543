"""How much there is: to read, to test, to keep on a store, to type, and to walk through with one batch.

`make weigh` prints it on one screen, with `ARGS=--json` as JSON. The same checkout gives the same figures: nothing is
timed. All but the ids is counted within seconds.

- Lines of code hold a token of Python that is neither a comment nor a docstring. Blank lines hold none.
- A verb is a command without subcommands. The options of a verb are its own: not `--help`, and not those of `wal-sink`
  itself. So an option that two verbs share counts twice. Hidden ones do not count.
- Documents are the pages of `docs/` and of the top folder.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import io
import json
import re
import subprocess
import sys
import tempfile
import threading
import tokenize
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Self

import click
import pyarrow as pa

import wal_sink
from tests.house.cli import main as command_line
from tests.house.kit import served_sink
from tests.house.log import Record
from tests.house.operate import KINDS
from tests.house.protocol import Run
from tests.house.sinks import Chunk, as_sink
from tests.house.stores import StoreSpec, open_store
from tests.house.support import ThreadCall
from tests.support.documents import tracked_files
from tests.support.processes import CHECKOUT
from wal_sink.settings import Delivery, Settings
from wal_sink.testing import FakeQuery, simulated_runtime

TOPS = ("wal_sink", "backends", "tests", "examples", "benchmarks")
TOP_ROOM = "(top)"
"""The modules of `wal_sink` that lie in no room."""
SHORT_LINES = 70
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
PACKAGE = Path(wal_sink.__file__).parent
STEADY = 2
"""Batches before the one that is followed: the first writes what a WAL has once."""
_COLLECTED = re.compile(r"(?:(\d+)/)?(\d+) tests? collected")


@dataclass(frozen=True, slots=True)
class Sources:
    """The contents of some files of Python. An `__init__.py` is not counted among the files below 70 lines."""

    files: int
    lines: int
    code: int
    functions: int
    classes: int
    below_70_lines: int


@dataclass(frozen=True, slots=True)
class Documents:
    """The documents of a checkout."""

    pages: int
    words: int


@dataclass(frozen=True, slots=True)
class Ids:
    """The collected ids of tests. `quick` are those that `make test` runs."""

    all: int
    quick: int


@dataclass(frozen=True, slots=True)
class Verbs:
    """The commands that a user can type after `wal-sink`, and all their options."""

    verbs: int
    options: int


@dataclass(frozen=True, slots=True)
class Trip:
    """The files of `wal_sink` that one steady batch of a plain sink enters, without Spark, each in alphabetical order.

    The fake query stands for Spark, so what it asks the checkpoint's store is part of staging.
    """

    staging: tuple[str, ...]
    delivering: tuple[str, ...]
    """From `deliver_next` to the marker."""
    frames: int
    """Frames of `wal_sink` on the thread that delivers, while it waits for the user's function."""


@dataclass(frozen=True, slots=True)
class Weight:
    """Every figure of a checkout."""

    tops: dict[str, Sources]
    rooms: dict[str, Sources]
    documents: Documents
    ids: Ids
    kinds_of_objects: int
    classes_of_records: int
    command_line: Verbs
    trip: Trip

    def figures(self) -> dict[str, object]:
        """Return plain figures, for JSON."""
        entered = {"files_entered": {name: len(getattr(self.trip, name)) for name in ("staging", "delivering")}}
        return {**dataclasses.asdict(self), **entered}

    def screen(self) -> str:
        """Return the figures as text for people."""
        rooms = {f"  {room}": sources for room, sources in self.rooms.items()}
        head = [field.name.replace("_", " ") for field in dataclasses.fields(Sources)]
        rows = [("", head), *_rows(self.tops), *_rows(rooms)]
        line, trip = self.command_line, self.trip
        facts = {
            "documents": f"{self.documents.pages:,} pages, {self.documents.words:,} words",
            "ids of tests": f"{self.ids.all:,}, {self.ids.quick:,} of them quick",
            "on a store": f"{self.kinds_of_objects} kinds of objects, {self.classes_of_records} classes of records",
            "command line": f"{line.verbs} verbs, {line.options} options (its own of each verb, without --help)",
            "a steady batch": f"enters {len(trip.staging)} files while it is staged, {len(trip.delivering)} from "
            f"`deliver_next` to the marker; {trip.frames} frames above the user's function",
        }
        table = ["{:<16}{:>7}{:>9}{:>9}{:>11}{:>9}{:>16}".format(name, *cells) for name, cells in rows]
        return "\n".join([*table, *(f"{name:<16}{fact}" for name, fact in facts.items()), ""])


def _rows(counted: dict[str, Sources]) -> list[tuple[str, list[str]]]:
    return [(name, [f"{figure:,}" for figure in dataclasses.astuple(sources)]) for name, sources in counted.items()]


def sources_of(paths: Iterable[Path]) -> Sources:
    """Count the contents of files of Python."""
    counted = [dataclasses.astuple(_sources_of(path)) for path in paths]
    return Sources(*map(sum, zip(*counted, strict=True))) if counted else Sources(0, 0, 0, 0, 0, 0)


def _sources_of(path: Path) -> Sources:
    text = path.read_text(encoding="utf-8")
    nodes = list(ast.walk(ast.parse(text)))
    lines = text.count("\n")
    return Sources(
        files=1,
        lines=lines,
        code=len(set(_lines_of_tokens(text)) - set(_lines_of_docstrings(nodes))),
        functions=sum(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in nodes),
        classes=sum(isinstance(node, ast.ClassDef) for node in nodes),
        below_70_lines=lines < SHORT_LINES and path.name != "__init__.py",
    )


def _lines_of_tokens(text: str) -> Iterator[int]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            yield from range(token.start[0], token.end[0] + 1)


def _lines_of_docstrings(nodes: Iterable[ast.AST]) -> Iterator[int]:
    """Yield the lines of texts that stand alone: docstrings of modules, classes, functions and also of names."""
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)


def tops_of(checkout: Path) -> dict[str, Sources]:
    """Count the sources of each top folder."""
    return {top: sources_of(_python_in(checkout, top)) for top in TOPS}


def rooms_of(checkout: Path) -> dict[str, Sources]:
    """Count the sources of each room of the package. Folders within a room belong to it."""
    rooms: dict[str, list[Path]] = defaultdict(list)
    for path in _python_in(checkout, PACKAGE.name):
        parts = path.relative_to(checkout).parts
        rooms[parts[1] if len(parts) > 2 else TOP_ROOM].append(path)
    return {room: sources_of(paths) for room, paths in sorted(rooms.items())}


def documents_of(checkout: Path) -> Documents:
    """Count pages and words, also the words of tables and of blocks of code."""
    inside = ((path, path.relative_to(checkout)) for path in tracked_files(checkout) if path.suffix == ".md")
    pages = [path for path, place in inside if place.parts[0] == "docs" or len(place.parts) == 1]
    return Documents(len(pages), sum(len(page.read_text(encoding="utf-8").split()) for page in pages))


def records_of(checkout: Path) -> int:
    """Count the classes of the package that derive from `Record` itself."""
    return sum(
        isinstance(node, ast.ClassDef)
        and any(isinstance(base, ast.Name) and base.id == Record.__name__ for base in node.bases)
        for path in _python_in(checkout, PACKAGE.name)
        for node in ast.parse(path.read_text(encoding="utf-8")).body
    )


def _python_in(checkout: Path, top: str) -> list[Path]:
    files = tracked_files(checkout)
    return [path for path in files if path.suffix == ".py" and path.relative_to(checkout).parts[0] == top]


def ids_of(checkout: Path) -> Ids:
    """Let pytest collect the ids, in a separate process. Raises `RuntimeError` if a file cannot be collected."""
    command = (sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "not slow", "-p", "no:cacheprovider")
    collecting = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
    if collecting.returncode != 0:
        said = collecting.stdout[-4000:] + collecting.stderr
        raise RuntimeError(f"pytest could not collect the tests, exit code {collecting.returncode}:\n{said}")
    return ids_told(collecting.stdout)


def ids_told(output: str) -> Ids:
    """Read the last line of pytest: `quick/all tests collected`, or `all tests collected` if none is slow."""
    quick, everything = _COLLECTED.findall(output)[-1]
    return Ids(int(everything), int(quick or everything))


def verbs_of(command: click.Command) -> Verbs:
    """Count the verbs below a command and their options."""
    verbs = list(_verbs(command))
    options = sum(isinstance(each, click.Option) and not each.hidden for verb in verbs for each in verb.params)
    return Verbs(len(verbs), options)


def _verbs(command: click.Command) -> Iterator[click.Command]:
    if command.hidden:
        return
    if not isinstance(command, click.Group):
        yield command
        return
    for inner in command.commands.values():
        yield from _verbs(inner)


def trip_in(folder: Path) -> Trip:
    """Follow one steady batch of a plain sink. Its WAL and its checkpoint lie in an empty folder.

    The clock is simulated, so a slow machine changes no decision.
    """
    committing = threading.get_ident()
    frames: list[int] = []

    def take(_: Chunk) -> None:
        frames.append(sum(_entered(frame) is not None for frame in _stack(sys._current_frames()[committing])))

    checkpoint, store = (open_store(StoreSpec(str(folder / name))) for name in ("checkpoint", "wal"))
    runtime = dataclasses.replace(simulated_runtime(), new_timed_call=ThreadCall)
    with _Followed() as followed:
        run = Run(store, checkpoint, Settings(), runtime=runtime)
        run.open([served_sink("default", as_sink(take), Delivery(take), run.log)])
        run.become_stager()
        batches = FakeQuery(checkpoint, lambda *_: [pa.table({"id": [1, 2, 3]})]).batches(run, STEADY + 1)
        for _ in range(STEADY):
            next(batches)
            run.deliver_all()
        staging = followed.during(lambda: next(batches))
        delivering = followed.during(run.deliver_all)
    return Trip(staging, delivering, frames[-1])


class _Followed:
    """Notes each file of the package that a function enters, also on threads that begin meanwhile."""

    def __init__(self) -> None:
        self._entered: set[str] = set()

    def during(self, step: Callable[[], object]) -> tuple[str, ...]:
        self._entered.clear()
        step()
        return tuple(sorted(self._entered))

    def __enter__(self) -> Self:
        self._before = sys.getprofile(), threading.getprofile()
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        before, before_of_threads = self._before
        sys.setprofile(before)
        threading.setprofile(before_of_threads)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and (file := _entered(frame)) is not None and not file.startswith("testing/"):
            self._entered.add(file)


def _entered(frame: FrameType) -> str | None:
    """Return the file of a frame, as the package names it; None for a file of others."""
    file = frame.f_code.co_filename
    return file[len(_INSIDE) :] if file.startswith(_INSIDE) else None


_INSIDE = f"{PACKAGE}/"


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def weigh(checkout: Path) -> Weight:
    """Count everything. `checkout` is the one whose packages are imported."""
    with tempfile.TemporaryDirectory() as folder:
        trip = trip_in(Path(folder))
    return Weight(
        tops=tops_of(checkout),
        rooms=rooms_of(checkout),
        documents=documents_of(checkout),
        ids=ids_of(checkout),
        kinds_of_objects=len(KINDS),
        classes_of_records=records_of(checkout),
        command_line=verbs_of(command_line),
        trip=trip,
    )


def main() -> None:
    """Print the figures of this checkout."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.weigh", description="Weigh this checkout.")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    given = parser.parse_args()
    weight = weigh(CHECKOUT)
    sys.stdout.write(json.dumps(weight.figures(), indent=2) + "\n" if given.json else weight.screen())


if __name__ == "__main__":
    main()
