"""`wal-sink verify`: reports, comparisons, exit codes, going on, narrow terminals, and no change of a WAL."""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path

import pyarrow as pa
import pytest
from rich.cells import cell_len

from tests.house.log import paths
from tests.house.operate import Check, Fault, Finding
from tests.house.protocol import Run
from tests.house.stores import StoreSpec, open_store
from tests.support.command import invoke, invoke_json
from tests.support.staged_log import stage
from wal_sink.errors import StoreError
from wal_sink.operate import findings
from wal_sink.operate.findings import NEXT
from wal_sink.settings import Settings

BATCHES = 4


def rows_of(batch_id: int, _end: int) -> list[pa.Table]:
    return [pa.table({"id": [batch_id * 10 + row for row in range(3)]})]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a WAL of four complete batches, its checkpoint, and a table that has them."""
    assert stage(tmp_path, BATCHES, rows_of, chunk_rows=2) == [*range(BATCHES)]
    invoke("drain", str(tmp_path / "wal"), "--to", table(tmp_path), "--name", "table", "--start-from", "earliest")
    return tmp_path


def table(place: Path) -> str:
    return f"sqlite:///{place}/t.db?table=t"


def everything(place: Path) -> list[str]:
    """Arguments that compare all there is."""
    return [str(place / "wal"), "--checkpoint", str(place / "checkpoint"), "--to", table(place), "--name", "table"]


def files(place: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted((place / "wal").rglob("*")) if path.is_file()}


def test_a_healthy_wal(place: Path) -> None:
    before = files(place)
    text = invoke("verify", str(place / "wal")).stdout
    assert re.search(r"^checked through batch 3: 4 batches, \d+ records, 4 segments \(.* KiB, 12 rows\)", text)
    assert text.endswith("no fault found in what was compared\n")
    found = invoke_json("verify", *everything(place))
    assert (found["faults"], found["through"], found["complete"], found["not_compared"]) == ([], 3, True, [])
    assert (found["exists"], found["seen"]["segments"]) == (True, BATCHES)
    text = invoke("verify", *everything(place)).stdout
    assert text.endswith("no fault found\n")
    assert "not compared" not in text
    other = invoke("verify", *everything(place)[:-1], "other", code=2).output
    assert "has no sink 'other'; it has 'table'" in other
    assert files(place) == before


def test_comparisons_that_were_not_made_are_named(place: Path) -> None:
    text = invoke("verify", str(place / "wal"), "--no-segments").stdout
    assert "not compared: the bytes of segments (--no-segments)" in text
    assert "not compared: the checkpoint (give its address with --checkpoint)" in text
    assert "not compared: the positions of targets (give one with --to, and its sink with --name)" in text
    assert len(invoke_json("verify", str(place / "wal"))["not_compared"]) == 2
    assert invoke_json("verify", str(place / "wal"), "--from-batch", "3")["seen"]["batches"] == 1


def test_a_known_sink_is_not_given_an_empty_table_of_the_same_database(place: Path) -> None:
    """The database has one ledger. A comparison with the empty table found no fault, and a drain went on there."""
    other = table(place).replace("table=t", "table=u")
    with sqlite3.connect(place / "t.db") as database:
        database.execute("CREATE TABLE u (id INTEGER)")
    verify, drain = (("verify", str(place / "wal")), ("drain", str(place / "wal")))
    given = ("--to", other, "--name", "table")
    text = invoke(*verify, "--checkpoint", str(place / "checkpoint"), *given).stdout
    assert "only its ledger was compared" in text
    assert text.endswith("no fault found in what was compared\n")
    assert "'t', mode='append'), which has its earlier rows" in invoke(*drain, *given, code=2).stderr
    assert "nothing is missing" in invoke(*drain, *given, "--yes").stdout


def test_a_damaged_segment(place: Path) -> None:
    segment = next((place / "wal" / paths.batch(2)).rglob("*.parquet"))
    data = bytearray(segment.read_bytes())
    data[20] ^= 1
    segment.write_bytes(bytes(data))
    result = invoke("verify", str(place / "wal"), code=1)
    assert f"FAULT damaged: {segment.relative_to(place / 'wal')} (batch 2)" in result.stdout
    assert "expected CRC-32" in result.stdout
    assert f"next: {NEXT[Fault.DAMAGED]}" in result.stdout
    assert result.stdout.endswith("1 fault found\n")
    (fault,) = invoke_json("verify", *everything(place), code=1)["faults"]
    assert (fault["fault"], fault["batch_id"], fault["sink"]) == ("damaged", 2, None)
    assert fault["next_step"] == NEXT[Fault.DAMAGED]
    invoke("verify", str(place / "wal"), "--no-segments")


def test_a_target_that_was_restored_from_a_backup(place: Path) -> None:
    (place / "t.db").unlink()
    (fault,) = invoke_json("verify", *everything(place), code=1)["faults"]
    assert (fault["fault"], fault["batch_id"], fault["sink"]) == ("target-behind", 3, "table")
    assert "3 rows of batch 3 were delivered and marked" in fault["what"]


def ending(monkeypatch: pytest.MonkeyPatch, after: int, error: BaseException) -> None:
    """Let a check end by an error once it has looked at this batch."""
    whole = Check.run

    def run(self: Check) -> list[Finding]:
        inner = self._on_batch

        def on_batch(done: int, total: int) -> None:
            inner(done, total)
            if (-1 if self.found.through is None else self.found.through) >= after:
                raise error

        self._on_batch = on_batch
        return whole(self)

    monkeypatch.setattr(Check, "run", run)


def test_ctrl_c_tells_how_to_go_on(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = files(place)
    ending(monkeypatch, 1, KeyboardInterrupt())
    result = invoke("verify", str(place / "wal"), code=130)
    wal = f"file://{place}/wal"
    assert result.stderr == f"stopped after batch 1. To go on there: wal-sink verify {wal} … --from-batch 2\n"
    assert "checked through batch 1: 2 batches" in result.stdout
    assert result.stdout.endswith("no fault found in what was compared so far\n")
    result = invoke("verify", str(place / "wal"), "--json", code=130)
    assert (json.loads(result.stdout)["through"], json.loads(result.stdout)["complete"]) == (1, False)
    assert files(place) == before


def test_ctrl_c_before_the_first_batch(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ending(monkeypatch, -1, KeyboardInterrupt())
    result = invoke("verify", str(place / "wal"), code=130)
    assert "stopped before the first batch was checked. Repeat the command: wal-sink verify" in result.stderr
    assert "checked through batch none" in result.stdout


def test_ctrl_c_while_the_wal_is_opened(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this, click ended the command with exit code 1 and "Aborted!"."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    for where in ("verify.holds_wal", "opened.open_store"):
        monkeypatch.setattr(f"wal_sink.cli.{where}", interrupted)
        result = invoke("verify", str(place / "wal"), code=130)
        said = "stopped before the first batch was checked. Repeat the command: wal-sink verify …\n"
        assert result.stderr == said


def test_an_error_of_the_store_tells_how_to_go_on(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ending(monkeypatch, 2, StoreError("batches: access denied"))
    result = invoke("verify", str(place / "wal"), code=1)
    assert "stopped by an error (StoreError) after batch 2. To go on there" in result.stderr
    assert "access denied" in result.stderr


def test_a_foreign_folder(place: Path, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"cat")
    result = invoke("verify", str(tmp_path / "photos"), code=1)
    assert "holds nothing that wal-sink makes: this folder is not a WAL" in result.output
    assert "holds nothing that wal-sink makes" in invoke("verify", str(tmp_path / "nothing"), code=1).output
    assert not (tmp_path / "nothing").exists()
    assert "it is the checkpoint of a query" in invoke("verify", str(place / "checkpoint"), code=2).output


def test_a_wal_without_batches_yet(tmp_path: Path) -> None:
    run = Run(open_store(StoreSpec(f"{tmp_path}/wal")), open_store(StoreSpec(f"{tmp_path}/checkpoint")), Settings())
    run.open()
    run.become_stager()
    text = invoke("verify", f"{tmp_path}/wal").stdout
    assert "no batch was staged here yet" in text
    assert "no fault found" in text


def test_a_copy_is_told(place: Path) -> None:
    (place / "wal").rename(place / "copy")
    result = invoke("verify", str(place / "copy"))
    assert f"this WAL records another place: file://{place}/wal. It is a copy, or it was moved" in result.stdout
    assert invoke_json("verify", str(place / "copy"))["recorded_location"] == f"file://{place}/wal"


def test_faults_beyond_those_shown_are_counted(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (place / "wal").rglob("*.parquet"):
        path.unlink()
    monkeypatch.setattr(findings, "MOST_KEPT", 3)
    text = invoke("verify", str(place / "wal"), code=1).stdout
    assert (text.count("FAULT"), "1 more fault of the same check" in text) == (3, True)
    assert text.endswith("4 faults found\n")
    assert invoke_json("verify", str(place / "wal"), code=1)["faults_left_off"] == 1


def test_no_line_is_longer_than_a_terminal_of_40_columns(place: Path) -> None:
    for path in (place / "wal").rglob("*.parquet"):
        path.unlink()
    for args in (["verify", str(place / "wal")], ["verify", *everything(place)]):
        text = invoke(*args, code=1, env={"COLUMNS": "40"}).stdout
        assert [line for line in text.splitlines() if cell_len(line) > 40] == []
        assert "next: " in text
