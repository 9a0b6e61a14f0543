"""A client of DynamoDB: the address of the table, credentials, errors. Only this module knows boto3."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, get_args

from wal_sink.errors import ConfigError, PermanentError
from wal_sink.sinks.calls import is_certificate_error
from wal_sink.support.arguments import check_seconds, one_of
from wal_sink.support.secrets import mask_url
from wal_sink_backends.dynamodb.items import Nulls
from wal_sink_backends.dynamodb.tables import check_name

_NEVER = frozenset(
    {
        "AccessDeniedException",
        "IncompleteSignatureException",
        "InvalidSignatureException",
        "MissingAuthenticationTokenException",
        "ResourceNotFoundException",
        "SerializationException",
        "ValidationException",
    }
)
"""Codes of errors that every attempt meets again."""
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException"})
_UNKNOWN = frozenset({"InvalidClientTokenId", "UnrecognizedClientException"})
"""Codes for credentials that are expired or unknown. boto3 may find newer ones in the same place."""


class TryAgainError(Exception):
    """DynamoDB cannot take the request now. A later attempt may succeed."""


class StaleCredentialsError(TryAgainError):
    """The service refuses these credentials. boto3 may find newer ones in the same place."""

    def __init__(self, told: str, *, expired: bool) -> None:
        super().__init__(told)
        self.expired = expired


@dataclass(frozen=True, slots=True, repr=False)
class Target:
    """A table and the way to reach it. Plain data without secrets."""

    table: str
    row_key: str | None
    nulls: Nulls
    region: str | None
    endpoint_url: str | None
    timeout_s: float

    def __post_init__(self) -> None:
        check_name(self.table, "table")
        one_of("nulls", self.nulls, get_args(Nulls))
        if self.row_key == "":
            raise ConfigError("row_key='': expected the name of the table's partition key")
        check_seconds("timeout_s", self.timeout_s, above_0=True)
        if self.endpoint_url is not None and not self.endpoint_url.startswith(("http://", "https://")):
            raise ConfigError(f"endpoint_url={mask_url(self.endpoint_url)!r}: expected http://… or https://…")

    def __repr__(self) -> str:
        where = mask_url(self.endpoint_url) if self.endpoint_url else self.region
        return f"{self.table!r}, {where!r}"


def code_of(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code"))


@contextmanager
def translated(what: str) -> Iterator[None]:
    """A context that turns boto3's errors into `PermanentError`, unless a retry may help."""
    from botocore import exceptions as errors  # noqa: PLC0415 - an extra

    try:
        yield
    except errors.ClientError as error:
        if code_of(error) in _NEVER:
            raise PermanentError(f"{what}: {error}") from error
        if code_of(error) in _EXPIRED | _UNKNOWN:
            raise StaleCredentialsError(f"{what}: {error}", expired=code_of(error) in _EXPIRED) from error
        raise
    except (errors.NoCredentialsError, errors.PartialCredentialsError, errors.NoRegionError) as error:
        raise PermanentError(
            f"{what}: {error} Set the missing values where the sink runs, in a place where boto3 looks for them"
        ) from None
    except errors.ParamValidationError as error:
        raise PermanentError(f"{what}: {error}") from error
    except errors.SSLError as error:
        if is_certificate_error(error):
            raise PermanentError(
                f"{what}: {error}. To trust the authority of this certificate, set AWS_CA_BUNDLE"
            ) from error
        raise


_session_lock = threading.Lock()


@lru_cache(maxsize=1)
def session() -> Any:
    """boto3's session, one in a process: it reads megabytes of descriptions, and sinks are opened for every task.

    Raises `ConfigError` naming the extra if boto3 is missing.
    """
    try:
        import boto3  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ConfigError(
            "DynamoDbSink needs boto3, on the executors too. Install wal-sink with its extra dynamodb, or: "
            "pip install boto3"
        ) from error
    return boto3.session.Session()


def forget_session(old: Any) -> None:
    """Make the next client read the credentials anew, unless another sink did that already."""
    with _session_lock:
        if session() is old:
            session.cache_clear()


def new_client(target: Target) -> tuple[Any, Any]:
    """A client and its session, which has the credentials."""
    with _session_lock:  # sessions are for one thread at a time, clients are not
        shared = session()
        from botocore.config import Config  # noqa: PLC0415 - boto3 brings it

        settings = Config(
            connect_timeout=target.timeout_s,
            read_timeout=target.timeout_s,
            retries={"mode": "standard", "total_max_attempts": 3},
        )
        with translated(repr(target)):
            client = shared.client(
                "dynamodb", region_name=target.region, endpoint_url=target.endpoint_url, config=settings
            )
        return client, shared
