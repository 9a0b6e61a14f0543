"""Checkpoints that every allowed Spark wrote: `tests/golden/checkpoints/<version>/<kind>.json`, one file each.

`python -m tests.support.golden.checkpoints` writes them again. It runs `checkpoint_writer.py` on each version.
Fixed values replace folders, ids and times of planning, so that a second run writes the same.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.house.stores import MemoryStore, StoreSpec
from tests.support.processes import CHECKOUT
from tests.support.spark_versions import VERSIONS, run_on

GOLDEN = CHECKOUT / "tests" / "golden" / "checkpoints"
WRITER = CHECKOUT / "tests" / "support" / "golden" / "checkpoint_writer.py"
LIMIT_S = 400.0

_LOGS = ("offsets", "commits", "sources")
_FIRST_PLAN_MS = 1_767_225_600_000
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_PLANNED = re.compile(r'(?<="batchTimestampMs":)\d+')
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Golden:
    """One checkpoint, and the rows that its query read."""

    version: str
    kind: str
    files: dict[str, str]
    """The text of each file, by path in the checkpoint."""
    read: dict[int, list[str]]
    """By batch: the names of files and the values of a rate source, sorted. A batch that no query ran is missing."""

    @property
    def batches(self) -> list[int]:
        """The batches of which the checkpoint still has offsets."""
        return sorted(int(path.partition("/")[2]) for path in self.files if path.startswith("offsets/"))

    def store(self) -> MemoryStore:
        store = MemoryStore(StoreSpec(f"memory://golden-{next(_numbers)}"))
        for path, text in self.files.items():
            store.create(path, text.encode())
        return store


def goldens(*kinds: str, version: str = "") -> list[Golden]:
    """Return all checkpoints of the tests, of these kinds or of all kinds."""
    found = sorted(GOLDEN.glob(f"{version or '*'}/*.json"))
    return [_load(path) for path in found if not kinds or path.stem in kinds]


def name_of(golden: object) -> str:
    """Return the name for the ids of tests."""
    return f"{golden.version}-{golden.kind}" if isinstance(golden, Golden) else str(golden)


def written_by(version: str, folder: Path, *wanted: str) -> list[Golden]:
    """Let this Spark write checkpoints now, of these kinds or of all kinds. `folder` has to be empty."""
    run_on(version, WRITER, folder, *wanted, log=folder.with_suffix(".log"), limit_s=LIMIT_S)
    return as_written(version, folder)


def as_written(version: str, folder: Path) -> list[Golden]:
    """Return what the writer left in a folder."""
    kinds = sorted(path.parent for path in folder.glob("*/read.json"))
    return [_normalised(version, kind, folder) for kind in kinds]


def save(golden: Golden) -> None:
    path = GOLDEN / golden.version / f"{golden.kind}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    files = {name: text.split("\n") for name, text in golden.files.items()}
    path.write_text(json.dumps({"read": golden.read, "files": files}, indent=1) + "\n")


def _load(path: Path) -> Golden:
    found = json.loads(path.read_text())
    files = {name: "\n".join(lines) for name, lines in found["files"].items()}
    return Golden(path.parent.name, path.stem, files, {int(batch): rows for batch, rows in found["read"].items()})


def _normalised(version: str, kind: Path, folder: Path) -> Golden:
    checkpoint = kind / "checkpoint"
    written = [path for log in _LOGS for path in sorted(checkpoint.glob(f"{log}/**/*")) if _is_entry(path)]
    names = [path.relative_to(checkpoint).as_posix() for path in [checkpoint / "metadata", *written]]
    ids, plans = _renamed(_id_of), _renamed(lambda number: str(_FIRST_PLAN_MS + 1000 * number))
    files = {}
    for name in sorted(names, key=_in_order):
        text = (checkpoint / name).read_text().replace(folder.as_posix(), "/data")
        files[name] = _PLANNED.sub(plans, _UUID.sub(ids, text))
    read = json.loads((kind / "read.json").read_text())
    return Golden(version, kind.name, files, {int(batch): rows for batch, rows in read.items()})


def _is_entry(path: Path) -> bool:
    return path.is_file() and not path.name.startswith(".")


def _in_order(name: str) -> list[tuple[int, str]]:
    """Return the sort key of a file: the metadata first, because its id is renamed first; numbers by value."""
    if name == "metadata":
        return []
    return [(int(part) if part.isdigit() else 0, part) for part in re.split(r"[/.]", name)]


def _renamed(new: Callable[[int], str]) -> Callable[[re.Match[str]], str]:
    """Return a replacement for matches: equal for equal ones, numbered in the order of their first appearance."""
    known: dict[str, str] = {}
    return lambda match: known.setdefault(match[0], new(len(known)))


def _id_of(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012d}"


def main(versions: list[str]) -> None:
    for version in versions:
        shutil.rmtree(GOLDEN / version, ignore_errors=True)
        with tempfile.TemporaryDirectory() as folder:
            empty = Path(folder) / "written"
            empty.mkdir()
            for golden in written_by(version, empty):
                save(golden)
                sys.stdout.write(f"{version} {golden.kind}\n")


if __name__ == "__main__":
    main(sys.argv[1:] or list(VERSIONS))
