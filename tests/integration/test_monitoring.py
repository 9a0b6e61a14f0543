"""`examples/monitoring`: the alerts fire and clear as they should, and the dashboard is what its program makes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from examples.monitoring import dashboard
from tests.house.support import METRICS
from tests.support.processes import CHECKOUT
from tests.support.servers.server import program

MONITORING = CHECKOUT / "examples" / "monitoring"
ALERTS = MONITORING / "alerts.yml"
SUFFIXES = ("", "_bucket", "_count", "_sum")
NAMES = {metric.shown: set(metric.labels) for metric in METRICS}


def promtool(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of promtool. Both its outputs are in `stdout`, in their order."""
    command = [program("promtool", "prometheus"), *arguments]
    return subprocess.run(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False
    )


def rules() -> list[dict[str, Any]]:
    loaded: dict[str, Any] = YAML(typ="safe").load(ALERTS)
    return [rule for group in loaded["groups"] for rule in group["rules"]]


def dashboard_queries() -> Iterator[str]:
    for panel in json.loads((MONITORING / "dashboard.json").read_text())["panels"]:
        for target in panel.get("targets", []):
            yield target["expr"]


def test_the_rules_and_the_configuration_are_valid() -> None:
    for check in (("rules", "alerts.yml"), ("config", "prometheus.yml")):
        done = promtool("check", *check, cwd=MONITORING)
        assert done.returncode == 0, done.stdout


def test_each_alert_fires_after_its_time_and_clears() -> None:
    done = promtool("test", "rules", "alerts_test.yml", cwd=MONITORING)
    assert done.returncode == 0, done.stdout
    tested = set(re.findall(r"alertname: (\w+)", (MONITORING / "alerts_test.yml").read_text()))
    assert tested == {rule["alert"] for rule in rules()}


FAULTS = (
    ("wal_sink_gave_up == 1", "wal_sink_gave_up == 0"),
    ("wal_sink_lag_seconds > 600", "wal_sink_lag_seconds > 1100"),
    ("expr: wal_sink_stream_waiting == 1\n        for: 5m", "expr: wal_sink_stream_waiting == 1\n        for: 7m"),
    ("[10m])) > 3", "[10m])) > 0"),
    ("[15m])) > 0", "[15m])) > 3"),
    ("> 0.05", "> 0.11"),
    ("histogram_quantile(0.95", "histogram_quantile(0.4"),
    ('up{job="wal-sink"} == 0', "up == 0"),
)


def test_rules_and_dashboard_name_metrics_and_labels_that_exist() -> None:
    expressions = [*(rule["expr"] for rule in rules()), *dashboard_queries()]
    known = {name + suffix for name in NAMES for suffix in SUFFIXES}
    used = {name for each in expressions for name in re.findall(r"\bwal_sink_\w+", each)}
    assert used <= known
    assert len(used) > 10
    labels = {label for each in expressions for label in re.findall(r"[{,]\s*(\w+)\s*=~?\"", each)}
    assert labels <= {label for names in NAMES.values() for label in names} | {"job"}


def test_the_dashboard_is_what_its_program_makes() -> None:
    made = subprocess.run(
        [sys.executable, MONITORING / "dashboard.py"], capture_output=True, text=True, timeout=300, check=True
    )
    assert made.stdout == (MONITORING / "dashboard.json").read_text()


def test_every_panel_has_a_query_and_says_how_to_read_it() -> None:
    panels = [panel for panels in dashboard.ROWS.values() for panel in panels]
    assert len(panels) == len(list(dashboard_queries()))
    assert all(panel.text.endswith(".") for panel in panels)
