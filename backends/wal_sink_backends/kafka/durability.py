"""Settings of a topic under which Kafka loses messages that it acknowledged.

Rows and ledger are in different topics. So Kafka may lose rows and keep their position, which remains unnoticed, or
lose the position and keep the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping


def losses(name: str, config: Mapping[str, str], replicas: int) -> Iterator[str]:
    """Why the topic may lose acknowledged messages. `replicas`: those of the partition with the fewest."""
    unclean = config.get("unclean.leader.election.enable", "unknown")
    least = config.get("min.insync.replicas", "unknown")
    if unclean != "false":
        yield (
            f"topic {name!r}: unclean.leader.election.enable is {unclean}: a replica that lags may become the leader. "
            "Then rows may be lost without their position, or the position of rows that are in the topic. Set "
            "unclean.leader.election.enable to false"
        )
    if replicas < 2:
        yield (
            f"topic {name!r} has a partition with one replica: if this broker loses its disk or its power, rows may be "
            "lost without their position. Use three replicas and min.insync.replicas=2"
        )
    elif least in ("1", "unknown"):
        yield (
            f"topic {name!r}: min.insync.replicas is {least}: a message may be acknowledged although only one broker "
            "has it. If this broker is lost, rows are lost without their position. Set min.insync.replicas to 2"
        )
