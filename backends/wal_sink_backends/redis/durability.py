"""Settings of a Redis server under which a write is lost that was acknowledged, or rows without their position."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from wal_sink_backends.common.durability import warn_of, warn_once

_CONFIG = (
    "its CONFIG GET is refused ({}), so make sure of appendonly yes, appendfsync always and "
    "no-appendfsync-on-rewrite no"
)


def warn_of_losses(
    client: Any, info: Mapping[str, Any], address: str, *, wait_replicas: int, refused: type[Exception]
) -> None:
    """Warn of what this server may lose. `info` is its INFO, `refused`: what the client raises if it may not ask."""
    warn_of(_of_info(info, wait_replicas), address)
    warn_of(_of_files(client, info, refused), address)


def _of_info(info: Mapping[str, Any], wait_replicas: int) -> Iterator[str]:
    policy = str(info.get("maxmemory_policy", "unknown"))
    if policy.startswith("volatile-") and info.get("maxmemory") != 0:
        yield (
            f"maxmemory-policy is {policy}: once memory is full, rows are dropped whose keys were given an expiry, "
            "while the position stays, so that delivery cannot notice; set noeviction, or give rows no expiry"
        )
    elif policy == "unknown":
        yield "INFO tells no maxmemory-policy: make sure that the server drops neither rows nor the ledger"
    replicas = info.get("connected_slaves", "an unknown number of")
    if replicas != 0 and not wait_replicas:
        yield (
            f"it has {replicas} replica(s) and acknowledges before they have a write: a fail-over may lose it. "
            "Delivery notices that at its next look at the ledger, not after its last; pass wait_replicas to make it "
            "unlikely"
        )


def _of_files(client: Any, info: Mapping[str, Any], refused: type[Exception]) -> Iterator[str]:
    enabled = info.get("aof_enabled", "unknown")
    if enabled == "unknown":
        yield "INFO does not tell whether it keeps an append-only file: make sure of appendonly yes"
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
            "it keeps no append-only file: a crash takes back all since its last snapshot. Delivery then refuses to go "
            "on; set appendonly yes, and appendfsync always to lose nothing"
        )
    return (
        "it keeps neither an append-only file nor snapshots: a restart loses all rows and the ledger. Delivery then "
        "refuses to go on; set appendonly yes, and appendfsync always to lose nothing"
    )


def _of_append_only_file(config: Mapping[str, str]) -> str | None:
    when = config.get("appendfsync", "unknown")
    if when != "always":
        lost = "the last second of writes" if when == "everysec" else "writes of half a minute or more"
        return f"appendfsync is {when}: a crash of its machine may lose {lost}; set appendfsync always to lose nothing"
    if config.get("no-appendfsync-on-rewrite") != "no":
        return (
            "no-appendfsync-on-rewrite is not no: while the append-only file is written anew, a crash of its machine "
            "may lose half a minute of writes; set it to no"
        )
    return None


def warn_of_truncation(client: Any, address: str, *, refused: type[Exception]) -> None:
    """Warn of a server that shortens a torn append-only file itself, for it leaves some of a script's writes there.

    The next start but one then reads those rows and, behind them, the same rows as they came again. Hashes and sets do
    not mind. Seen in Redis 7.0.15; Valkey mended its own (github.com/valkey-io/valkey/pull/4342).
    """
    try:
        found = client.config_get("aof-load-truncated")
    except refused:  # forbidden, or renamed as managed servers do
        return
    if "yes" in found.values():
        warn_once(
            f"{address} has aof-load-truncated yes: killed in the middle of a write, it may repeat rows of a stream "
            "after its next start but one; set it to no, and run redis-check-aof --fix where it then refuses to start"
        )
