"""Files held as multipart uploads of S3, which shows nothing of an object before its upload is completed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from wal_sink.errors import ConfigError, HandleGoneError, PermanentError, StoreError
from wal_sink.stores.s3 import S3Error, S3Store
from wal_sink_backends.files.folder import handle_of, handle_text

MAX_PARTS = 10_000
PARTS_PAGE = 1_000
MAX_ETAG_CHARS = 2_000
"""Most characters of ETags in a handle; if the parts need more, they are listed at the commit instead."""

METADATA_KEY = "wal-sink-transaction"
"""Names the transaction that wrote an object, which the object's name does not."""

_GONE = "NoSuchUpload"
_TAKEN = {"PreconditionFailed", "412"}
_OTHER_PARTS = {"InvalidPart", "InvalidPartOrder", "EntityTooSmall"}
_ABSENT = {"NoSuchKey", "404"}


class _Upload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Finds an upload again: the token of a held file."""

    name: str
    upload: str


class _Handle(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    upload: str
    parts: int
    digest: str
    """Of the parts' ETags, in order."""
    etags: tuple[str, ...] | None
    """None if they are too many."""


class S3Holder:
    """A `FileHolder` in a bucket, below a prefix. A file that is being written takes `part_bytes` of memory."""

    def __init__(self, store: S3Store, part_bytes: int) -> None:
        self._store = store
        self._part_bytes = part_bytes
        options: Mapping[str, Any] = store.spec.options
        self._given = options.get("s3_additional_kwargs") or {}
        if "ChecksumAlgorithm" in self._given:  # a completion would need the checksum of each part
            raise PermanentError(f"{store.root}: two-phase commit on S3 takes no ChecksumAlgorithm. Use FilesSink")

    def hold(self, transaction_id: str, name: str) -> HeldUpload:
        metadata = {**self._given.get("Metadata", {}), METADATA_KEY: transaction_id}
        answer = self._store.request("create_multipart_upload", name, Metadata=metadata)
        return HeldUpload(self._store, _Upload(name, answer["UploadId"]), self._part_bytes)

    def commit(self, transaction_id: str, handle: str) -> None:
        given = handle_of(_Handle, handle)
        try:
            self._complete(given)
        except S3Error as error:
            if error.code in _OTHER_PARTS:
                raise self._other_parts(given, str(error)) from error
            if error.code != _GONE and error.code not in _TAKEN:
                raise
            self._check_committed(transaction_id, given, error)

    def drop(self, transaction_id: str, token: str) -> None:  # noqa: ARG002 - an upload has its own id
        if not token:
            return
        try:
            upload = msgspec.json.decode(token, type=_Upload)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{token[:80]!r} is not a token of an upload to S3: {error}") from error
        try:
            self._store.request("abort_multipart_upload", upload.name, UploadId=upload.upload)
        except S3Error as error:
            if error.code != _GONE:
                raise

    def _complete(self, given: _Handle) -> None:
        etags = given.etags if given.etags is not None else self._listed(given)
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, 1)]
        self._store.request(
            "complete_multipart_upload",
            given.name,
            UploadId=given.upload,
            MultipartUpload={"Parts": parts},
            IfNoneMatch="*",
        )

    def _listed(self, given: _Handle) -> Sequence[str]:
        found = list(_parts_of(self._store, given))
        if [number for number, _ in found] != list(range(1, given.parts + 1)):
            raise self._other_parts(given, f"found the parts {_shown([number for number, _ in found])}")
        etags = [etag for _, etag in found]
        if _digest(etags) != given.digest:
            raise self._other_parts(given, "found parts with other ETags")
        return etags

    def _check_committed(self, transaction_id: str, given: _Handle, error: S3Error) -> None:
        """Return if the object of that name is this transaction's, by its metadata; else raise why it is not."""
        url = self._store.url_of(given.name)
        owner = self._owner(given.name)
        if owner == transaction_id:
            return
        if error.code in _TAKEN and owner is None:
            raise error  # it was deleted between the two requests: another attempt commits
        if error.code in _TAKEN and self._is_open(given):  # some servers look at the name before the upload
            raise PermanentError(
                f"{url} exists, but it is not the object of transaction {transaction_id}: another query, another sink "
                "or a user wrote it. Move that object elsewhere, or use another prefix or name_template for this sink "
                "({wal_id} in it distinguishes queries). Nothing was replaced; the rows are held in the upload "
                f"{given.upload}"
            ) from error
        there = "no object has that name" if owner is None else "the object with that name is another object"
        raise HandleGoneError(
            f"the upload {given.upload}, prepared for {url}, is gone, and {there}: either it was aborted (by hand, or "
            "by a lifecycle rule AbortIncompleteMultipartUpload), or the object was committed and deleted"
        ) from error

    def _is_open(self, given: _Handle) -> bool:
        """Whether the upload is still held."""
        try:
            self._store.request("list_parts", given.name, UploadId=given.upload, MaxParts=1)
        except S3Error as error:
            if error.code == _GONE:
                return False
            raise
        return True

    def _owner(self, name: str) -> str | None:
        """The transaction that wrote an object, "" if its metadata names none; None if there is no object."""
        try:
            answer = self._store.request("head_object", name)
        except S3Error as error:
            if error.code in _ABSENT:
                return None
            raise
        found: Mapping[str, str] = answer.get("Metadata", {})
        return found.get(METADATA_KEY, "")

    def _other_parts(self, given: _Handle, found: str) -> HandleGoneError:
        return HandleGoneError(
            f"the upload {given.upload} for {self._store.url_of(given.name)} is open, but it is not the upload that "
            f"was prepared: expected {given.parts} parts with the ETags of the handle, {found}",
            never_committed=True,
        )


class HeldUpload:
    """An upload under way. Keeps less than one part in memory, plus the bytes of one call of `write`."""

    def __init__(self, store: S3Store, upload: _Upload, part_bytes: int) -> None:
        self._store = store
        self._upload = upload
        self._part_bytes = part_bytes
        self._rest = bytearray()
        self._etags: list[str] = []

    @property
    def token(self) -> str:
        return handle_text(self._upload)

    def write(self, data: bytes) -> None:
        """Append bytes. Every part but the last has the same size, which some servers require."""
        self._rest += data
        while len(self._rest) >= self._part_bytes:
            self._send(bytes(memoryview(self._rest)[: self._part_bytes]))
            del self._rest[: self._part_bytes]

    def prepare(self) -> str:
        if self._rest or not self._etags:
            self._send(bytes(self._rest))
        self.close()
        fits = sum(len(etag) + 3 for etag in self._etags) <= MAX_ETAG_CHARS
        etags = tuple(self._etags) if fits else None
        return handle_text(
            _Handle(self._upload.name, self._upload.upload, len(self._etags), _digest(self._etags), etags)
        )

    def close(self) -> None:
        self._rest = bytearray()

    def _send(self, data: bytes) -> None:
        number = len(self._etags) + 1
        if number > MAX_PARTS:
            raise StoreError(
                f"{self._store.url_of(self._upload.name)}: more than {MAX_PARTS} parts of {self._part_bytes} bytes; "
                "raise part_bytes, or lower Settings(segment_bytes=…)"
            )
        answer = self._store.request(
            "upload_part", self._upload.name, UploadId=self._upload.upload, PartNumber=number, Body=data
        )
        self._etags.append(_bare(answer["ETag"]))


def _parts_of(store: S3Store, given: _Handle) -> Iterator[tuple[int, str]]:
    question: dict[str, Any] = {"UploadId": given.upload, "MaxParts": PARTS_PAGE}
    while True:
        page = store.request("list_parts", given.name, **question)
        yield from ((part["PartNumber"], _bare(part["ETag"])) for part in page.get("Parts", ()))
        if not page.get("IsTruncated"):
            return
        question["PartNumberMarker"] = page["NextPartNumberMarker"]


def _bare(etag: str) -> str:
    return etag.strip('"')


def _digest(etags: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(etags).encode()).hexdigest()


def _shown(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:10])) + (" …" if len(numbers) > 10 else "") if numbers else "none"
