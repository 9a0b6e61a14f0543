"""`HttpSink` keeps the contract of each kind it can be, against a real API."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.contracts import FoldedContract, checks_of, faults
from tests.support.servers.http_target import HttpTarget
from wal_sink.testing import SinkContract
from wal_sink_backends.http.sink import HttpLookupSink, HttpSink

SECRET = "hunter2-of-the-orders"  # noqa: S105 - a test's own
VARIABLE = "WAL_SINK_TEST_HTTP_AUTH"
AUTH = {"Authorization": VARIABLE}
_numbers = itertools.count()


@dataclass(frozen=True)
class Orders:
    """One collection of the API: `kind` says whether it ignores keys it has seen."""

    server: HttpTarget
    kind: str
    name: str

    @property
    def url(self) -> str:
        return f"{self.server.url}/{self.kind}/{self.name}"


class HttpContract(FoldedContract):
    kind = "keys"
    law = "[`HttpSink(idempotent=True)`](sinks/http.md)"

    @pytest.fixture(autouse=True)
    def token(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setenv(VARIABLE, f"Bearer {SECRET}")
        with self.closing():
            yield

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Close the sinks of processes that died, which have nobody else to close their sockets."""
        self.made: list[HttpSink] = []
        yield
        for sink in self.made:
            sink.close()

    @pytest.fixture
    def target(self, http_target: HttpTarget) -> Orders:
        return Orders(http_target, self.kind, f"orders-{next(_numbers)}")

    def another(self, target: Orders) -> Orders:
        return Orders(target.server, target.kind, f"orders-{next(_numbers)}")

    def make_sink(self, target: Orders) -> HttpSink:
        self.made.append(self.new_sink(target))
        return self.made[-1]

    def new_sink(self, target: Orders) -> HttpSink:
        return HttpSink(target.url, idempotent=True, headers_from_env=AUTH)

    def rows_in(self, target: Orders) -> list[Any]:
        return target.server.store.rows(target.name)

    def secrets(self) -> list[str]:
        return [SECRET]


class TestChunksByKey(HttpContract):
    every = 9


class TestLookup(HttpContract):
    kind = "plain"
    law = "[`HttpLookupSink`, other `HttpSink`](sinks/http.md)"
    every = 11

    def new_sink(self, target: Orders) -> HttpSink:
        lookup = f"{target.url}/chunks/{{key}}"
        return HttpLookupSink(target.url, body="jsonl", lookup_url=lookup, headers_from_env=AUTH)


class RowsByKey(HttpContract):
    every = 30
    each_line = False

    def new_sink(self, target: Orders) -> HttpSink:
        return HttpSink(target.url, body="rows", idempotent=True, headers_from_env=AUTH)


class Plain(HttpContract):
    kind = "plain"
    law = TestLookup.law
    every = 30
    each_line = False

    def new_sink(self, target: Orders) -> HttpSink:
        return HttpSink(target.url, headers_from_env=AUTH)


@pytest.mark.parametrize("kind", [RowsByKey, Plain])
def test_rows_one_by_one_and_an_api_that_knows_no_key_keep_the_whole_contract(
    kind: type[HttpContract], http_target: HttpTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, f"Bearer {SECRET}")
    contract = kind()
    with contract.closing():
        assert faults(contract, Orders(http_target, kind.kind, ""), *checks_of(SinkContract)) == {}
