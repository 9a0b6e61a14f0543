"""Arguments and URLs of `RedisSink`, right and wrong."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.chunks import chunk, ids
from tests.support.refusals import unrefused
from wal_sink.errors import (
    ConfigError,
)
from wal_sink_backends.redis.sink import RedisSink
from wal_sink_backends.redis.urls import redis_sink


def test_arguments_that_cannot_work() -> None:
    def make(url: str, arguments: dict[str, Any]) -> None:
        given: dict[str, Any] = {"key": "orders:{id}"} | arguments
        RedisSink(url, **given)

    cases: list[tuple[Any, ...]] = [
        ("http://:hunter2@host", {}, "^http://host: expected redis://"),
        ("redis://", {}, "expected redis://"),
        ("redis://:hunter2@host/x", {}, "^redis://host/x: expected redis://"),
        ("redis://host:port", {}, "expected redis://"),
        ("redis://host?db=hunter2", {}, "^redis://host: expected redis://"),
        ("unix://", {}, "expected redis://"),
        ("redis+sentinel://:hunter2@host:26379/primary", {}, "^redis.sentinel://.*Sentinel is not supported.*follows"),
        ("sentinel://host:26379", {}, "Sentinel is not supported"),
        ("redis://a:26379,b:26379/0", {}, "several hosts, .*Sentinel and Redis Cluster are not supported"),
        ("redis://host", {"kind": "list"}, "expected one of 'hash', 'stream', 'set'"),
        ("redis://host", {"key": "orders"}, "expected a column in it"),
        ("redis://host", {"key": "orders:{id"}, "expected '}'"),
        ("redis://host", {"key": "orders:{id:d}"}, "names of columns in braces"),
        ("redis://host", {"key": "orders:{id}{day}"}, r"{id} and {day} need a text between them.* concat\(id, day\)"),
        ("redis://host", {"key": "wal_sink:ledger:{id}"}, "belong to the ledger"),
        ("redis://host", {"maxlen": 5}, "expected a number above 0, and kind='stream'"),
        ("redis://host", {"wait_replicas": -1}, "wait_replicas=-1: expected 0 or more"),
        ("redis://host", {"timeout_s": 0}, "timeout_s=0: expected a number of seconds above 0"),
        ("redis://:hunter2@host", {"password_env": "X"}, "Use only one"),
        ("redis://host", {"ca_file": "/x"}, "expected a rediss:// URL"),
    ]
    assert unrefused(ConfigError, make, cases) == []


def test_urls_that_cannot_work() -> None:
    def make(query: str) -> None:
        redis_sink(f"redis://:hunter2@host/0?{query}")

    cases: list[tuple[Any, ...]] = [
        ("key=a:{id}&kond=set", "unknown options kond; known are key, kind, maxlen"),
        ("kind=set", "expected the key of each row"),
    ]
    assert unrefused(ConfigError, make, cases) == []


def test_write_before_open_says_so() -> None:
    with pytest.raises(RuntimeError, match=r"not open: call open\(\) first"):
        RedisSink("redis://host", key="{id}").write(chunk(ids(1)))
