"""moto's S3 over HTTP on 127.0.0.1, made as atomic as S3 itself, with a log of its requests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import boto3
from moto.s3.models import s3_backends
from moto.server import ThreadedMotoServer

_MOTO_ACCOUNT = "123456789012"
_Wsgi = Callable[[dict[str, Any], Any], Iterable[bytes]]


class S3Server:
    """A running server with one bucket. moto looks first and writes then, so every request takes its turn here."""

    def __init__(self, bucket: str = "wal-sink-tests") -> None:
        self.bucket = bucket
        self.requests: list[str] = []
        """Every request so far as `METHOD /path?query`."""
        self._turn = threading.Lock()
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)

    def start(self) -> None:
        self._server.start()
        running = self._server._server
        assert running is not None
        running.app = self._one_by_one(running.app)
        host, port = self._server.get_host_and_port()
        self.endpoint = f"http://{host}:{port}"
        self.client().create_bucket(Bucket=self.bucket)

    def stop(self) -> None:
        running = self._server._server
        self._server.stop()
        if running is not None:
            running.server_close()

    @property
    def storage_options(self) -> dict[str, Any]:
        """Options for s3fs, and for `StoreSpec`."""
        return {
            "key": "test-access-key",
            "secret": "test-secret-key",
            "endpoint_url": self.endpoint,
            "client_kwargs": {"region_name": "us-east-1"},
        }

    def client(self) -> Any:
        """A boto3 client, to look behind the store's back."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id="test-access-key",
            aws_secret_access_key="test-secret-key",  # noqa: S106 - a dummy
        )

    def fill(self, keys: Iterable[str]) -> None:
        """Put empty objects without a request each."""
        backend = s3_backends[_MOTO_ACCOUNT]["aws"]
        for key in keys:
            backend.put_object(self.bucket, key, b"")

    @contextmanager
    def counting(self) -> Iterator[list[str]]:
        """The requests that arrive inside the block; complete when it is left."""
        before, seen = len(self.requests), list[str]()
        yield seen
        seen += self.requests[before:]

    def _one_by_one(self, app: _Wsgi) -> _Wsgi:
        def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
            query = environ.get("QUERY_STRING", "")
            with self._turn:
                self.requests.append(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}{'?' if query else ''}{query}")
                return list(app(environ, start_response))

        return answer
