"""The report of a WAL, opened in a browser: no error, no request, readable on a telephone and in the dark."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from docs_site.browser import ChromiumMissingError, Tab, browser, chromium
from docs_site.check import HEIGHT, WIDTHS
from docs_site.server import served
from tests.support.components import require
from tests.support.small_run import Place, Recorder
from wal_sink import Chunk, Delivery, PermanentError, Rejected
from wal_sink.errors import DeliveryError
from wal_sink.inspection import SparkCommit, read_commit, read_health, read_status
from wal_sink.report.collect import NEWEST, Data
from wal_sink.report.page import page_of, read_report
from wal_sink.stores.base import Store
from wal_sink.testing import simulated_runtime

NOW = datetime(2026, 1, 1, 0, 20, tzinfo=UTC)
EVIL = "</script><img src=x onerror=alert(1)>"
_DARK = 96


@pytest.fixture(scope="module")
def started() -> Iterator[Browser]:
    try:
        chromium()
    except ChromiumMissingError as error:
        require(component_present=False, how_to_get_it=str(error))
    with browser() as found:
        yield found


def refuse(_chunk: Chunk) -> Rejected:
    return Rejected({0: "not this one"})


def busy() -> Place:
    """A WAL of a sink that had a retry, one with dead letters, and one that stopped at batch 2."""
    place, runtime = Place(rows=lambda batch: [1 + batch, 2]), simulated_runtime(seed=901)
    calls = iter([None, OSError("no route")])

    def fail_once(_chunk: Chunk) -> None:
        runtime.sleep_s(1.5)
        if (error := next(calls, None)) is not None:
            raise error

    def stop(chunk: Chunk) -> None:
        if chunk.batch_id == 2:
            raise PermanentError(f"no such table {EVIL}")

    sinks = {
        "retried": Recorder(fail_once),
        "refusing": Delivery(refuse, on_rejected="dead_letter"),
        "stopped": Recorder(stop),
    }
    run = place.open(sinks, runtime=runtime)
    for _ in place.query().batches(run, 6):
        runtime.sleep_s(10.0)
        for committer in run.committers:
            try:
                while run.deliver_next(committer):
                    pass
            except DeliveryError:
                assert committer.name == "stopped"
    return place


def data_of(wal: Store, *, checkpoint: Store | None = None, newest: int = NEWEST) -> Data:
    status = read_status(wal)
    spark = SparkCommit(None, "nobody knows") if checkpoint is None else read_commit(checkpoint, status.query_id)
    return read_report(wal, status, read_health(wal, status, spark, now=NOW), newest=newest)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_shows_it_without_error_and_without_any_request(
    started: Browser, tmp_path: Path, scheme: Any
) -> None:
    place = busy()
    (tmp_path / "report.html").write_text(page_of(data_of(place.wal, checkpoint=place.checkpoint)))
    with served(tmp_path) as origin:
        tab = Tab(started, origin, scheme)
        requested: list[str] = []
        tab.page.on("request", lambda request: requested.append(request.url))
        for width in WIDTHS:
            tab.page.set_viewport_size({"width": width, "height": HEIGHT})
            tab.show("/report.html")
            wide = tab.page.evaluate("() => [document.documentElement.scrollWidth, innerWidth]")
            assert wide[0] <= wide[1], width
        assert tab.faults == []
        assert {url for url in requested if not url.startswith("data:")} == {f"{origin}/report.html"}
        assert all(tab.page.locator(f"#{name} svg").count() for name in ("lag", "stages", "rows", "sizes", "retries"))
        assert "no such table </script><img src=x" in tab.page.inner_text("#sinks")  # as text, and nothing else
        assert tab.page.locator("img").count() == 0
        colour = tab.page.evaluate(
            "() => getComputedStyle(document.body).backgroundColor.match(/[0-9.]+/g).slice(0, 3).map(Number)"
        )
        assert (max(colour) <= _DARK) == (scheme == "dark")
        tab.close()


def test_a_point_tells_what_it_is_when_the_pointer_is_over_it(started: Browser, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text(page_of(data_of(busy().wal)))
    with served(tmp_path) as origin:
        tab = Tab(started, origin)
        tab.show("/report.html")
        assert not tab.page.is_visible("#tip")
        tab.page.hover("#rows rect >> nth=2")
        assert tab.page.inner_text("#tip").startswith("batch 2: 5 rows")
        tab.page.focus("#lag circle >> nth=0")
        assert "batch 0" in tab.page.inner_text("#tip")
        tab.page.click("#picks button >> text=retried")
        tips = [each.get_attribute("data-tip") or "" for each in tab.page.locator("#stages rect").all()]
        assert any("waits between attempts" in tip for tip in tips)
        assert tab.faults == []
        tab.close()


def test_a_wal_without_sinks_and_times_has_a_report(started: Browser, tmp_path: Path) -> None:
    place = Place()
    list(place.query().batches(place.open({}), 1))
    (tmp_path / "report.html").write_text(page_of(data_of(place.wal)))
    with served(tmp_path) as origin:
        tab = Tab(started, origin)
        tab.show("/report.html")
        assert tab.faults == []
        assert "nothing is delivered" in tab.page.inner_text("#sinks")
        tab.close()
