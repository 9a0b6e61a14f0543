"""Pages of a site in a headless Chromium that reaches nothing else, and the faults that it tells of."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from playwright.sync_api import Browser, ConsoleMessage, Error, Page, Response, Route, sync_playwright

LIMIT_MS = 60_000
"""The longest time for one step of the browser, on a busy machine."""
_ONLY_HERE = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
_PROGRAM = "CHROMIUM"


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """Something of a page that must not be. `page` is its path in the site."""

    page: str
    what: str

    def __str__(self) -> str:
        return f"{self.page}: {self.what}"


class ChromiumMissingError(Exception):
    """There is no Chromium to open the pages with."""


def chromium() -> str:
    """Return the path of Chromium: that of the environment's `CHROMIUM`, or the first `chromium` on PATH."""
    named = os.environ.get(_PROGRAM) or "chromium"
    found = shutil.which(named) or shutil.which("/usr/bin/chromium")
    if found is None:
        raise ChromiumMissingError(
            f"the check opens the pages in Chromium, and there is no {named!r}. Install it (Debian: apt-get install "
            f"chromium), or set {_PROGRAM}=/path/to/chromium"
        )
    return found


@contextmanager
def browser() -> Iterator[Browser]:
    """Run a headless Chromium while the block runs. It resolves no name of a host."""
    program = chromium()
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=[_ONLY_HERE], timeout=LIMIT_MS)
        try:
            yield started
        finally:
            started.close()


class Tab:
    """One tab. It blocks each request to another origin than the site's, and keeps the faults of the page it shows."""

    def __init__(self, started: Browser, origin: str, scheme: Literal["light", "dark"] = "light") -> None:
        self.faults: list[Fault] = []
        self.origin = origin
        self.address = "/"
        self._context = started.new_context(color_scheme=scheme, service_workers="block")
        self._context.set_default_timeout(LIMIT_MS)
        self._context.route("**/*", self._route)
        self.page: Page = self._context.new_page()
        self.page.on("console", self._console)
        self.page.on("pageerror", self._page_error)
        self.page.on("response", self._response)

    def close(self) -> None:
        """Close the tab and what it remembers."""
        self._context.close()

    def show(self, address: str) -> None:
        """Open a page by its path in the site, and wait until it requests nothing more."""
        self.address = address
        try:
            self.page.goto(self.origin + address, wait_until="load")
            self.page.wait_for_load_state("networkidle")
        except Error as error:
            self.fault(f"does not load: {error.message.splitlines()[0]}")

    def fault(self, what: str) -> None:
        """Note a fault of the page that is shown, once."""
        fault = Fault(self.address, what)
        if fault not in self.faults:
            self.faults.append(fault)

    def _route(self, route: Route) -> None:
        url = route.request.url
        if url.startswith(f"{self.origin}/"):
            route.continue_()
        else:
            self.fault(f"requests another host: {url}")
            route.abort("blockedbyclient")

    def _console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.fault(f"console error: {message.text}")

    def _page_error(self, error: Error) -> None:
        self.fault(f"page error: {error.message}")

    def _response(self, response: Response) -> None:
        if response.status >= 400:
            self.fault(f"HTTP status {response.status}: {response.url.removeprefix(self.origin)}")
