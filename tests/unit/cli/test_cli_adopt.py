"""`wal-sink adopt`: shown first, asked before it acts, and followed by the words that it prints."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import wal_sink.walsink
from tests.support.buckets import buckets
from wal_sink.cli.main import main
from wal_sink.lifecycle.run import Run
from wal_sink.moving.adopt import PlacePlan, place_order, settle_order
from wal_sink.moving.ending import manifest_of
from wal_sink.recovery.location import canonical
from wal_sink.repair.journal import begin
from wal_sink.runtime.clock import SYSTEM
from wal_sink.settings import Settings
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import StoreSpec
from wal_sink.testing import FakeQuery
from wal_sink.wal import paths
from wal_sink.wal.holders import note_end
from wal_sink.wal.log import Log
from wal_sink.wal.records import Move, WalRecord, decode, encode

MODULE = """
def take(chunk):
    with open("taken.txt", "a") as file:
        file.write(f"{chunk.batch_id}\\n")
"""


@pytest.fixture
def wal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A WAL of three batches of two rows, of which the sink `default` has the first. Its query ended."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(wal_sink.walsink, "current_session", lambda: None)
    (tmp_path / "adopting_targets.py").write_text(MODULE)
    stage(tmp_path / "wal", tmp_path / "checkpoint", 1)
    drain(tmp_path / "wal")
    stage(tmp_path / "wal", tmp_path / "checkpoint", 3)
    return tmp_path / "wal"


def stage(wal: Path, checkpoint: Path, batches: int) -> None:
    files = open_store(StoreSpec(str(checkpoint)))
    run = Run(open_store(StoreSpec(str(wal))), files, Settings())
    run.open()
    run.become_stager()
    list(FakeQuery(files, lambda *_: [pa.table({"id": [1, 2]})]).batches(run, batches))
    note_end(run.log, paths.STAGER_ROLE, max(run.log.numbers(paths.terms(paths.STAGER_ROLE))))


def invoke(*args: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, [*map(str, args)])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def drain(wal: Path | str, *more: object, code: int = 0) -> Result:
    return invoke("drain", wal, "--to", "adopting_targets:take", "--start-from", "earliest", *more, code=code)


def taken(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "taken.txt").read_text().split()]


def objects(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def log_of(wal: Path) -> Log:
    return Log(open_store(StoreSpec(str(wal))), SYSTEM, "test")


def test_where_all_belongs_together_nothing_is_done(wal: Path) -> None:
    before = objects(wal)
    done = invoke("adopt", wal)
    assert "no sink gets anything twice or never" in done.stdout
    told = json.loads(invoke("adopt", wal, "--json").stdout)
    assert (told["fits"], told["action"], told["repair"]) == (True, "none", None)
    assert objects(wal) == before


def test_a_place_on_a_disk_that_is_not_mounted_here_is_unknown(
    wal: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "mnt").mkdir()
    there = tmp_path / "there"
    shutil.copytree(wal, there)
    record = decode(WalRecord, (wal / paths.WAL).read_bytes(), "")
    said = f"file://{tmp_path}/mnt/disk/wal"
    (there / paths.WAL).write_bytes(encode(msgspec.structs.replace(record, location=said)))

    done = invoke("adopt", there, "--yes")

    assert "it is not known what lies there: it is not visible from here" in done.stdout
    assert f"could not look whether the WAL still lies at {said}" in caplog.text


def test_a_sink_of_which_nothing_can_be_told_is_named(wal: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    shutil.copytree(wal, there)
    (wal / paths.sink("default")).write_bytes(b"no record")
    done = invoke("adopt", there, "--yes").stdout
    assert "the same WAL lies there too" in done
    assert "it is not known what every sink got there since: " in done
    assert "sinks/default/sink.json" in done


def test_a_local_place_from_which_a_wal_was_moved_to_another_kind_of_store_is_ended_too(
    wal: Path, tmp_path: Path
) -> None:
    there = open_store(StoreSpec(f"memory://adopted/{tmp_path.name}"))
    for path, data in objects(wal).items():
        there.create(path, data)

    assert "the same WAL lies there too" in invoke("adopt", there.root, "--yes").stdout

    assert decode(Move, (wal / paths.move(1)).read_bytes(), "").location == there.root
    assert there.list(paths.MOVES) == ["0000000001.json"]


@pytest.mark.parametrize(
    ("here", "earlier"),
    [("gcs://adopt/new", "gs://adopt/old"), ("webhdfs://nn:9870/new", "webhdfs://nn:9870/old"),
     ("abfs://c@acct/new", "az://c@acct/old")],
)  # fmt: skip
def test_an_earlier_place_in_another_spelling_is_looked_at_and_ended(wal: Path, here: str, earlier: str) -> None:
    with buckets():
        there, place = open_store(StoreSpec(earlier)), open_store(StoreSpec(here))
        held = objects(wal)
        record = decode(WalRecord, held[paths.WAL], "")
        held[paths.WAL] = encode(msgspec.structs.replace(record, location=canonical(earlier)))
        for path, data in held.items():
            there.create(path, data)
            place.create(path, data)

        assert "the same WAL lies there too" in invoke("adopt", here, "--yes").stdout

        for store in (there, place):
            assert decode(Move, store.read(paths.move(1)), "").location == canonical(here)
        assert "no sink gets anything twice or never" in invoke("adopt", here).stdout


def test_a_copy_by_hand_is_told_what_the_other_place_delivered_since(wal: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    shutil.copytree(wal, there)
    drain(wal)
    assert "wal-sink adopt" in drain(there, code=2).output

    text = invoke("adopt", there, "--yes").stdout

    assert "the same WAL lies there too" in text
    assert "sink 'default' got there since, so twice: batches 1 to 2 (4 rows); only there, so never: nothing" in text
    assert "Two copies of one WAL" in drain(wal, code=2).output
    told = json.loads(invoke("adopt", wal, "--dry-run", "--json").stdout)
    assert (told["action"], told["place"]["there"], told["dry_run"]) == ("place", "same", True)


def test_a_place_is_adopted_although_the_checkpoint_cannot_be_read(wal: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    wal.rename(there)
    shutil.rmtree(tmp_path / "checkpoint" / "commits")
    (tmp_path / "checkpoint" / "metadata").write_text("no json")
    text = invoke("adopt", there, "--yes").stdout
    assert "the checkpoint was not compared" in text
    assert invoke("adopt", there, code=1).output


def test_an_interrupted_adoption_is_completed_by_the_same_command(wal: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    wal.rename(there)
    plan = PlacePlan(f"file://{there}", f"file://{wal}", "nothing")
    log = log_of(there)
    begin(log, place_order(""), {"location": plan.location, "moved_from": plan.moved_from, "there": plan.there})
    (there / "repairs" / "0000000001.json").write_bytes(_of_another_process(there))

    refused = invoke("adopt", there, "--settle", "rest", "--yes", code=1)
    assert "is not finished (adopt" in refused.output

    assert "from now on" in invoke("adopt", there, "--yes").stdout
    assert "unfinished" not in invoke("repairs", "list", there).stdout


def _of_another_process(wal: Path) -> bytes:
    """The record of the only repair, of a process that is gone."""
    from wal_sink.wal.repair_records import RepairRecord  # noqa: PLC0415

    record = log_of(wal).require(RepairRecord, paths.repair(1))
    return encode(msgspec.structs.replace(record, holder=None))


def test_a_wal_whose_checkpoint_was_deleted_is_settled_with_the_words_that_the_command_prints(
    wal: Path, tmp_path: Path
) -> None:
    shutil.rmtree(tmp_path / "checkpoint")
    assert "wal-sink adopt" in drain(wal, code=1).output
    shown = invoke("adopt", wal, code=1).stdout
    assert "it has no query: it is new, or was deleted" in shown
    assert "sink 'default' with a new WAL, twice: batch 0 (2 rows); never: batches 1 to 2 (4 rows)" in shown
    assert "nobody knows whether Spark completed batch 2 (2 rows)" in shown
    assert 'source 0: {"end": 1}' in shown
    assert "--newest complete" in invoke("adopt", wal, "--settle", "rest", "--yes", code=2).output
    assert not (tmp_path / "rest").exists()
    looked = json.loads(invoke("adopt", wal, "--settle", "rest", "--newest", "complete", "--dry-run", "--json").stdout)
    assert (looked["action"], looked["plan"]["through"], looked["repair"]) == ("settle", 2, None)

    done = invoke("adopt", wal, "--settle", "rest", "--newest", "complete", "--yes", "--why", "disk lost")

    assert f"wal-sink drain file://{wal} --checkpoint file://{tmp_path}/rest --name SINK --to TARGET" in done.stdout
    assert "another query" not in invoke("status", wal, "--checkpoint", "rest").output
    drain(f"file://{wal}", "--checkpoint", f"file://{tmp_path}/rest")
    assert taken(tmp_path) == [0, 1, 2]
    again = invoke("adopt", wal, "--settle", "rest", "--newest", "complete", "--yes").stdout
    assert "there is nothing to settle" in again
    assert "is a checkpoint for drains" not in again


def test_a_checkpoint_that_is_there_already_is_not_made_again(wal: Path, tmp_path: Path) -> None:
    settle = ("adopt", wal, "--settle", "rest", "--newest", "complete", "--yes")
    shutil.rmtree(tmp_path / "checkpoint")
    invoke(*settle)
    before = objects(wal)
    assert "is a checkpoint for drains" in invoke(*settle).stdout
    assert objects(wal) == before


def test_an_interrupted_settlement_is_completed_without_the_checkpoint(wal: Path, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "checkpoint")
    folder = open_store(StoreSpec(str(tmp_path / "rest")))
    plan = {"folder": folder.root, "through": 2, "checkpoint": "gone", "match": "none"}
    begin(log_of(wal), settle_order(folder, "complete", why=""), plan)
    (wal / "repairs" / "0000000001.json").write_bytes(_of_another_process(wal))
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "metadata").write_text("no json")

    done = invoke("adopt", wal, "--settle", tmp_path / "rest", "--newest", "complete", "--yes")

    assert "is a checkpoint for drains" in done.stdout
    drain(wal, "--checkpoint", tmp_path / "rest")
    assert taken(tmp_path) == [0, 1, 2]


def test_a_restored_checkpoint_is_told_with_the_batch_that_comes_next(wal: Path, tmp_path: Path) -> None:
    drain(wal)
    for number in (1, 2):
        (tmp_path / "checkpoint" / "commits" / str(number)).unlink()
    (tmp_path / "checkpoint" / "offsets" / "2").unlink()

    shown = invoke("adopt", wal, code=1).stdout

    assert "was restored to an older state. Its newest complete batch: 0" in shown
    assert "Spark runs batch 1 and later ones again" in shown
    assert "twice: batches 1 to 2 (4 rows); never: nothing" in shown
    assert invoke("adopt", wal, "--dry-run").stdout.endswith("nothing was changed\n")


def test_a_checkpoint_that_plans_other_input_is_told(wal: Path, tmp_path: Path) -> None:
    drain(wal)
    (tmp_path / "checkpoint" / "commits" / "2").unlink()
    offsets = tmp_path / "checkpoint" / "offsets" / "2"
    offsets.write_text(offsets.read_text().replace('"end": 2', '"end": 99'))
    assert "stops at batch 2 (DivergentReplay): it would read other input" in invoke("adopt", wal, code=1).stdout


def test_its_own_checkpoint_with_other_input_is_told(wal: Path, tmp_path: Path) -> None:
    offsets = tmp_path / "checkpoint" / "offsets" / "1"
    offsets.write_text(offsets.read_text().replace('"end": 1', '"end": 99'))

    shown = invoke("adopt", wal, code=1).stdout

    assert "it belongs to this WAL, but the WAL holds batches with other input" in shown
    assert "a drain and the query stop at batch 1 (DivergentReplay)" in shown
    assert "belong together" not in shown


def test_the_checkpoint_for_drains_is_told(wal: Path, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "checkpoint")
    invoke("adopt", wal, "--settle", tmp_path / "rest", "--newest", "complete", "--yes")

    shown = invoke("adopt", wal, "--checkpoint", tmp_path / "rest", code=1).stdout

    assert "wal-sink adopt made it for drains, and no query goes on from it. Its newest complete batch: 2" in shown
    assert "belong together" not in shown


def test_two_histories_are_told(wal: Path, tmp_path: Path) -> None:
    found = manifest_of(log_of(wal), 1)
    assert found is not None
    other = msgspec.structs.replace(found, attempt=9, fingerprint="0" * 64, offsets="v1\n{}\nother")
    (wal / paths.manifest(1, other.term, 9)).write_bytes(encode(other))
    shutil.rmtree(tmp_path / "checkpoint")

    shown = invoke("adopt", wal, code=1).stdout

    assert "two histories of the query staged batches 1, and the WAL does not show which of them goes on" in shown
    assert "let the new query begin" not in shown
    assert "two histories" in invoke("adopt", wal, "--settle", tmp_path / "rest", "--newest", "complete", code=2).stderr


def test_a_checkpoint_older_than_the_retention_is_told(wal: Path, tmp_path: Path) -> None:
    drain(wal)
    log_of(wal).raise_low_water(1)
    for number in (1, 2):
        (tmp_path / "checkpoint" / "commits" / str(number)).unlink()
    assert "stops at batch 1 (HistoryGone)" in invoke("adopt", wal, code=1).stdout


def test_a_wal_of_an_older_backup_lacks_batches(wal: Path) -> None:
    shutil.rmtree(wal / "batches" / paths.batch_name(2))
    shown = invoke("adopt", wal, code=1).stdout
    assert "Spark completed batches that the WAL lacks" in shown
    assert "sink 'default', never: batch 2 (at least 0 rows)" in shown


def test_batches_of_a_history_that_was_given_up_are_named(wal: Path, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    for folder in ("commits", "offsets"):
        for number in (1, 2):
            (checkpoint / folder / str(number)).unlink()
    stage(wal, checkpoint, 2)
    shutil.rmtree(checkpoint)
    assert "given up, so never: batches 2 to 2" in invoke("adopt", wal, code=1).stdout


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--newest", "complete"), "--newest belongs to --settle"),
        (("--settle", "wal/rest"), "one lies inside the other"),
        (("--settle", "adopting_targets.py"), "adopting_targets.py"),
    ],
)
def test_wrong_usage(wal: Path, tmp_path: Path, more: tuple[str, ...], said: str) -> None:
    shutil.rmtree(tmp_path / "checkpoint")
    newest = () if "--newest" in more else ("--newest", "complete")
    result = CliRunner().invoke(main, ["adopt", str(wal), *more, *newest, "--yes"])
    assert result.exit_code in {1, 2}
    assert said in result.output
    assert "Traceback" not in result.output


def test_a_place_comes_before_a_settlement(wal: Path, tmp_path: Path) -> None:
    wal.rename(tmp_path / "there")
    shutil.rmtree(tmp_path / "checkpoint")
    refused = invoke("adopt", "there", "--settle", "rest", "--newest", "complete", "--yes", code=2)
    assert "first let the WAL record its place" in refused.output


def test_the_record_of_a_wal_chooses_no_code(wal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wal_sink.cli.adopt.is_plain", lambda url: not url.endswith("/checkpoint"))
    assert "Pass it with --checkpoint" in invoke("adopt", wal, code=2).output
