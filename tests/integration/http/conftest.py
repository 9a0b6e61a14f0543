"""Fixtures of the tests here."""

from __future__ import annotations

import random

import pytest

from tests.support.http_collection import Collection
from tests.support.servers.http_target import HttpTarget


@pytest.fixture
def keyed(http_target: HttpTarget, request: pytest.FixtureRequest) -> Collection:
    """Ignores keys it has seen."""
    return Collection(http_target, "keys", f"{request.node.name[:40]}-{random.randrange(10**9)}".replace("/", "_"))


@pytest.fixture
def plain(keyed: Collection) -> Collection:
    return Collection(keyed.server, "plain", keyed.name)
