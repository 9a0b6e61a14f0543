"""Processes that hold and commit files are killed."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

from tests.support.forked import ForkedChild
from tests.support.programs.two_phase_lives import BATCH_ROWS, completed, live_on_disk
from wal_sink_backends.files.local import HELD_FOLDER


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and HELD_FOLDER not in path.parts]


def rows_in(folder: Path) -> list[Any]:
    return [json.loads(line) for path in files(folder) for line in path.read_text().splitlines()]


def held_files(folder: Path) -> list[Path]:
    return list((folder / HELD_FOLDER).glob("*"))


def test_kills_at_any_moment_lose_and_repeat_nothing(tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    moments = random.Random(seed)
    counts = [0]
    for life in range(8):
        with _started(tmp_path, life + 1, 10**3) as process:
            process.wait_for_output("ready")
            process.wait_until(lambda: completed(tmp_path) > counts[-1], "a batch was completed")
            time.sleep(moments.uniform(0.0, 0.3))
            process.kill()
        counts.append(completed(tmp_path))
        _check(tmp_path, f"seed {seed}, life {life}", whole=False)
    for life in (100, 101):
        with _started(tmp_path, life, counts[-1] + 2) as process:
            process.succeed()
    assert completed(tmp_path) == counts[-1] + 2
    _check(tmp_path, f"seed {seed}, at last", whole=True)
    assert not held_files(tmp_path / "out"), f"seed {seed}"


def _started(root: Path, life: int, batches: int) -> ForkedChild:
    return ForkedChild(live_on_disk, root, life, batches, log=root / f"{life}.log")


def _check(root: Path, story: str, *, whole: bool) -> None:
    """Rows of completed batches only, each once; of the last one or two perhaps not yet, unless `whole`."""
    rows = [row["id"] for row in rows_in(root / "out")]
    assert len(set(rows)) == len(rows), story
    assert set(rows) <= set(range(completed(root) * BATCH_ROWS)), story
    assert len(rows) >= (completed(root) - (0 if whole else 2)) * BATCH_ROWS, story
