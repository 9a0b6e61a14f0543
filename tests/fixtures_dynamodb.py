"""DynamoDB for any test: `dynamodb_server` once per session, without the faults of the last test; its credentials."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.dynamodb_server import ACCESS, DynamoDbServer


@pytest.fixture(scope="session")
def _dynamodb() -> Iterator[DynamoDbServer]:
    server = DynamoDbServer()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def dynamodb_server(_dynamodb: DynamoDbServer, monkeypatch: pytest.MonkeyPatch) -> DynamoDbServer:
    for name, value in ACCESS.items():
        monkeypatch.setenv(name.upper(), value)
    _dynamodb.faults.clear()
    _dynamodb.requests.clear()
    _dynamodb.signers.clear()
    return _dynamodb
