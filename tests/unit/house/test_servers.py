"""The environment that every server of the tests is started with."""

from __future__ import annotations

import pytest

from tests.support.servers import server


def test_a_server_gets_no_credentials_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """SeaweedFS makes an administrator of a key that it finds there, and its own file no longer counts for that key."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test-access-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another secret")
    monkeypatch.setenv("A_NAME_OF_ANOTHER_KIND", "kept")

    environment = server.environment()

    assert not any(name.startswith("AWS_") for name in environment)
    assert environment["A_NAME_OF_ANOTHER_KIND"] == "kept"
