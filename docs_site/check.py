"""Check the built site in a browser: `python -m docs_site.check site [--screenshots FOLDER]`.

Every page is opened at the width of a telephone and of a desk. No page may request another host, log an error, lack a
file, or scroll sideways. Every link within the site leads to a page and an anchor that exist. The search finds given
words. The first page is dark for readers who prefer that.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from playwright.sync_api import Browser, Error

from docs_site.browser import LIMIT_MS, ChromiumMissingError, Fault, Tab, browser
from docs_site.server import served

WIDTHS = (360, 1280)
"""In CSS pixels. The first is that of a small telephone."""
HEIGHT = 1600
SEARCHES = {
    "fenced": "/troubleshooting/",
    "this file system refuses hard links": "/troubleshooting/",
    "foreachBatch": "/guide/existing-writers/",
    "dead letters": "/guide/dead-letters/",
    "PostgreSQL": "/sinks/sql/",
    "TransactionalSink": "/writing-a-sink/",
}
"""Words, and the page that the search must name among its first results."""
FIRST_RESULTS = 5
_DARK = 96
"""The lightest a dark background may be, of 255."""

_SEEN = """() => ({
  links: [...document.querySelectorAll('a[href]')].map(each => each.href),
  anchors: [...document.querySelectorAll('[id], a[name]')].flatMap(each => [each.id, each.getAttribute('name')]),
  fetched: [...document.querySelectorAll(
    'link[href]:not([rel=canonical]), script[src], img[src], iframe[src], source[src], video[src]'
  )].map(each => each.href || each.src),
})"""
_SETTLED = """() => {
  const moving = document.getAnimations().filter(each => each.effect.getComputedTiming().endTime !== Infinity)
  return Promise.allSettled(moving.map(each => each.finished)).then(() => null)
}"""
"""Waits for transitions to end: between two widths, the theme moves its boxes."""
_SIDEWAYS = """() => {
  const seen = document.documentElement
  const all = [...document.body.querySelectorAll('*')]
  const wide = all.filter(each => each.getBoundingClientRect().right > seen.clientWidth)
  const names = wide.slice(0, 3).map(each => `<${each.tagName.toLowerCase()} class="${each.className}">`)
  return [seen.scrollWidth, seen.clientWidth, names.join(', ')]
}"""
_BACKGROUND = "() => getComputedStyle(document.body).backgroundColor.match(/[0-9.]+/g).slice(0, 3).map(Number)"


@dataclass(slots=True)
class Seen:
    """Counts and faults of a whole site."""

    pages: int = 0
    links: int = 0
    faults: list[Fault] = field(default_factory=list)


def check_site(
    folder: Path, searches: Mapping[str, str] = SEARCHES, screenshots: Path | None = None, *, dark: bool = True
) -> Seen:
    """Open every page of the site in `folder`. Screenshots, if wanted, go into a folder, by page and width."""
    pages = sorted(_address(path.relative_to(folder).as_posix()) for path in folder.rglob("*.html"))
    if "/" not in pages:
        raise FileNotFoundError(f"{folder}/index.html does not exist: build the site first (make docs)")
    seen = Seen(len(pages))
    with served(folder) as origin, browser() as started:
        links, anchors = _open_all(started, origin, pages, screenshots, seen)
        seen.links = sum(map(len, links.values()))
        seen.faults += _broken(folder, links, anchors)
        for word, page in searches.items():
            _search(started, origin, word, page, seen)
        if dark:
            _dark(started, origin, screenshots, seen)
    return seen


def _address(file: str) -> str:
    return "/" + (file.removesuffix("index.html") if Path(file).name == "index.html" else file)


def _open_all(
    started: Browser, origin: str, pages: list[str], screenshots: Path | None, seen: Seen
) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Show each page, and return the links within the site and the anchors of each."""
    links: dict[str, set[str]] = {}
    anchors: dict[str, set[str]] = {}
    tab = Tab(started, origin)
    for page in pages:
        tab.page.set_viewport_size({"width": WIDTHS[0], "height": HEIGHT})
        tab.show(page)
        for width in WIDTHS:
            tab.page.set_viewport_size({"width": width, "height": HEIGHT})
            tab.page.evaluate(_SETTLED)
            scrolled, visible, what = tab.page.evaluate(_SIDEWAYS)
            if scrolled > visible:
                tab.fault(f"scrolls sideways at {width} pixels, by {scrolled - visible}: {what}")
            _take(tab, screenshots, f"{page.strip('/').replace('/', '-') or 'home'}-{width}")
        found = tab.page.evaluate(_SEEN)
        for url in found["fetched"]:
            if url.startswith("http") and not url.startswith(f"{origin}/"):
                tab.fault(f"names a file of another host: {url}")
        links[page] = {url.removeprefix(origin) for url in found["links"] if url.startswith(f"{origin}/")}
        anchors[page] = {name for name in found["anchors"] if name}
    tab.close()
    seen.faults += tab.faults
    return links, anchors


def _take(tab: Tab, screenshots: Path | None, name: str) -> None:
    if screenshots is not None:
        tab.page.screenshot(path=screenshots / f"{name}.png")


def _broken(folder: Path, links: Mapping[str, set[str]], anchors: Mapping[str, set[str]]) -> list[Fault]:
    """The links that lead nowhere."""
    faults: list[Fault] = []
    for page, targets in links.items():
        for target in sorted(targets):
            parts = urlsplit(target)
            path, anchor = unquote(parts.path), unquote(parts.fragment)
            if path not in anchors:
                if not (folder / path.lstrip("/")).is_file():
                    faults.append(Fault(page, f"links to {path}, which does not exist"))
            elif anchor and anchor not in anchors[path]:
                faults.append(Fault(page, f"links to {path}#{anchor}, and that page has no such anchor"))
    return faults


def _search(started: Browser, origin: str, word: str, page: str, seen: Seen) -> None:
    """Type the word into the first page's search."""
    tab = Tab(started, origin)
    tab.page.set_viewport_size({"width": WIDTHS[-1], "height": HEIGHT})
    tab.show("/")
    try:
        tab.page.click(".md-search__input")
        tab.page.fill(".md-search__input", word)  # at once: no results of its first letters
        tab.page.press(".md-search__input", "End")  # the theme reads the word when a key goes up
        tab.page.wait_for_selector(".md-search-result__item a", timeout=LIMIT_MS)
        links = tab.page.eval_on_selector_all(".md-search-result__item > a", "all => all.map(each => each.href)")
    except Error as error:
        tab.fault(f"the search for {word!r} shows no result: {error.message.splitlines()[0]}")
    else:
        found = list(dict.fromkeys(urlsplit(link).path for link in links))[:FIRST_RESULTS]
        if page not in found:
            tab.fault(f"the search for {word!r} names {found}, expected {page} among the first {FIRST_RESULTS}")
    tab.close()
    seen.faults += tab.faults


def _dark(started: Browser, origin: str, screenshots: Path | None, seen: Seen) -> None:
    tab = Tab(started, origin, "dark")
    for width in WIDTHS:
        tab.page.set_viewport_size({"width": width, "height": HEIGHT})
        tab.show("/")
        colour = tab.page.evaluate(_BACKGROUND)
        if max(colour) > _DARK:
            tab.fault(f"is not dark for readers who prefer that: its background is {colour}")
        _take(tab, screenshots, f"home-dark-{width}")
    tab.close()
    seen.faults += tab.faults


def main() -> int:
    """Check a folder. Prints every fault; the result is the exit status."""
    parser = argparse.ArgumentParser(description="Open every page of the built site in Chromium, and check it.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--screenshots", type=Path, help="folder for a picture of each page at each width")
    told = parser.parse_args()
    if told.screenshots is not None:
        told.screenshots.mkdir(parents=True, exist_ok=True)
    try:
        seen = check_site(told.folder, screenshots=told.screenshots)
    except (ChromiumMissingError, FileNotFoundError) as error:
        print(error, file=sys.stderr)
        return 2
    for fault in seen.faults:
        print(fault)
    widths = " and ".join(map(str, WIDTHS))
    print(
        f"{seen.pages} pages at {widths} pixels, {seen.links} links within the site, {len(SEARCHES)} searches, the "
        f"first page in the dark: {len(seen.faults) or 'no'} fault{'' if len(seen.faults) == 1 else 's'}"
    )
    return 1 if seen.faults else 0


if __name__ == "__main__":
    sys.exit(main())
