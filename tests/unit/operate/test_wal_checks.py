"""The WAL and the checkpoint: what cannot be read, does not belong together or lies elsewhere is told."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from tests.house.log import WalRecord, decode, encode
from tests.house.operate import WalFacts, read_status
from tests.house.protocol import Run
from tests.house.stores import MeasuredStore, Store, StoreSpec, open_store
from tests.house.support import SYSTEM, Finding, Level
from wal_sink.errors import StoreError
from wal_sink.operate.doctor import checkpoint_findings, recorded_checkpoint, wal_findings
from wal_sink.settings import Settings
from wal_sink.testing import FakeQuery


def opened(folder: Path) -> Store:
    return open_store(StoreSpec(str(folder)))


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A folder with a WAL of two batches and its checkpoint."""
    run = Run(opened(tmp_path / "wal"), opened(tmp_path / "checkpoint"), Settings())
    run.open()
    run.become_stager()
    query = FakeQuery(opened(tmp_path / "checkpoint"), lambda _batch, _end: [pa.table({"id": [1]})])
    assert list(query.batches(run, 2)) == [0, 1]
    return tmp_path


def of_wal(folder: Path) -> dict[str, Finding]:
    _, found = wal_findings(WalFacts(opened(folder)))
    return {one.check: one for one in found}


def of_checkpoint(base: Path, checkpoint: str = "checkpoint") -> dict[str, Finding]:
    status = read_status(opened(base / "wal"))
    found = checkpoint_findings(opened(base / checkpoint), str(base / "wal"), status)
    assert all(one.next_step for one in found if one.level is not Level.OK)
    return {one.check: one for one in found}


def rewrite(base: Path, **changes: object) -> None:
    file = base / "wal" / "wal.json"
    record = decode(WalRecord, file.read_bytes(), "wal.json")
    file.write_bytes(encode(msgspec.structs.replace(record, **changes)))


def test_a_healthy_wal_and_its_checkpoint_are_fine(base: Path) -> None:
    results = of_wal(base / "wal") | of_checkpoint(base)
    assert {one.level for one in results.values()} == {Level.OK}
    assert list(results) == ["wal", "wal.location", "checkpoint", "checkpoint.query"]
    assert "batches up to 1, no sink" in results["wal"].found
    assert "batch 1 is complete" in results["checkpoint"].found


def test_no_wal_is_a_warning(tmp_path: Path) -> None:
    status, (finding,) = wal_findings(WalFacts(opened(tmp_path / "nothing")))
    assert status is not None
    assert finding.level is Level.WARNING
    assert "holds no WAL yet" in finding.found


def test_a_damaged_wal_and_one_without_rights_are_errors(base: Path) -> None:
    class Refusing(MeasuredStore):
        def list(self, prefix: str, *, after: str = "", recursive: bool = False) -> list[str]:
            raise StoreError(f"no right to list {prefix}{after}{recursive}")

    status, (finding,) = wal_findings(WalFacts(Refusing(opened(base / "wal"))))
    assert status is None
    assert "no right to list" in finding.found
    (base / "wal" / "wal.json").write_bytes(b"{}")
    assert of_wal(base / "wal")["wal"].level is Level.ERROR


def test_a_copy_is_an_error_and_another_path_a_warning(base: Path) -> None:
    shutil.copytree(base / "wal", base / "copy")
    copy = of_wal(base / "copy")["wal.location"]
    assert copy.level is Level.ERROR
    assert "that folder exists too" in copy.found
    shutil.rmtree(base / "wal")
    assert of_wal(base / "copy")["wal.location"].level is Level.WARNING


def test_no_checkpoint_is_a_warning(base: Path) -> None:
    assert of_checkpoint(base, "nothing")["checkpoint"].level is Level.WARNING


def test_a_wal_in_place_of_the_checkpoint_is_an_error(base: Path) -> None:
    shutil.copytree(base / "wal", base / "copy")
    assert "cannot be a checkpoint" in of_checkpoint(base, "copy")["checkpoint"].found
    assert "same folder" in of_checkpoint(base, "wal")["checkpoint"].found


def test_a_checkpoint_of_an_unknown_format_is_an_error(base: Path) -> None:
    (base / "checkpoint" / "offsets" / "1").write_text("v9\n{}\n{}")
    finding = of_checkpoint(base)["checkpoint"]
    assert finding.level is Level.ERROR
    assert "v9" in finding.found


def test_the_checkpoint_of_another_query_is_an_error(base: Path) -> None:
    rewrite(base, query_id="another")
    finding = of_checkpoint(base)["checkpoint.query"]
    assert finding.level is Level.ERROR
    assert "query another" in finding.found


def test_a_checkpoint_before_its_first_batch_can_be_read(base: Path) -> None:
    shutil.rmtree(base / "checkpoint" / "offsets")
    shutil.rmtree(base / "checkpoint" / "commits")
    assert "no batch is complete" in of_checkpoint(base)["checkpoint"].found


def test_without_a_wal_it_is_unknown_whose_the_checkpoint_is(base: Path) -> None:
    nothing = read_status(opened(base / "nothing"))
    for status, why in ((None, "which could not be read"), (nothing, "which records no query yet")):
        _, owner = checkpoint_findings(opened(base / "checkpoint"), str(base / "wal"), status)
        assert owner.level is Level.WARNING
        assert why in owner.found


def test_the_recorded_checkpoint_is_known_wherever_the_record_can_be_read(base: Path) -> None:
    """A WAL that cannot be read as a whole says nothing about whether it records a checkpoint."""
    wal = opened(base / "wal")
    location = opened(base / "checkpoint").root
    assert recorded_checkpoint(wal, read_status(wal), SYSTEM)[0] == location
    assert recorded_checkpoint(wal, None, SYSTEM) == (location, "")
    nothing = opened(base / "nothing")
    assert recorded_checkpoint(nothing, read_status(nothing), SYSTEM) == (None, "the WAL records none yet")
    assert "wal.json, which records its address, does not exist" in recorded_checkpoint(nothing, None, SYSTEM)[1]
    (base / "wal" / "wal.json").write_bytes(b"{}")
    assert recorded_checkpoint(wal, None, SYSTEM) == (None, "the WAL, which records its address, could not be read")


def test_sinks_and_a_wal_without_batches_are_named(base: Path) -> None:
    from wal_sink.operate.doctor import _contents  # noqa: PLC0415

    status = read_status(opened(base / "nothing"))
    assert "no batch, no sink" in _contents(status).found
