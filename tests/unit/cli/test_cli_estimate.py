"""`wal-sink estimate`: for people, for machines, and the examples of the pages."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.house.operate import Plan
from tests.support.command import invoke
from tests.support.processes import CHECKOUT
from wal_sink.cli.options import duration
from wal_sink.operate.estimate import Estimate, Prices

PAGES = ["docs/cost.md"]
COMMAND = re.compile(r"^    \$ wal-sink (estimate.*)\n((?:    .*\n)+)", re.MULTILINE)


def test_every_option_reaches_the_calculation() -> None:
    args = (
        "--batch-interval 1m --rows-per-second 50 --row-bytes 300 --segments 30 --chunk-rows 20 --sink at-most-once "
        "--sink segment-writer --retention-batches 300 --prices 1 2 3 --json"
    )
    plan = Plan(
        batch_interval_s=60,
        rows_per_s=50,
        row_bytes=300,
        segments=30,
        chunk_rows=20,
        sinks=("at most once", "segment writer"),
        retention_batches=300,
    )
    expected = Estimate(plan, Prices(1, 2, 3))

    found: dict[str, Any] = json.loads(invoke("estimate", *args.split()).output)

    assert found["plan"] == json.loads(json.dumps(asdict(plan)))
    assert found["prices"] == asdict(expected.prices)
    assert (found["rows"], found["chunks"]) == (3000, 150)
    assert found["requests_of_batch"] == pytest.approx(asdict(expected.requests))
    assert found["requests_a_month"]["puts"] == pytest.approx(expected.requests.puts * 43_800)
    assert found["stored_bytes"] == expected.stored_bytes
    dollars = {"requests": expected.request_dollars, "storage": expected.storage_dollars}
    assert found["dollars_a_month"] == pytest.approx(dollars)


def test_what_cannot_be_is_exit_code_2() -> None:
    for args in (
        "--batch-interval soon",
        "--batch-interval 0s",
        "--batch-interval 1" + "0" * 400,
        "--segments 0",
        "--rows-per-second -1",
        "--rows-per-second 1e300",
        "--row-bytes 1e308",
        "--prices 1e300 0 0",
        "--prices 1",
        "--retention-batches 50",
        "--sink tape",
    ):
        assert "Traceback" not in invoke("estimate", *args.split(), code=2).output


def test_durations() -> None:
    assert [duration(text) for text in ("10s", "500ms", "2m", "1h", "1.5", "3 s")] == [10, 0.5, 120, 3600, 1.5, 3]


def test_the_pages_show_what_their_commands_print() -> None:
    for page in PAGES:
        [(command, printed)] = COMMAND.findall((CHECKOUT / Path(page)).read_text())
        lines = [f"    {line}".rstrip() for line in invoke("estimate", *shlex.split(command)[1:]).output.splitlines()]
        assert lines == printed.rstrip("\n").splitlines(), "put this there:\n" + "\n".join(lines)
    page = (CHECKOUT / "docs/guide/s3.md").read_text()
    [(command, dollars)] = re.findall(
        r"^    wal-sink (estimate .*)\n\nThis example costs \$([\d.]+)", page, re.MULTILINE
    )
    assert f" {dollars} requests" in invoke("estimate", *shlex.split(command)[1:]).output
