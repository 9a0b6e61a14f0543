"""A real Kafka broker on 127.0.0.1: a single KRaft node in a separate process, from jars that Ivy fetches once."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka import admin as _admin

from tests.support.processes import Child
from tests.support.programs.quick_java import QUICK
from tests.support.servers.jars import Module, jars, java
from tests.support.servers.server import Server, environment
from tests.support.user_cache import user_cache

VERSION = "3.9.1"
USER, PASSWORD = "alice", "alice-hunter2"
_ADMIN: Any = _admin  # whose types leave things out

_LOGGING = """
log4j.rootLogger=WARN, console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d %p %c %m%n
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
broker.session.timeout.ms={session_ms}
broker.heartbeat.interval.ms={heartbeat_ms}
num.network.threads=2
num.io.threads=4
background.threads=2
"""


class KafkaBroker(Server):
    """One broker.

    At `address` clients need no login and may do anything. `sasl_address` requires `USER` and `PASSWORD` (mechanism
    PLAIN), and this user may do only what an ACL grants.

    A broker that sends no heartbeat for `session_s` seconds, as on a busy machine, loses its leaders for a moment, and
    nobody can create a topic then. A broker that was killed does not come back before that time.
    """

    product = "Apache Kafka"
    number_of_ports = 5

    def __init__(self, folder: Path, *, auto_create: bool = False, session_s: int = 60) -> None:
        super().__init__(folder)
        self._auto_create = auto_create
        self._session_s = session_s
        self._jars = kafka_jars()
        self._classes = f"-XX:SharedArchiveFile={archive()}"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def sasl_address(self) -> str:
        return f"127.0.0.1:{self.ports[1]}"

    @property
    def proxy_ports(self) -> tuple[int, int]:
        """The port where a proxy has to listen, and the broker's port for it. The broker sends clients to the proxy."""
        return self.ports[3], self.ports[4]

    def start(self) -> None:
        if self._child is None and not archive().exists():
            self._write_archive()
        super().start()

    def _write_archive(self) -> None:
        """Start in another folder, and end as an administrator would: then Java writes the archive."""
        unfinished = archive().with_suffix(f".{os.getpid()}")
        folder, self.folder = self.folder, self.folder.with_name(f"{self.folder.name}-archive")
        usual, self._classes = self._classes, f"-XX:ArchiveClassesAtExit={unfinished}"
        try:
            super().start()
            self.child.send(signal.SIGTERM)
            self.child.wait()
        finally:
            self.kill()
            self.folder, self._classes, self._child = folder, usual, None
        if not unfinished.exists():
            unfinished.touch()  # of no use, but nobody tries again
        unfinished.replace(archive())

    def prepare(self) -> None:
        """Write the settings, and format a new broker's data."""
        super().prepare()
        names = ("plain", "sasl", "controller", "proxy", "behind")
        auto_create = str(self._auto_create).lower()
        settings = _SETTINGS.format(
            **dict(zip(names, self.ports, strict=True)),
            folder=self.folder,
            user=USER,
            password=PASSWORD,
            auto_create=auto_create,
            session_ms=self._session_s * 1000,
            heartbeat_ms=min(self._session_s * 250, 1000),
        )
        (self.folder / "server.properties").write_text(settings)
        (self.folder / "log4j.properties").write_text(_LOGGING)
        if not (self.folder / "data").exists():
            tool = ["kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qk", "-c"]
            command = self._java(*tool)
            with Child(command, log=self.folder / "format.txt", env=environment(), limit_s=150) as child:
                child.succeed()

    def command(self) -> Sequence[str | Path]:
        return self._java("kafka.Kafka")

    def release(self) -> str:
        return VERSION

    def answers(self) -> bool:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", self.port)) != 0:
                return False
        admin = _ADMIN.AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        try:
            cluster = admin.list_topics(timeout=2)
            names = [name for name in cluster.topics if not name.startswith("__")]
            partitions = [TopicPartition(name, at) for name in names for at in cluster.topics[name].partitions]
            ends = admin.list_offsets(dict.fromkeys(partitions, _ADMIN.OffsetSpec.latest()), request_timeout=2)
            for end in ends.values():  # a broker that has just come back answers before its partitions have a leader
                end.result(timeout=4)
            return bool(cluster.brokers)
        except (KafkaException, TimeoutError):
            return False

    def _java(self, *main: str) -> list[str | Path]:
        logging = f"-Dlog4j.configuration=file:{self.folder}/log4j.properties"
        options = [*QUICK.split(), "-Xmx256m", self._classes, "-Xlog:cds=off", "-Xlog:cds+dynamic=off", logging]
        return [java(), *options, "-cp", f"{self._jars}/*", *main, self.folder / "server.properties"]


def archive() -> Path:
    """Return the path of the archive of the broker's classes, parsed and verified, for this Java. It may not exist yet.

    With it, a broker starts in half the time, and the tests start twenty. The first broker of all writes it.
    """
    program = Path(java()).resolve()
    key = hashlib.sha256(f"{program} {program.stat().st_mtime_ns}".encode()).hexdigest()[:16]
    return user_cache() / f"kafka-{VERSION}-{key}.jsa"


def kafka_jars() -> Path:
    """Return the folder of the broker's jars. Skip or fail the test if they are not available."""
    return jars(f"kafka-{VERSION}", [Module("org.apache.kafka", "kafka_2.13", (VERSION,), with_what_it_needs=True)])
