"""Fixtures of several modules here."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.support.vault import Vault

_END_S = 60.0


@pytest.fixture(autouse=True)
def no_committer_is_left() -> Iterator[None]:
    """Fail a test that leaves a committer thread behind: what that logs later would be found in another test's log."""
    before = set(threading.enumerate())
    yield
    left = [thread for thread in threading.enumerate() if thread not in before]
    committers = [thread for thread in left if thread.name.startswith("wal-sink-committer")]
    for thread in committers:
        thread.join(_END_S)
    assert [thread.name for thread in committers if thread.is_alive()] == []


@pytest.fixture(autouse=True)
def no_spark_of_other_tests(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a `WalSink` find no Spark session unless its test has one.

    Otherwise it would find the session that an earlier test of this process made. A child that a test forks would even
    talk to the JVM over the socket of its parent.
    """
    if "spark" not in request.fixturenames:
        monkeypatch.setattr("wal_sink.walsink.current_session", lambda: None)


@pytest.fixture
def vault() -> Vault:
    return Vault()
