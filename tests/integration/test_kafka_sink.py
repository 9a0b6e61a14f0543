"""`KafkaSink` against a real broker: what arrives, what is refused, and what happens when something goes wrong."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka import admin as _admin

from tests.house.kit import chunks_of, opened, slot
from tests.house.sinks import Chunk, Rejected
from tests.support.change_history import history, table_of
from tests.support.chunks import CONTEXT
from tests.support.kafka_topics import admin, delete_topic, new_name, new_topic, number_of_partitions, read, set_config
from tests.support.servers.kafka_broker import PASSWORD, USER, KafkaBroker
from tests.support.waiting import PATIENCE_S, wait_until
from wal_sink.errors import CorruptError, HistoryError, OutcomeUnknownError, PermanentError
from wal_sink.testing.contract.calls import deliver, send
from wal_sink_backends.kafka import ledger as kafka_ledger
from wal_sink_backends.kafka import producer as kafka_producer
from wal_sink_backends.kafka.client import ClusterSpec, KafkaAttemptError, Topic
from wal_sink_backends.kafka.producer import TRANSACTIONAL_IDS, SlotProducer
from wal_sink_backends.kafka.sink import KafkaSink

_ADMIN: Any = _admin


def ids(*numbers: int) -> pa.Table:
    return pa.table({"id": pa.array(numbers, pa.int64())})


def batch(number: int, *, ordinal: int = 0, term: int = 1, rows: int = 2) -> Chunk:
    """A batch of one chunk, of the rows `rows * number` and following. It follows the one before it."""
    table = ids(*range(rows * number, rows * number + rows))
    (chunk,) = chunks_of(table, batch_id=number, ordinal=ordinal, term=term, chunk_rows=rows)
    before = batch(number - 1, ordinal=ordinal, rows=rows).position if number else None
    return dataclasses.replace(chunk, follows=before)


def sink_of(kafka: KafkaBroker | str, topic: str, **options: Any) -> KafkaSink:
    address = kafka if isinstance(kafka, str) else kafka.address
    return KafkaSink(address, topic, **{"ledger_topic": f"{topic}-ledger", **options})


def stored_ids(kafka: KafkaBroker, topic: str) -> list[int]:
    return [json.loads(message.value())["id"] for message in read(kafka.address, topic)]


def transactional(kafka: KafkaBroker, transactional_id: str) -> Producer:
    producer = Producer({"bootstrap.servers": kafka.address, "transactional.id": transactional_id})
    producer.init_transactions(60)
    return producer


# Rows that arrive.


def test_a_row_becomes_a_message_with_key_headers_and_partition(kafka: KafkaBroker, topic: str) -> None:
    table = pa.table({"id": [1, 2], "p": [2, 0], "trace": ["x", None]})
    deliver(sink_of(kafka, topic, value="json:id", key="id", partition="p", headers=["trace"]), chunks_of(table))
    found = [(some.partition(), some.key(), some.value(), some.headers()) for some in read(kafka.address, topic)]
    assert found == [(0, b"2", b'{"id":2}', [("trace", None)]), (2, b"1", b'{"id":1}', [("trace", b"x")])]


def test_a_compacted_topic_of_changes_ends_as_the_last_change_of_each_key(kafka: KafkaBroker) -> None:
    """There is no newest-wins: the order of arrival decides."""
    topic, changes = new_topic(kafka.address, cleanup_policy="compact"), history(5, changes=60, keys=8)
    deliver(
        sink_of(kafka, topic, value="string:note", key="id", delete_when="gone", tombstones=True),
        [*chunks_of(table_of(changes, flag="gone"), chunk_rows=len(changes))],
    )
    ends = {int(some.key()): some.value() for some in read(kafka.address, topic)}
    last = {change.id: None if change.op == "d" or not change.note else change.note.encode() for change in changes}
    assert ends == last
    assert None in ends.values()


def test_keys_find_the_partition_that_java_producers_choose(kafka: KafkaBroker, topic: str) -> None:
    """Known answers of Java's murmur2, made positive, modulo three."""
    hashes = {"21": 1173551340, "foobar": 1357151166, "a-little-bit-long-string": 1161502112}
    deliver(sink_of(kafka, topic, key="k"), chunks_of(pa.table({"k": list(hashes)}), chunk_rows=3))
    found = {some.key().decode(): some.partition() for some in read(kafka.address, topic)}
    assert found == {key: number % 3 for key, number in hashes.items()}


# Rows and topics that are refused.


@pytest.mark.parametrize("conf", [{}, {"message.max.bytes": 5_000_000}], ids=["by the sink", "by the broker"])
def test_a_row_that_is_too_large_is_named_and_nothing_is_committed(kafka: KafkaBroker, conf: dict[str, Any]) -> None:
    topic = new_topic(kafka.address, max_message_bytes="20000")
    table = pa.table({"v": ["x" * 900] * 60 + ["x" * 30_000] + ["x" * 900] * 60})
    (chunk,) = chunks_of(table, chunk_rows=121)
    sink = sink_of(kafka, topic, value="string:v", conf=conf)
    (refused,) = deliver(sink, [chunk])
    assert isinstance(refused, Rejected)
    assert list(refused.reasons) == [60]
    assert read(kafka.address, topic) == []
    assert deliver(sink, [chunk.without([60])]) == [None]
    assert len(read(kafka.address, topic)) == 120
    assert deliver(sink, [chunk]) == [None], "the ledger has it"


def refused_by_the_broker(kafka: KafkaBroker) -> list[int]:
    """Which rows of a chunk are refused whose seventh is too large, as the broker alone knows."""
    topic = new_topic(kafka.address, max_message_bytes="20000")
    (chunk,) = chunks_of(pa.table({"v": ["x" * 900] * 6 + ["x" * 30_000] + ["x" * 900] * 6}), chunk_rows=13)
    sink = sink_of(kafka, topic, value="string:v", conf={"message.max.bytes": 5_000_000})
    (refused,) = deliver(sink, [chunk])
    assert isinstance(refused, Rejected)
    return list(refused.reasons)


class _PurgesLate:
    """A producer that empties its queues a little after an abort: the next transaction loses what it has queued.

    The broker stands still until then: it would get some messages before, if the test were slow.
    """

    most = 2
    """The number of purges."""

    def __init__(self, producer: Producer, broker: KafkaBroker) -> None:
        self._producer = producer
        self._broker = broker
        self._late = False
        self.purges = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def abort_transaction(self, timeout_s: float) -> None:
        self._producer.abort_transaction(timeout_s)
        self._late = True

    def begin_transaction(self) -> None:
        self._producer.begin_transaction()
        if self._late and self.purges < self.most:
            self._broker.child.send_to_all(signal.SIGSTOP)

    def flush(self, timeout_s: float) -> int:
        if self._late and self.purges < self.most:
            self.purge()
        self._late = False
        return self._producer.flush(timeout_s)

    def purge(self) -> None:
        self._producer.purge(in_queue=True, in_flight=False)
        self._broker.child.send_to_all(signal.SIGCONT)
        self.purges += 1


def test_a_row_is_named_though_the_client_purges_messages_late(
    kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As librdkafka does on a busy machine: such messages were judged by no broker."""
    made: list[_PurgesLate] = []

    def purging(conf: dict[str, Any]) -> _PurgesLate:
        made.append(_PurgesLate(Producer({**conf, "linger.ms": 100}), kafka))
        return made[-1]

    monkeypatch.setattr(kafka_producer, "Producer", purging)
    try:
        assert refused_by_the_broker(kafka) == [6]
    finally:
        kafka.child.send_to_all(signal.SIGCONT)
    assert made[0].purges == 2


class _SendsAtOnce:
    """A producer whose broker has refused a large message before the next one is produced."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.errors: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def produce(self, topic: str, value: bytes, *more: Any, **options: Any) -> None:
        try:
            self._producer.produce(topic, value, *more, **options)
        except KafkaException as error:
            self.errors.append(error.args[0].name())
            raise
        if len(value) > 20_000:
            wait_until(self._can_only_abort, "the broker refuses the message")

    def _can_only_abort(self) -> bool:
        try:
            self._producer.begin_transaction()
        except KafkaException as error:  # in any case, as the transaction is open: the error tells why
            return bool(error.args[0].txn_requires_abort())
        return False


def test_a_row_is_named_though_it_is_refused_before_all_are_sent(
    kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine: the client then takes no other message, which was an attempt that failed."""
    made: list[_SendsAtOnce] = []

    def sending(conf: dict[str, Any]) -> _SendsAtOnce:
        made.append(_SendsAtOnce(Producer({**conf, "linger.ms": 0})))
        return made[-1]

    monkeypatch.setattr(kafka_producer, "Producer", sending)
    assert refused_by_the_broker(kafka) == [6]
    assert set(made[0].errors) == {"_STATE"}


class _SkipsNumbers(_PurgesLate):
    """A producer that empties its queues amid the transaction after an abort, and then takes no other message of it."""

    most = 1

    def begin_transaction(self) -> None:
        super().begin_transaction()
        self._produced = 0

    def produce(self, *given: Any, **options: Any) -> None:
        self._produced += 1
        if self._late and not self.purges and self._produced == 4:
            self._late = False
            self.purge()
            raise KafkaException(KafkaError(KafkaError._STATE, "Unable to produce message"))
        self._producer.produce(*given, **options)

    def flush(self, timeout_s: float) -> int:
        return self._producer.flush(timeout_s)


def test_a_row_is_named_though_the_client_skips_sequence_numbers(
    kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As librdkafka does where it purges messages late, and a later one of their partition is sent (seen in a test)."""
    made: list[_SkipsNumbers] = []

    def skipping(conf: dict[str, Any]) -> _SkipsNumbers:
        made.append(_SkipsNumbers(Producer({**conf, "linger.ms": 100}), kafka))
        return made[-1]

    monkeypatch.setattr(kafka_producer, "Producer", skipping)
    try:
        assert refused_by_the_broker(kafka) == [6]
    finally:
        kafka.child.send_to_all(signal.SIGCONT)
    assert made[0].purges == 1


def test_a_row_without_a_key_for_a_compacted_topic_is_named(kafka: KafkaBroker) -> None:
    topic = new_topic(kafka.address, partitions=1, cleanup_policy="compact")
    (chunk,) = chunks_of(pa.table({"k": ["a", None, "b"]}), chunk_rows=3)
    (refused,) = deliver(sink_of(kafka, topic, key="k"), [chunk])
    assert isinstance(refused, Rejected)
    assert list(refused.reasons) == [1]
    assert read(kafka.address, topic) == []


def test_rows_that_the_broker_refuses_are_found_by_halves(kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses a batch and names no row of it."""
    monkeypatch.setattr(Topic, "needs_keys", property(lambda _: False))
    topic = new_topic(kafka.address, partitions=1, cleanup_policy="compact")
    (chunk,) = chunks_of(pa.table({"k": ["a", None, "b", "c", "d", None, "e"]}), chunk_rows=7)
    (refused,) = deliver(sink := sink_of(kafka, topic, key="k"), [chunk])
    assert isinstance(refused, Rejected)
    assert list(refused.reasons) == [1, 5]
    assert read(kafka.address, topic) == []
    deliver(sink, [chunk.without([1, 5])])
    assert [some.key() for some in read(kafka.address, topic)] == [b"a", b"b", b"c", b"d", b"e"]


def test_a_batch_that_is_refused_though_each_of_its_messages_is_taken_comes_again(
    kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the topic ceases to be compacted between the two."""
    monkeypatch.setattr(Topic, "needs_keys", property(lambda _: False))
    topic = new_topic(kafka.address, partitions=1, cleanup_policy="compact")
    (chunk,) = chunks_of(pa.table({"k": ["a", None, "b", None]}), chunk_rows=4)
    monkeypatch.setattr(SlotProducer, "_guilty", lambda *_: {})  # the brokers' second answer is a matter of moments
    with opened(sink_of(kafka, topic, key="k"), chunk) as sink:
        assert isinstance(sink, KafkaSink)
        with pytest.raises(KafkaAttemptError, match="refused a batch, and then accepted each message of this batch"):
            sink.write(chunk)
        assert sink.last(slot()) is None
    monkeypatch.undo()
    assert read(kafka.address, topic) == []


def test_a_topic_that_vanishes_does_not_come_back_by_itself(tmp_path: Path) -> None:
    """These brokers make a topic at the first write to it, without the partitions of the old one."""
    broker = KafkaBroker(tmp_path, auto_create=True)
    try:
        broker.start()
        cluster = ClusterSpec(broker.address, timeout_s=5.0).connect()
        names = {conf: new_name() for conf in ("ours", "librdkafka's own")}
        ours = Producer(cluster.producer_conf({}))
        others = Producer({"bootstrap.servers": broker.address})
        for producer, name, patience_s in zip((ours, others), names.values(), (5.0, PATIENCE_S), strict=True):
            producer.produce(name, b"x")
            producer.flush(patience_s)
        client = admin(broker.address)
        wait_until(lambda: number_of_partitions(client, names["librdkafka's own"]) == 1)
        found = client.list_topics(timeout=PATIENCE_S).topics
        assert [conf for conf, name in names.items() if name in found] == ["librdkafka's own"]
        ours.purge()
        ours.flush(1.0)
    finally:
        broker.kill()


def test_a_topic_that_may_lose_what_it_acknowledged_is_warned_of(
    kafka: KafkaBroker, caplog: pytest.LogCaptureFixture
) -> None:
    topic, ledger = new_name(), new_name()
    new_topic(kafka.address, topic, unclean_leader_election_enable="true")
    for _ in range(2):
        sink = KafkaSink(kafka.address, topic, ledger_topic=ledger)
        sink.open(CONTEXT)
        sink.close()
    told = [record.getMessage() for record in caplog.records]
    told = [text for text in told if topic in text or ledger in text]  # clients of other tests may still log
    expected = {
        f"topic {topic!r}: unclean.leader.election.enable is true": 1,
        f"topic {topic!r} has a partition with one replica": 1,
        f"topic {ledger!r} has a partition with one replica": 1,
    }
    assert {text: sum(text in line for line in told) for text in expected} == expected
    assert len(told) == 3


def test_a_missing_topic_is_not_created(kafka: KafkaBroker) -> None:
    name = new_name()
    with pytest.raises(PermanentError, match=f"the topic '{name}' does not exist"):
        deliver(sink_of(kafka, name), [batch(0)])
    assert name not in admin(kafka.address).list_topics(timeout=10).topics


# Rights and passwords.


def login(password: str = PASSWORD) -> dict[str, Any]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": password,
    }


def grant(kafka: KafkaBroker, *rights: tuple[str, str, str, str]) -> None:
    """Grant rights, and wait until the broker knows them: the controller answers before."""
    client = admin(kafka.address)
    for future in client.create_acls(_acls(_ADMIN.AclBinding, rights)).values():
        future.result(timeout=PATIENCE_S)
    for some in _acls(_ADMIN.AclBindingFilter, rights):
        wait_until(lambda: bool(client.describe_acls(some).result(timeout=PATIENCE_S)), "the right is there")  # noqa: B023 - called here alone


def withdraw(kafka: KafkaBroker, *rights: tuple[str, str, str, str]) -> None:
    """Withdraw rights, and wait until the broker knows that."""
    client, wanted = admin(kafka.address), _acls(_ADMIN.AclBindingFilter, rights)
    for future in client.delete_acls(wanted).values():
        assert len(future.result(timeout=PATIENCE_S)) == 1
    for some in wanted:
        wait_until(lambda: not client.describe_acls(some).result(timeout=PATIENCE_S), "the right is gone")  # noqa: B023 - as above


def _acls(form: Any, rights: Iterable[tuple[str, str, str, str]]) -> list[Any]:
    types, patterns = _ADMIN.ResourceType, _ADMIN.ResourcePatternType
    allow = _ADMIN.AclPermissionType.ALLOW
    return [
        form(types[kind], name, patterns[pattern], f"User:{USER}", "*", _ADMIN.AclOperation[operation], allow)
        for kind, name, pattern, operation in rights
    ]


def test_a_wrong_password_is_no_matter_of_time(kafka: KafkaBroker, topic: str) -> None:
    with pytest.raises(PermanentError, match="correct the login") as caught:
        deliver(sink_of(kafka.sasl_address, topic, conf=login("hunter2-wrong")), [batch(0)])
    assert "hunter2" not in str(caught.value)


def test_the_rights_of_the_documentation_are_enough_and_needed(
    kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAL_SINK_TEST_KAFKA_PASSWORD", PASSWORD)
    topic = new_topic(kafka.address)
    conf = {name: value for name, value in login().items() if name != "sasl.password"}
    sink = sink_of(
        kafka.sasl_address, topic, conf=conf, conf_from_env={"sasl.password": "WAL_SINK_TEST_KAFKA_PASSWORD"}
    )
    of_topic = [("TOPIC", topic, "LITERAL", right) for right in ("DESCRIBE", "DESCRIBE_CONFIGS", "WRITE")]
    rights = ("DESCRIBE", "DESCRIBE_CONFIGS", "READ", "WRITE", "CREATE")
    of_ledger = [("TOPIC", f"{topic}-ledger", "LITERAL", right) for right in rights]
    of_ids = [("TRANSACTIONAL_ID", TRANSACTIONAL_IDS, "PREFIXED", right) for right in ("DESCRIBE", "WRITE")]
    for some in (of_topic[:2], of_ledger, of_ids):
        with pytest.raises(PermanentError, match="grant the rights"):
            deliver(sink, [batch(0)])
        grant(kafka, *some)
    with pytest.raises(PermanentError, match="grant the rights"):
        deliver(sink, [batch(0)])
    grant(kafka, *of_topic)
    deliver(sink, [batch(0)])
    for number in range(2):
        deliver(sink, [batch(number)])
    assert sorted(stored_ids(kafka, topic)) == [0, 1, 2, 3]


# The ledger.


def test_the_ledger_is_compacted_and_never_expires(kafka: KafkaBroker, topic: str) -> None:
    deliver(sink_of(kafka, topic), [batch(0)])
    client = admin(kafka.address)
    resource = _ADMIN.ConfigResource(_ADMIN.ResourceType.TOPIC, f"{topic}-ledger")
    (future,) = client.describe_configs([resource]).values()
    assert future.result(timeout=20)["cleanup.policy"].value == "compact"


@pytest.mark.parametrize(
    ("partitions", "policy", "message"), [(1, "compact,delete", "never expire"), (2, "compact", "2 partitions")]
)
def test_a_ledger_that_would_forget_is_refused(
    kafka: KafkaBroker, topic: str, partitions: int, policy: str, message: str
) -> None:
    new_topic(kafka.address, f"{topic}-ledger", partitions=partitions, cleanup_policy=policy)
    with pytest.raises(PermanentError, match=message):
        deliver(sink_of(kafka, topic), [batch(0)])


def test_a_position_is_found_however_far_back_it_lies(
    kafka: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_ledger, "_WINDOW", 2)
    monkeypatch.setattr(kafka_ledger, "_WIDER", 2)
    sink = sink_of(kafka, topic)
    deliver(sink, [batch(0, ordinal=1)])
    with opened(sink, batch(0)):
        send(sink, [batch(number) for number in range(12)])
    with opened(sink, batch(0)):
        assert sink.last(slot(0)) == batch(11).position
        assert sink.last(slot(1)) == batch(0, ordinal=1).position
        assert sink.last(slot(2)) is None
        with opened(another := sink_of(kafka, topic), batch(12)):
            send(another, [batch(1, ordinal=1), batch(12)])
        assert sink.last(slot(1)) == batch(1, ordinal=1).position
        assert sink.last(slot(0)) == batch(12).position


@contextlib.contextmanager
def undecided(kafka: KafkaBroker, topic: str) -> Iterator[Producer]:
    """A process that stands still between its ledger record and its commit, and behind that, the record of batch 1."""
    with opened(sink := sink_of(kafka, topic), batch(0)):
        sink.write(batch(0))
        other = transactional(kafka, f"{TRANSACTIONAL_IDS}{slot(1)}")
        other.begin_transaction()
        other.produce(f"{topic}-ledger", b"not committed", slot(1).encode())
        other.flush(PATIENCE_S)
        sink.write(batch(1))
    yield other


def test_an_open_transaction_of_another_slot_hides_nothing(kafka: KafkaBroker, topic: str) -> None:
    with undecided(kafka, topic) as other, opened(newer := sink_of(kafka, topic), batch(1)):
        timer = threading.Timer(0.7, other.abort_transaction)
        timer.start()
        assert newer.last(slot(0)) == batch(1).position
        timer.join()


def test_an_open_transaction_that_does_not_end_is_no_answer(
    kafka: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_ledger, "_ABORT_WAIT_S", -29.0)  # this reader waits for a second, all else for longer
    with undecided(kafka, topic) as other:
        sink = sink_of(kafka, topic, transaction_timeout_s=30)
        with opened(sink, batch(1)), pytest.raises(KafkaAttemptError, match="keeps a transaction open"):
            sink.last(slot(0))
        other.abort_transaction(60)


def test_what_is_no_record_concerns_only_its_own_slot(kafka: KafkaBroker, topic: str) -> None:
    sink = sink_of(kafka, topic)
    deliver(sink, [batch(0)])
    other = transactional(kafka, "another-program")
    other.begin_transaction()
    other.produce(f"{topic}-ledger", b"\xff", slot(1).encode())
    newer = b'{"format":2,"term":1,"batch_id":0,"rows":1,"segment_id":"s","topic":"t","topic_id":""}'
    other.produce(f"{topic}-ledger", newer, slot(2).encode())
    other.commit_transaction(60)
    with opened(sink, batch(0)):
        assert sink.last(slot(0)) == batch(0).position
        with pytest.raises(CorruptError, match="expected a record of wal-sink"):
            sink.last(slot(1))
        with pytest.raises(PermanentError, match="a newer version of wal-sink"):
            sink.last(slot(2))


def test_a_topic_that_was_created_again_is_refused_or_accepted(kafka: KafkaBroker, topic: str) -> None:
    deliver(sink_of(kafka, topic), [batch(0)])
    delete_topic(kafka.address, topic)
    with pytest.raises(PermanentError, match=r"the topic '.*' does not exist"):
        deliver(sink_of(kafka, topic), [batch(1)])
    new_topic(kafka.address, topic)
    sink = sink_of(kafka, topic)
    with opened(sink, batch(1)):
        for call in (lambda: sink.last(slot()), lambda: sink.write(batch(1))):
            with pytest.raises(HistoryError, match="deleted and created again after batch 0"):
                call()
    deliver(sink_of(kafka, topic, recreated_topic="accept"), [batch(1)])
    deliver(sink, [batch(2)])
    assert sorted(stored_ids(kafka, topic)) == [2, 3, 4, 5]


def test_another_topic_than_that_of_the_ledger_is_refused_or_accepted(kafka: KafkaBroker, topic: str) -> None:
    """A known sink given another topic went on there, and a check of an empty topic found no fault."""
    deliver(sink_of(kafka, topic), [batch(0)])
    other = new_topic(kafka.address)
    sink = sink_of(kafka, other, ledger_topic=f"{topic}-ledger")
    with opened(sink, batch(1)), pytest.raises(HistoryError, match=f"is '{other}', but '{topic}' has the rows up to"):
        sink.last(slot())
    deliver(sink_of(kafka, other, ledger_topic=f"{topic}-ledger", recreated_topic="accept"), [batch(1)])
    assert sorted(stored_ids(kafka, other)) == [2, 3]


# A topic that is altered while the sink is open.


def refuses(kafka: KafkaBroker, topic: str, value: bytes) -> bool:
    """Return whether a log refuses a message. Logs use a setting a little after the broker tells it."""
    probe, problems = transactional(kafka, f"{topic}-probe"), list[KafkaError]()
    probe.begin_transaction()
    probe.produce(topic, value, on_delivery=lambda error, _: problems.append(error) if error else None)
    probe.flush(PATIENCE_S)
    probe.abort_transaction(PATIENCE_S)
    return bool(problems)


def test_an_open_sink_finds_out_that_the_topic_was_created_again(kafka: KafkaBroker) -> None:
    """Before a marker: what it delivered until then is gone."""
    topic = new_topic(kafka.address, partitions=1)
    sink = sink_of(kafka, topic)
    with opened(sink, batch(0)):
        sink.write(batch(0))
        delete_topic(kafka.address, topic)
        with pytest.raises(PermanentError, match=r"the topic '.*' does not exist"):
            sink.last(slot())
        new_topic(kafka.address, topic, partitions=1)
        with pytest.raises(HistoryError, match="deleted and created again after batch 0"):
            sink.last(slot())


def test_no_row_is_refused_for_a_limit_that_was_lowered_meanwhile(kafka: KafkaBroker) -> None:
    """The client packs as many messages into a batch as the topic took when the sink was opened."""
    topic = new_topic(kafka.address, partitions=1)
    (chunk,) = chunks_of(pa.table({"v": ["a", "x" * 2_000, "b"]}), batch_id=1, chunk_rows=3)
    chunk = dataclasses.replace(chunk, follows=batch(0).position)
    sink = sink_of(kafka, topic)
    with opened(sink, batch(0)):
        sink.write(batch(0))
        set_config(kafka.address, topic, "max.message.bytes", "1000")
        wait_until(lambda: refuses(kafka, topic, b"x" * 2_000))
        with pytest.raises(KafkaAttemptError, match="rows were refused while the topic was altered"):
            sink.write(chunk)
        refused = sink.write(chunk)
        assert isinstance(refused, Rejected)
        assert list(refused.reasons) == [1]
        assert sink.write(chunk.without([1])) is None
    assert len(read(kafka.address, topic)) == 4


# A ledger that was one that deletes for a while.


def trim(kafka: KafkaBroker, topic: str, before: int) -> None:
    """Delete what lies before an offset (-1: all), as retention does; then let it be compacted only."""
    set_config(kafka.address, topic, "cleanup.policy", "compact,delete")
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        client = admin(kafka.address)
        wanted = TopicPartition(topic, 0, before)
        try:
            client.delete_records([wanted])[wanted].result(timeout=PATIENCE_S)
            break
        except KafkaException:  # the partition has not heard of it yet
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
    set_config(kafka.address, topic, "cleanup.policy", "compact")


def test_positions_are_found_behind_what_a_ledger_deleted(kafka: KafkaBroker) -> None:
    topic = new_topic(kafka.address, partitions=1)
    sink = sink_of(kafka, topic, transaction_timeout_s=10)
    with opened(sink, batch(0)):
        sink.write(batch(0))
        sink.write(batch(1))
        trim(kafka, f"{topic}-ledger", 2)  # a record and its marker, and the next one stays
        assert sink.last(slot()) == batch(1).position
        assert sink.write(batch(2)) is None
    with opened(sink, batch(2)):
        assert sink.last(slot()) == batch(2).position
        assert sink.last("another/slot/0") is None
    assert stored_ids(kafka, topic) == [0, 1, 2, 3, 4, 5]


def test_a_ledger_that_deleted_all_holds_nothing(kafka: KafkaBroker) -> None:
    topic = new_topic(kafka.address, partitions=1)
    sink = sink_of(kafka, topic, transaction_timeout_s=10)
    with opened(sink, batch(0)):
        sink.write(batch(0))
        trim(kafka, f"{topic}-ledger", -1)
        with pytest.raises(KafkaAttemptError, match="offset not available"):
            sink.write(batch(1))
        assert sink.last(slot()) is None
        with pytest.raises(OutcomeUnknownError, match="lost rows that it acknowledged"):
            sink.write(batch(1))
    assert stored_ids(kafka, topic) == [0, 1]


def test_rows_of_another_history_are_refused(kafka: KafkaBroker, topic: str) -> None:
    sink, chunk = sink_of(kafka, topic), batch(3)
    deliver(sink, [chunk])
    position = dataclasses.replace(chunk.position, segment_id="another")
    with pytest.raises(HistoryError, match="another"):
        deliver(sink, [dataclasses.replace(chunk, segment_id="another", position=position)])
    longer = dataclasses.replace(chunk, rows=range(3), position=dataclasses.replace(chunk.position, rows=3))
    with pytest.raises(HistoryError, match="but this boundary is in the middle of this chunk"):
        deliver(sink, [longer])
    assert len(read(kafka.address, topic)) == 2


def more_partitions(kafka: KafkaBroker, topic: str, count: int) -> None:
    client = admin(kafka.address)
    client.create_partitions([_ADMIN.NewPartitions(topic, count)])[topic].result(timeout=PATIENCE_S)
    wait_until(lambda: number_of_partitions(client, topic) == count, "the broker knows the partitions")


def test_no_row_is_refused_for_a_partition_that_was_added_meanwhile(kafka: KafkaBroker) -> None:
    topic = new_topic(kafka.address, partitions=1)
    (chunk,) = chunks_of(pa.table({"p": [0, 1]}))
    sink = sink_of(kafka, topic, partition="p")
    with opened(sink, chunk):
        more_partitions(kafka, topic, 2)
        with pytest.raises(KafkaAttemptError, match="rows were refused while the topic was altered"):
            sink.write(chunk)
        assert sink.write(chunk) is None
    assert [message.partition() for message in read(kafka.address, topic)] == [0, 1]
