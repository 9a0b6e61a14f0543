"""Settings of a Redis server under which it loses an acknowledged write, or rows without their position."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from wal_sink_backends.common.durability import warn_of, warn_once

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
