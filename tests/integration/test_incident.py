"""An incident, with a real Prometheus, a real Redis and the shipped alerts: the target goes down and comes back.

The backlog grows to its bound, the stream waits, `status` shows it, the alert fires. Then the target returns, the
backlog drains in order, the alert clears, and nothing is lost.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from tests.house.cli import main
from tests.integration.test_monitoring import ALERTS, dashboard_queries
from tests.support.servers.prometheus import PrometheusServer
from tests.support.servers.redis_server import PASSWORD, RedisServer
from tests.support.streams import Home
from tests.support.waiting import wait_until
from wal_sink import Delivery, Metrics, Retry, Settings
from wal_sink_backends.redis import RedisSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

BOUND = 3
VARIABLE = "REDIS_PASSWORD"
WAITING = "WalSinkStreamWaiting"
LIMIT_S = 180.0
"""For what comes after a scrape, or after a pause between attempts, which grow while the target is down.

A scrape that takes too long leaves every series without a value until the next one. So each value is waited for.
"""
SHORT = "1s"
"""In place of the shipped durations. The expressions stay."""


def short_alerts() -> str:
    text, count = re.subn(r"^( +for:) \w+$", rf"\1 {SHORT}", ALERTS.read_text(), flags=re.MULTILINE)
    assert count > 4
    return text


def status(home: Home) -> dict[str, Any]:
    result = CliRunner().invoke(main, ["status", str(home.wal), "--json"])
    assert result.exit_code == 0, result.output
    (sink,) = json.loads(result.stdout)["sinks"]
    return dict(sink)


def test_the_target_goes_down_and_comes_back(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path)
    target = RedisServer(tmp_path / "redis")
    metrics = Metrics()
    address = metrics.serve("127.0.0.1:0")
    monkeypatch.setenv(VARIABLE, PASSWORD)
    sink = RedisSink(target.url, kind="stream", key="orders", password_env=VARIABLE)
    delivery = Delivery(sink, retry=Retry(attempts=100), where="driver")
    settings = Settings(max_pending_batches=BOUND)
    prometheus = PrometheusServer(tmp_path / "prometheus", address, rules=short_alerts())
    with target, prometheus, metrics:
        wal_sink = home.sink({"orders": delivery}, settings=settings, metrics=metrics)
        home.feed.add([0], [1])
        with wal_sink:
            wal_sink.start(home.feed.stream(spark).writeStream.trigger(processingTime="100 milliseconds"))
            wait_until(lambda: prometheus.value("wal_sink_delivered_batches_total") == 2, timeout_s=LIMIT_S)
            wait_until(lambda: prometheus.firing() == set(), "no alert fires any more", LIMIT_S)

            target.kill()
            home.feed.add(*([number] for number in range(2, 9)))
            wait_until(lambda: WAITING in prometheus.firing(), "the alert fires", LIMIT_S)
            wait_until(lambda: prometheus.value("wal_sink_pending_batches") == BOUND, timeout_s=LIMIT_S)
            wait_until(lambda: (prometheus.value("wal_sink_lag_seconds") or 0) > 0, timeout_s=LIMIT_S)
            wait_until(lambda: bool(prometheus.query("wal_sink_last_error_timestamp_seconds")), timeout_s=LIMIT_S)
            found = status(home)
            assert (found["state"], found["pending_batches"], found["delivered_through"]) == ("running", BOUND, 1)

            target.start()
            wait_until(
                lambda: prometheus.value("wal_sink_delivered_batches_total") == 9, "everything is delivered", LIMIT_S
            )
            wait_until(lambda: WAITING not in prometheus.firing(), "the alert clears", LIMIT_S)
            wait_until(lambda: prometheus.value("wal_sink_lag_seconds") == 0, timeout_s=LIMIT_S)
            with target.client() as client:
                rows = [int(fields["id"]) for _, fields in client.xrange("orders")]
            assert rows == list(range(9))
            check_panels(prometheus)
        assert status(home)["pending_batches"] == 0


def check_panels(prometheus: PrometheusServer) -> None:
    """Run the query of every panel of the dashboard, with its variables in place: each returns a series."""
    queries = [
        query.replace("$wal", ".*").replace("$sink", ".*").replace("$__rate_interval", "1m")
        for query in dashboard_queries()
    ]
    assert queries
    for query in queries:
        wait_until(lambda: bool(prometheus.query(query)), f"a series of {query}", LIMIT_S)  # noqa: B023 - called here alone
