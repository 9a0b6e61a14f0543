"""Deaths of processes that write by `TwoPhaseFilesSink` to a local disk: at every system call, and at any moment."""

from __future__ import annotations

import gc
import json
import os
import random
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.house.kit import Crash, Held, chunks_of, commit, opened, prepare, three_batches
from tests.support.forked import ForkedChild
from tests.support.programs.two_phase_lives import BATCH_ROWS, completed, live, live_on_disk, place_of
from wal_sink import HandleGoneError
from wal_sink.sinks import Transaction
from wal_sink.testing import crash_matrix
from wal_sink_backends import TwoPhaseFilesSink
from wal_sink_backends.files import local as files_local
from wal_sink_backends.files.local import HELD_FOLDER

TABLE = three_batches()[0]
CHUNKS = chunks_of(TABLE)


@pytest.fixture(params=["renamed", "linked"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "linked":
        monkeypatch.setattr(files_local, "_renameat2", None)
    return str(request.param)


def make_sink(folder: Path) -> TwoPhaseFilesSink:
    return TwoPhaseFilesSink(str(folder), name_template="{batch_id}/{partition}-{file_index}.{ext}")


def prepared(folder: Path) -> Held:
    sink = make_sink(folder)
    with opened(sink, CHUNKS[0]):
        return prepare(sink, CHUNKS)


def committed(folder: Path, held: Held) -> None:
    sink = make_sink(folder)
    with opened(sink, CHUNKS[0]):
        commit(sink, held)


def aborted(folder: Path, held: Held) -> None:
    sink = make_sink(folder)
    with opened(sink, CHUNKS[0]):
        sink.abort(held.transaction, held.token)


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and HELD_FOLDER not in path.parts]


def rows_in(folder: Path) -> list[Any]:
    return [json.loads(line) for path in files(folder) for line in path.read_text().splitlines()]


def held_files(folder: Path) -> list[Path]:
    return list((folder / HELD_FOLDER).glob("*"))


@contextmanager
def dying_at(number: int) -> Iterator[None]:
    """The process dies just before or after a system call that changes something: its n-th such half-step."""
    passed = 0

    def step() -> None:
        nonlocal passed
        passed += 1
        if passed == number:
            raise Crash(f"half-step {number}")

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            step()
            returned = function(*args, **more)
            step()
            return returned

        return call

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((os, "fsync"), (os, "link"), (Path, "unlink"), (Path, "mkdir"), (Path, "open")):
            patch.setattr(owner, name, watched(getattr(owner, name)))
        if files_local._renameat2 is not None:
            patch.setattr(files_local, "_renameat2", watched(files_local._renameat2))
        yield


def deaths_in_commit(root: Path) -> Iterator[tuple[Path, Held]]:
    """Folders in which a process died at every half-step of committing what is held there."""
    handles: dict[Path, Held] = {}

    def ready(folder: Path) -> None:
        handles[folder] = prepared(folder)

    for folder in deaths(lambda folder: committed(folder, handles[folder]), root, ready):
        yield folder, handles[folder]


def deaths(act: Callable[[Path], object], root: Path, ready: Callable[[Path], None] = lambda _: None) -> Iterator[Path]:
    """Folders, made `ready`, in which a process died at every half-step of `act`."""
    for number in range(1, 100):
        folder = root / str(number)
        ready(folder)
        try:
            with dying_at(number):
                act(folder)
        except Crash as crash:
            _bury(crash)
            yield folder
        else:
            assert number > 4, "it has so few steps that none can have been watched"
            return
    raise AssertionError("it does not end")


def _bury(crash: Crash) -> None:
    """The system closes what a dead process had open."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        traceback.clear_frames(crash.__traceback__)
        crash.__traceback__ = None
        gc.collect()


def test_a_death_at_any_step_of_commit(tmp_path: Path, way: str) -> None:
    seen = set()
    for folder, held in deaths_in_commit(tmp_path):
        seen.add(bool(files(folder)))
        assert rows_in(folder) in ([], TABLE.to_pylist()), way
        for _ in range(2):
            committed(folder, held)
            assert rows_in(folder) == TABLE.to_pylist(), way
            assert not held_files(folder)
        aborted(folder, held)
        assert rows_in(folder) == TABLE.to_pylist()
    assert seen == {False, True}


def test_what_a_reader_took_away_after_a_death_in_commit_never_shows_again(tmp_path: Path) -> None:
    """A renamed file is held no more the moment it shows; a hard link leaves a moment in which it is both."""
    assert files_local._renameat2 is not None, "this system cannot rename without replacing"
    taken = 0
    for folder, held in deaths_in_commit(tmp_path):
        for file in files(folder):
            file.unlink()
            taken += 1
            with pytest.raises(HandleGoneError):
                committed(folder, held)
            assert not files(folder)
    assert taken


def test_a_death_at_any_step_before_it_is_prepared_shows_nothing(tmp_path: Path) -> None:
    for folder in deaths(prepared, tmp_path):
        assert not files(folder)
        left = held_files(folder)
        assert len(left) <= 1
        committed(folder, prepared(folder))
        assert rows_in(folder) == TABLE.to_pylist()
        for file in left:
            aborted(folder, Held(Transaction(file.name.removeprefix("."), "wal", "default", 0, 0, 0), "", ""))
        assert not held_files(folder)


def test_every_pair_of_deaths_shows_every_row_once(tmp_path: Path) -> None:
    numbers = iter(range(10**6))

    def new_target() -> Path:
        return tmp_path / str(next(numbers))

    matrix = crash_matrix(
        make_sink, rows_in, new_target, disturb=("dies",), each_line=False, every=17, double=True
    ).check()
    assert matrix.crashes > 20


def test_what_a_death_leaves_in_the_folder_is_removed_by_a_later_start(tmp_path: Path) -> None:
    undisturbed = live(place_of(lambda: make_sink(tmp_path / "undisturbed")))
    for number in range(1, len(undisturbed) + 1, 5):
        folder = tmp_path / str(number)
        place = place_of(lambda folder=folder: make_sink(folder))  # type: ignore[misc]
        live(place, dies_at=number)
        live(place)
        live(place)  # a start removes what is left of batches that were delivered before it
        assert not held_files(folder), undisturbed[number - 1]
        rows = sorted(row["id"] for row in rows_in(folder))
        assert rows == list(range(15)), undisturbed[number - 1]


@pytest.mark.processes
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
