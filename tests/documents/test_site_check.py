"""The check of the built site finds what a reader would stumble over: small sites with one planted fault each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from docs_site.browser import ChromiumMissingError, browser, chromium
from docs_site.check import check_site
from tests.support.components import require

STYLE = "<style>@media (prefers-color-scheme: dark) { body { background: #111; color: #eee } }</style>"
HEAD = f'<!doctype html><html><head><link rel="icon" href="data:,">{STYLE}</head>'
SEARCH = """
<input class="md-search__input">
<ol></ol>
<script>
document.querySelector('input').addEventListener('input', event => {
  const found = event.target.value == 'nothing' ? [] : ['guide/', 'guide/more/']
  document.querySelector('ol').innerHTML =
    found.map(each => `<li class="md-search-result__item"><a href="${each}">${each}</a></li>`).join('')
})
</script>
"""
GOOD = {
    "index.html": f'{HEAD}<body>{SEARCH}<a href="guide/#there">Guide</a><a href="https://a.example/">Other</a></body>',
    "guide/index.html": f'{HEAD}<body><h2 id="there">Guide</h2><a href="../">Home</a><a href="../a.txt">A</a></body>',
    "a.txt": "text",
}
PLANTED = {
    "scrolls sideways at 360 pixels": '<div style="width: 700px">wide</div>',
    "scrolls sideways at 1280 pixels": '<div style="width: 1400px">wide</div>',
    "console error: planted": "<script>console.error('planted')</script>",
    "page error: planted": "<script>throw new Error('planted')</script>",
    "requests another host: http://images.example/a.png": '<img src="http://images.example/a.png" alt="">',
    "requests another host: http://127.0.0.1:9/a.css": '<link rel="stylesheet" href="http://127.0.0.1:9/a.css">',
    "names a file of another host: https://fonts.example/": '<link rel="preconnect" href="https://fonts.example/">',
    "HTTP status 404: /gone.png": '<img src="/gone.png" alt="">',
    "links to /gone/, which does not exist": '<a href="/gone/">gone</a>',
    "links to /guide/#gone, and that page has no such anchor": '<a href="/guide/#gone">gone</a>',
}


@pytest.fixture(scope="module")
def shared() -> Iterator[Browser]:
    """One browser for all sites: it takes seconds to start."""
    try:
        chromium()
    except ChromiumMissingError as error:
        require(component_present=False, how_to_get_it=str(error))
    with browser() as started:
        yield started


@pytest.fixture
def _one_browser(shared: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("docs_site.check.browser", lambda: nullcontext(shared))


in_a_browser = pytest.mark.usefixtures("_one_browser")


def _site(folder: Path, changed: Mapping[str, str] | None = None) -> Path:
    for name, text in {**GOOD, **(changed or {})}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def _faults(folder: Path, searches: Mapping[str, str] | None = None) -> list[str]:
    return [str(fault) for fault in check_site(folder, searches or {}).faults]


@pytest.mark.processes
@in_a_browser
def test_a_good_site_has_no_fault(tmp_path: Path) -> None:
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    seen = check_site(_site(tmp_path / "site"), {"rows": "/guide/"}, pictures)
    assert seen.faults == []
    assert (seen.pages, seen.links) == (2, 3)
    assert sorted(path.name for path in pictures.iterdir()) == [
        "guide-1280.png", "guide-360.png", "home-1280.png", "home-360.png", "home-dark-1280.png", "home-dark-360.png"
    ]  # fmt: skip


@pytest.mark.processes
@in_a_browser
def test_each_planted_fault_is_found_on_its_page(tmp_path: Path) -> None:
    """Every page has one fault, and the first page two: it is never dark, and its search names other pages."""
    pages = {f"planted/{number}/index.html": text for number, text in enumerate(PLANTED.values())}
    good = GOOD["guide/index.html"].replace("../", "../../")
    planted = {name: good.replace("</body>", f"{text}</body>") for name, text in pages.items()}
    light = GOOD["index.html"].replace(STYLE, "<style>body { background: #fff }</style>")
    found = _faults(_site(tmp_path, {**planted, "index.html": light}), {"rows": "/"})
    missing = [
        fault
        for number, fault in enumerate(PLANTED)
        if not any(each.startswith(f"/planted/{number}/: {fault}") for each in found)
    ]
    assert missing == [], found
    assert sorted(each for each in found if not each.startswith("/planted/")) == [
        "/: is not dark for readers who prefer that: its background is [255, 255, 255]",
        "/: the search for 'rows' names ['/guide/', '/guide/more/'], expected / among the first 5",
    ]
