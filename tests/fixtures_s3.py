"""S3 for any test: `s3_server` once per session, `s3_url` a fresh prefix for each test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.contract.s3_server import S3Server

_numbers = itertools.count()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    server = S3Server()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def s3_url(s3_server: S3Server) -> str:
    return f"s3://{s3_server.bucket}/prefix-{next(_numbers)}"
