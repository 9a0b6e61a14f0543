"""An API for any test: `http_target` once per session, without the faults of the last test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.http_target import HttpTarget


@pytest.fixture(scope="session")
def _http_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpTarget]:
    server = HttpTarget(tmp_path_factory.mktemp("http") / "rows.db")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def http_target(_http_server: HttpTarget) -> HttpTarget:
    _http_server.forget()
    return _http_server
