"""Sinks warn of servers that are set up so that they may lose acknowledged rows. No server is needed here."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.logged import said_here
from wal_sink_backends.common.sinks import warn_of, warn_once
from wal_sink_backends.kafka.client import losses as kafka_losses
from wal_sink_backends.redis.server import warn_of_losses
from wal_sink_backends.sql.base.server import ServerDialect, ServerSession
from wal_sink_backends.sql.mariadb.session import mariadb_losses
from wal_sink_backends.sql.postgresql.session import postgresql_losses

DURABLE_REDIS = {"maxmemory": 0, "maxmemory_policy": "noeviction", "connected_slaves": 0, "aof_enabled": 1}
DURABLE_FILES = {"appendfsync": "always", "no-appendfsync-on-rewrite": "no"}
DURABLE_MARIADB = {
    "innodb_flush_log_at_trx_commit": "1",
    "innodb_doublewrite": "ON",
    "log_bin": "ON",
    "sync_binlog": "1",
}
DURABLE_TOPIC = {"unclean.leader.election.enable": "false", "min.insync.replicas": "2"}


@pytest.fixture(autouse=True)
def new_process() -> Iterator[None]:
    warn_once.cache_clear()
    yield
    warn_once.cache_clear()


class Answers(ServerSession):
    """A session whose server gives one answer to everything, or raises it."""

    def __init__(self, answer: object) -> None:
        self.answer = answer
        self.closed = False

    @property
    def usable(self) -> bool:
        return not self.closed

    def close(self) -> None:
        self.closed = True

    def begin(self) -> None:
        raise NotImplementedError

    def commit(self) -> None:
        raise NotImplementedError

    def execute(self, statement: str, values: tuple[Any, ...] | None = None) -> Any:  # noqa: ARG002
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self

    def fetchone(self) -> object:
        return self.answer

    def fetchall(self) -> object:
        return self.answer


class RefusedError(Exception):
    """A driver's."""


class Config:
    """A Redis client that knows CONFIG GET alone."""

    def __init__(self, config: Mapping[str, str] | Exception) -> None:
        self.config = config
        self.asked: list[str] = []

    def config_get(self, pattern: str) -> Mapping[str, str]:
        self.asked.append(pattern)
        if isinstance(self.config, Exception):
            raise self.config
        return self.config


def redis_warnings(
    caplog: pytest.LogCaptureFixture,
    info: Mapping[str, Any],
    config: Mapping[str, str] | Exception,
    *,
    wait_replicas: int = 0,
) -> list[str]:
    warn_of_losses(Config(config), info, "redis://cache", wait_replicas=wait_replicas, refused=RefusedError)
    return said_here(caplog)


# SQL.


def test_a_durable_postgresql_is_warned_of_nothing() -> None:
    assert list(postgresql_losses(Answers(("on", "on", "on", "", 0)))) == []
    assert list(postgresql_losses(Answers(("on", "on", "remote_apply", "ANY 1 (*)", 2)))) == []


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (("off", "on", "on", "", 0), "fsync is off: .* Set fsync = on"),
        (("on", "off", "on", "", 0), "full_page_writes is off: "),
        (
            ("on", "on", "on", "", 2),
            r"to 2 standby\(s\), but waits for none of them \(synchronous_standby_names is empty\)",
        ),
        (("on", "on", "local", "s1", 1), "synchronous_commit is local: .* Set synchronous_commit = on"),
        (("on", "on", "remote_write", "s1", 1), "synchronous_commit is remote_write: "),
        (None, r"the settings of the server cannot be read \(no answer\)"),
    ],
)
def test_what_a_postgresql_may_lose(answer: object, expected: str) -> None:
    (told,) = postgresql_losses(Answers(answer))
    assert re.search(expected, told)


def test_every_fault_is_told() -> None:
    assert len(list(postgresql_losses(Answers(("off", "off", "local", "", 1))))) == 3


def test_a_durable_mariadb_is_warned_of_nothing() -> None:
    assert list(mariadb_losses(Answers(list(DURABLE_MARIADB.items())))) == []
    without_log = {**DURABLE_MARIADB, "log_bin": "OFF", "sync_binlog": "0"}
    assert list(mariadb_losses(Answers(list(without_log.items())))) == []


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("innodb_flush_log_at_trx_commit", "0", "is 0: a crash of the machine or of the server may lose"),
        ("innodb_flush_log_at_trx_commit", "2", "is 2: a crash of the machine may lose"),
        ("sync_binlog", "0", "sync_binlog is 0: "),
        ("innodb_doublewrite", "OFF", "innodb_doublewrite is OFF: "),
    ],
)
def test_what_a_mariadb_may_lose(name: str, value: str, expected: str) -> None:
    (told,) = mariadb_losses(Answers(list({**DURABLE_MARIADB, name: value}.items())))
    assert re.search(expected, told)


def test_what_a_mariadb_does_not_tell_is_no_good_news() -> None:
    assert [told.partition(":")[0] for told in mariadb_losses(Answers([]))] == [
        "innodb_flush_log_at_trx_commit is unknown",
        "sync_binlog is unknown",
        "innodb_doublewrite is unknown",
    ]


def warn_of_losses_in_sql(session: ServerSession, losses: Any, *, passes: bool = False) -> None:
    dialect: Any = SimpleNamespace(address="db", driver_error=lambda: RefusedError, passes=lambda _: passes)
    ServerDialect.warn_of_losses(dialect, session, losses)


def test_a_server_that_refuses_to_tell_is_warned_of_and_used(caplog: pytest.LogCaptureFixture) -> None:
    session = Answers(RefusedError("no right"))
    warn_of_losses_in_sql(session, postgresql_losses)
    assert session.usable
    assert "db: the settings of the server cannot be read (no right)" in caplog.text


def test_a_failure_that_may_pass_ends_the_session(caplog: pytest.LogCaptureFixture) -> None:
    session = Answers(RefusedError("deadlock"))
    with pytest.raises(RefusedError):
        warn_of_losses_in_sql(session, postgresql_losses, passes=True)
    assert not session.usable
    assert not said_here(caplog)


def test_an_unknown_failure_ends_the_session_too() -> None:
    session = Answers(TimeoutError())
    with pytest.raises(TimeoutError):
        warn_of_losses_in_sql(session, mariadb_losses)
    assert not session.usable


# Redis.


def test_a_durable_redis_is_warned_of_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert redis_warnings(caplog, DURABLE_REDIS, DURABLE_FILES) == []
    evicts_nothing = {**DURABLE_REDIS, "maxmemory_policy": "volatile-lru"}
    assert redis_warnings(caplog, evicts_nothing, DURABLE_FILES) == []
    assert redis_warnings(caplog, {**DURABLE_REDIS, "connected_slaves": 2}, DURABLE_FILES, wait_replicas=1) == []


@pytest.mark.parametrize(
    ("info", "config", "expected"),
    [
        ({"maxmemory": 1, "maxmemory_policy": "volatile-ttl"}, {}, "maxmemory-policy is volatile-ttl: .*cannot notice"),
        ({"connected_slaves": 2}, {}, r"has 2 replica\(s\), but acknowledges a write before the replicas have it"),
        ({}, {"appendfsync": "everysec"}, "appendfsync is everysec: .*the last second"),
        ({}, {"appendfsync": "no"}, "appendfsync is no: .*half a minute"),
        ({}, {"no-appendfsync-on-rewrite": "yes"}, "no-appendfsync-on-rewrite is not no: "),
        ({"aof_enabled": 0}, {"save": "3600 1"}, "no append-only file: a crash loses all writes after"),
        ({"aof_enabled": 0}, {"save": ""}, "neither an append-only file nor snapshots: a restart loses all"),
    ],
)
def test_what_a_redis_may_lose(
    info: Mapping[str, Any], config: Mapping[str, str], expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    (told,) = redis_warnings(caplog, {**DURABLE_REDIS, **info}, {**DURABLE_FILES, **config})
    assert told.startswith("redis://cache: ")
    assert re.search(expected, told)


def test_what_info_does_not_tell_is_no_good_news(caplog: pytest.LogCaptureFixture) -> None:
    told = redis_warnings(caplog, {}, DURABLE_FILES)
    assert len(told) == 3
    assert "not contain maxmemory-policy" in told[0]
    assert "an unknown number of replica(s)" in told[1]
    assert "does not tell whether the server keeps an append-only file" in told[2]


def test_a_config_that_is_not_told_is_no_good_news(caplog: pytest.LogCaptureFixture) -> None:
    (told,) = redis_warnings(caplog, DURABLE_REDIS, {})
    assert "appendfsync is unknown" in told


def test_config_get_may_be_forbidden(caplog: pytest.LogCaptureFixture) -> None:
    (told,) = redis_warnings(caplog, DURABLE_REDIS, RefusedError("unknown command"))
    assert "CONFIG GET is refused (unknown command)" in told


def test_no_secret_is_read() -> None:
    """CONFIG GET * would answer with the password."""
    for enabled in (0, 1):
        client = Config(DURABLE_FILES)
        warn_of_losses(
            client, {**DURABLE_REDIS, "aof_enabled": enabled}, "redis://cache", wait_replicas=0, refused=RefusedError
        )
        assert client.asked == [["save"], ["*appendfsync*"]][enabled]


# Kafka.


def test_a_durable_topic_is_warned_of_nothing() -> None:
    assert list(kafka_losses("orders", DURABLE_TOPIC, 3)) == []


@pytest.mark.parametrize(
    ("config", "replicas", "expected"),
    [
        ({"unclean.leader.election.enable": "true"}, 3, "'orders': unclean.leader.election.enable is true: "),
        ({"min.insync.replicas": "1"}, 3, "min.insync.replicas is 1: .* Set min.insync.replicas to 2"),
        ({}, 1, "'orders' has a partition with one replica: "),
    ],
)
def test_what_a_topic_may_lose(config: Mapping[str, str], replicas: int, expected: str) -> None:
    (told,) = kafka_losses("orders", {**DURABLE_TOPIC, **config}, replicas)
    assert re.search(expected, told)


def test_what_a_topic_does_not_tell_is_no_good_news() -> None:
    assert len(list(kafka_losses("orders", {}, 3))) == 2


# Once.


def test_the_same_loss_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        warn_of(["one", "two"], "db")
    warn_of(["one"], "another")
    assert said_here(caplog) == ["db: one", "db: two", "another: one"]
    assert {record.levelno for record in caplog.records if record.message in said_here(caplog)} == {logging.WARNING}
