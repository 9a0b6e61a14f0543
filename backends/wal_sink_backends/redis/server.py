"""A Redis server: its address, its connection, errors, and the servers that are refused or may lose rows.

Only this module knows redis-py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from wal_sink.errors import ConfigError, PermanentError
from wal_sink.sinks.calls import is_certificate_error
from wal_sink.support.secrets import mask_url
from wal_sink_backends.common.sinks import client_library, warn_of, warn_once

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
    """The client library."""
    for module in ("redis.backoff", "redis.retry", "redis"):
        library = client_library(module, "RedisSink needs redis-py", "redis", "redis")
    return library


_SCHEMES = ("redis", "rediss", "unix")


def refuse_sentinel(url: str) -> None:
    """Raise `ConfigError` for a URL of Sentinel, which knows servers but holds no rows."""
    if "sentinel" in urlsplit(url).scheme:
        raise ConfigError(
            f"{mask_url(url)}: Sentinel is not supported, so it cannot be used to find the primary. Use "
            "redis://host:6379/0 with a host name or a proxy that follows the primary. A replica refuses writes, and "
            "then delivery tries again"
        )


def check_address(url: str) -> None:
    """Raise `ConfigError` for a URL that does not name exactly one server."""
    refuse_sentinel(url)
    parts = urlsplit(url)
    if "," in parts.netloc:
        raise ConfigError(
            f"{mask_url(url)}: the URL names several hosts, but Sentinel and Redis Cluster are not supported. Use one "
            "host: a host name or a proxy that follows the primary"
        )
    try:
        database = re.fullmatch(r"(/\d*)?", parts.path) is not None
        there = len(parts.path) > 1 if parts.scheme == "unix" else bool(parts.hostname) and parts.port != 0 and database
        usable = parts.scheme in _SCHEMES and there and not parts.query
    except ValueError:  # a port that is no number
        usable = False
    if not usable:
        raise ConfigError(
            f"{mask_url(url)}: expected redis://host:6379/0, rediss://host:6379/0 or unix:///path/of.sock"
        )


_CONFIG = (
    "CONFIG GET is refused ({}), so make sure of appendonly yes, appendfsync always and no-appendfsync-on-rewrite no"
)


def warn_of_losses(
    client: Any, info: Mapping[str, Any], address: str, *, wait_replicas: int, refused: type[Exception]
) -> None:
    """Warn of possible losses on this server.

    `info` is its INFO, `refused` the client's error for a forbidden command.
    """
    warn_of(_of_info(info, wait_replicas), address)
    warn_of(_of_files(client, info, refused), address)


def _of_info(info: Mapping[str, Any], wait_replicas: int) -> Iterator[str]:
    policy = str(info.get("maxmemory_policy", "unknown"))
    if policy.startswith("volatile-") and info.get("maxmemory") != 0:
        yield (
            f"maxmemory-policy is {policy}: once memory is full, Redis deletes rows whose keys have an expiry, but "
            "keeps the position, so delivery cannot notice the loss. Set noeviction, or set no expiry on the rows"
        )
    elif policy == "unknown":
        yield "INFO does not contain maxmemory-policy: make sure that the server drops neither rows nor the ledger"
    replicas = info.get("connected_slaves", "an unknown number of")
    if replicas != 0 and not wait_replicas:
        yield (
            f"the server has {replicas} replica(s), but acknowledges a write before the replicas have it: a fail-over "
            "may lose this write. Delivery notices the loss when it next reads the ledger, but not after its last "
            "read. Pass wait_replicas to make a loss unlikely"
        )


def _of_files(client: Any, info: Mapping[str, Any], refused: type[Exception]) -> Iterator[str]:
    enabled = info.get("aof_enabled", "unknown")
    if enabled == "unknown":
        yield "INFO does not tell whether the server keeps an append-only file: make sure of appendonly yes"
    if enabled == 0:
        yield from _told(lambda: _of_snapshots(client.config_get("save")), refused)
    else:
        yield from _told(lambda: _of_append_only_file(client.config_get("*appendfsync*")), refused)


def _told(ask: Callable[[], str | None], refused: type[Exception]) -> Iterator[str]:
    try:
        loss = ask()
    except refused as error:
        yield _CONFIG.format(error)
        return
    if loss is not None:
        yield loss


def _of_snapshots(config: Mapping[str, str]) -> str | None:
    if config.get("save"):
        return (
            "the server keeps no append-only file: a crash loses all writes after the last snapshot, and then "
            "delivery stops. Set appendonly yes, and appendfsync always to lose nothing"
        )
    return (
        "the server keeps neither an append-only file nor snapshots: a restart loses all rows and the ledger, and "
        "then delivery stops. Set appendonly yes, and appendfsync always to lose nothing"
    )


def _of_append_only_file(config: Mapping[str, str]) -> str | None:
    when = config.get("appendfsync", "unknown")
    if when != "always":
        lost = "the last second of writes" if when == "everysec" else "writes of half a minute or more"
        return f"appendfsync is {when}: a crash of the machine may lose {lost}. Set appendfsync always to lose nothing"
    if config.get("no-appendfsync-on-rewrite") != "no":
        return (
            "no-appendfsync-on-rewrite is not no: while the append-only file is rewritten, a crash of the machine may "
            "lose half a minute of writes. Set no-appendfsync-on-rewrite to no"
        )
    return None


def warn_of_truncation(client: Any, address: str, *, refused: type[Exception]) -> None:
    """Warn of a server that shortens a torn append-only file by itself: it keeps some of a script's writes there.

    The second start after that reads those rows, and behind them the same rows as they were sent again. Hashes and sets
    are not affected. Seen in Redis 7.0.15; Valkey fixed it (github.com/valkey-io/valkey/pull/4342).
    """
    try:
        found = client.config_get("aof-load-truncated")
    except refused:  # forbidden, or renamed as managed servers do
        return
    if "yes" in found.values():
        warn_once(
            f"{address} has aof-load-truncated yes: if the server is killed during a write, rows of a stream may be "
            "repeated after its second start. Set aof-load-truncated to no. If the server then refuses to start, run "
            "redis-check-aof --fix"
        )
