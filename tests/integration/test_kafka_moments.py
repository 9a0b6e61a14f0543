"""The brokers of `KafkaSink` fail between rows and commit. Either an error says so, or each row is there once."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from tests.integration.test_kafka_failures import ids_of, opened, stored_ids
from tests.integration.test_kafka_sink import grant, login, withdraw
from tests.support.kafka_topics import new_topic
from tests.support.programs.kafka_writer import batch, persistently, sink_of
from tests.support.servers.kafka_broker import KafkaBroker
from wal_sink.errors import OutcomeUnknownError, PermanentError
from wal_sink_backends.kafka import producer as kafka_producer
from wal_sink_backends.kafka.client import KafkaAttemptError
from wal_sink_backends.kafka.producer import TRANSACTIONAL_IDS, SlotProducer
from wal_sink_backends.kafka.sink import KafkaSink

_TIMEOUT_S = 4.0


@dataclasses.dataclass
class Trouble:
    """Something that happens to the broker, and how it ends."""

    begins: Callable[[KafkaBroker], None]
    ends: Callable[[KafkaBroker], None]
    lasts_s: float | None
    """None: until the sink has given up."""


def _kill(broker: KafkaBroker) -> None:
    broker.kill()


def _start(broker: KafkaBroker) -> None:
    broker.start()


def _pause(broker: KafkaBroker) -> None:
    broker.child.send_to_all(signal.SIGSTOP)


def _go_on(broker: KafkaBroker) -> None:
    broker.child.send_to_all(signal.SIGCONT)


_TROUBLES = {
    "restarted": Trouble(_kill, _start, 0.0),
    "killed and back during the commit": Trouble(_kill, _start, 1.0),
    "killed and back too late": Trouble(_kill, _start, None),
    "paused for a moment": Trouble(_pause, _go_on, 1.0),
    "paused for too long": Trouble(_pause, _go_on, None),
}


def _at_once(broker: KafkaBroker, trouble: Trouble) -> threading.Timer | None:
    """Begin the trouble. A timer that ends it, None if it is over or does not end by itself."""
    trouble.begins(broker)
    if trouble.lasts_s == 0.0:
        trouble.ends(broker)
    if not trouble.lasts_s:
        return None
    timer = threading.Timer(trouble.lasts_s, trouble.ends, [broker])
    timer.start()
    return timer


@pytest.mark.parametrize(
    ("name", "moment"),
    # What ends before the sink gives up, around the record: test_kafka_failures.py, by its proxy and its restarts.
    [*((name, "commit") for name in _TROUBLES), ("paused for too long", "put_record")],
)
def test_a_coordinator_that_is_lost_before_the_commit(
    mortal_kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch, name: str, moment: str
) -> None:
    broker, trouble, inner = mortal_kafka, _TROUBLES[name], getattr(SlotProducer, moment)
    timers: list[threading.Timer | None] = []

    def troubled(self: SlotProducer, *given: Any) -> None:
        if not timers:
            timers.append(_at_once(broker, trouble))
        inner(self, *given)

    topic, outcome = new_topic(broker.address), "written"
    with contextlib.ExitStack() as stack:
        sink = stack.enter_context(opened(sink_of(broker.address, topic, transaction_timeout_s=_TIMEOUT_S)))
        persistently(lambda: sink.write(batch(0)))
        monkeypatch.setattr(SlotProducer, moment, troubled)
        try:  # a slow machine may fail before that moment
            persistently(lambda: sink.write(batch(1)), until=lambda: bool(timers))
        except (KafkaAttemptError, OutcomeUnknownError) as error:
            outcome = str(error)
            assert broker.address in outcome
        assert len(timers) == 1
        if timers[0] is not None:
            timers[0].join()
        elif trouble.lasts_s is None:
            assert outcome != "written"
            trouble.ends(broker)
        persistently(lambda: sink.write(batch(1)))
        newer = stack.enter_context(opened(sink_of(broker.address, topic, transaction_timeout_s=_TIMEOUT_S)))
        for number in (1, 2):
            persistently(partial(newer.write, batch(number, term=2)))
        assert persistently(lambda: newer.last(batch(2).position.slot)) == batch(2).position
    assert stored_ids(broker, topic) == ids_of(0, 1, 2)


_RIGHTS: Mapping[str, Sequence[tuple[str, str, str, str]]] = {
    "to write to the topic": [("TOPIC", "{}", "LITERAL", "WRITE")],
    "to write to the ledger": [("TOPIC", "{}-ledger", "LITERAL", "WRITE")],
    "to read the ledger": [("TOPIC", "{}-ledger", "LITERAL", "READ")],
    "to use the transactional id": [("TRANSACTIONAL_ID", TRANSACTIONAL_IDS, "PREFIXED", "WRITE")],
}
_OTHERS = [
    *(("TOPIC", name, "LITERAL", right) for name in ("{}", "{}-ledger") for right in ("DESCRIBE", "DESCRIBE_CONFIGS")),
    ("TOPIC", "{}-ledger", "LITERAL", "CREATE"),
    ("TRANSACTIONAL_ID", TRANSACTIONAL_IDS, "PREFIXED", "DESCRIBE"),
]
_ALL = [*_OTHERS, *(right for rights in _RIGHTS.values() for right in rights)]
_MOMENTS = ("write", "send", "put_record", "commit")
_LAST_NEEDED = {"to write to the topic": "send", "to use the transactional id": "commit", "all": "commit"}


def _of(topic: str, rights: Iterable[tuple[str, str, str, str]]) -> list[tuple[str, str, str, str]]:
    return [(kind, name.format(topic), pattern, right) for kind, name, pattern, right in rights]


@pytest.mark.parametrize("moment", _MOMENTS)
@pytest.mark.parametrize("which", [*_RIGHTS, "all"])
def test_a_right_that_is_withdrawn_in_mid_run_is_named(
    kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch, which: str, moment: str
) -> None:
    """At once, by an error that no retry follows; what did not need the right any more is written."""
    topic, withdrawn = new_topic(kafka.address), list[str]()
    taken = _of(topic, _ALL if which == "all" else _RIGHTS[which])
    grant(kafka, *_of(topic, _ALL))
    owner: Any = KafkaSink if moment == "write" else SlotProducer
    inner = getattr(owner, moment)

    def without(self: Any, *given: Any) -> Any:
        if not withdrawn:
            withdrawn.append(which)
            withdraw(kafka, *taken)
        return inner(self, *given)

    conf = {**login(), "reconnect.backoff.max.ms": 100}
    with opened(sink_of(kafka.sasl_address, topic, conf=conf, transaction_timeout_s=5)) as sink:
        persistently(lambda: sink.write(batch(0)))
        monkeypatch.setattr(owner, moment, without)
        is_needed = _MOMENTS.index(moment) <= _MOMENTS.index(_LAST_NEEDED.get(which, "put_record"))
        for _ in range(2 if is_needed else 0):
            with pytest.raises(PermanentError, match=r"grant the rights that docs/sinks/kafka\.md lists"):
                sink.write(batch(1))
            assert stored_ids(kafka, topic) == ids_of(0)
        if not is_needed:
            sink.write(batch(1))
        assert withdrawn
        grant(kafka, *taken)
        for number in (1, 2):
            persistently(partial(sink.write, batch(number)))
    withdraw(kafka, *_of(topic, _ALL))  # those to use a transactional id would be rights of the next test too
    assert stored_ids(kafka, topic) == ids_of(0, 1, 2)


class _DiesLate:
    """A producer whose fatal error comes to light in `flush`, after `produce` has failed without its reason."""

    def __init__(self, conf: dict[str, Any]) -> None:
        self._producer, self.is_dead = Producer(conf), False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def produce(self, *given: Any, **options: Any) -> None:
        if self.is_dead:
            raise KafkaException(KafkaError(KafkaError._STATE, "fatal error"))
        self._producer.produce(*given, **options)

    def flush(self, *given: Any) -> Any:
        return self._unless_dead(self._producer.flush, *given)

    def begin_transaction(self) -> None:
        self._unless_dead(self._producer.begin_transaction)

    def _unless_dead(self, call: Callable[..., Any], *given: Any) -> Any:
        if self.is_dead:
            code = KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            raise KafkaException(KafkaError(code, "no right to the transactional id", fatal=True))
        return call(*given)


def test_a_fatal_error_is_named_though_only_waiting_for_reports_shows_it(
    kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which call of librdkafka raises a fatal error is a matter of moments."""
    made: list[_DiesLate] = []

    def dying(conf: dict[str, Any]) -> _DiesLate:
        made.append(_DiesLate(conf))
        return made[-1]

    monkeypatch.setattr(kafka_producer, "Producer", dying)
    topic, inner = new_topic(kafka.address), _DiesLate.begin_transaction

    def begin_and_die(self: _DiesLate) -> None:
        inner(self)
        self.is_dead = len(made) == 1

    with opened(sink_of(kafka.address, topic)) as sink:
        monkeypatch.setattr(_DiesLate, "begin_transaction", begin_and_die)
        with pytest.raises(PermanentError, match=r"grant the rights that docs/sinks/kafka\.md lists"):
            sink.write(batch(0))
        persistently(partial(sink.write, batch(0)))
    assert len(made) > 1
    assert stored_ids(kafka, topic) == ids_of(0)
