from __future__ import annotations

import pytest

import wal_sink.walsink


@pytest.fixture(autouse=True)
def _no_spark_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command is a separate process. Here it would find the session that another test made."""
    monkeypatch.setattr(wal_sink.walsink, "current_session", lambda: None)
