"""An S3 server of another maker, as the tests use it: addresses, users, one bucket, and a look past the store."""

from __future__ import annotations

from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tests.support.servers.server import Server

ACCESS_KEY, SECRET_KEY = "test-access-key", "test-secret-key"


class S3Product(Server):
    """A running server. It may be killed, and keeps what it acknowledged."""

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

    def client(self, *, answer_s: float = 60.0) -> Any:
        """Return a boto3 client that looks at the server without the store."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            config=Config(connect_timeout=answer_s, read_timeout=answer_s, retries={"total_max_attempts": 1}),
        )

    def answers(self) -> bool:
        """Whether it takes an object into its bucket, which it makes if necessary."""
        client = self.client(answer_s=5.0)
        try:
            if self.bucket not in {bucket["Name"] for bucket in client.list_buckets()["Buckets"]}:
                client.create_bucket(Bucket=self.bucket)
            client.put_object(Bucket=self.bucket, Key="ready", Body=b"x")
            client.delete_object(Bucket=self.bucket, Key="ready")
        except (BotoCoreError, ClientError):
            return False
        return True
