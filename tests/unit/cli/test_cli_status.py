"""`wal-sink status`: what is stuck, since when, and an exit code for cron."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pyarrow as pa
import pytest

from tests.house.log import ErrorRecord, Log, WalRecord, claim, decode, encode, paths
from tests.house.stores import Store, StoreSpec, open_store
from tests.house.support import SYSTEM
from tests.support.command import invoke, invoke_json
from tests.support.staged_log import stage

BATCHES = 3


@pytest.fixture
def wal(tmp_path: Path) -> str:
    """A WAL of three complete batches, of which the sink `table` has the first two."""
    wal, to = str(tmp_path / "wal"), f"sqlite:///{tmp_path}/t.db?table=t"
    stage(tmp_path, BATCHES - 1, two_rows)
    invoke("drain", wal, "--to", to, "--name", "table", "--start-from", "earliest")
    stage(tmp_path, BATCHES, two_rows)
    return wal


def two_rows(*_: int) -> list[pa.Table]:
    return [pa.table({"id": [1, 2]})]


def store_of(wal: str) -> Store:
    return open_store(StoreSpec(wal))


def test_the_lag_and_the_backlog_of_each_sink(wal: str) -> None:
    found = invoke_json("status", wal)
    (sink,) = found["sinks"]
    pending = sink["pending"]
    assert (pending["batches"], pending["rows"], pending["oldest"], pending["is_exact"]) == (1, 2, 2, True)
    assert 0 < sink["lag_s"] == sink["pending_age_s"] < sink["delivered_age_s"]
    assert (sink["behind_spark"], sink["keeps_back"], sink["dead_letters"]) == (1, 1, 0)
    assert found["checkpoint_fault"] is None
    assert (found["spark"], found["kept_back_by"]) == ({"newest": 2, "unknown_because": ""}, ["table"])
    output = invoke("status", wal).stdout
    assert "Spark completed batches through 2" in output
    assert "sink 'table' keeps 1 batch from deletion; the oldest is 2, staged " in output


def test_max_lag_is_for_cron(wal: str) -> None:
    assert "LATE" not in invoke("status", wal, "--max-lag", "1h").stdout
    late = invoke("status", wal, "--max-lag", "1ms", code=1).stdout
    assert "LATE: sink 'table' has a lag of " in late
    assert invoke_json("status", wal, "--max-lag", "1ms", code=1)["exists"]


def test_an_unknown_lag_is_late_and_says_why(wal: str) -> None:
    next((Path(wal) / paths.batch(2)).glob("manifest-*")).unlink()
    output = invoke("status", wal, "--max-lag", "1d", code=1).stdout
    assert "sink 'table': batch 2 is due, but the WAL does not hold it, or it cannot be read" in output
    assert "LATE: sink 'table' has an unknown lag" in output


def go_back(checkpoint: Path, to: int) -> None:
    for number in range(to + 1, BATCHES):
        for folder in ("offsets", "commits"):
            (checkpoint / folder / str(number)).unlink()


def test_a_checkpoint_that_is_older_than_the_wal_is_an_error_line(wal: str, tmp_path: Path) -> None:
    """The incident: Spark completed batches through 6, and the sink had everything through 13, with a lag of 0."""
    go_back(tmp_path / "checkpoint", 0)
    output = invoke("status", wal, "--max-lag", "1h", code=1).stdout
    assert "Spark completed batches through 0" in output
    assert "ERROR: the checkpoint is older than the WAL, which was delivered through 1, while Spark" in output
    assert "wal-sink verify" in output
    invoke("status", wal)
    assert "Spark completed batches through 0 only" in invoke_json("status", wal)["checkpoint_fault"]
    invoke("status", wal, "--max-lag", "1h", "--json", code=1)


def test_a_wal_whose_batches_nobody_delivers_is_late(tmp_path: Path) -> None:
    stage(tmp_path, 1)
    invoke("status", str(tmp_path / "wal"))
    found = invoke("status", str(tmp_path / "wal"), "--max-lag", "1d", code=1).stdout
    assert "LATE: no sink is registered, or all are retired: nothing is delivered" in found


def test_an_unreachable_checkpoint_is_told_as_unknown(wal: str, tmp_path: Path) -> None:
    (tmp_path / "checkpoint").rename(tmp_path / "gone")
    output = invoke("status", wal, "--max-lag", "1h").stdout
    assert f"Spark's newest commit is unknown: file://{tmp_path}/checkpoint holds no query id" in output
    assert invoke_json("status", wal)["sinks"][0]["behind_spark"] is None
    assert invoke_json("status", wal, "--checkpoint", str(tmp_path / "gone"))["spark"]["newest"] == 2
    assert (
        "does not know the scheme"
        in invoke_json("status", wal, "--checkpoint", "nothing-such://x")["spark"]["unknown_because"]
    )


def test_the_record_of_a_wal_does_not_choose_which_code_reads_the_checkpoint(wal: str) -> None:
    store = store_of(wal)
    record = decode(WalRecord, store.read(paths.WAL), "")
    values = {name: getattr(record, name) for name in record.__struct_fields__}
    store.delete([paths.WAL])
    store.create(paths.WAL, encode(WalRecord(**{**values, "checkpoint": "github://me:pw@x/y"})))
    because = invoke_json("status", wal)["spark"]["unknown_because"]
    assert "Pass this kind of address yourself with --checkpoint" in because
    assert "pw" not in because


def test_a_sink_that_fails_says_why_until_it_has_the_batch(wal: str, tmp_path: Path) -> None:
    to = ("drain", wal, "--name", "table", "--to")
    gone = invoke(*to, "sqlite:////nowhere/t.db?table=t", code=1)
    assert "DeliveryError" in gone.output
    output = invoke("status", wal).stdout
    assert "sink 'table' fails at batch 2 since " in output
    assert "DeliveryError: " in output.partition("sink 'table' fails")[2]
    error = invoke_json("status", wal)["sinks"][0]["last_error"]
    assert (error["batch_id"], error["is_over"], error["error_class"]) == (2, False, "DeliveryError")
    invoke(*to, f"sqlite:///{tmp_path}/t.db?table=t")
    assert "fails at" not in invoke("status", wal).stdout
    assert invoke_json("status", wal)["sinks"][0]["last_error"]["is_over"]


def test_an_error_that_cannot_be_read_is_told(wal: str) -> None:
    store_of(wal).create(paths.error("table", 1), b"half of a recor")
    assert "sink 'table': its last error cannot be read: " in invoke("status", wal).stdout


@pytest.fixture
def refusing(wal: str, tmp_path: Path) -> str:
    """The address of a table that refuses every row: a migration added a column that the query does not have."""
    address = f"sqlite:///{tmp_path}/strict.db?table=t"
    with sqlite3.connect(tmp_path / "strict.db") as database:
        database.execute("CREATE TABLE t (id INTEGER, region TEXT, CHECK (region IS NOT NULL))")
    args = ("drain", wal, "--to", address, "--name", "strict", "--start-from", "earliest", "--on-rejected")
    drained = " ".join(invoke(*args, "dead_letter").stdout.split())
    assert "3 batches delivered" in drained
    assert "REFUSED: the target refused 6 rows, which lie in dead letters and not in the target" in drained
    assert "wal-sink letters list WAL --name strict" in drained
    return address


@pytest.mark.usefixtures("refusing")
def test_refused_rows_are_told_until_they_were_sent_again(wal: str, tmp_path: Path) -> None:
    told = " ".join(invoke("status", wal).stdout.split())
    assert "sink 'strict': 6 rows refused or in doubt, kept in 3 dead letters since " in told
    assert "The target lacks them: wal-sink letters list WAL --name strict" in told
    invoke("status", wal, "--max-letters", "3")
    verdict = invoke("status", wal, "--max-letters", "2", code=1).stdout
    assert "REFUSED: sink 'strict': 6 rows" in verdict
    found = {sink["name"]: sink for sink in invoke_json("status", wal, "--max-letters", "0", code=1)["sinks"]}
    assert (found["strict"]["dead_letters"], found["strict"]["letters"]["rows"]) == (3, 6)
    none = {"due": 0, "rows": 0, "since": None, "replayed": 0, "is_exact": True, "files": 0, "note": ""}
    assert found["table"]["letters"] == none

    invoke("letters", "replay", wal, "--name", "strict", "--to", f"sqlite:///{tmp_path}/other.db?table=t")

    assert "in doubt" not in invoke("status", wal, "--max-letters", "0").stdout
    (strict, _) = invoke_json("status", wal)["sinks"]
    assert (strict["dead_letters"], strict["letters"]["replayed"]) == (0, 3)


@pytest.mark.usefixtures("refusing")
def test_a_damaged_dead_letter_does_not_hide_how_the_sinks_do(wal: str, tmp_path: Path) -> None:
    damaged = max(Path(wal).glob("sinks/strict/dead-letters/**/*.parquet"))
    data = bytearray(damaged.read_bytes())
    data[40] ^= 1
    damaged.write_bytes(data)
    told = " ".join(invoke("status", wal, "--max-lag", "3650d").stdout.split())
    assert "at least 4 rows refused or in doubt, kept in at least 2 dead letters since at least " in told
    assert "1 file cannot be read, the first: " in told
    found = {sink["name"]: sink for sink in invoke_json("status", wal)["sinks"]}
    assert (found["strict"]["letters"]["due"], found["strict"]["letters"]["is_exact"]) == (2, False)
    assert found["strict"]["letters"]["files"] >= 3
    assert "REFUSED" in invoke("status", wal, "--max-letters", "2", code=1).stdout
    invoke("report", wal, "-o", str(tmp_path / "report.html"))


def test_a_second_drain_tells_refused_rows_of_its_time_only(wal: str, refusing: str) -> None:
    again = invoke("drain", wal, "--to", refusing, "--name", "strict", "--on-rejected", "dead_letter")
    assert "REFUSED" not in again.stdout
    assert invoke_json("drain", wal, "--to", refusing, "--name", "strict")["refused_rows"] == 0


def test_processes_that_end_each_other_are_told(wal: str) -> None:
    store, role = store_of(wal), paths.committer_role("table")
    assert "end each other" not in invoke("status", wal).stdout
    for _ in range(5):
        claim(Log(store, SYSTEM, SYSTEM.new_id()), role)

    told = " ".join(invoke("status", wal).stdout.split())

    assert (
        "sink 'table': within an hour, 4 of its last 4 takeovers came after a process that had not recorded its end"
        in told
    )
    assert "Either these processes were killed (out of memory?), or two supervisors end each other's processes." in told
    assert "Let one supervisor run one process of each sink" in told


def test_the_error_of_a_retired_sink_is_over(wal: str) -> None:
    store = store_of(wal)
    record = ErrorRecord(
        number=1, batch_id=2, attempts=2, error_class="DeliveryError", text="refused", since="2026-01-01T00:00:00Z",
        run_id="r", term=1, id="i" * 32, created="2026-01-01T00:00:00Z",
    )  # fmt: skip
    store.create(paths.error("table", 1), encode(record))
    assert "sink 'table' fails at batch 2" in invoke("status", wal).stdout

    invoke("sinks", "retire", wal, "table", "--drop-pending", "1")

    assert "fails at batch" not in invoke("status", wal).stdout
    assert invoke_json("status", wal)["sinks"][0]["last_error"]["is_over"]


def test_options_of_the_checkpoint_that_cannot_be_read_are_wrong_use(wal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAL_SINK_CHECKPOINT_OPTIONS", "hush")
    for verb, *more in (("status",), ("report", "--output", "-")):
        said = invoke(verb, wal, *more, code=2).output
        assert "WAL_SINK_CHECKPOINT_OPTIONS: expected one JSON object" in said
        assert "hush" not in said
