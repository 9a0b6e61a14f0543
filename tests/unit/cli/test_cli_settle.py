"""`wal-sink settle`, followed by the words that it prints."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from tests.house.cli import main
from tests.house.stores import Store, StoreSpec, open_store
from tests.support.cli_targets import taken
from tests.support.command import invoke, invoke_json
from tests.support.staged_log import stage


def _two_rows(*_: int) -> list[pa.Table]:
    return [pa.table({"id": [1, 2]})]


@pytest.fixture
def wal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A WAL of three batches of two rows, of which the sink `default` has the first. Its query ended."""
    monkeypatch.chdir(tmp_path)
    stage(tmp_path, 1, _two_rows, is_over=True)
    drain(tmp_path / "wal")
    stage(tmp_path, 3, _two_rows, is_over=True)
    return tmp_path / "wal"


def drain(wal: Path | str, *more: object, code: int = 0) -> Result:
    return invoke("drain", wal, "--to", "tests.support.cli_targets:take", "--start-from", "earliest", *more, code=code)


def objects(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_a_wal_whose_checkpoint_was_deleted_is_settled_with_the_words_that_the_command_prints(
    wal: Path, tmp_path: Path
) -> None:
    shutil.rmtree(tmp_path / "checkpoint")
    refused = drain(wal, code=1).output
    assert "wal-sink settle WAL FOLDER" in refused
    assert "This WAL holds batches up to 2, sink 'default' has batches up to 0" in refused
    undecided = invoke("settle", wal, "rest", code=2).output
    assert "nobody knows whether Spark completed batch 2 (2 rows)" in undecided
    assert 'source 0: {"end": 1}' in undecided
    assert not (tmp_path / "rest").exists()
    before = objects(wal)

    done = invoke("settle", wal, "rest", "--newest", "complete").stdout

    assert f"wal-sink drain file://{wal} --checkpoint file://{tmp_path}/rest --name SINK --to TARGET" in done
    assert 'source 0: {"end": 2}' in done
    told = invoke_json("settle", wal, "rest", "--newest", "complete")
    assert (told["folder"], told["through"], told["offsets"]) == (f"file://{tmp_path}/rest", 2, ['{"end": 2}'])
    assert objects(wal) == before
    assert "another query" not in invoke("status", wal, "--checkpoint", "rest").output
    drain(f"file://{wal}", "--checkpoint", f"file://{tmp_path}/rest")
    assert taken() == [0, 1, 2]
    assert "delivers every batch up to 2" in invoke("settle", wal, "rest").stdout, "for a new sink"
    drain(f"file://{wal}", "--checkpoint", f"file://{tmp_path}/rest", "--name", "new", "--start-from", "earliest")
    assert taken()[-1] == 2


def test_the_folder_has_the_options_of_the_checkpoint(
    wal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(tmp_path / "checkpoint")
    specs: list[StoreSpec] = []

    def opened(spec: StoreSpec) -> Store:
        specs.append(spec)
        return open_store(StoreSpec(spec.url))

    monkeypatch.setattr("wal_sink.cli.opened.open_store", opened)
    monkeypatch.setenv("WAL_SINK_CHECKPOINT_OPTIONS", '{"a": "b"}')
    invoke("settle", wal, "rest", "--newest", "complete")
    assert specs[-1] == StoreSpec("rest", {"a": "b"})


def test_wrong_folders_are_refused(wal: Path, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "checkpoint")
    (tmp_path / "a-file").touch()
    for folder, said in (("wal/rest", "one lies inside the other"), ("a-file", "a-file")):
        result = CliRunner().invoke(main, ["settle", str(wal), folder, "--newest", "complete"])
        assert result.exit_code in {1, 2}
        assert said in result.output
        assert "Traceback" not in result.output
