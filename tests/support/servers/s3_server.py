"""moto's S3 over HTTP on 127.0.0.1, as strict as S3 itself about bodies and uploads, with a log of its requests."""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

import boto3
from moto.s3.models import s3_backends

from tests.support.servers.moto_server import MotoServer, Wsgi, body_of

_MOTO_ACCOUNT = "123456789012"


@dataclass(frozen=True)
class Fault:
    """An answer that replaces S3's own."""

    status: int
    code: str
    done: bool = False
    """True if the request has its effect, but its answer is lost."""


class S3Server(MotoServer):
    """A running server with one bucket."""

    def __init__(self, bucket: str = "wal-sink-tests") -> None:
        super().__init__()
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

    def start(self) -> None:
        super().start()
        self.client().create_bucket(Bucket=self.bucket)

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

    def handle(self, app: Wsgi, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        method, path, query = environ["REQUEST_METHOD"], environ["PATH_INFO"], environ.get("QUERY_STRING", "")
        statuses: list[str] = []

        def start(status: str, *args: Any) -> Any:
            statuses.append(status)
            return start_response(status, *args)

        fault = self.fault(method, path, environ) if self.fault is not None else None
        with self.turn:
            self.requests.append(f"{method} {path}{'?' if query else ''}{query}")
            if fault is not None:
                return self._faulty(fault, app, environ, start_response)
            answer = list(self._responder(app, environ)(environ, start))
            if self.after_request is not None:
                self.after_request(method, path, int(statuses[-1].partition(" ")[0]))
            return answer

    def _faulty(self, fault: Fault, app: Wsgi, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if fault.done:
            list(self._responder(app, environ)(environ, lambda *_: None))
        return _refusal(f"{fault.status} set by a test", fault.code, "set by a test")(environ, start_response)

    def _responder(self, app: Wsgi, environ: dict[str, Any]) -> Wsgi:
        if not _is_intact(environ):
            return _refusal("400 Bad Request", "BadDigest", "the body does not match its checksum")
        upload = parse_qs(environ.get("QUERY_STRING", "")).get("uploadId", [""])[0]
        if upload and not self._knows(upload):
            return _refusal("404 Not Found", "NoSuchUpload", "The specified upload does not exist.")
        return app

    def _knows(self, upload: str) -> bool:
        """Tell whether an upload is open, or was completed. moto crashes on others."""
        bucket = s3_backends[_MOTO_ACCOUNT]["aws"].buckets[self.bucket]
        completed = (key.multipart.id for key in bucket.keys.values() if key.multipart and not self.forgets_completed)
        return upload in bucket.multiparts or upload in completed


def _is_intact(environ: dict[str, Any]) -> bool:
    """Tell whether the body is the one that the client summed and signed. S3 checks this, moto does not."""
    body = body_of(environ)
    crc32 = base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()
    signed = environ.get("HTTP_X_AMZ_CONTENT_SHA256", "")
    return environ.get("HTTP_X_AMZ_CHECKSUM_CRC32", crc32) == crc32 and (
        len(signed) != 64 or signed == hashlib.sha256(body).hexdigest()
    )


def _refusal(status: str, code: str, message: str) -> Wsgi:
    def refuse(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response(status, [("Content-Type", "application/xml")])
        if environ["REQUEST_METHOD"] == "HEAD":  # whose client would take a body for the next answer, if it came soon
            return []
        return [f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()]

    return refuse
