"""The clients of a Kafka cluster, over librdkafka: their address and properties, topics, and the translation of errors.

Every wait is bounded, and no message shows a secret of the configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from wal_sink.errors import ConfigError, OutcomeUnknownError, PermanentError
from wal_sink.support.clock import SYSTEM
from wal_sink.support.logs import logger_of
from wal_sink.support.secrets import Redactor, named_secrets
from wal_sink_backends.common.options import from_environment
from wal_sink_backends.common.sinks import warn_of

try:
    from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
    from confluent_kafka import admin as _admin
except ImportError as error:
    raise ConfigError(
        "KafkaSink needs confluent-kafka, on the executors too. Install wal-sink with its extra kafka, or: "
        "pip install confluent-kafka"
    ) from error

_logger = logger_of(__name__)
_ADMIN: Any = _admin  # its type stubs lack some of its names
T = TypeVar("T")
Conf: TypeAlias = Mapping[str, Any]

_POLL_S = 0.2
_BACKOFF_MS = 20
"""The first wait before connecting again; librdkafka also waits half of it before it connects to a second broker."""
_UNKNOWN_ATTEMPTS = 5
_UNKNOWN_WAIT_S = 0.4
_REFUSALS = 2
_DEFAULT_MESSAGE_BYTES = 1_048_588
_NO_ID = "A" * 22
_SHARED = (
    *("api.version", "broker.", "client.", "connections.", "debug", "enable.sasl", "enable.ssl", "https."),
    *("metadata.", "oauth", "reconnect.", "retry.", "sasl.", "security.", "socket.", "ssl"),
)
"""Prefixes of the properties that every client takes; the others belong to the producer."""
_NO_RIGHT = "grant the rights that docs/sinks/kafka.md lists"
_REMEDIES: Mapping[int, str] = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: _NO_RIGHT,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: _NO_RIGHT,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: _NO_RIGHT,
    KafkaError.SASL_AUTHENTICATION_FAILED: "correct the login in conf or conf_from_env",
    KafkaError._AUTHENTICATION: "correct the login in conf or conf_from_env",  # noqa: SLF001 - its public name
    KafkaError.INVALID_TRANSACTION_TIMEOUT: "lower transaction_timeout_s, or raise the brokers' "
    "transaction.max.timeout.ms",
    KafkaError.INVALID_REPLICATION_FACTOR: "pass a smaller ledger_replication, at most the number of brokers",
    KafkaError.INVALID_CONFIG: "create the ledger topic by hand, see docs/sinks/kafka.md",
    KafkaError.POLICY_VIOLATION: "create the ledger topic by hand, see docs/sinks/kafka.md",
    KafkaError.UNSUPPORTED_VERSION: "the brokers are too old: Kafka 2.5 or newer is needed",
    KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT: "the topic's message format is too old for transactions",
    KafkaError._INVALID_ARG: "correct conf",  # noqa: SLF001
    KafkaError._UNSUPPORTED_FEATURE: "the brokers are too old: Kafka 2.5 or newer is needed",  # noqa: SLF001
}
"""Remedies for errors that no retry can help."""
_FENCED = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})  # noqa: SLF001


CLIENT_ERRORS = (KafkaException, SystemError)
"""confluent-kafka raises `SystemError` if it reports on messages while another error is being raised, which is its
cause.
"""


class KafkaAttemptError(Exception):
    """An attempt failed, and another may succeed: nothing of its chunk was committed."""


class KafkaFencedError(OutcomeUnknownError):
    """Another producer took over the transactional id, which committed or aborted the transaction.

    Or the transaction outlived its time-out: the brokers do not tell the two apart.
    """


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as it is now."""

    name: str
    id: str
    """Changes if the topic is deleted and created again; empty on brokers older than 2.8."""
    partitions: int
    config: Mapping[str, str]

    @property
    def most_bytes(self) -> int:
        """The largest batch that the brokers take for the topic."""
        return int(self.config.get("max.message.bytes", _DEFAULT_MESSAGE_BYTES))

    @property
    def needs_keys(self) -> bool:
        return "compact" in self.config.get("cleanup.policy", "")

    @property
    def what_counts(self) -> tuple[object, ...]:
        """The parts that decide which rows are refused, and the topic's id. Brokers may list different settings."""
        return self.id, self.partitions, self.most_bytes, self.needs_keys


class Cluster:
    """The clients of an open sink."""

    def __init__(self, servers: str, conf: Conf, redactor: Redactor, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._servers = servers
        self._conf = dict(conf)
        self._redactor = redactor
        self._heard = _Heard()
        with self.translated("connecting"):
            self._admin = _admin.AdminClient(self._common())

    def __repr__(self) -> str:
        return f"Cluster({self._servers!r})"

    # Clients.

    def consumer(self, own: Conf) -> Consumer:
        """A consumer with these properties and the shared ones."""
        with self.translated("making a consumer"):
            return Consumer({**self._common(), **own})

    def producer_conf(self, own: Conf) -> dict[str, Any]:
        """All properties of a producer; those in `own` cannot be overridden."""
        return {**self._conf, **self._common(), **own}

    def _common(self) -> dict[str, Any]:
        shared = {name: value for name, value in self._conf.items() if name.startswith(_SHARED)}
        own = {"bootstrap.servers": self._servers, "error_cb": self._heard, "logger": _logger}
        return {"reconnect.backoff.ms": _BACKOFF_MS, **shared, **own, "allow.auto.create.topics": False}

    # Topics.

    def topic(self, name: str, *, attempts: int = _UNKNOWN_ATTEMPTS) -> Topic | None:
        """The topic; None if there is none. The request never creates it. Warns of settings that lose messages.

        The request is repeated for a moment, because a broker may learn late of a topic that was just created.
        """
        what, names = f"topic {name!r}", TopicCollection([name])
        options: dict[str, Any] = {**self._limit(), "include_authorized_operations": True}
        for attempt in range(attempts):
            futures = self._ask(what, lambda: self._admin.describe_topics(names, **options))
            try:
                found = self._answer(futures[name], what)
            except KafkaException as error:
                if kafka_error(error).code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise self.translate(what, kafka_error(error)) from self.cause(error)
                if attempt < attempts - 1:
                    SYSTEM.sleep_s(_UNKNOWN_WAIT_S)
                continue
            if _ADMIN.AclOperation.WRITE not in (found.authorized_operations or [_ADMIN.AclOperation.WRITE]):
                raise PermanentError(f"{self._name(what)}: this user has no right to write to this topic; {_NO_RIGHT}")
            unique = str(found.topic_id).removeprefix(_NO_ID)
            config = self._config_of(name)
            replicas = min((len(partition.replicas) for partition in found.partitions), default=0)
            warn_of(losses(name, config, replicas), f"Kafka at {self._servers}")
            return Topic(name, unique, len(found.partitions), config)
        return None

    def create_topic(self, name: str, replication: int, config: Mapping[str, str]) -> None:
        """Create a topic of one partition; nothing if another process just did."""
        what = f"creating the topic {name!r}"
        wanted = _ADMIN.NewTopic(name, 1, replication, config=dict(config))
        futures = self._ask(what, lambda: self._admin.create_topics([wanted], **self._limit()))
        with self.translated(what):
            try:
                self._answer(futures[name], what)
            except KafkaException as error:
                if kafka_error(error).code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise

    def high_watermark(self, topic: str) -> int:
        """The offset behind the newest message, those of open transactions included."""
        return self._offset(topic, _ADMIN.OffsetSpec.latest())

    def first_offset(self, topic: str) -> int:
        return self._offset(topic, _ADMIN.OffsetSpec.earliest())

    def _offset(self, topic: str, spec: Any) -> int:
        what = f"offsets of the topic {topic!r}"
        isolation = IsolationLevel.READ_UNCOMMITTED  # the committed end hides messages of open transactions
        wanted = {TopicPartition(topic, 0): spec}
        futures = self._ask(what, lambda: self._admin.list_offsets(wanted, isolation_level=isolation, **self._limit()))
        with self.translated(what):
            try:
                return int(self._answer(next(iter(futures.values())), what).offset)
            except (KafkaException, KafkaAttemptError):
                self._admin = _admin.AdminClient(
                    self._common()
                )  # the old client sends requests to a former leader for minutes
                raise

    def _config_of(self, name: str) -> dict[str, str]:
        what = f"configuration of the topic {name!r}"
        resource = _ADMIN.ConfigResource(_ADMIN.ResourceType.TOPIC, name)
        futures = self._ask(what, lambda: self._admin.describe_configs([resource], **self._limit()))
        with self.translated(what):
            entries = self._answer(next(iter(futures.values())), what)
        return {key: str(entry.value) for key, entry in entries.items()}

    def _limit(self) -> dict[str, float]:
        return {"request_timeout": self.timeout_s}

    def _ask(self, what: str, request: Callable[[], Mapping[Any, Future[Any]]]) -> Mapping[Any, Future[Any]]:
        self._heard.forget()
        with self.translated(what):
            return request()

    def _answer(self, future: Future[T], what: str) -> T:
        """The brokers' answer.

        A refused login or certificate brings none, so librdkafka's reports are checked for one.
        """
        deadline_s = SYSTEM.monotonic_s() + self.timeout_s + 1
        while True:
            try:
                return future.result(timeout=_POLL_S)
            except TimeoutError:
                self._admin.poll(0)  # librdkafka reports problems only during this call
                if self._heard.refusals >= _REFUSALS:
                    raise PermanentError(
                        self.scrub(f"{self._name(what)}: {self._heard.last}; {self._heard.remedy}")
                    ) from None
                if SYSTEM.monotonic_s() > deadline_s:
                    raise KafkaAttemptError(
                        self.scrub(f"{self._name(what)}: no answer within {self.timeout_s:g} s{self._heard}")
                    ) from None

    # Errors.

    @contextmanager
    def translated(self, what: str) -> Iterator[None]:
        """A context that turns the client's errors into those of `translate`."""
        try:
            yield
        except CLIENT_ERRORS as error:
            raise self.translate(what, kafka_error(error)) from self.cause(error)

    def translate(self, what: str, error: KafkaError) -> Exception:
        """The error of the sink for an error of the client."""
        text = f"{self._name(what)}: {error.str()} ({error.name()})"
        remedy = _REMEDIES.get(error.code())
        if remedy is not None:
            return PermanentError(self.scrub(f"{text}; {remedy}"))
        if error.code() in _FENCED:
            return KafkaFencedError(
                self.scrub(f"{text}: another process delivers this slot, or transaction_timeout_s has passed")
            )
        return KafkaAttemptError(self.scrub(f"{text}{self._heard}"))

    def scrub(self, text: str) -> str:
        """The text without any secret."""
        return self._redactor(text)

    def cause(self, error: BaseException) -> BaseException | None:
        """`error`, to raise another one from; None if it shows a secret."""
        return self._redactor.cause(error)

    def _name(self, what: str) -> str:
        return f"{what}, Kafka at {self._servers}"


@dataclass
class _Heard:
    """Problems that librdkafka reports on any thread, such as why it does not reach a broker."""

    last: str = ""
    refusals: int = 0
    remedy: str = ""

    def __call__(self, error: KafkaError) -> None:
        remedy = _remedy_heard(error)
        if remedy:
            self.refusals += 1
            self.last, self.remedy = error.str(), remedy
        elif not self.refusals:
            self.last = error.str()

    def forget(self) -> None:
        self.last, self.refusals, self.remedy = "", 0, ""

    def __str__(self) -> str:
        return f"; last heard: {self.last}" if self.last else ""


def _remedy_heard(error: KafkaError) -> str:
    """The remedy for a refused login or an untrusted certificate, which no retry can help. Empty for other errors."""
    if error.code() == KafkaError._AUTHENTICATION:  # noqa: SLF001
        return "correct the login in conf or conf_from_env"
    if error.code() == KafkaError._SSL and "certificate" in error.str().lower():  # noqa: SLF001
        return (
            "correct ssl.ca.location or bootstrap_servers: the broker's certificate must match the name of its address"
        )
    return ""


def kafka_error(raised: BaseException) -> KafkaError:
    """The Kafka error inside one of `CLIENT_ERRORS`. Raises the exception itself if there is none inside."""
    error = raised.__cause__ if isinstance(raised, SystemError) else raised
    if not isinstance(error, KafkaException):
        raise raised
    found: KafkaError = error.args[0]
    return found


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


_RESERVED: Mapping[str, str] = {
    "bootstrap.servers": "bootstrap_servers",
    "metadata.broker.list": "bootstrap_servers",
    "partitioner": "partitioner",
    "transaction.timeout.ms": "transaction_timeout_s",
} | dict.fromkeys(
    (
        *("transactional.id", "enable.idempotence", "acks", "request.required.acks", "message.timeout.ms"),
        *("delivery.timeout.ms", "delivery.report.only.error", "group.id", "isolation.level", "enable.auto.commit"),
        *("allow.auto.create.topics", "enable.partition.eof", "error_cb", "logger", "on_delivery"),
        *("dr_cb", "dr_msg_cb", "log_cb"),
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
