"""`wal-sink copy`: asked before it acts, text and JSON, between kinds of stores, and what a user types afterwards."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import wal_sink.cli.copy
import wal_sink.walsink
from wal_sink.cli.main import main
from wal_sink.lifecycle.run import Run
from wal_sink.moving.copy import copy_wal
from wal_sink.settings import Settings
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import StoreSpec
from wal_sink.testing import FakeQuery
from wal_sink.wal import paths
from wal_sink.wal.holders import note_end

MODULE = """
def take(chunk):
    with open("taken.txt", "a") as file:
        file.write(f"{chunk.batch_id}\\n")
"""


@pytest.fixture
def wal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A WAL of two complete batches that nobody has, and whose query ended."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(wal_sink.walsink, "current_session", lambda: None)
    (tmp_path / "copying_targets.py").write_text(MODULE)
    checkpoint = open_store(StoreSpec(str(tmp_path / "checkpoint")))
    run = Run(open_store(StoreSpec(str(tmp_path / "wal"))), checkpoint, Settings())
    run.open()
    run.become_stager()
    list(FakeQuery(checkpoint, lambda *_: [pa.table({"id": [1]})]).batches(run, 2))
    note_end(run.log, paths.STAGER_ROLE, 1)
    return tmp_path / "wal"


def invoke(*args: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, [*map(str, args)])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def drain(wal: Path | str, *more: str, code: int = 0) -> Result:
    return invoke("drain", wal, "--to", "copying_targets:take", "--start-from", "earliest", *more, code=code)


def content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_a_copy_is_made_and_continued_with_the_words_that_the_command_prints(wal: Path, tmp_path: Path) -> None:
    text = invoke("copy", wal, "new", "--yes", "--why", "a larger disk").stdout

    assert f"file://{tmp_path}/new is a complete copy: {len(content(wal))} objects, " in text
    assert "each read back and equal" in text
    kept, original = content(tmp_path / "new"), content(wal)
    assert b"a larger disk" in kept.pop(paths.COPY)
    assert kept.pop(paths.COPIED)
    assert kept == original
    said = f"--moved-from file://{wal}"
    assert text.endswith(f"{said}\n")
    assert "Two copies of one WAL" in drain("new", code=2).stderr
    assert "but it still lies there" in drain("new", *said.split(), code=2).stderr
    wal.rename(tmp_path / "old")
    drain("new", *said.split())
    assert (tmp_path / "taken.txt").read_text().split() == ["0", "1"]


def test_a_wal_that_was_moved_opens_at_its_new_place_only(wal: Path, tmp_path: Path) -> None:
    asked = invoke("copy", wal, "new", "--move", "--dry-run").stdout
    assert f"move file://{wal} (" in asked
    assert not (tmp_path / "new").exists()

    text = invoke("copy", wal, "new", "--move", "--yes").stdout

    assert f"file://{tmp_path}/new is the WAL and opens as it is" in text
    drain("new")
    assert (tmp_path / "taken.txt").read_text().split() == ["0", "1"]
    assert "Two copies of one WAL would deliver" in drain(wal, code=2).stderr
    assert json.loads(invoke("status", "new", "--json").stdout)["location"] == f"file://{tmp_path}/new"


def test_a_backup_does_not_become_the_wal_by_a_repeated_command(wal: Path) -> None:
    invoke("copy", wal, "new", "--yes")

    assert "pass moved_from='file://" in invoke("copy", wal, "new", "--yes", "--move", code=2).stderr
    invoke("copy", wal, "other", "--yes", "--move")
    facts = json.loads(invoke("copy", wal, "other", "--yes", "--move", "--json").stdout)
    assert (facts["found"], facts["copied_objects"], facts["moved_from"]) == ("complete", 0, None)


def test_a_dry_run_tells_and_writes_nothing(wal: Path, tmp_path: Path) -> None:
    text = invoke("copy", wal, "new", "--dry-run").stdout
    facts = json.loads(invoke("copy", wal, "new", "--dry-run", "--json").stdout)

    assert (
        f"copy file://{wal} ({len(content(wal))} objects of 2 batches) to file://{tmp_path}/new, which is empty" in text
    )
    assert "nothing was copied" in text
    assert (facts["dry_run"], facts["objects"], facts["batches"], facts["found"]) == (
        True,
        len(content(wal)),
        2,
        "empty",
    )
    assert not (tmp_path / "new").exists()


def test_as_json_it_prints_one_document(wal: Path, tmp_path: Path) -> None:
    facts = json.loads(invoke("copy", wal, "new", "--yes", "--json").stdout)

    assert facts == {
        "wal": f"file://{wal}",
        "copy": f"file://{tmp_path}/new",
        "wal_id": facts["wal_id"],
        "dry_run": False,
        "move": False,
        "found": "empty",
        "objects": len(content(wal)),
        "batches": 2,
        "copied_objects": len(content(wal)),
        "copied_bytes": sum(map(len, content(wal).values())),
        "damaged": [],
        "moved_from": f"file://{wal}",
    }


def test_a_damaged_manifest_that_no_sink_needs_is_told(wal: Path, tmp_path: Path) -> None:
    drain(wal)
    manifest = next((wal / paths.batch(0)).glob("manifest-*"))
    manifest.write_bytes(b"{}")
    path = str(manifest.relative_to(wal))

    assert f"copied as they are: 1 object ({path}) of" in invoke("copy", wal, "new", "--yes").stdout
    assert json.loads(invoke("copy", wal, "newer", "--yes", "--json").stdout)["damaged"] == [path]
    assert (tmp_path / "new" / path).read_bytes() == b"{}"


def test_it_asks_before_it_acts(wal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "there is no terminal. Add --yes" in invoke("copy", wal, "new", code=2).stderr
    assert not (tmp_path / "new").exists()

    monkeypatch.setattr("wal_sink.cli.repairing.sys.stdin.isatty", lambda: True, raising=False)
    asked: list[str] = []
    monkeypatch.setattr(wal_sink.cli.copy, "confirm", lambda question, *, yes: asked.append(f"{question} {yes}"))
    invoke("copy", wal, "new")
    assert len(asked) == 1
    assert asked[0].endswith("which is empty. Go on? False")


def test_the_same_command_completes_a_copy_and_leaves_a_complete_one_alone(
    wal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the middle."""

    def interrupted(*args: object, **more: object) -> object:
        def stop(*_: object) -> None:
            raise KeyboardInterrupt

        return copy_wal(*args, **{**more, "on_progress": stop})  # type: ignore[arg-type]

    monkeypatch.setattr(wal_sink.cli.copy, "copy_wal", interrupted)
    invoke("copy", wal, "new", "--yes", code=1)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)

    for verb in ("status", "batches"):
        assert "is an unfinished copy of the WAL" in invoke(verb, "new", code=2).stderr
    assert (
        "which holds a part of them, from a copy that was interrupted" in invoke("copy", wal, "new", "--dry-run").stdout
    )
    invoke("copy", wal, "new", "--yes")
    again = invoke("copy", wal, "new").stdout
    assert "is a complete copy already" in again
    assert "Nothing was copied" in again


def test_a_copy_that_is_copied_back_to_its_place_opens_as_it_is(
    wal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    invoke("copy", wal, "backup", "--yes")
    wal.rename(tmp_path / "lost")
    monkeypatch.setattr("wal_sink.stores.opening._stores", {})  # as in another process

    text = invoke("copy", "backup", wal, "--yes").stdout

    assert "So the copy opens there as it is" in text
    drain(wal)
    assert (tmp_path / "taken.txt").read_text().split() == ["0", "1"]


def test_of_a_wal_without_a_place_it_is_told_that_both_open(wal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wal_sink.moving.copy.current_location", lambda *_, **__: "")

    assert "nothing tells the copy from the WAL, and both open" in invoke("copy", wal, "new", "--yes").stdout
    assert json.loads(invoke("copy", wal, "new", "--json").stdout)["moved_from"] is None


def test_a_wal_whose_process_may_live_needs_take_over(wal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (wal / paths.ended(paths.STAGER_ROLE, 1)).unlink()
    monkeypatch.setattr("wal_sink.wal.holders.find_process", lambda _: None)

    assert "repeat the command with --take-over" in invoke("copy", wal, "new", "--yes", code=1).stderr
    invoke("copy", wal, "new", "--yes", "--take-over")


def test_there_must_be_a_wal(tmp_path: Path) -> None:
    assert "holds no wal.json" in invoke("copy", tmp_path / "none", tmp_path / "new", "--yes", code=1).stderr
