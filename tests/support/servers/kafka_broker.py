"""A real Kafka broker on 127.0.0.1: a single KRaft node in a separate process, from jars that Ivy fetches once."""

from __future__ import annotations

import shutil
import socket
import uuid
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.support.processes import Child
from tests.support.servers.jars import Module, jars, java

VERSION = "3.9.1"
USER, PASSWORD = "alice", "alice-hunter2"
_ATTEMPTS = 3
_HEAP = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")

_LOGGING = """
log4j.rootLogger=WARN, file
log4j.appender.file=org.apache.log4j.FileAppender
log4j.appender.file.File={folder}/broker.log
log4j.appender.file.layout=org.apache.log4j.PatternLayout
log4j.appender.file.layout.ConversionPattern=%d %p %c %m%n
"""

_SETTINGS = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{sasl},BEHIND_PROXY://127.0.0.1:{behind},\
  CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{sasl},BEHIND_PROXY://127.0.0.1:{proxy}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,BEHIND_PROXY:PLAINTEXT,\
  CONTROLLER:PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
  user_{user}="{password}";
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
log.dirs={folder}/data
auto.create.topics.enable={auto_create}
num.partitions=1
default.replication.factor=1
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=2
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.max.timeout.ms=120000
transaction.abort.timed.out.transaction.cleanup.interval.ms=500
group.initial.rebalance.delay.ms=0
log.cleaner.dedupe.buffer.size=2097152
broker.session.timeout.ms=4000
broker.heartbeat.interval.ms=1000
num.network.threads=2
num.io.threads=4
background.threads=2
"""


class KafkaBroker:
    """One broker with its own folder, which outlives `kill()` and `start()`.

    At `address` clients need no login and may do anything. `sasl_address` requires `USER` and `PASSWORD` (mechanism
    PLAIN), and this user may do only what an ACL grants.
    """

    def __init__(self, folder: Path, *, auto_create: bool = False) -> None:
        self._folder = folder
        self._auto_create = auto_create
        self._jars = kafka_jars()
        self._child: Child | None = None
        self._ports: tuple[int, ...] = ()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._ports[0]}"

    @property
    def sasl_address(self) -> str:
        return f"127.0.0.1:{self._ports[1]}"

    @property
    def proxy_ports(self) -> tuple[int, int]:
        """The port where a proxy has to listen, and the broker's port for it. The broker sends clients to the proxy."""
        return self._ports[3], self._ports[4]

    @property
    def child(self) -> Child:
        if self._child is None:
            raise RuntimeError("the broker was not started")
        return self._child

    def start(self) -> None:
        """Start, and wait until it answers. After `kill()`, the addresses are the same."""
        if self._ports:
            self._launch()
            return
        for attempt in range(_ATTEMPTS):  # another process may take a free port before the broker does
            self._ports = _free_ports(5)
            self._write_settings()
            try:
                self._format()
                self._launch()
            except AssertionError:
                self.kill()
                if attempt == _ATTEMPTS - 1:
                    raise
            else:
                return

    def kill(self) -> None:
        """End it as a loss of power would."""
        if self._child is not None:
            self._child.kill()

    def _launch(self) -> None:
        logs = self._folder / f"output-{uuid.uuid4().hex[:8]}.txt"
        self._child = Child([*self._java(), "kafka.Kafka", self._folder / "server.properties"], log=logs, limit_s=60)
        try:
            self._child.wait_until(self._answers, "it answered")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{(self._folder / 'broker.log').read_text()[-4000:]}") from None

    def _answers(self) -> bool:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", self._ports[0])) != 0:
                return False
        admin: Any = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        try:
            return bool(admin.list_topics(timeout=2).brokers)
        except KafkaException:
            return False

    def _format(self) -> None:
        if (self._folder / "data").exists():
            shutil.rmtree(self._folder / "data")
        command = ["kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qk", "-c"]
        with Child(
            [*self._java(), *command, self._folder / "server.properties"], log=self._folder / "format.txt", limit_s=60
        ) as child:
            child.succeed()

    def _write_settings(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        plain, sasl, controller, proxy, behind = self._ports
        settings = _SETTINGS.format(
            plain=plain,
            sasl=sasl,
            controller=controller,
            proxy=proxy,
            behind=behind,
            folder=self._folder,
            user=USER,
            password=PASSWORD,
            auto_create=str(self._auto_create).lower(),
        )
        (self._folder / "server.properties").write_text(settings)
        (self._folder / "log4j.properties").write_text(_LOGGING.format(folder=self._folder))

    def _java(self) -> list[str | Path]:
        logging = f"-Dlog4j.configuration=file:{self._folder}/log4j.properties"
        return [java(), *_HEAP, logging, "-cp", f"{self._jars}/*"]


def kafka_jars() -> Path:
    """Return the folder of the broker's jars. Skip or fail the test if they are not available."""
    return jars(f"kafka-{VERSION}", [Module("org.apache.kafka", "kafka_2.13", (VERSION,), with_what_it_needs=True)])


def _free_ports(count: int) -> tuple[int, ...]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for some in sockets:
            some.bind(("127.0.0.1", 0))
        return tuple(some.getsockname()[1] for some in sockets)
    finally:
        for some in sockets:
            some.close()
