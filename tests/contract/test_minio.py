"""Answers of MinIO, a real S3 server, to wrong settings; and what it keeps when it is killed."""

from __future__ import annotations

import itertools

import pytest

from tests.support.servers.minio import ACCESS_KEY, SECRET_KEY, MinioServer
from wal_sink.errors import HandleGoneError, StoreError
from wal_sink.runtime.clock import SYSTEM
from wal_sink.stores.opening import open_store
from wal_sink.stores.probe import probe
from wal_sink.stores.spec import StoreSpec
from wal_sink.testing.contract.calls import chunks_of, commit, opened, prepare
from wal_sink.testing.data.tables import three_batches
from wal_sink_backends import TwoPhaseFilesSink

pytest_plugins = ["tests.support.fixtures.servers"]
pytestmark = pytest.mark.s3

CHUNKS = chunks_of(three_batches()[0])
_numbers = itertools.count()


def url_in(server: MinioServer, bucket: str = "") -> str:
    return f"s3://{bucket or server.bucket}/place-{next(_numbers)}"


@pytest.mark.parametrize(
    ("key", "secret", "told"),
    [
        (ACCESS_KEY, "wrong-secret", "the secret does not belong to the access key: correct the credentials"),
        ("nobody", SECRET_KEY, "the credentials in storage_options are invalid or expired"),
    ],
    ids=["wrong secret", "unknown user"],
)
def test_credentials_that_cannot_work_are_told_with_the_next_step(
    minio: MinioServer, key: str, secret: str, told: str
) -> None:
    url = url_in(minio)
    store = open_store(StoreSpec(url, minio.options_of(key, secret)))
    with pytest.raises(StoreError) as caught:
        probe(store, runtime=SYSTEM, single_writer=False)
    assert url in str(caught.value)
    assert told in str(caught.value)
    assert "wrong-secret" not in str(caught.value)
    assert SECRET_KEY not in str(caught.value)


def test_a_missing_bucket_is_told_with_the_next_step(minio: MinioServer) -> None:
    store = open_store(StoreSpec(url_in(minio, "no-such-bucket"), minio.storage_options))
    with pytest.raises(StoreError, match=r"no-such-bucket.*this bucket does not exist: create it or correct the URL"):
        probe(store, runtime=SYSTEM, single_writer=False)


def test_several_processes_may_write(minio: MinioServer) -> None:
    probe(open_store(StoreSpec(url_in(minio), minio.storage_options)), runtime=SYSTEM, single_writer=False)


@pytest.mark.parametrize("taken", [False, True], ids=["its name is free", "its name is taken"])
def test_rows_of_an_upload_that_is_gone_are_not_taken_for_delivered(minio: MinioServer, *, taken: bool) -> None:
    """MinIO looks at the name of the object before it looks for the upload."""
    url = url_in(minio)
    sink = TwoPhaseFilesSink(
        url, storage_options=minio.storage_options, name_template="{batch_id}-{partition}-{roll}.{ext}"
    )
    key, client = url.partition(f"{minio.bucket}/")[2], minio.client()
    with opened(sink, CHUNKS[0]):
        held = prepare(sink, CHUNKS)
        (upload,) = client.list_multipart_uploads(Bucket=minio.bucket, Prefix=f"{key}/0-0-0.jsonl")["Uploads"]
        client.abort_multipart_upload(Bucket=minio.bucket, Key=upload["Key"], UploadId=upload["UploadId"])
        if taken:
            client.put_object(Bucket=minio.bucket, Key=upload["Key"], Body=b"mine")
        with pytest.raises(HandleGoneError, match="is gone"):
            commit(sink, held)
    there = {name: data for name, data in minio.objects().items() if name.startswith(key)}
    assert there == ({upload["Key"]: b"mine"} if taken else {})


def test_a_server_that_is_killed_keeps_what_it_acknowledged(minio: MinioServer) -> None:
    store = open_store(StoreSpec(url_in(minio), minio.storage_options))
    names = [f"records/{number}" for number in range(20)]
    for name in names:
        store.create(name, name.encode())
    minio.kill()
    minio.start()
    assert {name: store.read(name) for name in names} == {name: name.encode() for name in names}
    assert store.list("records") == sorted(str(number) for number in range(20))
