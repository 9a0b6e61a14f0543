"""`wal-sink estimate`: for people, for machines, and the tables of docs/SCALE.md."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest
from click.testing import CliRunner

from tests.support.processes import CHECKOUT
from wal_sink.cli.durations import duration
from wal_sink.cli.main import main
from wal_sink.estimation.estimate import estimate
from wal_sink.estimation.plan import S3_MODEL, Plan
from wal_sink.settings import Settings
from wal_sink.sinks.guarantees import Ability

SCALE = CHECKOUT / "docs/SCALE.md"
COMMAND = re.compile(r"^    \$ wal-sink (estimate.*)\n((?:    .*\n|\n)+)", re.MULTILINE)


def shown(*args: str, exit_code: int = 0) -> str:
    result = CliRunner().invoke(main, ["estimate", *args])
    assert result.exit_code == exit_code, (result.output, result.exception)
    return result.output


def as_json(*args: str) -> Any:
    return json.loads(shown(*args, "--json"))


def test_a_row_for_each_size_of_cluster() -> None:
    found = as_json()["estimates"]
    assert [each["plan"]["executors"] for each in found] == [1, 10, 100, 1000, 10_000]
    assert [each["plan"]["executors"] for each in as_json("--executors", "3", "--executors", "7")["estimates"]] == [
        3,
        7,
    ]


def test_every_option_reaches_the_calculation() -> None:
    args = (
        "--executors 20 --cores-per-executor 2 --batch-interval 1m --segments 30 --rows-per-second 50 --row-bytes 300 "
        "--compression 2 --columns 7 --chunk-rows 100 --chunk-mib 8 --segment-mib 16 --retention-batches 300 "
        "--retention-age 24h --retention-gib 1.5 "
        "--max-delivery-tasks 5 --sinks 2 --sink-kind lookup --at-most-once --where executors --sink-call 20ms "
        "--pending-batches 3 --threads-per-task 2"
    )
    plan = Plan(
        executors=20,
        cores_per_executor=2,
        batch_interval_s=60,
        segments=30,
        rows_per_s=50,
        row_bytes=300,
        compression=2,
        columns=7,
        settings=Settings(
            chunk_rows=100,
            chunk_bytes=8 << 20,
            segment_bytes=16 << 20,
            retention_batches=300,
            retention_age_s=86400,
            retention_bytes=3 << 29,
            max_delivery_tasks=5,
        ),
        sinks=2,
        ability=Ability.LOOK_UP,
        at_most_once=True,
        where="executors",
        threads_per_task=2,
        sink_call_s=0.02,
        pending_batches=3,
    )
    expected = estimate(plan, S3_MODEL)
    (found,) = as_json(*args.split())["estimates"]
    assert found["requests"]["puts"] == expected.requests.puts
    assert found["dollars"]["requests"] == pytest.approx(expected.dollars.requests if expected.dollars else None)
    assert found["manifest_bytes"] == expected.manifest_bytes
    assert found["restart_s"] == pytest.approx(expected.restart_s)
    assert found["shape"]["chunks"] == expected.shape.chunks
    assert found["busy"] == pytest.approx(expected.busy)
    assert found["advice"]["text"]


def test_partitions_that_share_no_segment_can_be_told() -> None:
    many = ["--executors", "10", "--segments", "200", "--rows-per-second", "20"]
    (packed,), (own,) = (as_json(*many, *more)["estimates"] for more in ([], ["--own-segments"]))
    assert (packed["shape"]["segments"], own["shape"]["segments"]) == (1, 200)


def test_the_store_can_be_described() -> None:
    args = "--store other --latency 7ms --bandwidth 50 --write-limit 10 --read-limit 20 --put-price 1 --storage-price 2"
    store = as_json("--executors", "1", *args.split())["store"]
    assert (store["write_s"], store["read_s"], store["bandwidth"]) == (0.007, 0.007, 50e6)
    assert (store["writes_per_s"], store["reads_per_s"]) == (10, 20)
    prices = {"per_1000_puts": 1, "per_1000_gets": 0, "per_1000_deletes": 0, "gb_month": 2, "as_of": "as given"}
    assert store["prices"] == prices


def test_prices_carry_their_date_and_what_of_them_was_given() -> None:
    assert re.search(r"us-east-1, \d{4}-\d\d-\d\d\)", shown())
    assert "some as given" in shown("--get-price", "0.1")
    every = "--put-price 1 --get-price 1 --delete-price 1 --storage-price 1"
    assert as_json(*every.split())["store"]["prices"]["as_of"] == "as given"


def test_a_store_without_prices_shows_none() -> None:
    text = shown("--store", "local")
    assert "no prices are known" in text
    assert "5 ms a write, 0.5 ms a read" in text
    assert "$0" not in text


def test_what_may_be_missing_is_called_so() -> None:
    assert "be missing" in shown("--at-most-once")
    assert "be missing" not in shown()


@pytest.mark.parametrize(
    "args",
    [
        "--batch-interval soon",
        "--batch-interval 0s",
        "--segments 0",
        "--rows-per-second 0",
        "--rows-per-second 1e300",
        "--row-bytes 1e308",
        "--latency 1" + "0" * 400,
        "--put-price 1e300",
        "--retention-age 1" + "0" * 400,
        "--retention-gib 1e300",
        "--sink-kind batch --where executors",
        "--retention-batches 50",
        "--sink-kind transactional --at-most-once",
        "--sink-kind two-phase",
        "--store tape",
    ],
)
def test_what_cannot_be_is_exit_code_2(args: str) -> None:
    assert "Traceback" not in shown(*args.split(), exit_code=2)


def test_durations() -> None:
    assert [duration(text) for text in ("10s", "500ms", "2m", "1h", "1.5", "3 s")] == [10, 0.5, 120, 3600, 1.5, 3]


def commands() -> list[tuple[str, str]]:
    return [(match[1], match[2]) for match in COMMAND.finditer(SCALE.read_text())]


@pytest.mark.parametrize(("command", "printed"), commands(), ids=[command for command, _ in commands()])
def test_the_page_shows_what_its_commands_print(command: str, printed: str) -> None:
    result = CliRunner().invoke(main, shlex.split(command))
    lines = [f"    {line}".rstrip() for line in result.stdout.splitlines()]
    assert lines == printed.rstrip("\n").splitlines(), "put this there:\n" + "\n".join(lines)


def test_the_guide_to_s3_names_the_dollars_that_its_command_prints() -> None:
    page = (CHECKOUT / "docs/guide/s3.md").read_text()
    [(command, dollars)] = re.findall(
        r"^    wal-sink (estimate .*)\n\nThis example costs \$([\d.]+)", page, re.MULTILINE
    )
    assert f" {dollars} " in shown(*shlex.split(command)[1:])


def test_the_page_shows_commands() -> None:
    assert [command for command, _ in commands()][:2] == [
        "estimate",
        "estimate --batch-interval 10s --segments 500 --chunk-rows 50000 --store s3",
    ]
