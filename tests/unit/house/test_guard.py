"""The guard of the quick tests sees what they must not do, each way of it."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.fixtures import guard


def seen(what: Callable[[], object]) -> list[str]:
    """Return what the guard finds, and let it go on with this very test, which did no harm."""
    guard.begin()
    try:
        what()
    finally:
        found = guard.end()
        guard.begin()
    return found


@pytest.mark.parametrize("event", sorted(guard.WATCHED))
def test_each_event_is_seen_with_what_was_started(event: str) -> None:
    (found,) = seen(lambda: sys.audit(event, "x", "y"))
    assert found.startswith(f"{guard.WATCHED[event]} ({event}: ")


def test_a_real_socket_with_an_address_is_seen(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        (found,) = seen(lambda: listener.bind(str(tmp_path / "here")))
    assert found.startswith("a port (socket.bind: ")


def test_a_test_that_opens_no_port_is_not_seen() -> None:
    def pair() -> None:
        for end in socket.socketpair():
            end.close()

    assert seen(pair) == []


def test_an_import_of_pyspark_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)

    def load() -> None:
        monkeypatch.setitem(sys.modules, "pyspark", ModuleType("pyspark"))

    assert seen(load) == ["pyspark"]
    assert seen(lambda: None) == []


def test_a_test_that_started_something_fails_and_is_told_where_it_belongs() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"^a quick test started a port: move it to tests/integration, or "):
        guard.refuse(["a port"])
    guard.refuse([])
