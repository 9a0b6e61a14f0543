"""A command that takes long says so on stderr, and how far it is. A quick one says nothing. Nothing goes to stdout."""

from __future__ import annotations

import io
import itertools
import json
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import wal_sink.cli.opened
import wal_sink.operate.batches
import wal_sink.operate.look
import wal_sink.walsink
from tests.house.cli import main, working
from tests.house.stores import StoreSpec, open_store
from tests.support.command import invoke
from tests.support.noted_reports import noting_reports
from tests.support.staged_log import stage
from tests.support.waiting import wait_until
from wal_sink import Chunk, Delivery, Rejected, WalSink
from wal_sink.protocol.inventory import take

BATCHES = 3
MODULE = """
import time
from wal_sink.cli import working

def slow(chunk):
    time.sleep(0.4)

def told(chunk):
    working.wait_for_reports()
"""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports come after hundredths of a second. Work takes as long as it needs for some of them."""
    for name in ("FIRST_S", "REFRESH_S", "PLAIN_S"):
        monkeypatch.setattr(working, name, 0.02)
    monkeypatch.setattr(working, "LEAVE_S", 60.0)
    monkeypatch.setattr(working, "wait_for_reports", noting_reports(monkeypatch), raising=False)


@pytest.fixture
def wal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    assert stage(tmp_path, BATCHES) == [0, 1, 2]
    (tmp_path / f"targets_{tmp_path.name.replace('-', '_')}.py").write_text(MODULE)
    return str(tmp_path / "wal")


class Told:
    """Everything on stderr so far. Nothing may come on stdout."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self._text = ""

    def __call__(self) -> str:
        out, err = self._capsys.readouterr()
        assert out == ""
        self._text += err
        return self._text


def slowly(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        take_long()
        return function(*args, **kwargs)

    return call


def take_long() -> None:
    """Take so long that it is told, unless the command is to say nothing."""
    if working.is_quiet():
        time.sleep(0.1)
    else:
        working.wait_for_reports()  # type: ignore[attr-defined]


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "wal-sink-progress"]


@pytest.mark.usefixtures("often")
def test_progress_without_a_terminal_is_a_plain_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    told = Told(capsys)
    with working.working("reading batches") as work:
        work.count(1234, 5000)
        wait_until(lambda: told().count("1,234") > 1)
    lines = told().splitlines()
    assert all(re.fullmatch(r"wal-sink: reading batches: 1,234 of 5,000 \(\d+ s\)", line) for line in lines)
    assert threads() == []


def test_quick_work_says_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with working.working("reading batches"):
        pass
    monkeypatch.setattr("sys.stderr", Terminal())
    with working.working("reading batches"):
        pass
    assert capsys.readouterr() == ("", "")
    assert (working.FIRST_S, working.PLAIN_S) == (1.0, 30.0)


@pytest.mark.usefixtures("often")
def test_progress_on_a_terminal_is_a_line_that_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with working.working("reading [batches]\x1b[2J") as work:
        wait_until(lambda: "reading [batches]\\x1b[2J (" in terminal.getvalue())
        work.how_far = "batch 7"
        wait_until(lambda: "reading [batches]\\x1b[2J: batch 7 (" in terminal.getvalue())
    assert "\x1b[2J" not in terminal.getvalue()


@pytest.mark.usefixtures("often")
def test_look_tells_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    told, seen = Told(capsys), iter(range(10_000))
    with working.working("waiting", look=lambda work: work.count(next(seen), 1000)):
        wait_until(lambda: len(told().splitlines()) > 1)
    lines = told().splitlines()
    assert lines[0].startswith("wal-sink: waiting: 0 of 1,000 (")
    assert lines[1].startswith("wal-sink: waiting: 1 of 1,000 (")


@pytest.mark.usefixtures("often")
def test_work_that_waits_for_work_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    """A drain that follows an idle query would write 2,880 lines a day."""
    told, looks = Told(capsys), itertools.count(1)

    def look(work: working.Work) -> None:
        work.how_far = f"look {next(looks)}"
        work.is_idle = "look 2 " <= f"{work.how_far} " < "look 6 "

    with working.working("waiting", look=look):
        wait_until(lambda: "look 7" in told())
    assert [line.split(" (")[0] for line in told().splitlines()][:4] == [
        f"wal-sink: waiting: look {number}" for number in (1, 2, 6, 7)
    ]


@pytest.mark.usefixtures("often")
def test_a_drain_that_follows_says_once_that_nothing_is_pending(wal: str, tmp_path: Path) -> None:
    args = ("drain", wal, "--to", f"sqlite:///{tmp_path}/t.db?table=t", "--start-from", "earliest", "--follow")
    for seconds in ("2", "20", "60"):  # a slow machine may have no time to look
        told = invoke(*args, "--timeout", seconds).stderr
        if "no batch is pending" in told:
            break
    assert told.count("through batch 2 of 2, no batch is pending (") == 1


@pytest.mark.usefixtures("often")
def test_an_error_ends_the_reports_and_passes() -> None:
    with pytest.raises(KeyError), working.working("reading"):
        raise KeyError
    assert threads() == []


@pytest.mark.usefixtures("often")
def test_a_report_that_comes_after_the_end_is_left_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(working, "LEAVE_S", 0.1)
    reading, go = threading.Event(), threading.Event()

    def look(_: working.Work) -> None:
        reading.set()
        go.wait(60)

    with working.working("waiting", look=look):
        assert reading.wait(60)
    go.set()
    wait_until(lambda: threads() == [])
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("often")
def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--quiet", "-q"):
        with click.Context(main) as context:
            context.params = main.make_context("wal-sink", [option, "status"]).params
            assert working.is_quiet()
            with working.working("reading"):
                time.sleep(0.1)
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("often")
def test_a_slow_store_is_told_and_stdout_holds_the_result_alone(wal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    verbs = (("status",), ("batches",), ("show", "1"), ("sinks list",), ("letters list",))
    usual = {verb: invoke(*verb.split(), wal, *more, "--json") for verb, *more in verbs}
    monkeypatch.setattr(wal_sink.cli.opened, "open_store", slowly(open_store))
    monkeypatch.setattr(wal_sink.operate.look, "take", slowly(take))
    for verb, *more in verbs:
        slow = invoke(*verb.split(), wal, *more, "--json")
        assert f"wal-sink: opening file://{wal} (" in slow.stderr
        assert f"wal-sink: reading the state of file://{wal} (" in slow.stderr
        assert ageless(json.loads(slow.stdout)) == ageless(json.loads(usual[verb].stdout))
        if verb != "status":  # it tells the time of the look
            assert slow.stdout == usual[verb].stdout
        assert invoke("--quiet", *verb.split(), wal, *more).stderr == ""


@pytest.mark.usefixtures("often")
def test_an_address_shows_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: StoreSpec) -> None:
        take_long()
        raise click.ClickException("enough")

    monkeypatch.setattr(wal_sink.cli.opened, "open_store", fail)
    result = CliRunner().invoke(main, ["status", "ftp://me:hush-hush@host/wal"])
    assert "wal-sink: opening ftp://" in result.stderr
    assert "hush" not in result.output


def ageless(found: Any) -> Any:
    """A document without the time of the look and without ages, which grow from one look to the next."""
    if isinstance(found, list):
        return [ageless(each) for each in found]
    if not isinstance(found, dict):
        return found
    return {name: ageless(value) for name, value in found.items() if name != "looked_at" and not name.endswith("age_s")}


@pytest.mark.usefixtures("often")
def test_listing_many_batches_counts_them(wal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_view = slowly(wal_sink.operate.batches._view)
    monkeypatch.setattr(wal_sink.operate.batches, "_view", slow_view)
    found = invoke("batches", wal).stderr
    assert f"wal-sink: reading the batches of file://{wal}: 0 of {BATCHES} (" in found
    assert f"wal-sink: reading the batches of file://{wal}: 2 of {BATCHES} (" in found


@pytest.mark.usefixtures("often")
def test_a_drain_tells_how_far_it_is_unless_it_is_to_be_silent(wal: str, tmp_path: Path) -> None:
    module = f"targets_{tmp_path.name.replace('-', '_')}"
    told = invoke("drain", wal, "--to", f"{module}:told", "--start-from", "earliest")
    drain = ("drain", wal, "--to", f"{module}:slow", "--start-from", "earliest")
    assert "wal-sink: delivering to sink 'default': through batch 0 of 2 (" in told.stderr
    assert "delivered, through batch 2" in told.stdout
    assert invoke("--quiet", *drain, "--name", "c").stderr == ""


@pytest.mark.usefixtures("often")
def test_a_replay_counts_the_dead_letters_that_were_sent(wal: str, tmp_path: Path) -> None:
    to = Delivery(refuse, on_rejected="dead_letter", start_from="earliest")
    with WalSink(to, wal=wal, checkpoint=str(tmp_path / "checkpoint")):
        pass
    target = f"targets_{tmp_path.name.replace('-', '_')}:told"
    result = invoke("letters", "replay", wal, "--to", target)
    assert "wal-sink: sending dead letters to told: 1 dead letter, 1 row (" in result.stderr
    assert "3 dead letters sent to told: 3 rows" in result.stdout


def refuse(_chunk: Chunk) -> Rejected:
    return Rejected({0: "not this one"})
