"""`KafkaSink` when processes die, stand still or compete, when answers get lost and when the broker restarts."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.house.sinks import SinkContext
from tests.support.forked import ForkedChild
from tests.support.kafka_topics import delete_topic, new_topic, read
from tests.support.programs.kafka_writer import batch, live, persistently, sink_of
from tests.support.servers.kafka_broker import KafkaBroker
from tests.support.servers.kafka_proxy import ADD_PARTITIONS, END_TXN, PRODUCE, Fault, KafkaProxy
from tests.support.waiting import PATIENCE_S
from wal_sink.errors import FencedError, HistoryError, OutcomeUnknownError
from wal_sink.testing import query_into
from wal_sink_backends.kafka.client import Cluster, KafkaAttemptError, KafkaFencedError
from wal_sink_backends.kafka.ledger import Ledger
from wal_sink_backends.kafka.producer import SlotProducer
from wal_sink_backends.kafka.sink import KafkaSink

LIVES = 8
"""Processes that are killed. `make chaos` kills more of them, which deliver whole batches."""
_CONTEXT = SinkContext("kafka-writer", "default", 1, 0, ("id", "ordinal"), on_executor=False)


@contextlib.contextmanager
def opened(sink: KafkaSink) -> Iterator[KafkaSink]:
    persistently(lambda: sink.open(_CONTEXT))
    try:
        yield sink
    finally:
        sink.close()


def stored_ids(kafka: KafkaBroker, topic: str, *, ordinal: int = 0) -> list[int]:
    """The rows of a segment in each partition, one after the other: each exactly once, and in order."""
    rows = [(some.partition(), json.loads(some.value())) for some in read(kafka.address, topic)]
    mine = [(partition, row["id"]) for partition, row in rows if row["ordinal"] == ordinal]
    assert mine == sorted(mine), "in order within a partition"
    return sorted(number for _, number in mine)


def ids_of(*numbers: int, ordinal: int = 0) -> list[int]:
    return [row["id"] for number in numbers for row in batch(number, ordinal=ordinal).table.to_pylist()]


# Zombies, in this process.


def test_a_zombie_with_an_open_transaction_commits_nothing_once_a_newer_process_looked(
    kafka: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, moment = SlotProducer.commit, threading.Event()

    def late(self: SlotProducer, *args: Any) -> None:
        """Commit late: the zombie wakes after the newer process has written."""
        if threading.current_thread() is thread:
            moment.set()
            done.wait(60)
        commit(self, *args)

    monkeypatch.setattr(SlotProducer, "commit", late)
    done, caught = threading.Event(), list[BaseException]()

    def zombie() -> None:
        with opened(sink := sink_of(kafka.address, topic)):
            try:
                sink.write(batch(0, term=1))
            except FencedError as error:
                caught.append(error)

    thread = threading.Thread(target=zombie)
    thread.start()
    assert moment.wait(60)
    with opened(sink := sink_of(kafka.address, topic)):
        assert sink.write(batch(0, term=2)) is None
    done.set()
    thread.join()
    assert len(caught) == 1
    assert "a process with term 2 has already written to this slot, but the term of this process is 1" in str(caught[0])
    assert stored_ids(kafka, topic) == ids_of(0)


def test_a_transaction_that_took_too_long_is_not_committed_and_comes_again(
    kafka: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, was_slow = SlotProducer.commit, threading.Event()

    def slow(self: SlotProducer, *args: Any) -> None:
        if not was_slow.is_set():
            was_slow.set()
            assert stored_ids(kafka, topic) == []  # returns once the broker has ended the transaction
            self._cluster.timeout_s = PATIENCE_S  # a slow broker needs longer to answer that it has ended it
        commit(self, *args)

    monkeypatch.setattr(SlotProducer, "commit", slow)
    with opened(sink := sink_of(kafka.address, topic, transaction_timeout_s=1)):
        with pytest.raises(KafkaFencedError, match="transaction_timeout_s has passed"):
            persistently(lambda: sink.write(batch(0)), until=was_slow.is_set)
        assert stored_ids(kafka, topic) == []
        persistently(lambda: sink.write(batch(0)))
    assert stored_ids(kafka, topic) == ids_of(0)


# Answers that get lost.


@pytest.fixture
def proxy(kafka: KafkaBroker) -> Iterator[KafkaProxy]:
    with KafkaProxy(*kafka.proxy_ports) as running:
        yield running


@pytest.mark.parametrize("fault", ["lose the request", "lose the answer"])
def test_a_commit_whose_outcome_nobody_told_is_looked_up(
    kafka: KafkaBroker, topic: str, proxy: KafkaProxy, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the commit on, the broker is unreachable for longer than the sink waits."""
    commit, begun = SlotProducer.commit, threading.Event()

    def cut_off(self: SlotProducer, *args: Any) -> None:
        """Cut the connection only when a commit is sent: on a slow machine, earlier attempts may be aborted."""
        proxy.arm(END_TXN, fault, then_refuse=True)
        begun.set()
        commit(self, *args)

    with opened(sink := sink_of(proxy.address, topic, transaction_timeout_s=3)):
        persistently(lambda: sink.write(batch(0)))
        monkeypatch.setattr(SlotProducer, "commit", cut_off)
        with pytest.raises(OutcomeUnknownError, match="wal-sink reads the outcome from the ledger at the next attempt"):
            persistently(lambda: sink.write(batch(1)), until=begun.is_set)
        monkeypatch.undo()
        assert proxy.fired.wait(60)  # a slow broker may answer only after the sink has given up
        with pytest.raises(KafkaAttemptError):
            sink.last(batch(1).position.slot)
    committed = ids_of(1) if fault == "lose the answer" else []
    assert stored_ids(kafka, topic) == ids_of(0) + committed
    proxy.lead_to(kafka.proxy_ports[1])
    with opened(sink := sink_of(proxy.address, topic)):
        assert sink.last(batch(1).position.slot) == (batch(1) if committed else batch(0)).position
        assert sink.write(batch(1)) is None
    assert stored_ids(kafka, topic) == ids_of(0, 1)


def test_a_broker_that_is_killed_and_restarted_loses_and_doubles_nothing(mortal_kafka: KafkaBroker) -> None:
    broker = mortal_kafka
    some_written = threading.Event()

    def disturb() -> None:
        some_written.wait(120)
        time.sleep(random.uniform(0.0, 0.6))
        broker.kill()
        broker.start()

    topic = new_topic(broker.address)
    sink = sink_of(broker.address, topic, transaction_timeout_s=30)
    thread = threading.Thread(target=disturb)
    written = 0
    with opened(sink):
        persistently(lambda: sink.write(batch(0)))
        thread.start()
        while thread.is_alive():
            written += 1
            persistently(partial(sink.write, batch(written)))
            if written > 2:
                some_written.set()
    thread.join()
    assert written > 2
    assert stored_ids(broker, topic) == ids_of(*range(written + 1))


# A target restored to before the marker.


@pytest.mark.parametrize("gone", ["", "-ledger"], ids=["the topic", "the ledger"])
def test_a_query_stops_if_its_target_forgot(kafka: KafkaBroker, topic: str, gone: str) -> None:
    def history() -> None:
        with query_into(sink_of(kafka.address, topic)) as query:
            query.batch(batch(0).table)
            delete_topic(kafka.address, f"{topic}{gone}")
            if not gone:
                new_topic(kafka.address, topic)
            query.batch(batch(1).table)

    with pytest.raises(HistoryError, match="holds nothing in slot" if gone else "deleted and created again"):
        history()
    assert stored_ids(kafka, topic) == (ids_of(0) if gone else [])


# Processes that are killed or stand still.


def writer(
    kafka: KafkaBroker, topic: str, log: Path, term: int, *, ordinal: int = 0, count: int = 10**6, rivals: bool = False
) -> ForkedChild:
    return ForkedChild(partial(live, has_rivals=rivals), kafka.address, topic, ordinal, count, term, log=log)


def test_a_kill_at_any_moment_loses_and_doubles_nothing(kafka: KafkaBroker, topic: str, tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    moments = random.Random(seed)
    for term in range(1, LIVES + 1):
        with writer(kafka, topic, tmp_path / f"{term}.txt", term) as child:
            child.wait_for_output("ready")
            if term % 2:  # else most would die while they take over from the one before
                child.wait_for_output("wrote")
            time.sleep(moments.uniform(0.0, 0.25))
            child.kill()
    with opened(sink := sink_of(kafka.address, topic)):
        last = sink.last(batch(0).position.slot)
        assert last is not None, "the writers were killed before they wrote"
        sink.write(batch(last.batch_id + 1, term=LIVES + 1))
    assert stored_ids(kafka, topic) == ids_of(*range(last.batch_id + 2)), f"seed {seed}"
    assert last.batch_id > LIVES // 3


# A ledger whose leader lost what it acknowledged.


class Logs:
    """The partitions of a topic and its ledger at one moment, to take them back to it.

    An unclean election of a leader does so to its partitions; so does a loss of power to a broker without replicas.
    """

    def __init__(self, broker: KafkaBroker, topic: str) -> None:
        self._broker = broker
        names = (topic, f"{topic}-ledger")
        for name in names:  # until the markers of the last commit are there
            read(broker.address, name)
        logs = [log for name in names for log in (broker.folder / "data").glob(f"{name}-[0-9]*/*.log")]
        self._sizes = {log: log.stat().st_size for log in logs}

    def take_back(self) -> None:
        """Take them back. The broker is unreachable for a moment, and returns with another epoch."""
        self._broker.kill()
        for log, size in self._sizes.items():
            os.truncate(log, size)
            for path in log.parent.iterdir():
                if path.suffix in {".index", ".timeindex", ".snapshot"}:  # which are made again
                    path.unlink()
        self._broker.start()


def test_a_producer_that_outlives_the_loss_of_its_record_writes_nothing_more(mortal_kafka: KafkaBroker) -> None:
    """The producer still knows its position. The ledger has lost it, and the rows before it are gone as well."""
    topic = new_topic(mortal_kafka.address)
    with opened(sink := sink_of(mortal_kafka.address, topic)):
        persistently(lambda: sink.write(batch(0)))
        before = Logs(mortal_kafka, topic)
        persistently(lambda: sink.write(batch(1)))
        before.take_back()
        with pytest.raises(
            OutcomeUnknownError, match=r"the slot is at batch 0, row 50, expected it at batch 1, row 50\. "
        ):
            persistently(lambda: sink.write(batch(2)))
        assert stored_ids(mortal_kafka, topic) == ids_of(0)
        for number in (1, 2):
            persistently(partial(sink.write, batch(number)))
    assert stored_ids(mortal_kafka, topic) == ids_of(0, 1, 2)


def test_a_ledger_that_loses_a_record_after_it_was_read_is_found_out_before_the_commit(
    mortal_kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The producer is new, so the numbers of its messages do not show the brokers that a message is missing."""
    topic, send, end = new_topic(mortal_kafka.address), SlotProducer.send, Cluster.high_watermark
    with opened(sink := sink_of(mortal_kafka.address, topic)):
        persistently(lambda: sink.write(batch(0)))
        before = [Logs(mortal_kafka, topic)]
        persistently(lambda: sink.write(batch(1)))
    newest = read(mortal_kafka.address, f"{topic}-ledger")[-1].offset()

    def late(self: SlotProducer, *given: Any) -> dict[int, str]:
        while before:
            before.pop().take_back()
        return send(self, *given)

    def found(self: Cluster, topic: str) -> int:
        """The end, asked again if the broker did not yet know its topics after the restart."""
        return persistently(lambda: end(self, topic))

    monkeypatch.setattr(SlotProducer, "send", late)
    monkeypatch.setattr(Cluster, "high_watermark", found)
    with opened(sink := sink_of(mortal_kafka.address, topic)):
        with pytest.raises(
            KafkaAttemptError,
            match=rf"lost the message at offset {newest}, or a later one, after .* Nothing was committed",
        ):
            persistently(lambda: sink.write(batch(2)), until=lambda: not before)
        with pytest.raises(
            OutcomeUnknownError, match=r"the slot is at batch 0, row 50, expected it at batch 1, row 50\. "
        ):
            persistently(lambda: sink.write(batch(2)))
    assert stored_ids(mortal_kafka, topic) == ids_of(0)


def test_a_sink_tells_no_position_that_the_ledger_has_lost(mortal_kafka: KafkaBroker) -> None:
    """Also where others have written since, so that the ledger is as long as it was."""
    topic = new_topic(mortal_kafka.address)
    slots = [batch(0, ordinal=ordinal).position.slot for ordinal in range(2)]
    with opened(writer := sink_of(mortal_kafka.address, topic)), opened(reader := sink_of(mortal_kafka.address, topic)):
        persistently(lambda: writer.write(batch(0)))
        before = Logs(mortal_kafka, topic)
        persistently(lambda: writer.write(batch(1)))
        assert persistently(lambda: reader.positions(slots)) == {slots[0]: batch(1).position, slots[1]: None}
        before.take_back()
        with opened(other := sink_of(mortal_kafka.address, topic)):
            for number in range(3):
                persistently(partial(other.write, batch(number, ordinal=1)))
        found = persistently(lambda: reader.positions(slots))
        assert found == {slots[0]: batch(0).position, slots[1]: batch(2, ordinal=1).position}


# The requests of a call of `positions`.


def test_positions_are_read_from_the_ledger_once_a_call(
    kafka: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[str] = []

    def counted(kind: Any, method: str) -> None:
        inner = getattr(kind, method)

        def call(*given: Any, **more: Any) -> Any:
            requests.append(method)
            return inner(*given, **more)

        monkeypatch.setattr(kind, method, call)

    counted(Cluster, "high_watermark")
    counted(Ledger, "_read")
    with opened(writer := sink_of(kafka.address, topic)):
        for ordinal in range(3):
            writer.write(batch(0, ordinal=ordinal))
    ordinals = (2, 0, 7, 1)
    slots = [batch(0, ordinal=ordinal).position.slot for ordinal in ordinals]
    requests.clear()
    with opened(reader := sink_of(kafka.address, topic)):
        found = reader.positions(slots)
        assert requests == ["high_watermark", "_read"]
        assert found == {
            slot: None if ordinal == 7 else batch(0, ordinal=ordinal).position
            for slot, ordinal in zip(slots, ordinals, strict=True)
        }
        reader.positions(slots)
        assert requests == ["high_watermark", "_read"] * 2, "a second call reads the ledger again"
        assert reader.positions([]) == {}


def test_a_zombie_that_knows_of_its_successor_does_not_disturb_it(kafka: KafkaBroker, topic: str) -> None:
    with opened(newer := sink_of(kafka.address, topic)):
        newer.write(batch(0, term=2))
        with opened(zombie := sink_of(kafka.address, topic)):
            assert zombie.last(batch(0).position.slot) == batch(0).position
            with pytest.raises(FencedError, match="term 2"):
                zombie.write(batch(1, term=1))
        assert newer.write(batch(1, term=2)) is None  # in its first attempt: nobody fenced it
    assert stored_ids(kafka, topic) == ids_of(0, 1)


@pytest.mark.parametrize("fault", ["lose the request", "lose the answer"])
@pytest.mark.parametrize("kind", [ADD_PARTITIONS, PRODUCE, END_TXN], ids=["add partitions", "produce", "end"])
def test_a_connection_that_breaks_loses_and_doubles_nothing(
    kafka: KafkaBroker, topic: str, proxy: KafkaProxy, kind: int, fault: Fault
) -> None:
    with opened(sink := sink_of(proxy.address, topic, transaction_timeout_s=10)):
        persistently(lambda: sink.write(batch(0)))
        proxy.arm(kind, fault)
        persistently(lambda: sink.write(batch(1)))
        assert proxy.fired.wait(60)
        persistently(lambda: sink.write(batch(2)))
    assert stored_ids(kafka, topic) == ids_of(0, 1, 2)


def test_a_process_that_stood_still_finds_itself_superseded(kafka: KafkaBroker, topic: str, tmp_path: Path) -> None:
    with writer(kafka, topic, tmp_path / "zombie.txt", 1) as zombie:
        zombie.wait_for_output("ready")
        zombie.wait_for_output("wrote 1\n")
        zombie.send_to_all(signal.SIGSTOP)
        count = zombie.output.count("wrote") + 20  # it may have written many, and one that it did not tell yet
        with writer(kafka, topic, tmp_path / "newer.txt", 2, count=count) as newer:
            newer.succeed()
        zombie.send_to_all(signal.SIGCONT)
        assert zombie.wait() == 1
        assert "wal_sink.errors.FencedError" in zombie.output
    assert stored_ids(kafka, topic) == ids_of(*range(count))


def test_processes_write_side_by_side_and_compete(kafka: KafkaBroker, topic: str, tmp_path: Path) -> None:
    """Two segments, each with two senders of the same term, of which one or both may be fenced by the other."""
    with contextlib.ExitStack() as stack:
        children = [
            stack.enter_context(
                writer(kafka, topic, tmp_path / f"{number}.txt", 1, ordinal=number % 2, count=15, rivals=True)
            )
            for number in range(4)
        ]
        for child in children:
            child.wait()
    for ordinal in range(2):
        with opened(sink := sink_of(kafka.address, topic)):
            for number in range(15):
                sink.write(batch(number, ordinal=ordinal))
        assert stored_ids(kafka, topic, ordinal=ordinal) == ids_of(*range(15), ordinal=ordinal)
