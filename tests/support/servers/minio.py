"""MinIO on 127.0.0.1: a real S3 server of another maker, with one bucket. `make servers` builds it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tests.support.go_programs import MINIO
from tests.support.servers.server import Server

ACCESS_KEY, SECRET_KEY = "test-access-key", "test-secret-key"


class MinioServer(Server):
    """A running server."""

    product = "MinIO"
    number_of_ports = 2
    bucket = "wal-sink-tests"

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def storage_options(self) -> dict[str, Any]:
        """Return the options for s3fs, and for `StoreSpec`."""
        return self.options_of(ACCESS_KEY, SECRET_KEY)

    def options_of(self, key: str, secret: str) -> dict[str, Any]:
        """Return the options of another user."""
        return {
            "key": key,
            "secret": secret,
            "endpoint_url": self.endpoint,
            "client_kwargs": {"region_name": "us-east-1"},
        }

    def client(self) -> Any:
        """Return a boto3 client that looks at the server without the store."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            config=Config(connect_timeout=2, read_timeout=5, retries={"total_max_attempts": 1}),
        )

    def objects(self) -> dict[str, bytes]:
        """Return all objects of the bucket."""
        client = self.client()
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket)
        keys = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
        return {key: client.get_object(Bucket=self.bucket, Key=key)["Body"].read() for key in keys}

    def command(self) -> Sequence[str | Path]:
        users = [f"MINIO_ROOT_USER={ACCESS_KEY}", f"MINIO_ROOT_PASSWORD={SECRET_KEY}", "MINIO_UPDATE=off"]
        addresses = ["--address", f"127.0.0.1:{self.port}", "--console-address", f"127.0.0.1:{self.ports[1]}"]
        return ["env", *users, MINIO.require(), "server", "--quiet", *addresses, self.folder / "data"]

    def release(self) -> str:
        return MINIO.version

    def answers(self) -> bool:
        """Whether it takes an object into its bucket, which it makes if necessary."""
        client = self.client()
        try:
            if self.bucket not in {bucket["Name"] for bucket in client.list_buckets()["Buckets"]}:
                client.create_bucket(Bucket=self.bucket)
            client.put_object(Bucket=self.bucket, Key="ready", Body=b"x")
            client.delete_object(Bucket=self.bucket, Key="ready")
        except (BotoCoreError, ClientError):
            return False
        return True
