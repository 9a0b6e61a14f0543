"""Answers of Azurite, Microsoft's emulator of Azure's blob storage, to wrong settings.

It keeps its index in memory for a while, so a kill would show nothing about Azure.
"""

from __future__ import annotations

import base64
import itertools

import pytest

from tests.house.stores import StoreSpec, open_store, probe
from tests.house.support import SYSTEM
from tests.support.servers.azurite import KEY, AzuriteServer
from wal_sink.errors import StoreError

pytest_plugins = ["tests.support.fixtures.servers"]

_numbers = itertools.count()


def url_in(server: AzuriteServer, container: str = "") -> str:
    return f"abfs://{container or server.container}/place-{next(_numbers)}"


def test_a_wrong_key_is_told_with_the_next_step_and_not_shown(azurite: AzuriteServer) -> None:
    wrong = base64.b64encode(b"x" * 64).decode()
    url = url_in(azurite)
    store = open_store(StoreSpec(url, azurite.options_of(wrong)))
    with pytest.raises(StoreError, match="check address, credentials and rights") as caught:
        probe(store, runtime=SYSTEM, single_writer=False)
    assert url in str(caught.value)
    assert wrong not in str(caught.value)
    assert KEY not in str(caught.value)


def test_a_missing_container_is_told_with_the_next_step(azurite: AzuriteServer) -> None:
    store = open_store(StoreSpec(url_in(azurite, "no-such-container"), azurite.storage_options))
    with pytest.raises(StoreError, match=r"(?s)no-such-container.*ContainerNotFound.*check address"):
        probe(store, runtime=SYSTEM, single_writer=False)


def test_a_right_to_read_alone_looks_into_a_wal_and_begins_none(azurite: AzuriteServer) -> None:
    url = url_in(azurite)
    open_store(StoreSpec(url, azurite.storage_options)).create("a/b", b"x")
    store = open_store(StoreSpec(url, azurite.options_of_reader()))

    assert store.list("", recursive=True) == ["a/b"]
    assert store.read("a/b") == b"x"
    with pytest.raises(StoreError, match=r"(?s)create.*Authorization.*check address, credentials and rights") as caught:
        probe(store, runtime=SYSTEM, single_writer=False)
    assert "sig=" not in str(caught.value)
