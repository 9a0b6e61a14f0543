"""Answers of S3 servers of other makers to wrong settings, and what they keep when they are killed."""

from __future__ import annotations

import itertools
from typing import Any

import boto3
import pytest

from tests.house.kit import chunks_of, commit, opened, prepare, three_batches
from tests.house.stores import StoreSpec, open_store, probe
from tests.house.support import SYSTEM
from tests.support.servers.minio import MinioServer
from tests.support.servers.s3_product import ACCESS_KEY, SECRET_KEY, S3Product
from tests.support.servers.seaweedfs import READER_KEY, SeaweedServer
from tests.support.small_run import Place, Recorder
from wal_sink.errors import HandleGoneError, StoreError
from wal_sink_backends import TwoPhaseFilesSink

pytest_plugins = ["tests.support.fixtures.servers"]
pytestmark = [pytest.mark.s3, pytest.mark.processes]

CHUNKS = chunks_of(three_batches()[0])
READS = """{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": ["s3:GetObject", "s3:ListBucket"],
"Resource": ["arn:aws:s3:::*"]}]}"""
_numbers = itertools.count()


@pytest.fixture(params=["seaweedfs", "minio"])
def server(request: pytest.FixtureRequest) -> S3Product:
    found: S3Product = request.getfixturevalue(request.param)
    return found


def url_in(server: S3Product, bucket: str = "") -> str:
    return f"s3://{bucket or server.bucket}/place-{next(_numbers)}"


def of_reader(server: S3Product) -> dict[str, Any]:
    """Return the options of somebody who may read and list."""
    if isinstance(server, SeaweedServer):
        return server.options_of(READER_KEY, SECRET_KEY)
    tokens = boto3.client(
        "sts",
        endpoint_url=server.endpoint,
        region_name="us-east-1",
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
    )
    role = tokens.assume_role(RoleArn="arn:aws:iam::1:role/any", RoleSessionName="reader", Policy=READS)["Credentials"]
    options = server.options_of(role["AccessKeyId"], role["SecretAccessKey"])
    return {**options, "token": role["SessionToken"]}


def refusal(url: str, options: dict[str, Any]) -> str:
    """Return what the first start of a WAL is told. It shows no secret."""
    with pytest.raises(StoreError) as caught:
        probe(open_store(StoreSpec(url, options)), runtime=SYSTEM, single_writer=False)
    told = str(caught.value)
    assert url in told
    assert options["secret"] not in told
    assert SECRET_KEY not in told
    return told


@pytest.mark.parametrize(
    ("key", "secret", "told"),
    [
        (ACCESS_KEY, "wrong-secret", "the secret does not belong to the access key: correct the credentials"),
        ("nobody", SECRET_KEY, "the credentials in storage_options are invalid or expired"),
    ],
    ids=["wrong secret", "unknown user"],
)
def test_credentials_that_cannot_work_are_told_with_the_next_step(
    server: S3Product, key: str, secret: str, told: str
) -> None:
    assert told in refusal(url_in(server), server.options_of(key, secret))


def test_a_right_to_read_alone_is_told_with_the_right_to_give(server: S3Product) -> None:
    assert "this request needs s3:PutObject: grant it on arn:aws:s3:::" in refusal(url_in(server), of_reader(server))


def test_a_missing_bucket_is_told_with_the_next_step(server: S3Product) -> None:
    told = refusal(url_in(server, "no-such-bucket"), server.storage_options)
    assert "this bucket does not exist: create it or correct the URL" in told


def test_a_reader_can_look_into_a_wal(server: S3Product) -> None:
    url = url_in(server)
    open_store(StoreSpec(url, server.storage_options)).create("a/b", b"x")
    reader = open_store(StoreSpec(url, of_reader(server)))
    assert reader.list("", recursive=True) == ["a/b"]
    assert reader.read("a/b") == b"x"


def test_a_server_that_is_killed_keeps_what_it_acknowledged(server: S3Product) -> None:
    store = open_store(StoreSpec(url_in(server), server.storage_options))
    names = [f"records/{number}" for number in range(20)]
    for name in names:
        store.create(name, name.encode())
    server.kill()
    server.start()
    assert {name: store.read(name) for name in names} == {name: name.encode() for name in names}
    assert store.list("records") == sorted(str(number) for number in range(20))


@pytest.mark.parametrize("taken", [False, True], ids=["its name is free", "its name is taken"])
def test_rows_of_an_upload_that_is_gone_are_not_taken_for_delivered(minio: MinioServer, *, taken: bool) -> None:
    """MinIO looks at the name of the object before it looks for the upload."""
    url = url_in(minio)
    template = "{batch_id}-{partition}-{file_index}.{ext}"
    sink = TwoPhaseFilesSink(url, storage_options=minio.storage_options, name_template=template)
    key, client = url.partition(f"{minio.bucket}/")[2], minio.client()
    with opened(sink, CHUNKS[0]):
        held = prepare(sink, CHUNKS)
        place = {"Bucket": minio.bucket, "Key": f"{key}/0-0-0.jsonl"}
        (upload,) = client.list_multipart_uploads(Bucket=minio.bucket, Prefix=place["Key"])["Uploads"]
        client.abort_multipart_upload(**place, UploadId=upload["UploadId"])
        if taken:
            client.put_object(**place, Body=b"mine")
        with pytest.raises(HandleGoneError, match="is gone"):
            commit(sink, held)
    found = [entry["Key"] for entry in client.list_objects_v2(Bucket=minio.bucket, Prefix=key).get("Contents", [])]
    assert found == ([place["Key"]] if taken else [])
    assert not taken or client.get_object(**place)["Body"].read() == b"mine"


def test_a_wal_begins_anew_in_a_versioned_bucket(minio: MinioServer) -> None:
    """MinIO lists the folders of deleted objects for ever. It was taken for a WAL that lost its wal.json."""
    client, bucket = minio.client(), f"versioned-{next(_numbers)}"
    client.create_bucket(Bucket=bucket)
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    wal = open_store(StoreSpec(url_in(minio, bucket), minio.storage_options))
    for _ in range(2):
        place = Place(wal=wal)  # type: ignore[arg-type]
        sink = Recorder()
        place.stream(place.open({"a": sink}), 1)
        assert sink.batches == [0, 1]
        wal.delete(wal.list("", recursive=True))
    assert "batches/" in wal.list("")
