"""A command that would take a sink over from a process that serves it is refused, unless that process has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

import wal_sink.walsink
from tests.house.cli import main
from tests.house.log import Log, TermRecord, encode, paths
from tests.house.stores import Store, StoreSpec, open_store
from tests.house.support import SYSTEM, process_identity
from tests.support.processes import python_environment
from tests.support.staged_log import stage
from tests.support.waiting import wait_until

MODULE = """
def take(chunk):
    with open("taken.txt", "a") as file:
        file.write(f"{chunk.batch_id}\\n")

def fail(chunk):
    from wal_sink import PermanentError
    raise PermanentError("the target is gone")
"""
BATCHES = 2
ROLE = paths.committer_role("default")


@pytest.fixture
def wal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A WAL of two complete batches that nobody has drained."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(wal_sink.walsink, "current_session", lambda: None)
    (tmp_path / "held_targets.py").write_text(MODULE)
    assert stage(tmp_path, BATCHES) == [0, 1]
    return str(tmp_path / "wal")


@pytest.fixture
def living(wal: str) -> Iterator[subprocess.Popen[bytes]]:
    """Another process of this machine that serves the sink, and goes on doing so."""
    command = [sys.executable, "-m", "wal_sink.cli", "drain", wal, "--to", "held_targets:take", "--follow"]
    process = subprocess.Popen([*command, "--start-from", "earliest"], env=python_environment())
    try:
        wait_until(lambda: Path("taken.txt").exists() and len(Path("taken.txt").read_text().split()) == BATCHES)
        wait_until(lambda: len(store_of(wal).list(paths.markers("default"))) == BATCHES)
        yield process
    finally:
        process.kill()
        process.wait(60)


def store_of(wal: str) -> Store:
    return open_store(StoreSpec(wal))


def drain(wal: str, *more: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, ["drain", wal, "--to", "held_targets:take", *more])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def terms(wal: str) -> list[int]:
    return Log(store_of(wal), SYSTEM, "").numbers(paths.terms(ROLE))


def claim_as(wal: str, **changes: object) -> str:
    """As if a process that is like this one but for some things had claimed the next term. Gives its name."""
    number = max(terms(wal), default=0) + 1
    holder = msgspec.structs.replace(process_identity(), **changes)
    record = TermRecord(
        role=ROLE, term=number, run_id="r", process=f"{holder.host}:{holder.pid}", holder=holder, id="1" * 32,
        created="2026-11-01T10:00:00.000+00:00",
    )  # fmt: skip
    store_of(wal).create(paths.term(ROLE, number), encode(record))
    return record.process


def test_a_command_is_refused_while_a_process_on_this_host_serves_the_sink(
    wal: str, living: subprocess.Popen[bytes]
) -> None:
    """It claimed the term of the living process, which died of that, and ended with 0."""
    for more in ((), ("--take-over",)):
        said = drain(wal, *more, code=1).stderr
        assert f":{living.pid} has served it since " in said
        assert "is running on this machine. Stop that process first" in said

    assert terms(wal) == [1]
    assert living.poll() is None


def test_a_command_goes_on_after_a_process_that_was_killed_on_this_host(
    wal: str, living: subprocess.Popen[bytes]
) -> None:
    living.kill()
    living.wait(60)

    assert "through batch 1" in drain(wal).stdout
    assert terms(wal) == [1, 2]


ELSEWHERE = {
    "another host": {"host": "elsewhere", "boot_id": "another"},
    "a machine of the same name, or this one before it was started again": {"boot_id": "another"},
    "another container of this machine": {"pid_namespace": "pid:[1]"},
    "a system that does not tell": {"boot_id": ""},
}


@pytest.mark.parametrize("where", ELSEWHERE)
def test_a_command_is_refused_if_the_process_may_live_unless_told_to_take_over(wal: str, where: str) -> None:
    """The process id is that of a process which lives here: it says nothing."""
    drain(wal, "--start-from", "earliest")
    name = claim_as(wal, **ELSEWHERE[where])

    said = drain(wal, code=1).stderr

    assert f"sink 'default' of {store_of(wal).root}: {name} has served it since 2026-11-01T10:00:00.000+00:00" in said
    assert "--take-over" in said
    assert terms(wal) == [1, 2]
    drain(wal, "--take-over")
    assert terms(wal) == [1, 2, 3]


def test_a_query_that_starts_takes_over_without_a_question(wal: str, living: subprocess.Popen[bytes]) -> None:
    """Spark restarts a driver on another host as soon as it lost the first one."""
    with wal_sink.walsink.WalSink(lambda _: None, wal=wal, checkpoint=f"{Path(wal).parent}/checkpoint"):
        assert terms(wal) == [1, 2]
    assert living.poll() is None  # it learns of it with the next batch


def test_a_process_that_was_killed_holds_nothing_though_the_host_has_another_name(wal: str) -> None:
    drain(wal, "--start-from", "earliest")
    claim_as(wal, host="its-older-name")

    for more in ((), ("--take-over",)):
        assert "is running on this machine. Stop that process first" in drain(wal, *more, code=1).stderr

    assert terms(wal) == [1, 2]


def test_a_zombie_holds_no_sink(wal: str, living: subprocess.Popen[bytes]) -> None:
    """In a container whose first process does not wait for its children, a killed driver stays in the table."""
    os.kill(living.pid, signal.SIGKILL)
    stat = Path(f"/proc/{living.pid}/stat")
    wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z")
    wait_until(lambda: len(list(Path(f"/proc/{living.pid}/task").iterdir())) == 1)

    drain(wal)
    assert terms(wal) == [1, 2]


def test_after_a_process_that_ended_on_another_host_it_goes_on(wal: str, living: subprocess.Popen[bytes]) -> None:
    living.send_signal(signal.SIGINT)
    living.wait(60)

    assert paths.ended(ROLE, 1) in [f"{paths.terms(ROLE)}/{name}" for name in store_of(wal).list(paths.terms(ROLE))]
    drain(wal)
    drain(wal)  # each leaves its own record
    assert terms(wal) == [1, 2, 3]


def test_a_process_id_that_another_process_got_is_no_holder(wal: str) -> None:
    drain(wal, "--start-from", "earliest")
    claim_as(wal, started=process_identity().started - 1)

    drain(wal)
    assert terms(wal) == [1, 2, 3]


def test_a_drain_that_failed_has_ended_too(wal: str) -> None:
    result = CliRunner().invoke(main, ["drain", wal, "--to", "held_targets:fail", "--start-from", "earliest"])
    assert result.exit_code == 1

    drain(wal)
