"""Fixtures of the tests here."""

from __future__ import annotations

import pytest

from tests.support.redis_tools import VARIABLE
from tests.support.servers.redis_server import PASSWORD


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, PASSWORD)
