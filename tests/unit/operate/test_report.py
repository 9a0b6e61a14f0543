"""The data and the page of a report: whole, bounded, and without a way out of its script."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Browser

from docs_site.browser import ChromiumMissingError, Tab, browser, chromium
from docs_site.check import HEIGHT, WIDTHS
from docs_site.server import served
from tests.house.log import Log, Manifest, encode, paths
from tests.house.operate import SparkCommit, WalFacts, read_commit, read_health, read_status
from tests.house.stores import Store
from tests.support.command import invoke
from tests.support.components import require
from tests.support.small_run import Place, Recorder
from tests.support.staged_log import stage
from wal_sink import Chunk, Delivery, PermanentError, Rejected
from wal_sink.errors import DeliveryError
from wal_sink.operate.report import (
    NEWEST,
    Data,
    page_of,
    read_deliveries,
    read_past,
    read_report,
    size_powers,
    size_table,
)
from wal_sink.testing import FaultyStore, simulated_runtime

NOW = datetime(2026, 1, 1, 0, 20, tzinfo=UTC)
EVIL = "</script><img src=x onerror=alert(1)>"


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
                while run.advance(committer):
                    pass
            except DeliveryError:
                assert committer.name == "stopped"
    return place


def data_of(wal: Store, *, checkpoint: Store | None = None, newest: int = NEWEST) -> Data:
    status = read_status(wal)
    spark = SparkCommit(None, "nobody knows") if checkpoint is None else read_commit(checkpoint, status.query_id)
    facts = WalFacts(wal)
    return read_report(facts, read_health(facts, spark, now=NOW), newest=newest)


def test_the_data_of_a_busy_wal() -> None:
    place = busy()
    data = data_of(place.wal, checkpoint=place.checkpoint)
    assert (data["held"], data["shown"], data["spark"]) == (6, 6, 5)
    assert [batch["rows"] for batch in data["batches"]] == [3, 4, 5, 6, 7, 8]
    assert [each["retries"] for each in data["deliveries"]["retried"]] == [1, 0, 0, 0, 0, 0]
    assert [each["lag"] is None for each in data["deliveries"]["stopped"]] == [False, False, *[True] * 4]
    assert data["letters"]["refusing"] == [(0, 2), (1, 2), (2, 3), (3, 3), (4, 4), (5, 4)]
    stopped = next(sink for sink in data["sinks"] if sink["name"] == "stopped")
    assert "no such table" in stopped["error"]
    assert sum(count for _, count in data["sizes"]) == 12


def test_ten_thousand_batches_cost_a_bounded_number_of_requests_and_a_small_page() -> None:
    place = Place(rows=lambda _: [3])
    list(place.query().batches(place.open({"a": Recorder()}), 1))
    manifest = Log(place.wal, simulated_runtime(), "").find(Manifest, paths.manifest(0, 1, 1))
    assert manifest is not None
    for batch_id in range(1, 10_000):
        copied = msgspec.structs.replace(manifest, batch_id=batch_id, attempt=1)
        place.wal.create(paths.manifest(batch_id, 1, 1), encode(copied))
    requests: list[str] = []
    facts = WalFacts(FaultyStore(place.wal, lambda what, path: requests.append(f"{what} {path}")))
    health = read_health(facts, SparkCommit(None, "nobody knows"), now=NOW)
    requests.clear()
    data = read_report(facts, health)
    assert (data["held"], data["shown"], data["batches"][-1]["id"]) == (10_000, NEWEST, 9_999)
    assert len(requests) <= 3 * NEWEST  # and no listing that the look at its health did
    assert len(page_of(data)) < 200_000


def test_sizes_fall_into_classes_without_gaps() -> None:
    assert size_table([size_powers([1000, 1023, 1024]), size_powers([5000, 0])]) == [
        (512, 2),
        (1024, 1),
        (2048, 0),
        (4096, 1),
    ]
    assert size_table([size_powers([])]) == []


def test_no_text_of_a_wal_ends_the_script() -> None:
    page = page_of({"wal": f"@DATA@ @SCRIPT@ {EVIL}", "sinks": [{"name": EVIL}]})
    assert page.count("</script>") == 2
    assert EVIL not in page


def test_the_command_writes_a_page_the_data_or_an_error(tmp_path: Path) -> None:
    stage(tmp_path, 2)
    wal = str(tmp_path / "wal")
    target = tmp_path / "report.html"
    told = invoke("report", wal, "-o", str(target)).output
    assert re.search(r"report\.html: 2 batches of 2, [\d,]+ bytes", told)
    assert target.read_text().startswith("<!doctype html>")
    assert invoke("report", wal, "-o", "-").output.startswith("<!doctype html>")
    assert '"shown": 2' in invoke("report", wal, "--json").output
    assert "--output" in invoke("report", wal, code=2).output
    assert "cannot be written" in invoke("report", wal, "-o", str(tmp_path / "no" / "folder.html"), code=2).output
    assert "holds no wal.json" in invoke("report", str(tmp_path), "-o", str(target), code=1).output
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


def test_a_report_of_every_batch_keeps_no_manifest_and_reads_each_marker_once() -> None:
    place = Place(rows=lambda _: [2])
    run = place.open({"a": Recorder()})
    for _ in place.query().batches(run, 4):
        run.deliver_all()
    read: list[str] = []
    seen = FaultyStore(place.wal, lambda what, where: read.append(where) if what == "before read" else None)

    facts = WalFacts(seen)
    past = read_past(facts)
    deliveries = read_deliveries(facts.log, facts.sinks[0], past)

    assert "PastBatch(" in repr(past)
    assert not re.search(r"Manifest\(|SegmentRef\(", repr(past))
    assert [each["id"] for each in deliveries] == [0, 1, 2, 3]
    assert all(each["lag"] is not None for each in deliveries)
    markers = [path for path in read if "/markers/" in path]
    assert sorted(markers) == sorted(set(markers))
    assert len(markers) == 4


_DARK = 96


@pytest.fixture(scope="module")
def started() -> Iterator[Browser]:
    try:
        chromium()
    except ChromiumMissingError as error:
        require(component_present=False, how_to_get_it=str(error))
    with browser() as found:
        yield found


@pytest.mark.processes
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


@pytest.mark.processes
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


@pytest.mark.processes
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
