"""The address and properties of a Kafka cluster: plain data, checked when a sink is made, before it connects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from wal_sink.errors import ConfigError
from wal_sink.redaction import Redactor, named_secrets
from wal_sink_backends.common.environment import from_environment
from wal_sink_backends.kafka.client import Cluster, Conf

_RESERVED: Mapping[str, str] = {
    "bootstrap.servers": "bootstrap_servers",
    "metadata.broker.list": "bootstrap_servers",
    "partitioner": "partitioner",
    "transaction.timeout.ms": "transaction_timeout_s",
} | dict.fromkeys(
    (
        *("transactional.id", "enable.idempotence", "acks", "request.required.acks", "message.timeout.ms"),
        *("delivery.timeout.ms", "delivery.report.only.error", "group.id", "isolation.level", "enable.auto.commit"),
        *(
            "allow.auto.create.topics",
            "enable.partition.eof",
            "error_cb",
            "logger",
            "on_delivery",
            "dr_cb",
            "dr_msg_cb",
            "log_cb",
        ),
    ),
    "",
)
"""Properties that the guarantee depends on, and the argument that sets them, if there is one."""

_BYTES = ("batch.size", "message.max.bytes")
"""Properties with which the sink itself calculates."""


@dataclass(frozen=True)
class ClusterSpec:
    """The way to reach a cluster: plain data that travels with the sink.

    Raises `ConfigError` for values that cannot work.
    """

    servers: str
    conf: Conf = field(default_factory=dict, repr=False)
    conf_from_env: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_s: float = 45.0
    """Most seconds that one step waits for the brokers."""

    def __post_init__(self) -> None:
        if not self.servers.strip(", ") or "/" in self.servers or "@" in self.servers:
            raise ConfigError("bootstrap_servers: expected 'host:9092' or 'host:9092,host2:9092', without a login")
        for name in (*self.conf, *self.conf_from_env):
            if name in _RESERVED:
                instead = f"; pass {_RESERVED[name]} instead" if _RESERVED[name] else ""
                raise ConfigError(f"conf[{name!r}] is set by the sink, because its guarantee depends on it{instead}")
        for name, value in self.conf.items():
            if not (isinstance(value, str | int | float) or (name.endswith("_cb") and callable(value))):
                raise ConfigError(f"conf[{name!r}]: expected text, a number or a bool, found {type(value).__name__}")
            if name in _BYTES and not _is_number_of_bytes(value):
                raise ConfigError(f"conf[{name!r}]={value!r}: expected a whole number of bytes, such as 1000000")

    def connect(self) -> Cluster:
        """Read the environment and connect.

        `PermanentError` for a variable that is not set or a property that is refused.
        """
        from_env = from_environment(self.conf_from_env, f"Kafka at {self.servers}")
        redactor = Redactor(named_secrets(self.conf) | set(from_env.values()))
        return Cluster(self.servers, {**self.conf, **from_env}, redactor, self.timeout_s)


def _is_number_of_bytes(value: object) -> bool:
    try:
        return int(str(value)) > 0
    except ValueError:
        return False
