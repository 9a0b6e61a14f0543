"""Arguments and URLs of `HttpSink`, right and wrong."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.refusals import unrefused
from wal_sink.errors import ConfigError
from wal_sink_backends.http.sink import HttpLookupSink, HttpSink, Statuses
from wal_sink_backends.http.urls import http_sink


def test_arguments_that_cannot_work() -> None:
    def make(url: str, arguments: dict[str, Any]) -> None:
        HttpSink(url, **arguments)

    cases: list[tuple[Any, ...]] = [
        ("ftp://host/x", {}, "expected http://host/path"),
        ("https://", {}, "expected http://host/path"),
        ("https://host:port/x", {}, "expected http://host/path"),
        ("https://user:hunter2@host/a b?key=hunter2", {}, "^'https://host/a b' ?: expected"),
        ("https://host/x#frag", {}, "expected no '#'"),
        ("https://host/{country}?token={key}", {}, r"expected no braces except \{key\}; write others"),
        ("https://host/x", {"body": "xml"}, "expected one of 'json', 'jsonl', 'rows'"),
        ("https://host/x", {"method": "GET"}, "expected one of 'POST', 'PUT', 'PATCH'"),
        ("https://host/x", {"timeout_s": 0}, "timeout_s=0"),
        ("https://host/x", {"headers": {"a b": "x"}}, "header 'a b'"),
        ("https://host/x", {"headers": {"a": "x\r\nb: hunter2"}}, "header 'a': the value"),
        ("https://host/x", {"headers": {"Content-type": "x"}}, "other than Content-Type"),
        ("https://host/x", {"headers_from_env": {"idempotency-key": "X"}}, "header 'Idempotency-Key'"),
    ]
    assert unrefused(ConfigError, make, cases) == []


def test_lookups_that_cannot_work() -> None:
    def make(arguments: dict[str, Any]) -> None:
        HttpLookupSink("https://host/x", **arguments)

    cases: list[tuple[Any, ...]] = [
        ({"lookup_url": "https://host/x"}, "expected {key} in it"),
        ({"lookup_url": "host/{key}"}, "expected http://host/path"),
        ({"lookup_url": "https://host/{key}", "body": "rows"}, "keys of rows"),
    ]
    assert unrefused(ConfigError, make, cases) == []


@pytest.mark.parametrize("arguments", [{"done": (200,)}, {"refused": (600,)}, {"done": (409,), "refused": (409,)}])
def test_statuses_that_cannot_work(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="status"):
        Statuses(**arguments)


def test_options_that_cannot_work() -> None:
    def make(options: str) -> None:
        http_sink(f"https://user:hunter2@host/x?k=hunter2#{options}")

    cases: list[tuple[Any, ...]] = [
        ("idempotnt=true", "unknown options idempotnt; known are body, method, idempotent"),
        ("body=xml", "body='xml'"),
    ]
    assert unrefused(ConfigError, make, cases) == []


def test_an_option_before_the_number_sign_is_refused() -> None:
    with pytest.raises(ConfigError, match="https://host/x: idempotent, timeout_s stands before '#'"):
        http_sink("https://host/x?site=7&timeout_s=1&idempotent=true#body=rows")


def test_repr_shows_no_secret() -> None:
    sink = HttpSink("https://user:hunter2@host/x?key=hunter2", headers={"X-Key": "hunter2"})
    assert repr(sink) == "HttpSink('https://host/x', body='json', idempotent=False)"
    assert sink.describe() == repr(sink)


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({}, True),
        ({"idempotent": True}, False),
        ({"idempotent": True, "body": "rows"}, True),
        ({"idempotent": True, "check": lambda *_: None}, True),
    ],
)
def test_a_chunk_that_is_never_halved_and_not_checked_names_no_refused_row(
    arguments: dict[str, Any], names: bool
) -> None:
    assert HttpSink("https://host/x", **arguments).names_refused_rows is names
