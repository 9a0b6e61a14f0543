"""A Prometheus that scrapes some addresses of this machine and evaluates the alerts of a file."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.servers.server import Server, program, version_of

EVERY = "500ms"
"""Time between two scrapes, and between two evaluations of the alerts."""
JOB = "wal-sink"


class PrometheusServer(Server):
    """Scrapes `targets` (host and port) as the job that the shipped alerts name."""

    product = "Prometheus"

    def __init__(self, folder: Path, *targets: str, rules: str = "groups: []") -> None:
        super().__init__(folder)
        self._program = program("prometheus", "prometheus")
        self._targets = targets
        self._rules = rules

    def prepare(self) -> None:
        super().prepare()
        (self.folder / "rules.yml").write_text(self._rules)
        config = {
            "global": {"scrape_interval": EVERY, "scrape_timeout": EVERY, "evaluation_interval": EVERY},
            "rule_files": ["rules.yml"],
            "scrape_configs": [{"job_name": JOB, "static_configs": [{"targets": list(self._targets)}]}],
        }
        (self.folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML

    def command(self) -> Sequence[str | Path]:
        here = [f"--web.listen-address=127.0.0.1:{self.port}", f"--storage.tsdb.path={self.folder / 'data'}"]
        return [self._program, f"--config.file={self.folder / 'prometheus.yml'}", "--log.level=warn", *here]

    def release(self) -> str:
        return version_of(self._program)

    def answers(self) -> bool:
        try:
            with self._open("-/ready") as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Return the labels and the value of each series of an instant query."""
        found = self._ask("api/v1/query", query=expression)["result"]
        return [(series["metric"], float(series["value"][1])) for series in found]

    def value(self, expression: str) -> float | None:
        """Return the value of the only series; None if there is none."""
        found = self.query(expression)
        assert len(found) < 2, found
        return found[0][1] if found else None

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire now."""
        alerts = self._ask("api/v1/alerts")["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    def _ask(self, path: str, **parameters: str) -> Any:
        with self._open(f"{path}?{urllib.parse.urlencode(parameters)}") as answer:
            said = json.load(answer)
        assert said["status"] == "success", said
        return said["data"]

    def _open(self, path: str) -> Any:
        return urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{path}", timeout=10)
