"""Fixtures of the tests here."""

from __future__ import annotations

import pytest

from tests.support.servers.dynamodb_server import DynamoDbServer


@pytest.fixture
def server(dynamodb_server: DynamoDbServer) -> DynamoDbServer:
    return dynamodb_server


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """botocore's own retries wait up to seconds."""
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0.0)
