"""Answers of SeaweedFS, a real S3 server, to wrong settings; and what it keeps when it is killed."""

from __future__ import annotations

import itertools

import pytest

from tests.support.servers.seaweedfs import ACCESS_KEY, READER_KEY, SECRET_KEY, SeaweedServer
from wal_sink.errors import StoreError
from wal_sink.runtime.clock import SYSTEM
from wal_sink.stores.opening import open_store
from wal_sink.stores.probe import probe
from wal_sink.stores.spec import StoreSpec

pytest_plugins = ["tests.support.fixtures.servers"]
pytestmark = pytest.mark.s3

_numbers = itertools.count()


def url_in(server: SeaweedServer, bucket: str = "") -> str:
    return f"s3://{bucket or server.bucket}/place-{next(_numbers)}"


@pytest.mark.parametrize(
    ("key", "secret", "told"),
    [
        (ACCESS_KEY, "wrong", "the secret does not belong to the access key: correct the credentials"),
        ("nobody", SECRET_KEY, "the credentials in storage_options are invalid or expired"),
        (READER_KEY, SECRET_KEY, "give these credentials s3:GetObject, s3:PutObject"),
    ],
    ids=["wrong secret", "unknown user", "read-only"],
)
def test_credentials_that_cannot_work_are_told_with_the_next_step(
    seaweedfs: SeaweedServer, key: str, secret: str, told: str
) -> None:
    url = url_in(seaweedfs)
    store = open_store(StoreSpec(url, seaweedfs.options_of(key, secret)))
    with pytest.raises(StoreError) as caught:
        probe(store, runtime=SYSTEM, single_writer=False)
    assert url in str(caught.value)
    assert told in str(caught.value)
    assert "wrong" not in str(caught.value)
    assert SECRET_KEY not in str(caught.value)


def test_a_missing_bucket_is_told_with_the_next_step(seaweedfs: SeaweedServer) -> None:
    store = open_store(StoreSpec(url_in(seaweedfs, "no-such-bucket"), seaweedfs.storage_options))
    with pytest.raises(StoreError, match=r"no-such-bucket.*this bucket does not exist: create it or correct the URL"):
        probe(store, runtime=SYSTEM, single_writer=False)


def test_a_reader_can_look_into_a_wal(seaweedfs: SeaweedServer) -> None:
    url = url_in(seaweedfs)
    open_store(StoreSpec(url, seaweedfs.storage_options)).create("a/b", b"x")
    reader = open_store(StoreSpec(url, seaweedfs.options_of(READER_KEY, SECRET_KEY)))
    assert reader.list("", recursive=True) == ["a/b"]
    assert reader.read("a/b") == b"x"


def test_a_server_that_is_killed_keeps_what_it_acknowledged(seaweedfs: SeaweedServer) -> None:
    store = open_store(StoreSpec(url_in(seaweedfs), seaweedfs.storage_options))
    names = [f"records/{number}" for number in range(20)]
    for name in names:
        store.create(name, name.encode())
    seaweedfs.kill()
    seaweedfs.start()
    assert {name: store.read(name) for name in names} == {name: name.encode() for name in names}
    assert store.list("records") == sorted(str(number) for number in range(20))
