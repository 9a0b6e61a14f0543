"""Every verb of the command line: for people and for machines, and where it must fail.

`tests/support/verbs.py` has the table. A verb without a row there fails here.
"""

from __future__ import annotations

import json
import shutil
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

import wal_sink.support.calls
import wal_sink.walsink
from tests.house.log import terms
from tests.house.stores import LocalStore
from tests.house.support import process_identity
from tests.support.verbs import ROWS, Place, verbs
from wal_sink.errors import StoreError

EACH = [pytest.param(name, id=name.replace(" ", "-")) for name in ROWS]
WITH_WAL = [pytest.param(name, id=name.replace(" ", "-")) for name, row in ROWS.items() if row.needs_wal]
NARROW = 40
TABLE = 80
"""Columns of the narrowest tables, which a terminal of 40 columns shows on two lines."""


@pytest.fixture(autouse=True)
def _no_spark_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command is a separate process. Here it would find the session that another test made."""
    monkeypatch.setattr(wal_sink.walsink, "current_session", lambda: None)


def importable(folder: Path) -> Iterator[None]:
    """Make the sinks' module of a place importable while a test runs."""
    sys.path.insert(0, str(folder))
    sys.modules.pop("verbs_sinks", None)
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("verbs_sinks", None)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a local WAL. Tests copy it."""
    folder = tmp_path_factory.mktemp("made")
    place = Place(folder, str(folder / "wal"))
    for _ in importable(folder):
        place.make()
    return folder


@pytest.fixture
def local(made: Path, tmp_path: Path) -> Iterator[Place]:
    """The same folder again, as it was made: so no object says that it is a copy."""
    kept = tmp_path / "kept"
    shutil.copytree(made, kept)
    for _ in importable(made):
        yield Place(made, str(made / "wal"), copy=tmp_path / "copy")
    shutil.rmtree(made)
    shutil.copytree(kept, made)


def arguments(place: Place, verb: str) -> list[str]:
    return [*verb.split(), *ROWS[verb].arguments(place)]


def objects(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_verb_has_a_row_and_every_row_a_verb() -> None:
    assert list(ROWS) == list(verbs())


@pytest.mark.parametrize("verb", EACH)
def test_a_verb_speaks_to_machines_with_nothing_but_json(verb: str, local: Place) -> None:
    done = local.invoke(*arguments(local, verb), "--json")
    assert done.exit_code == 0, (done.output, done.exception)
    assert isinstance(json.loads(done.stdout), dict | list), "one document, never a bare text or number"


@pytest.mark.parametrize("verb", [name for name, row in ROWS.items() if not row.writes])
def test_a_verb_that_only_looks_changes_nothing(verb: str, local: Place) -> None:
    before = objects(Path(local.wal))
    done = local.invoke(*arguments(local, verb))
    assert done.exit_code == 0, (done.output, done.exception)
    assert objects(Path(local.wal)) == before


@pytest.mark.parametrize("verb", WITH_WAL)
def test_a_verb_that_writes_refuses_a_copy_of_a_wal_and_one_that_looks_does_not(
    verb: str, local: Place, tmp_path: Path
) -> None:
    shutil.copytree(local.wal, tmp_path / "other")
    before = objects(tmp_path / "other")
    there = replace(local, wal=str(tmp_path / "other"))
    done = there.invoke(*arguments(there, verb))
    refused = "Two copies of one WAL would deliver the same batches twice" in done.output
    assert (done.exit_code, refused) == ((2, True) if ROWS[verb].writes else (0, False)), (done.output, done.exception)
    assert objects(tmp_path / "other") == before


@pytest.mark.parametrize("verb", WITH_WAL)
def test_a_folder_that_is_no_wal_is_refused_and_left_as_it_is(verb: str, local: Place, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "holiday.txt").write_text("sea")
    (foreign / "batches").write_text("no folder")
    there = replace(local, wal=str(foreign))
    done = there.invoke(*arguments(there, verb))
    assert done.exit_code in {1, 2}, done.output
    assert str(foreign) in done.output.replace("\n", "")
    assert "Traceback" not in done.output
    assert objects(foreign) == {"holiday.txt": b"sea", "batches": b"no folder"}


@pytest.mark.parametrize("verb", [name for name, row in ROWS.items() if row.needs_wal and row.lists])
def test_a_verb_that_may_not_list_says_so(verb: str, local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: LocalStore, prefix: str, **_: Any) -> list[str]:
        raise StoreError(f"cannot list {self.url_of(prefix)}: Access Denied. Give this user the right to list")

    before = objects(Path(local.wal))
    monkeypatch.setattr(LocalStore, "list", refuse)
    done = local.invoke(*arguments(local, verb))
    assert done.exit_code == 1, (done.output, done.exception)
    assert "Access Denied" in done.output
    assert "Traceback" not in done.output
    assert objects(Path(local.wal)) == before


@pytest.mark.parametrize("verb", EACH)
def test_on_forty_columns_a_verb_still_says_all(
    verb: str, local: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(NARROW))
    done = local.invoke(*arguments(local, verb))
    assert done.exit_code == 0, (done.output, done.exception)
    assert done.stdout.strip()
    assert "Traceback" not in done.output
    text = done.stdout.replace(str(tmp_path), "")
    long = [line for line in text.splitlines() if len(line) > TABLE and " " in line.strip()]
    assert not long, long


@pytest.mark.parametrize("verb", EACH)
def test_ctrl_c_at_any_request_damages_nothing(
    verb: str, local: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted at the first, a middle and the last request: the WAL is healthy, and the same command completes.

    The interrupted process ends. Here it is this one, so it claims terms as one that has ended.
    """
    monkeypatch.setattr(wal_sink.support.calls, "MOST", 1)  # requests that go out at once: all on this thread
    healthy = objects(local.folder)
    requests = 0
    interrupt_at: int | None = None

    def counted(name: str) -> None:
        original = getattr(LocalStore, name)

        def call(self: LocalStore, *args: Any, **kwargs: Any) -> Any:
            nonlocal requests
            if threading.current_thread() is threading.main_thread():  # Ctrl-C interrupts no other thread
                requests += 1
            if requests == interrupt_at and threading.current_thread() is threading.main_thread():
                raise KeyboardInterrupt
            return original(self, *args, **kwargs)

        monkeypatch.setattr(LocalStore, name, call)

    for name in ("create", "read", "list", "delete"):
        counted(name)
    assert local.invoke(*arguments(local, verb)).exit_code == 0
    total = requests
    for number in sorted({1, total // 2, total}) if total else ():
        _restore(local.folder, healthy)
        requests, interrupt_at = 0, number
        here = replace(local, copy=tmp_path / f"copy-{number}")
        with monkeypatch.context() as during:
            during.setattr(terms, "process_identity", lambda: msgspec.structs.replace(process_identity(), started=1))
            done = here.invoke(*arguments(here, verb))
        assert "Traceback" not in done.output
        assert done.exit_code != 0 or requests < number, (number, total, done.output)  # threads share the requests
        interrupt_at = None
        checked = local.invoke("verify", local.wal)
        assert checked.exit_code == 0, (number, total, checked.output)
        if done.exit_code == 0:
            continue  # it completed: other threads made some of its requests, and fewer were left for this one
        again = here.invoke(*arguments(here, verb))
        assert again.exit_code == 0, (number, total, again.output, again.exception)


def _restore(folder: Path, files: dict[str, bytes]) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
