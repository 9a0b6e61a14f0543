"""A Redis server: its connection, the kinds of servers that are refused, and errors.

Only this module knows redis-py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from wal_sink.errors import ConfigError, PermanentError
from wal_sink.redaction import mask_url
from wal_sink.sinks.certificates import is_certificate_error
from wal_sink_backends.common.durability import warn_once
from wal_sink_backends.redis.durability import warn_of_losses

_MAY_PASS = re.compile(
    r"\b(OOM|READONLY|LOADING|BUSY|UNKILLABLE|MISCONF|NOREPLICAS|MASTERDOWN|TRYAGAIN|max number of clients)\b"
)
"""Error codes of Redis that may pass. redis-py has classes for some of them. Others stand in the text only, and so do
all errors of a script's calls on older servers.
"""
_IS_CLUSTER = re.compile(r"\b(MOVED|ASK|CROSSSLOT)\b")


def connect(url: str, options: Mapping[str, Any]) -> Any:
    library = redis_library()
    never = library.retry.Retry(library.backoff.NoBackoff(), 0)  # the core repeats attempts, and logs them
    with translated(mask_url(url)):
        return library.Redis.from_url(url, single_connection_client=False, retry=never, **options)


def check_server(client: Any, address: str, wait_replicas: int) -> int:
    """The server's major version, 0 if it does not tell. Refuses a server that cannot keep the guarantee.

    Warns of settings that it does not tell.
    """
    library = redis_library()
    try:
        info = client.info("all")
    except library.exceptions.NoPermissionError:
        client.ping()
        warn_once(
            f"{address}: INFO is forbidden. Make sure that the server does not evict keys without expiry and is not a "
            "cluster"
        )
        return 0
    if info.get("redis_mode") == "sentinel":
        raise PermanentError(
            f"{address} is a Redis Sentinel, but a Sentinel holds no rows. Use a host name or a proxy that follows the "
            "primary"
        )
    if info.get("cluster_enabled"):
        raise PermanentError(
            f"{address} is a Redis Cluster, but in a cluster one script cannot reach the keys of several slots. Use a "
            "server without cluster mode"
        )
    policy = str(info.get("maxmemory_policy", ""))
    if policy.startswith("allkeys-"):
        raise PermanentError(
            f"{address} has maxmemory-policy {policy}, so the server may delete the ledger without an error. Set "
            "maxmemory-policy to noeviction or volatile-lru, or use another server"
        )
    refused = library.exceptions.ResponseError
    warn_of_losses(client, info, address, wait_replicas=wait_replicas, refused=refused)
    major = str(info.get("redis_version", "")).partition(".")[0]
    return int(major) if major.isdecimal() else 0


@contextmanager
def translated(what: str) -> Iterator[None]:
    """A context that turns errors of redis-py into `PermanentError`, unless a retry may help."""
    errors = redis_library().exceptions
    try:
        yield
    except (errors.AuthenticationError, errors.AuthorizationError, errors.NoPermissionError) as error:
        raise PermanentError(f"{what}: {error}; check user, password and rights") from None
    except (errors.ConnectionError, errors.TimeoutError) as error:
        if is_certificate_error(error):
            raise PermanentError(
                f"{what}: {error}. To trust the authority of the server's certificate, pass ca_file="
            ) from error
        raise
    except (errors.ReadOnlyError, errors.OutOfMemoryError, errors.TryAgainError, errors.MasterDownError):
        raise
    except errors.RedisError as error:
        elsewhere = isinstance(error, errors.MovedError | errors.AskError | errors.ClusterCrossSlotError)
        if elsewhere or _IS_CLUSTER.search(str(error)):
            raise PermanentError(
                f"{what}: the server is a Redis Cluster ({error}); use a server without cluster mode"
            ) from error
        if _MAY_PASS.search(str(error)):
            raise
        raise PermanentError(f"{what}: {error}") from error


@lru_cache(maxsize=1)
def redis_library() -> Any:
    """The client library; `ConfigError` naming the extra if it is missing."""
    try:
        import redis as library  # noqa: PLC0415 - an extra
        import redis.backoff  # noqa: PLC0415
        import redis.retry  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(
            "RedisSink needs redis-py, on the executors too. Install wal-sink with its extra redis, or: "
            "pip install redis"
        ) from error
    return library
