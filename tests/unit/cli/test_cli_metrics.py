"""`wal-sink drain --metrics`: served while the drain runs, at the address that it tells."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.house.cli import main
from tests.support.processes import python_environment
from tests.support.staged_log import stage
from tests.support.waiting import wait_until


@pytest.fixture
def wal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    assert stage(tmp_path, 2) == [0, 1]
    return str(tmp_path / "wal")


def test_an_address_that_is_none_is_wrong_usage(wal: str) -> None:
    for address in ("9464", "127.0.0.1", "127.0.0.1:no"):
        given = ("--to", "sqlite:///t.db?table=t", "--start-from", "earliest", "--metrics", address)
        result = CliRunner().invoke(main, ["drain", wal, *given])
        assert result.exit_code == 2
        assert "(--metrics): expected HOST:PORT" in result.stderr
        assert not Path("t.db").exists()


@pytest.mark.processes
def test_a_following_drain_serves_its_metrics_until_it_ends(wal: str) -> None:
    args = ("drain", wal, "--to", "sqlite:///t.db?table=t", "--start-from", "earliest", "--follow")
    process = subprocess.Popen(
        [sys.executable, "-m", "wal_sink.cli", *args, "--metrics", "127.0.0.1:0"],
        env=python_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        address = re.fullmatch(r"metrics: (http://127\.0\.0\.1:\d+/metrics)\n", process.stderr.readline())
        assert address is not None

        url = address[1]
        wait_until(lambda: _line(url, "wal_sink_delivered_batches_total").endswith(" 2.0"))
        wait_until(lambda: _line(url, "wal_sink_pending_batches").endswith(" 0.0"))
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate(timeout=60)
    assert process.returncode == 0
    with pytest.raises(OSError, match="refused"):
        _line(url, "")


def _line(url: str, metric: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - on 127.0.0.1
        text: str = answer.read().decode()
    return next((line for line in text.splitlines() if line.startswith(f"{metric}{{")), "")
