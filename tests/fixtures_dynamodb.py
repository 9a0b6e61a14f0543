"""DynamoDB for any test: moto (`dynamodb_server`), without the faults of the last test, and Amazon's DynamoDB Local.

Each once per session, with its credentials.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.dynamodb_server import ACCESS, DynamoDbServer
from tests.dynamodb_local import LOCAL_ACCESS, DynamoDbLocal
from wal_sink_backends import dynamodb_calls


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


@pytest.fixture(scope="session")
def _dynamodb_local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DynamoDbLocal]:
    with DynamoDbLocal(tmp_path_factory.mktemp("dynamodb-local") / "log") as server:
        yield server


@pytest.fixture
def dynamodb_local(_dynamodb_local: DynamoDbLocal, monkeypatch: pytest.MonkeyPatch) -> Iterator[DynamoDbLocal]:
    for name, value in LOCAL_ACCESS.items():
        monkeypatch.setenv(name.upper(), value)
    dynamodb_calls.session.cache_clear()  # which has the credentials of another test
    yield _dynamodb_local
    dynamodb_calls.session.cache_clear()
