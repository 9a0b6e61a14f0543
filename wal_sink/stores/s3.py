"""Objects in S3 and in S3-compatible stores, through s3fs. Every call is one request.

A create is a PUT with `If-None-Match: *`. No call checks first whether an object exists, and nothing is cached.
"""

from __future__ import annotations

import http.client
import inspect
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, TypeVar

import aiohttp
import s3fs
from aiobotocore.session import AioSession
from botocore.exceptions import BotoCoreError, ClientError
from botocore.handlers import add_expect_header

from wal_sink.errors import ConfigError, StoreError
from wal_sink.stores.base import (
    Answer,
    ObjectExists,
    ObjectMissing,
    SegmentStream,
    SpooledSegment,
    StoreAt,
    check_path,
    folder_of,
    is_hidden,
    names_in,
)
from wal_sink.stores.spec import StoreSpec
from wal_sink.support.clock import SYSTEM, Runtime

_T = TypeVar("_T")
_PAGE = 1000
_CLIENT = {"connect_timeout": 5, "read_timeout": 20, "retries": {"mode": "standard", "total_max_attempts": 4}}
"""Limits of the client. A dead endpoint costs at most half a minute, one that never answers a minute and a half.
`config_kwargs` overrides each.
"""

_FAILURES = (OSError, BotoCoreError, ClientError, aiohttp.ClientError, http.client.HTTPException)
_EXISTS = {"PreconditionFailed", "412"}
_ALWAYS = dict.fromkeys(("put_object", "upload_part", "complete_multipart_upload", "head_object"), "ETag") | {
    "create_multipart_upload": "UploadId",
    "list_parts": "IsTruncated",
    "delete_objects": "Deleted",
}
"""A field that S3's answer to an operation always has."""
_RIGHTS = "check which rights these credentials have"
_CONDITIONS = (
    "If the credentials have this right, something limits it: a condition of their policy (on s3:prefix, an address "
    "or a tag) that this {what} does not meet, a Deny, the policy of the bucket, or the policy of the session"
)
_NEEDS = {
    "create": "s3:PutObject",
    "write": "s3:PutObject",
    "read": "s3:GetObject",
    "list": "s3:ListBucket",
    "delete objects under": "s3:DeleteObject",
    "head object of": "s3:GetObject",
    "create multipart upload of": "s3:PutObject",
    "upload part of": "s3:PutObject",
    "complete multipart upload of": "s3:PutObject",
    "abort multipart upload of": "s3:AbortMultipartUpload",
    "list parts of": "s3:ListMultipartUploadParts",
}
"""The permission that each action needs. Those with multipart uploads are of files as a target, never of a WAL."""
_NEXT_STEP = {
    "NoSuchBucket": "this bucket does not exist: create it or correct the URL",
    "NoSuchKey": "this object does not exist",
    "AccessDenied": _RIGHTS,
    "403": _RIGHTS,  # a HEAD request has no body to say so
    "InvalidAccessKeyId": "S3 does not know this access key: correct the credentials",
    "SignatureDoesNotMatch": "the secret does not belong to the access key: correct the credentials",
    "ExpiredToken": "the session's credentials expired, and their source has no new credentials: renew them",
    "RequestTimeTooSkewed": "the clock of this machine differs from that of S3 by more than 15 minutes: set it by NTP",
    "PermanentRedirect": "the bucket lies in another region: set client_kwargs={'region_name': …}",
    "AuthorizationHeaderMalformed": "the region is wrong: set client_kwargs={'region_name': …}",
    "NotImplemented": "this store does not know the request. A WAL needs conditional writes (If-None-Match): use AWS "
    "S3, MinIO since 2024 or another store that has them",
    "ConditionalRequestConflict": "another writer was writing the same object; wal-sink can repeat the create",
    "SlowDown": "S3 limited the request rate for half a minute; try later, or spread WALs over several prefixes",
    "NoCredentialsError": "no credentials were found: set storage_options key and secret, or a profile",
    "EndpointConnectionError": "nothing answers at this endpoint: correct endpoint_url in storage_options (without it, "
    "Amazon's S3 gets the requests), or start the server",
    "ConnectTimeoutError": "the endpoint cannot be reached: correct endpoint_url, or check network and firewall",
    "ReadTimeoutError": "the endpoint did not answer in time: check it, or raise config_kwargs={'read_timeout': …}",
    "ParamValidationError": "correct the bucket's name",
}


_IN_ONE_REQUEST: Mapping[str, Any] = (
    {"max_concurrency": 1} if "max_concurrency" in inspect.signature(s3fs.S3FileSystem._cat_file).parameters else {}  # noqa: SLF001
)
"""Since 2026.3, s3fs reads a large object by several requests unless it is told otherwise."""
_THROTTLED = {"SlowDown", "ServiceUnavailable", "RequestLimitExceeded", "Throttling", "ThrottlingException", "503"}
_PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
"""Pauses between calls that S3 throttles: half a minute altogether. botocore already repeats each call four times."""
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired", "InvalidAccessKeyId"}
_GIVEN = frozenset({"key", "secret", "token", "session"})
"""Options that hold credentials, or create them. A running process cannot get other credentials through them."""
_GIVEN_EXPIRED = (
    "the credentials in storage_options are invalid or expired, and a running process cannot replace them: start the "
    "query or command again with new ones. Or omit key, secret and token and use a profile or a role: a running "
    "process then picks up renewed credentials automatically"
)


class S3Error(StoreError):
    """Error of `S3Store.request`. `code` is S3's own, such as `NoSuchUpload`; empty if there was no answer."""

    def __init__(self, message: str, *, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class S3Store(StoreAt):
    """A `Store` in a bucket, below a prefix. `StoreSpec.options` are those of `s3fs.S3FileSystem`."""

    def __init__(self, spec: StoreSpec, *, runtime: Runtime = SYSTEM) -> None:
        """Raises `ConfigError` for options that s3fs rejects, and for a directory bucket."""
        super().__init__(spec)
        self._bucket, _, prefix = spec.location.partition("/")
        _refuse_directory_bucket(self._bucket)
        self._prefix = folder_of(prefix)
        self._runtime = runtime
        self._chance = runtime.new_random()
        self._connecting = threading.Lock()
        self._fs = _connect(spec)

    def create(self, path: str, data: bytes) -> None:
        self._put(path, data, action="create", IfNoneMatch="*")

    def read(self, path: str) -> bytes:
        try:
            return bytes(self._ask(lambda fs: fs.cat_file(self._target(path), **_IN_ONE_REQUEST)))
        except _FAILURES as error:
            if _code(error) == "NoSuchKey":
                raise ObjectMissing(f"{self.url_of(path)} does not exist") from self._spec.cause(error)
            raise self._failure("read", path, error) from self._spec.cause(error)

    def list(self, prefix: str, *, after: str = "", recursive: bool = False) -> list[str]:
        folder = folder_of(prefix)
        try:
            keys = sorted(self._keys(self._prefix + folder, after, recursive=recursive))
        except _FAILURES as error:
            raise self._failure("list", folder, error) from self._spec.cause(error)
        return [*names_in(keys, "", after=after, recursive=recursive)]

    def delete(self, paths: Iterable[str]) -> None:
        keys = [self._prefix + check_path(path) for path in paths]
        for start in range(0, len(keys), _PAGE):
            self._delete(keys[start : start + _PAGE])

    def segment(self, path: str) -> SegmentStream:
        check_path(path)
        return SpooledSegment(self.url_of(path), partial(self._put, path, action="write"))

    def request(self, operation: str, path: str, **arguments: Any) -> Mapping[str, Any]:
        """Send one request about the object at `path`, for operations that `Store` does not have. Returns S3's answer
        as in boto3.

        `operation` is boto3's name for it, `arguments` are its arguments except `Bucket` and `Key`. Raises `S3Error`.
        """
        try:
            key = self._prefix + check_path(path)
            answer: Mapping[str, Any] = self._ask(
                lambda fs: fs.call_s3(operation, Bucket=self._bucket, Key=key, **arguments)
            )
            _check_is_of_s3(answer, operation)
        except _FAILURES as error:
            failure = self._failure(operation.replace("_", " ") + " of", path, error)
            raise S3Error(str(failure), code=_code(error)) from self._spec.cause(error)
        return answer

    @property
    def prefix(self) -> str:
        return self._prefix

    def life_cycle(self) -> Answer:
        """The life-cycle rules of the bucket."""
        try:
            return Answer(self._ask(lambda fs: fs.call_s3("get_bucket_lifecycle_configuration", Bucket=self._bucket)))
        except _FAILURES as error:
            text = self._spec.scrub(str(error) or type(error).__name__)
            return Answer({}, _code(error) or type(error).__name__, text)

    def _put(self, path: str, data: bytes, *, action: str, **condition: str) -> None:
        given = {"Bucket": self._bucket, "Key": self._prefix + check_path(path), "Body": data, **condition}
        try:
            _check_is_of_s3(self._ask(lambda fs: fs.call_s3("put_object", **given)), "put_object")
        except _FAILURES as error:
            if isinstance(error, FileExistsError) or _code(error) in _EXISTS:
                raise ObjectExists(f"{self.url_of(path)} exists already") from self._spec.cause(error)
            raise self._failure(action, path, error) from self._spec.cause(error)

    def _keys(self, head: str, after: str, *, recursive: bool) -> Iterator[str]:
        """Names below `head`, folders ending in `/`; the folder that `after` names may be among them."""
        question: dict[str, Any] = {"Bucket": self._bucket, "Prefix": head, "MaxKeys": _PAGE}
        start = after if recursive else _before_folder(after)
        question |= {"StartAfter": head + start} if start else {}
        question |= {} if recursive else {"Delimiter": "/"}
        while True:
            page = self._ask(lambda fs: fs.call_s3("list_objects_v2", **question))
            _check_is_listing(page, head)
            found = [entry["Key"] for entry in page.get("Contents", ())]
            found += [entry["Prefix"] for entry in page.get("CommonPrefixes", ())]
            names = (key.removeprefix(head) for key in found)
            yield from (name for name in names if name and not is_hidden(name) and (not recursive or name[-1] != "/"))
            if not page.get("IsTruncated"):
                return
            question["ContinuationToken"] = page["NextContinuationToken"]

    def _delete(self, keys: Sequence[str]) -> None:
        wanted = {"Objects": [{"Key": key} for key in keys]}
        try:
            answer = self._ask(lambda fs: fs.call_s3("delete_objects", Bucket=self._bucket, Delete=wanted))
            _check_is_of_s3(answer, "delete_objects")
        except _FAILURES as error:
            raise self._failure("delete objects under", "", error) from self._spec.cause(error)
        failed = answer.get("Errors", ())
        if failed:
            key, code = failed[0].get("Key"), failed[0].get("Code", "")
            step = _NEXT_STEP.get(code, "check the rights")
            if step == _RIGHTS:
                step = self._needed_right("delete objects under", str(key).removeprefix(self._prefix))
            raise StoreError(f"cannot delete s3://{self._bucket}/{key} and {len(failed) - 1} others: {code}; {step}")

    def _ask(self, call: Callable[[Any], _T]) -> _T:
        """Return `call(file system)`. Repeat it while S3 throttles, and once if the credentials were replaced.

        A throttled request may still have had its effect; a create then meets its own object.
        """
        pauses, renewed = iter(_PAUSES_S), False
        while True:
            fs = self._fs
            try:
                return call(fs)
            except _FAILURES as error:
                code = _code(error)
                pause_s = next(pauses, None) if code in _THROTTLED else None
                if pause_s is not None:
                    self._runtime.sleep_s(pause_s * (0.5 + self._chance.random() / 2))
                elif code in _EXPIRED and not renewed and not _GIVEN.intersection(self._spec.options):
                    self._renew(fs)
                    renewed = True
                else:
                    raise

    def _renew(self, old: Any) -> None:
        """Load the credentials again: the file of a profile, or the source that the environment names, may have new
        ones by now.
        """
        with self._connecting:
            if self._fs is old:  # otherwise another thread has just done this
                self._fs = _connect(self._spec)

    def _target(self, path: str) -> str:
        return f"{self._bucket}/{self._prefix}{check_path(path)}"

    def _failure(self, action: str, path: str, error: Exception) -> StoreError:
        """The `StoreError` for an error of s3fs, botocore or aiohttp. Only this place translates them."""
        code = _code(error) or type(error).__name__
        given = code in _EXPIRED and _GIVEN.intersection(self._spec.options)
        step = (
            _GIVEN_EXPIRED
            if given
            else _NEXT_STEP.get(code) or _NEXT_STEP.get(type(error).__name__, "check endpoint, credentials and rights")
        )
        if step == _RIGHTS and action in _NEEDS:
            step = self._needed_right(action, path)
        text = self._spec.scrub(str(error) or type(error).__name__)
        return StoreError(f"cannot {action} {self.url_of(path)}: {code} ({text}); {step}")

    def _needed_right(self, action: str, path: str) -> str:
        """The permission that a refused request needs, for which key, and why it may be missing."""
        needed = _NEEDS[action]
        key = f"{self._prefix}{path}"
        if action == "list":
            where = f"on the bucket {self._bucket}, without a condition on s3:prefix (it was {key!r} here)"
            return f"this request needs {needed}: grant it {where}. {_CONDITIONS.format(what='prefix')}"
        absent = (
            ". Or the object does not exist: S3 gives the same answer for absent objects where s3:ListBucket is "
            "missing, or has a condition"
            if needed == "s3:GetObject"
            else ""
        )
        where = f"on arn:aws:s3:::{self._bucket}/{key}"
        return f"this request needs {needed}: grant it {where}. {_CONDITIONS.format(what='key')}{absent}"


def _refuse_directory_bucket(bucket: str) -> None:
    """Refuse S3 Express One Zone: its listings have no `StartAfter` and no order, and show folders of unfinished
    uploads.
    """
    if bucket.endswith(("--x-s3", "--xa-s3")):
        raise ConfigError(
            f"{bucket} is a directory bucket (S3 Express One Zone), or an access point of one. The listings of such a "
            "bucket have no order and no StartAfter, and show unfinished uploads. Use a general purpose bucket"
        )


def _check_is_listing(page: Mapping[str, Any], head: str) -> None:
    """Raise `OSError` if an answer is not a listing. Otherwise it would be parsed into nothing, and a full folder would
    look empty.
    """
    if "IsTruncated" not in page or page.get("Prefix", head) != head:
        raise OSError(
            f"expected a listing of {head!r}, found an answer with the fields {sorted(page)} for "
            f"{page.get('Prefix')!r}. The server at this endpoint does not answer like S3"
        )


def _check_is_of_s3(answer: Mapping[str, Any], operation: str) -> None:
    """Raise `OSError` if an answer is not of S3: a proxy's page with status 200 is parsed into nothing."""
    field = _ALWAYS.get(operation)
    if field is not None and answer.get(field) is None and not answer.get("Errors"):
        raise OSError(
            f"expected an answer to {operation} with {field}, found the fields {sorted(answer)}. The server at this "
            "endpoint, or a proxy before it, does not answer like S3"
        )


def _code(error: BaseException | None) -> str:
    """S3's own error code, which s3fs keeps in the cause of its exception; empty if S3 did not answer."""
    while error is not None:
        if isinstance(error, ClientError):
            return str(error.response.get("Error", {}).get("Code", ""))
        error = error.__cause__
    return ""


_OPTIONS = frozenset(inspect.signature(s3fs.S3FileSystem.__init__).parameters) | {
    "skip_instance_cache",
    "use_listings_cache",
    "listings_expiry_time",
    "max_paths",
}
"""Options that s3fs and fsspec keep for themselves; s3fs passes the others, such as `profile`, to its session."""


def _session(options: Mapping[str, Any]) -> AioSession:
    """A separate session with its own credentials. It shares the descriptions of S3, which take megabytes, with other
    sessions.
    """
    session = AioSession(**{name: value for name, value in options.items() if name not in _OPTIONS})
    session.register_component("data_loader", _descriptions())
    return session


@lru_cache(maxsize=1)
def _descriptions() -> Any:
    return AioSession().get_component("data_loader")


def _before_folder(name: str) -> str:
    """Where a listing starts so that it shows the folder `name/` and everything after it; empty: at the beginning.

    Servers differ about a folder that begins like the start of a listing: S3 compares keys, SeaweedFS the folder's
    name. So the start is a name that no folder has. The caller leaves out what is not greater.
    """
    number = re.split(r"[^0-9A-Za-z]", name, maxsplit=1)[0]
    return f"{number[:-1]}{chr(ord(number[-1]) - 1)}~" if number else ""


def _connect(spec: StoreSpec) -> Any:
    given = spec.options.get("config_kwargs") or {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"{spec.safe_url}: config_kwargs must be a mapping of botocore's Config arguments")
    options = {
        **spec.options,
        "config_kwargs": {**_CLIENT, **given},
        "use_listings_cache": False,
        "skip_instance_cache": True,
        "asynchronous": False,
    }
    try:
        fs = s3fs.S3FileSystem(**{"session": _session(options), **options})
        fs.retries = 1  # botocore retries already; s3fs around it would multiply the waiting by 5, for reads by 25
        fs.connect()
        # aiohttp waits for "100 Continue" without a time limit: a silent endpoint would block a create (measured).
        client: Any = fs.s3
        client.meta.events.unregister("before-call.s3", add_expect_header)
    except (TypeError, ValueError, KeyError) as error:
        raise ConfigError(
            f"{spec.safe_url} cannot be opened with these storage_options: {spec.scrub(str(error))}; expected the "
            "arguments of s3fs.S3FileSystem"
        ) from spec.cause(error)
    except _FAILURES as error:
        raise StoreError(
            f"{spec.safe_url} cannot be opened: {type(error).__name__} ({spec.scrub(str(error))}); check the options"
        ) from spec.cause(error)
    return fs
