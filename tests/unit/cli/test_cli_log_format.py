"""`--log-format json`: each line of stderr is a JSON object with fields, and none holds a secret."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.house.cli import main, working
from tests.support.command import invoke
from tests.support.noted_reports import noting_reports
from tests.support.processes import python_environment
from tests.support.staged_log import stage
from tests.support.waiting import wait_until
from wal_sink.cli.working import JsonFormatter

MODULE = """
from pathlib import Path
import sys

if "pytest" not in sys.modules:
    from tests.support.ending_runs import wait_for_the_end

def fail(chunk):
    raise ConnectionError("no route to https://me:hush-hush-0123@host/x?token=abcdefgh")

def slow(chunk):
    from wal_sink.cli import working
    working.wait_for_reports()

def held(chunk):
    Path("begun").touch()
    wait_for_the_end()
"""
JSON = ("--log-format", "json")
FIELDS = ["time", "level", "logger", "message", "wal", "sink", "batch", "segment"]


@pytest.fixture
def wal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    assert stage(tmp_path, 2) == [0, 1]
    (tmp_path / "logged_targets.py").write_text(MODULE)
    return str(tmp_path / "wal")


def lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stderr.splitlines()]


def test_records_and_the_final_error_are_json_with_their_fields(wal: str) -> None:
    more = ("--start-from", "earliest", "--max-attempts", "2")
    result = invoke(*JSON, "drain", wal, "--to", "logged_targets:fail", "--name", "api", *more, code=1)
    found = lines(result)
    assert all(list(line) == FIELDS for line in found)
    (failed,) = [line for line in found if "attempt 1 of 2" in line["message"]]
    assert (failed["level"], failed["logger"]) == ("WARNING", "wal_sink.protocol.retry")
    assert (failed["wal"], failed["sink"], failed["batch"]) == (f"file://{wal}", "api", 0)
    assert found[-1]["level"] == "ERROR"
    assert found[-1]["message"].startswith("DeliveryError: batch 0, sink 'api'")
    assert "INFO" in {line["level"] for line in found}
    assert "hush-hush" not in result.stderr
    assert "abcdefgh" not in result.stderr


def test_stdout_and_exit_codes_stay_the_same(wal: str) -> None:
    args = ("drain", wal, "--to", "sqlite:///t.db?table=t", "--start-from", "earliest", "--json")
    result = invoke(*JSON, *args)
    assert json.loads(result.stdout)["batches"] == 2
    assert {line["level"] for line in lines(result)} <= {"INFO"}


def test_a_wrong_use_is_json_too(tmp_path: Path) -> None:
    (line,) = lines(
        invoke(
            *JSON,
            "drain",
            str(tmp_path),
            "--to",
            "sqlite:///x?table=t",
            "--storage-options",
            "k",
            code=2,
        )
    )
    assert "expected one JSON object" in line["message"]


def test_a_long_work_reports_json(wal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working, "PLAIN_S", 0.05)
    monkeypatch.setattr(working, "wait_for_reports", noting_reports(monkeypatch), raising=False)
    found = lines(invoke(*JSON, "drain", wal, "--to", "logged_targets:slow", "--start-from", "earliest"))
    assert [line for line in found if line["message"].startswith("wal-sink: delivering to sink 'default'")]


def test_an_error_that_ends_a_drain_is_told_once(wal: str, caplog: pytest.LogCaptureFixture) -> None:
    args = ["drain", wal, "--to", "logged_targets:fail", "--start-from", "earliest", "--max-attempts", "1"]
    result = CliRunner().invoke(main, args)
    assert result.stderr.splitlines()[-1].startswith("DeliveryError: batch 0")  # text stays text
    assert result.stderr.count("delivery stopped after 1 attempts") == 1
    assert "the delivery to sink" not in caplog.text
    again = invoke(*JSON, "drain", wal, "--to", "logged_targets:fail", "--max-attempts", "1", code=1)
    assert [line for line in lines(again) if line["message"].startswith("the delivery to sink default failed")]


def test_the_logging_of_the_program_is_as_before_afterwards(wal: str) -> None:
    root, own = logging.getLogger(), logging.getLogger("wal_sink")
    before = list(root.handlers), own.level
    invoke(*JSON, "status", wal)
    assert (list(root.handlers), own.level) == before


def test_an_exception_is_one_line_without_secrets() -> None:
    try:
        raise ValueError("password=hush-hush-0123\nsecond line")
    except ValueError as error:
        record = logging.LogRecord("other", logging.ERROR, "", 0, "failed at %s", ("https://u:hush@h/",), None)
        record.exc_info = (ValueError, error, error.__traceback__)
    text = JsonFormatter().format(record)
    line = json.loads(text)
    assert "\n" not in text
    assert (line["message"], line["sink"]) == ("failed at https://h/", None)
    assert "second line" in line["error"]
    assert "hush" not in text


def test_a_field_is_masked_too() -> None:
    record = logging.LogRecord("other", logging.INFO, "", 0, "x", None, None)
    record.wal, record.batch = "s3://key:hush-hush@host/wal", 7
    line = json.loads(JsonFormatter().format(record))
    assert (line["wal"], line["batch"]) == ("s3://host/wal", 7)


@pytest.mark.processes
def test_an_end_by_sigterm_is_json(wal: str) -> None:
    args = (*JSON, "drain", wal, "--to", "logged_targets:held", "--start-from", "earliest")
    process = subprocess.Popen(
        [sys.executable, "-m", "wal_sink.cli", *args],
        env=python_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: Path("begun").exists() or process.poll() is not None)
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 143
    assert json.loads(told.splitlines()[-1])["message"].startswith("ended by SIGTERM")
    assert all(json.loads(line) for line in told.splitlines())
