"""Google Cloud Storage: what an emulator answers to wrong settings, and which of gcsfs' classes is used.

The emulator keeps its objects in memory and accepts every user, so a kill or wrong credentials would show nothing.
"""

from __future__ import annotations

import itertools
import logging
import multiprocessing
from functools import partial
from typing import Any

import fsspec
import gcsfs.core
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.chaos.faulty_proxy import Answer, Exchange, FaultyProxy
from tests.house.stores import GenericStore, StoreSpec, open_store, probe
from tests.house.support import SYSTEM
from tests.support.servers.fake_gcs import FakeGcsServer
from wal_sink.errors import StoreError
from wal_sink.stores.fsspec_store import connected

pytest_plugins = ["tests.support.fixtures.servers"]

SWITCH = "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"
_numbers = itertools.count()


def url_in(server: FakeGcsServer, bucket: str = "", scheme: str = "gs") -> str:
    return f"{scheme}://{bucket or server.bucket}/place-{next(_numbers)}"


def test_a_missing_bucket_is_told_with_the_next_step(fake_gcs: FakeGcsServer) -> None:
    store = open_store(StoreSpec(url_in(fake_gcs, "no-such-bucket"), fake_gcs.storage_options))
    with pytest.raises(StoreError, match=r"(?s)cannot create .*no-such-bucket.*check address, credentials and rights"):
        probe(store, runtime=SYSTEM, single_writer=False)


def test_a_token_that_is_no_file_is_told_and_not_shown(fake_gcs: FakeGcsServer) -> None:
    options = {**fake_gcs.storage_options, "token": "/no/such/hunter2.json"}
    with pytest.raises(StoreError, match=r"gs://.*cannot be opened: .*check address and credentials") as caught:
        open_store(StoreSpec(url_in(fake_gcs), options))
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["gs", "gcs"])
def test_several_processes_may_write(fake_gcs: FakeGcsServer, scheme: str) -> None:
    store = open_store(StoreSpec(url_in(fake_gcs, scheme=scheme), fake_gcs.storage_options))
    assert store.create_doubt == ""
    probe(store, runtime=SYSTEM, single_writer=False)
    assert store.list("", recursive=True) == []


def answered(answer: Answer, exchange: Exchange) -> None:
    exchange.answer(answer)


def test_an_answer_that_is_no_listing_does_not_pass_for_an_empty_one(fake_gcs: FakeGcsServer) -> None:
    with FaultyProxy(fake_gcs.endpoint) as proxy:
        options = {**fake_gcs.storage_options, "endpoint_url": proxy.url}
        store = open_store(StoreSpec(url_in(fake_gcs), options))
        store.create("a", b"x")
        for body in (b"", b"[]", b'{"items": [{}]}', b'{"items": 5}', b"<html></html>"):
            proxy.arm(partial(answered, Answer(200, body)), at=1)
            with pytest.raises(StoreError, match=r"cannot list gs://.*check address"):
                store.list("")
            assert store.list("") == ["a"], body


def test_a_class_of_another_package_is_left_to_fsspec(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = type("CloudFileSystem", (MemoryFileSystem,), {"__module__": "another.gcs", "cachable": False})
    monkeypatch.setattr(fsspec, "get_filesystem_class", lambda _: kind)
    monkeypatch.setattr("fsspec.core.url_to_fs", lambda *_, **__: (kind(), "bucket/wal"))
    store = GenericStore(StoreSpec("gs://bucket/wal"))
    assert "CloudFileSystem (of another.gcs) is not known to create atomically" in store.create_doubt


def in_a_new_process(spec: StoreSpec, answer: Any) -> None:
    """Create an object as a Python worker of an executor does, and tell the class and the errors that were logged."""
    logged: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    open_store(spec).create("a", b"x")
    answer.put((type(connected(spec)[0]).__module__, logged))


@pytest.mark.parametrize("switch", [None, "true", "false"])
def test_no_process_asks_over_grpc_whatever_the_environment_says(
    fake_gcs: FakeGcsServer, monkeypatch: pytest.MonkeyPatch, switch: str | None
) -> None:
    """gcsfs reads the variable when it is imported, so each case has a new process, as on an executor."""
    monkeypatch.delenv(SWITCH, raising=False)
    if switch is not None:
        monkeypatch.setenv(SWITCH, switch)
    context = multiprocessing.get_context("spawn")
    answer = context.Queue()
    child = context.Process(
        target=in_a_new_process, args=(StoreSpec(url_in(fake_gcs), fake_gcs.storage_options), answer)
    )
    child.start()
    told = answer.get(timeout=120)
    child.join(60)
    assert told == (gcsfs.core.__name__, [])
