"""SIGTERM ends the commands that hold terms as Ctrl-C does: in order, and with the record that they ended."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from tests.house.cli import main
from tests.house.log import paths
from tests.house.protocol import Run
from tests.house.sinks import Chunk, Rejected
from tests.house.stores import StoreSpec, open_store
from tests.support.processes import python_environment
from tests.support.small_run import served_sink
from tests.support.waiting import wait_until
from wal_sink.cli.working import ENDED_BY_CTRL_C, ENDED_BY_SIGTERM, in_order
from wal_sink.errors import StoreError
from wal_sink.settings import Delivery, Settings
from wal_sink.testing import FakeQuery
from wal_sink.walsink import WalSink

MODULE = """
import pathlib
import sys
import time

if "pytest" not in sys.modules:  # elsewhere it is only imported
    from tests.support.ending_runs import wait_for_the_end

def take(chunk):
    with open("lines.txt", "a") as file:
        file.write("begun\\n")
        file.flush()
        wait_for_the_end()
        pathlib.Path("ending").touch()
        time.sleep(0.5)
        while pathlib.Path("held").exists():
            time.sleep(0.01)
        file.write("done\\n")
"""
"""A chunk that is in hand until the end of the command has begun, and while there is a file `held`."""
LIMIT_S = 60.0


def refuse_one(chunk: Chunk) -> Rejected:
    return Rejected({0: f"no row of batch {chunk.batch_id}"})


@pytest.fixture
def wal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A WAL of four batches, each with a dead letter of the sink `default`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("wal_sink.cli.drain.STATUS_S", LIMIT_S)
    (tmp_path / "slow_targets.py").write_text(MODULE)
    checkpoint = open_store(StoreSpec(str(tmp_path / "checkpoint")))
    run = Run(open_store(StoreSpec(str(tmp_path / "wal"))), checkpoint, Settings())
    run.open([served_sink(run, "default", Delivery(refuse_one, on_rejected="dead_letter"))])
    run.become_stager()
    for _ in FakeQuery(checkpoint, lambda *_: [pa.table({"id": [1]})]).batches(run, 4):
        run.deliver_all()
    return str(tmp_path / "wal")


@contextmanager
def command(*args: str) -> Iterator[subprocess.Popen[str]]:
    """A real process that is in the middle of its first chunk."""
    process = subprocess.Popen(
        [sys.executable, "-m", "wal_sink.cli", *args, "--to", "slow_targets:take", "--json"],
        env=python_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: lines() == ["begun"] or process.poll() is not None)
        yield process
    finally:
        process.kill()
        process.communicate(timeout=LIMIT_S)


def drain(wal: str, *more: str) -> tuple[str, ...]:
    return ("drain", wal, "--name", "other", "--start-from", "earliest", *more)


def lines() -> list[str]:
    return Path("lines.txt").read_text().split() if Path("lines.txt").exists() else []


def ended(wal: str, role: str) -> bool:
    return paths.ended(role, 1).rpartition("/")[2] in open_store(StoreSpec(wal)).list(paths.terms(role))


OTHER = paths.committer_role("other")


@pytest.mark.parametrize(("by", "told"), [(signal.SIGTERM, "SIGTERM"), (signal.SIGINT, "Ctrl-C")])
def test_a_drain_finishes_the_chunk_in_hand_and_leaves_its_end_record(wal: str, by: signal.Signals, told: str) -> None:
    with command(*drain(wal)) as process:
        process.send_signal(by)
        shown, said = process.communicate(timeout=LIMIT_S)

    assert process.returncode == 128 + by
    assert lines() == ["begun", "done"]
    assert ended(wal, OTHER)
    assert (shown, said) == ("", f"ended by {told}: 3 batches pending, delivered at the next start\n")


def test_a_drain_that_follows_ends_as_by_ctrl_c(wal: str) -> None:
    with command(*drain(wal, "--follow")) as process:
        process.send_signal(signal.SIGTERM)
        told, said = process.communicate(timeout=LIMIT_S)

    assert process.returncode == 0, said
    assert json.loads(told)["interrupted"] is True
    assert said == "ended by SIGTERM: 3 batches pending, delivered at the next start\n"
    assert lines() == ["begun", "done"]
    assert ended(wal, OTHER)


def test_a_second_sigterm_does_not_cut_the_end_short(wal: str) -> None:
    Path("held").touch()
    with command(*drain(wal)) as process:
        process.send_signal(signal.SIGTERM)
        wait_until(Path("ending").exists)
        for _ in range(3):
            process.send_signal(signal.SIGTERM)
            time.sleep(0.1)
        Path("held").unlink()
        process.communicate(timeout=LIMIT_S)

    assert process.returncode == ENDED_BY_SIGTERM
    assert lines() == ["begun", "done"]
    assert ended(wal, OTHER)


def test_a_replay_leaves_its_end_record(wal: str) -> None:
    with command("letters", "replay", wal) as process:
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=LIMIT_S)

    assert process.returncode == ENDED_BY_SIGTERM, said
    assert lines().count("begun") == 1
    assert ended(wal, paths.replayer_role("default"))


def test_a_drain_that_is_ended_while_it_opens_the_wal_records_its_end(
    wal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its terms are claimed by then."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "_warn_of_unserved", interrupted)
    result = CliRunner().invoke(main, [*drain(wal), "--to", "slow_targets:take"])

    assert result.exit_code == ENDED_BY_CTRL_C
    assert ended(wal, OTHER)


def test_the_handler_of_before_is_back_afterwards() -> None:
    def mine(*_: object) -> None: ...

    before = signal.signal(signal.SIGTERM, mine)
    try:
        with in_order():
            assert signal.getsignal(signal.SIGTERM) is not mine
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)


def test_on_another_thread_than_the_main_one_the_command_runs_without_a_handler() -> None:
    found: list[object] = []
    before = signal.getsignal(signal.SIGTERM)

    def run() -> None:
        with in_order():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(LIMIT_S)
    assert found == [before]


class Silent:
    """Requests of `WalSink.status` that get no answer before the test ends."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def status(self, *_: object) -> None:
        self.over.wait(LIMIT_S)
        raise StoreError("too late")


def refused_status(*_: object) -> None:
    raise StoreError("no route")


@pytest.mark.parametrize("as_json", [True, False], ids=["json", "text"])
@pytest.mark.parametrize("answers", [True, False], ids=["refuses", "is silent"])
def test_a_drain_that_follows_ends_soon_with_0_though_the_store_does_not_answer(
    wal: str, monkeypatch: pytest.MonkeyPatch, *, answers: bool, as_json: bool
) -> None:
    """Without this, the end sent requests one after the other: 340 s, and exit code 1."""
    silent = Silent()

    def interrupted(*_: object, **__: object) -> None:
        monkeypatch.setattr(WalSink, "status", refused_status if answers else silent.status)
        raise KeyboardInterrupt

    monkeypatch.setattr(WalSink, "drain", interrupted)
    if not answers:
        monkeypatch.setattr("wal_sink.cli.drain.STATUS_S", 0.2)
    began_s = time.monotonic()
    more = ["--json"] if as_json else []
    result = CliRunner().invoke(main, [*drain(wal, "--follow"), "--to", "slow_targets:take", *more])
    took_s = time.monotonic() - began_s
    silent.over.set()

    assert result.exit_code == 0, result.output
    why = "StoreError: no route" if answers else "the store did not answer within 0.2 s"
    assert f"ended by Ctrl-C: it is not known how many batches are pending ({why})" in result.stderr
    assert took_s < LIMIT_S, "it waited for an answer"
    if as_json:
        said = json.loads(result.stdout)
        assert (said["batches"], said["pending_batches"], said["interrupted"]) == (None, None, True)
    else:
        assert "the store did not tell how far delivery came" in result.stdout


def test_ctrl_c_ends_a_drain_in_the_same_way(wal: str) -> None:
    with command(*drain(wal)) as process:
        process.send_signal(signal.SIGINT)
        told, said = process.communicate(timeout=LIMIT_S)

    assert process.returncode == ENDED_BY_CTRL_C == 128 + signal.SIGINT
    assert lines() == ["begun", "done"]
    assert ended(wal, OTHER)
    assert (told, said) == ("", "ended by Ctrl-C: 3 batches pending, delivered at the next start\n")


def test_where_the_store_does_not_answer_any_more_the_line_says_so(wal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        monkeypatch.setattr(WalSink, "status", refused)
        raise KeyboardInterrupt

    def refused(*_: object) -> None:
        raise StoreError("no route")

    monkeypatch.setattr(WalSink, "drain", interrupted)
    result = CliRunner().invoke(main, [*drain(wal), "--to", "slow_targets:take"])

    assert result.exit_code == ENDED_BY_CTRL_C
    assert "it is not known how many batches are pending (StoreError: no route)" in result.stderr
