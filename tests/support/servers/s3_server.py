"""moto's S3 over HTTP on 127.0.0.1, made as atomic as S3 itself, with a log of its requests."""

from __future__ import annotations

import base64
import hashlib
import io
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

import boto3
from moto.s3.models import s3_backends
from moto.server import ThreadedMotoServer

_MOTO_ACCOUNT = "123456789012"
_Wsgi = Callable[[dict[str, Any], Any], Iterable[bytes]]


@dataclass(frozen=True)
class Fault:
    """An answer that replaces S3's own."""

    status: int
    code: str
    done: bool = False
    """True if the request has its effect, but its answer is lost."""


class S3Server:
    """A running server with one bucket. moto reads first and writes then, so requests are handled one at a time."""

    def __init__(self, bucket: str = "wal-sink-tests") -> None:
        self.bucket = bucket
        self.requests: list[str] = []
        """Every request so far as `METHOD /path?query`."""
        self.after_request: Callable[[str, str, int], None] | None = None
        """Called with method, path and status after each request, before the next one is handled."""
        self.forgets_completed = False
        """True if an upload is unknown once it was completed. Otherwise it can be completed again while it is the
        newest upload of its object. S3 has been seen to do either.
        """
        self.fault: Callable[[str, str, Mapping[str, Any]], Fault | None] | None = None
        """Called before each request with method, path and headers as WSGI has them, without a lock."""
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
        """Return the options for s3fs, and for `StoreSpec`."""
        return {
            "key": "test-access-key",
            "secret": "test-secret-key",
            "endpoint_url": self.endpoint,
            "client_kwargs": {"region_name": "us-east-1"},
        }

    def client(self) -> Any:
        """Return a boto3 client that looks at the server without the store."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id="test-access-key",
            aws_secret_access_key="test-secret-key",  # noqa: S106 - not a secret
        )

    def fill(self, keys: Iterable[str]) -> None:
        """Put empty objects without a request for each."""
        backend = s3_backends[_MOTO_ACCOUNT]["aws"]
        for key in keys:
            backend.put_object(self.bucket, key, b"")

    def objects(self) -> dict[str, bytes]:
        """Return all objects by key, without a request."""
        keys = s3_backends[_MOTO_ACCOUNT]["aws"].buckets[self.bucket].keys
        return {name: bytes(key.value) for name, key in keys.items()}

    def uploads(self, prefix: str = "") -> list[tuple[str, str]]:
        """List key and id of every open multipart upload, by a request to the server."""
        pages = self.client().get_paginator("list_multipart_uploads").paginate(Bucket=self.bucket, Prefix=prefix)
        return [(some["Key"], some["UploadId"]) for page in pages for some in page.get("Uploads", ())]

    def clear(self) -> None:
        """Delete all objects, without a request."""
        s3_backends[_MOTO_ACCOUNT]["aws"].buckets[self.bucket].keys.clear()

    @contextmanager
    def counting(self) -> Iterator[list[str]]:
        """Yield the list of requests that arrive inside the block. It is complete at the end of the block."""
        before, seen = len(self.requests), list[str]()
        yield seen
        seen += self.requests[before:]

    def _one_by_one(self, app: _Wsgi) -> _Wsgi:
        def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
            method, path, query = environ["REQUEST_METHOD"], environ["PATH_INFO"], environ.get("QUERY_STRING", "")
            statuses: list[str] = []

            def start(status: str, *args: Any) -> Any:
                statuses.append(status)
                return start_response(status, *args)

            fault = self.fault(method, path, environ) if self.fault is not None else None
            with self._turn:
                self.requests.append(f"{method} {path}{'?' if query else ''}{query}")
                if fault is not None:
                    return self._faulty(fault, app, environ, start_response)
                answer = list(self._responder(app, environ)(environ, start))
                if self.after_request is not None:
                    self.after_request(method, path, int(statuses[-1].partition(" ")[0]))
                return answer

        return answer

    def _faulty(self, fault: Fault, app: _Wsgi, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if fault.done:
            list(self._responder(app, environ)(environ, lambda *_: None))
        start_response(f"{fault.status} set by a test", [("Content-Type", "application/xml")])
        return [f"<Error><Code>{fault.code}</Code><Message>set by a test</Message></Error>".encode()]

    def _responder(self, app: _Wsgi, environ: dict[str, Any]) -> _Wsgi:
        if not _is_intact(environ):
            return _refuse_damaged
        upload = parse_qs(environ.get("QUERY_STRING", "")).get("uploadId", [""])[0]
        return _refuse_upload if upload and not self._knows(upload) else app

    def _knows(self, upload: str) -> bool:
        """Tell whether an upload is open, or was completed. moto crashes on others."""
        bucket = s3_backends[_MOTO_ACCOUNT]["aws"].buckets[self.bucket]
        completed = (key.multipart.id for key in bucket.keys.values() if key.multipart and not self.forgets_completed)
        return upload in bucket.multiparts or upload in completed


def _is_intact(environ: dict[str, Any]) -> bool:
    """Tell whether the body is the one that the client summed and signed. S3 checks this, moto does not."""
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    environ["wsgi.input"] = io.BytesIO(body)
    crc32 = base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()
    signed = environ.get("HTTP_X_AMZ_CONTENT_SHA256", "")
    return environ.get("HTTP_X_AMZ_CHECKSUM_CRC32", crc32) == crc32 and (
        len(signed) != 64 or signed == hashlib.sha256(body).hexdigest()
    )


def _refuse_damaged(_: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    start_response("400 Bad Request", [("Content-Type", "application/xml")])
    return [b"<Error><Code>BadDigest</Code><Message>the body does not match its checksum</Message></Error>"]


def _refuse_upload(_: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    start_response("404 Not Found", [("Content-Type", "application/xml")])
    return [b"<Error><Code>NoSuchUpload</Code><Message>The specified upload does not exist.</Message></Error>"]
