"""The page: one HTML document that needs no network. Its data are JSON, and its script shows them as text only."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import escape
from importlib.resources import files

import msgspec

from wal_sink.inspection.health import Health
from wal_sink.inspection.status import Status
from wal_sink.redaction import redacted
from wal_sink.report.collect import (
    NEWEST,
    Data,
    read_deliveries,
    read_letters,
    read_past,
    sink_data,
    size_table,
)
from wal_sink.stores.base import Store

_MARK = re.compile("@(POLICY|TITLE|STYLE|SCRIPT|DATA)@")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def read_report(
    store: Store,
    status: Status,
    health: Health,
    *,
    newest: int = NEWEST,
    on_batch: Callable[[int, int], None] = lambda _done, _all: None,
) -> Data:
    """The data of a report. Bounded: the newest batches, and for each sink their markers and two listings."""
    past = read_past(store, status, newest=newest, on_batch=on_batch)
    return {
        "wal": status.wal,
        "query": status.query_id,
        "checkpoint": status.checkpoint,
        "looked_at": health.looked_at,
        "spark": health.spark.newest,
        "spark_note": redacted(health.spark.unknown_because),
        "held": past.held,
        "shown": len(past.batches),
        "sinks": sink_data(status, health),
        "batches": [each.shown for each in past.batches],
        "deliveries": {sink.name: read_deliveries(store, sink, past) for sink in status.sinks},
        "letters": {sink.name: read_letters(store, sink) for sink in status.sinks},
        "sizes": size_table(each.sizes for each in past.batches),
    }


def page_of(data: Data) -> str:
    """The page with these data. Every text in it is shown as text, whatever it holds."""
    template, style, script = (_part(name) for name in ("page.html", "page.css", "page.js"))
    title = escape(f"wal-sink: {data['wal']}")
    parts = {"POLICY": _POLICY, "TITLE": title, "STYLE": style, "SCRIPT": script, "DATA": _embedded(data)}
    return _MARK.sub(lambda mark: parts[mark[1]], template)  # in one pass: a part may hold anything


def _part(name: str) -> str:
    return files("wal_sink.report").joinpath(name).read_text(encoding="utf-8")


def _embedded(data: Data) -> str:
    """JSON that ends no script element and begins no comment."""
    text = msgspec.json.encode(data).decode()
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
