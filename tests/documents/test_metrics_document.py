"""`docs/operations/metrics.md` lists every metric, event and alert, as the sources have them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from ruamel.yaml import YAML

from tests.house.support import METRICS, Metric
from tests.support.processes import CHECKOUT
from wal_sink import telemetry

PAGE = (CHECKOUT / "docs" / "operations" / "metrics.md").read_text()
REFERENCE = (CHECKOUT / "docs" / "api" / "telemetry.md").read_text()


def metric_rows() -> list[str]:
    """The lines of the table of metrics, as they should be. The first label of each is `wal`."""
    return [f"| `{metric.shown}` | {'; '.join(kinds(metric))} | {metric.text} |" for metric in METRICS]


def kinds(metric: Metric) -> Iterator[str]:
    """The kind of a metric, then its labels apart from `wal`."""
    yield metric.kind
    if metric.labels[1:]:
        yield ", ".join(f"`{label}`" for label in metric.labels[1:])


def events() -> dict[str, list[str]]:
    """The names of the events by what they are of."""
    found = defaultdict(list)
    for name in telemetry.__all__:
        event = getattr(telemetry, name)
        if event is not telemetry.Event:
            fields = event.__dataclass_fields__
            found[", ".join(word for word in ("batch", "sink") if word in fields) or "log"].append(name)
    return dict(found)


def table(head: str) -> list[str]:
    """The lines below the head of a table of the page."""
    lines = PAGE.partition(f"{head}\n")[2].splitlines()[1:]
    end = next(number for number, line in enumerate(lines) if not line.startswith("|"))
    return lines[:end]


def test_every_metric_is_listed_with_its_labels_and_meaning() -> None:
    assert table("| metric | kind; more labels | meaning |") == metric_rows()
    assert len(metric_rows()) > 10
    assert {metric.labels[0] for metric in METRICS} == {"wal"}


def test_every_event_is_listed_and_its_meaning_is_in_the_reference() -> None:
    cells = [row.split("|")[1:3] for row in table("| of | events |")]
    assert {of.strip(): re.findall(r"`(\w+)`", names) for of, names in cells} == events()
    listed = re.findall(r"^::: wal_sink\.telemetry\.(\w+)$", REFERENCE, re.MULTILINE)
    assert sorted(listed) == sorted(telemetry.__all__)
    assert len(listed) > 10


def test_every_alert_is_listed() -> None:
    loaded = YAML(typ="safe").load(CHECKOUT / "examples" / "monitoring" / "alerts.yml")
    alerts = [rule["alert"] for group in loaded["groups"] for rule in group["rules"]]
    rows = table("| alert | fires | first look |")
    assert [row.split("`")[1] for row in rows] == alerts
    waits = {rule["alert"]: rule.get("for", "") for group in loaded["groups"] for rule in group["rules"]}
    for row in rows:
        wait = waits[row.split("`")[1]]
        told = re.search(r"(?:after|for) (\d+) minutes", row)
        assert (f"{told[1]}m" if told else "") == wait, row


def test_files_are_listed() -> None:
    names = {path.name for path in (CHECKOUT / "examples" / "monitoring").iterdir() if path.is_file()}
    assert names == set(
        re.findall(r"`([\w.]+\.(?:yml|json|py))`", PAGE.partition("## Prometheus")[2].partition("## ")[0])
    )
