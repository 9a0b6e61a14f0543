"""`KafkaSink` without a broker: messages, their columns, the records of its ledger."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tests.house.kit import CASES, SLOT
from tests.house.sinks import LedgerEntry, SinkContext
from tests.support.processes import CHECKOUT
from tests.support.refusals import unrefused
from wal_sink.errors import ConfigError, PermanentError
from wal_sink.testing.contract.calls import travelled
from wal_sink_backends.common.changes import Changes
from wal_sink_backends.kafka.client import Topic
from wal_sink_backends.kafka.ledger import LedgerRecord
from wal_sink_backends.kafka.messages import Message, MessageFormat
from wal_sink_backends.kafka.sink import KafkaSink, _Target
from wal_sink_backends.kafka.urls import kafka_sink

CONTEXT = SinkContext("wal", "default", 1, 0, (), on_executor=False)
TABLE = pa.table(
    {
        "id": pa.array([7, None], pa.int64()),
        "name": pa.array(["ü\n", None]),
        "raw": pa.array([b"\0\xff", None]),
        "at": pa.array([0, None], pa.timestamp("us", "UTC")),
    }
)


def messages(table: Any = TABLE, *, partitions: int = 3, most_bytes: int = 10_000, **options: Any) -> list[Message]:
    found, refused = MessageFormat(**options).messages(table, partitions=partitions, most_bytes=most_bytes)
    assert not refused
    assert len(found) == table.num_rows
    return list(found)


def refusals(table: Any = TABLE, *, partitions: int = 3, most_bytes: int = 10_000, **options: Any) -> dict[int, str]:
    return MessageFormat(**options).messages(table, partitions=partitions, most_bytes=most_bytes)[1]


def test_a_row_that_deletes_has_no_value_and_what_cannot_be_sent_is_named() -> None:
    rows = pa.table({"id": [1, 2, None, 4, 5], "op": ["c", "d", "u", "x", None], "note": ["a"] * 5})
    changes = Changes.of("sink", key=("id",), newer_by=None, operation="op", delete_when=None, on_delete="delete")
    sent = messages(rows.slice(0, 2), key="id", changes=changes, headers={"op": "op"})
    assert [(one.key, one.value) for one in sent] == [(b"1", b'{"id":1,"note":"a"}'), (b"2", None)]
    assert [list(one.headers) for one in sent] == [[("op", b"c")], [("op", b"d")]]
    assert refusals(rows, key="id", changes=changes) == {
        2: "column 'id' of the change stream is NULL",
        3: "operation 'x' is unknown, expected c, r, u, d",
        4: "column 'op' of the change stream is NULL",
    }
    assert refusals(
        rows.set_column(2, "note", pa.array([None, None, "a", "a", "a"])),
        key="id",
        changes=changes,
        value="string:note",
    )[0].startswith("string:note is null")
    with pytest.raises(PermanentError, match="column 'op' of the change stream is not among"):
        messages(rows.drop_columns(["op"]), key="id", changes=changes)


def test_a_change_stream_needs_a_key() -> None:
    assert KafkaSink("broker", "orders", key="id", delete_when="gone")._format.changes is not None
    with pytest.raises(ConfigError, match="operation and delete_when need key"):
        KafkaSink("broker", "orders", operation="op")
    with pytest.raises(ConfigError, match="pass one of them"):
        KafkaSink("broker", "orders", key="id", operation="op", delete_when="gone")


def test_a_json_value_has_every_column() -> None:
    first, second = messages()
    assert first.value == b'{"id":7,"name":"\xc3\xbc\\n","raw":"AP8=","at":"1970-01-01T00:00:00.000000Z"}'
    assert second.value == b'{"id":null,"name":null,"raw":null,"at":null}'
    assert (first.key, first.headers, first.partition) == (None, [], None)


def test_a_json_value_may_have_chosen_columns_in_their_order() -> None:
    assert [some.value for some in messages(value="json:name,id")] == [
        b'{"name":"\xc3\xbc\\n","id":7}',
        b'{"name":null,"id":null}',
    ]


def test_a_column_may_be_the_value() -> None:
    assert messages(value="string:name", tombstones=True)[0].value == "ü\n".encode()
    assert messages(value="bytes:raw", tombstones=True)[0].value == b"\0\xff"


def test_a_null_value_is_refused_unless_it_is_a_tombstone() -> None:
    assert list(refusals(value="string:name")) == [1]
    assert "tombstones=True" in refusals(value="string:name")[1]
    assert messages(value="string:name", tombstones=True)[1].value is None


@pytest.mark.parametrize(
    ("column", "text"),
    [("id", b"7"), ("name", "ü\n".encode()), ("raw", b"\0\xff"), ("at", b"1970-01-01T00:00:00.000000Z")],
)
def test_keys_and_headers_are_text_or_bytes_and_may_be_null(column: str, text: bytes) -> None:
    first, second = messages(key=column, headers={"trace": column})
    assert (first.key, first.headers) == (text, [("trace", text)])
    assert (second.key, second.headers) == (None, [("trace", None)])


def test_dictionary_columns_are_what_they_stand_for() -> None:
    table = pa.table({"name": pa.array(["a", "b", None]).dictionary_encode()})
    assert [some.key for some in messages(table, key="name")] == [b"a", b"b", None]
    assert [some.value for some in messages(table, value="string:name", tombstones=True)] == [b"a", b"b", None]


def test_bytes_that_are_no_text_travel_as_they_are() -> None:
    table = pa.table({"name": pa.array([b"\xff"]).view(pa.string())})
    assert messages(table, value="string:name", key="name")[0] == Message(b"\xff", b"\xff", [], None)


def test_the_partition_column_chooses_and_null_leaves_it_to_the_partitioner() -> None:
    table = pa.table({"p": pa.array([0, 2, None])})
    assert [some.partition for some in messages(table, partition="p")] == [0, 2, None]


def test_a_partition_the_topic_does_not_have_is_refused_by_row() -> None:
    table = pa.table({"p": pa.array([0, 3, -1, None])})
    found = refusals(table, partition="p")
    assert list(found) == [1, 2]
    assert found[1] == "column 'p' has the value 3, but the topic has 3 partitions, counted from 0"


def test_a_message_above_the_topics_limit_is_refused_by_row() -> None:
    table = pa.table({"v": ["x" * 10, "x" * 2_000, "x"]})
    found = refusals(table, value="string:v", most_bytes=1_000)
    assert list(found) == [1]
    assert "the topic accepts at most 1000 (max.message.bytes)" in found[1]


def test_a_column_that_does_not_fit_is_named() -> None:
    def make(options: dict[str, Any]) -> None:
        messages(**options)

    cases: list[tuple[Any, ...]] = [
        ({"key": "nix"}, "'nix'"),
        ({"headers": {"h": "nix"}}, "'nix'"),
        ({"value": "json:id,nix"}, "'nix'"),
        ({"value": "string:id"}, "'id' has the type int64, expected string"),
        ({"value": "bytes:name"}, "'name' has the type string, expected binary"),
        ({"partition": "name"}, "'name' has the type string, expected a type of whole numbers"),
    ]
    assert unrefused(PermanentError, make, cases) == []


def test_a_name_that_stands_twice_is_refused() -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    some: list[dict[str, Any]] = [{}, {"value": "json:a"}, {"key": "a"}]
    for options in some:
        with pytest.raises(PermanentError, match="'a'"):
            messages(table, **options)


def test_arguments_that_cannot_work_are_named() -> None:
    def make(arguments: dict[str, Any]) -> None:
        KafkaSink(**{"bootstrap_servers": "host:9092", "topic": "flights", **arguments})

    cases: list[tuple[Any, ...]] = [
        ({"topic": "a b"}, "topic='a b'"),
        ({"topic": ".."}, r"topic='\.\.'"),
        ({"topic": "wal-sink-ledger"}, "expected two"),
        ({"value": "avro"}, "value='avro'"),
        ({"value": "bytes:"}, "value='bytes:'"),
        ({"tombstones": True}, "tombstones=True"),
        ({"partitioner": "nix"}, "partitioner='nix'"),
        ({"ledger_replication": 0}, "ledger_replication=0"),
        ({"transaction_timeout_s": 0.5}, r"transaction_timeout_s=0\.5"),
        ({"transaction_timeout_s": float("nan")}, "transaction_timeout_s=nan"),
        ({"recreated_topic": "nix"}, "recreated_topic='nix'"),
        ({"bootstrap_servers": ""}, "bootstrap_servers"),
        ({"bootstrap_servers": "user:hunter2@host"}, "without a login"),
        ({"conf": {"acks": 1}}, r"conf\['acks'\] is set by the sink"),
        ({"conf": {"transaction.timeout.ms": 1}}, "pass transaction_timeout_s instead"),
        ({"conf_from_env": {"transactional.id": "X"}}, r"conf\['transactional.id'\]"),
        ({"conf": {"linger.ms": None}}, r"conf\['linger.ms'\]: expected text"),
        ({"conf": {"allow.auto.create.topics": True}}, r"conf\['allow.auto.create.topics'\] is set by the sink"),
        ({"conf": {"batch.size": "1MB"}}, r"conf\['batch.size'\]='1MB': expected a whole number of bytes"),
        ({"conf": {"batch.size": True}}, r"conf\['batch.size'\]=True: expected a whole number"),
        ({"conf": {"message.max.bytes": 0}}, r"conf\['message.max.bytes'\]=0: expected a whole number"),
        ({"conf": {"message.max.bytes": float("inf")}}, r"expected a whole number of bytes"),
    ]
    assert unrefused(ConfigError, make, cases) == []


def test_a_url_says_all_the_arguments() -> None:
    sink = kafka_sink(
        "kafka://one:9092,two:9092/flights?key=id&value=json:id,name&headers=a,b&partition=p&ledger_topic=l"
        "&ledger_replication=3&transaction_timeout_s=60&partitioner=murmur2&recreated_topic=accept"
        "&conf.security.protocol=SASL_SSL&env.sasl.password=SECRET"
    )
    assert repr(sink) == (
        "KafkaSink('one:9092,two:9092', 'flights', value='json:id,name', key='id', partition='p', ledger_topic='l')"
    )
    same = KafkaSink(
        "one:9092,two:9092",
        "flights",
        key="id",
        value="json:id,name",
        headers=("a", "b"),
        partition="p",
        ledger_topic="l",
        ledger_replication=3,
        transaction_timeout_s=60,
        partitioner="murmur2",
        recreated_topic="accept",
        conf={"security.protocol": "SASL_SSL"},
        conf_from_env={"sasl.password": "SECRET"},
    )
    assert vars(sink) == vars(same)
    assert vars(kafka_sink("kafka://one/t?value=string:v&tombstones=true")) == vars(
        KafkaSink("one", "t", value="string:v", tombstones=True)
    )


def test_a_url_that_cannot_work_is_refused_by_name() -> None:
    def make(url: str) -> None:
        kafka_sink(url)

    cases: list[tuple[Any, ...]] = [
        ("kafka://host/flights?colour=red", "unknown options colour; known are value, key"),
        ("kafka://host/", "expected kafka://"),
        ("kafka:///flights", "expected kafka://"),
        ("kafka://user:hunter2@host/flights", "env.sasl.password"),
        ("kafka://host/flights?conf.sasl.password=hunter2", "env.sasl.password"),
        ("kafka://host/flights?conf.sasl.oauthbearer.client.secret=hunter2", "env.sasl.oauthbearer.client.secret=VAR"),
        ("kafka://host/flights?conf.ssl.key.pem=hunter2", "env.ssl.key.pem=VARIABLE"),
        ("kafka://host/flights?conf.sasl.jaas.config=hunter2", "env.sasl.jaas.config=VARIABLE"),
        ("kafka://u:x hunter2@host/flights", "the URL has blanks"),
        ("kafka://host/flights?conf.sasl.password=x hunter2", "the URL has blanks"),
        ("kafka://host/a/b", "topic='a/b'"),
    ]
    assert unrefused(ConfigError, make, cases) == []


@pytest.mark.parametrize(
    "name",
    ["ssl.key.location", "ssl.ca.pem", "ssl.certificate.pem", "sasl.kerberos.keytab", "sasl.oauthbearer.client.id"],
)
def test_what_is_no_secret_may_stand_in_a_url(name: str) -> None:
    assert kafka_sink(f"kafka://host/flights?conf.{name}=x")._spec.conf == {name: "x"}


def test_secrets_of_conf_show_nowhere() -> None:
    sink = KafkaSink("host:9092", "flights", conf={"sasl.password": "hunter2"})
    assert "hunter2" not in f"{sink!r} {sink.describe()} {sink._spec!r} {travelled(sink)!r}"
    unused: Any = None
    target = _Target(repr(sink), unused, unused, unused, unused, sink._spec.conf, recreated_is_fine=False)
    assert "hunter2" not in repr(target)


def test_an_environment_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WAL_SINK_NO_SUCH", raising=False)
    sink = KafkaSink("host:9092", "flights", conf_from_env={"sasl.password": "WAL_SINK_NO_SUCH"})
    with pytest.raises(PermanentError, match="WAL_SINK_NO_SUCH is not set"):
        sink.open(CONTEXT)


def test_a_property_that_librdkafka_does_not_know_is_named_and_a_secret_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAL_SINK_TEST_WRONG", "hunter2-is-no-protocol")
    for conf, named in ({"ssl.colour": "red"}, "ssl.colour"), ({"security.protocol": "red"}, "security.protocol"):
        with pytest.raises(PermanentError, match=named):
            KafkaSink("host:9092", "flights", conf=conf).open(CONTEXT)
    sink = KafkaSink("host:9092", "flights", conf_from_env={"security.protocol": "WAL_SINK_TEST_WRONG"})
    with pytest.raises(PermanentError, match=r"security\.protocol") as caught:
        sink.open(CONTEXT)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_closed_sink_says_so() -> None:
    with pytest.raises(RuntimeError, match="not open"):
        KafkaSink("host:9092", "flights").last("slot")


@pytest.mark.processes
def test_without_the_client_the_extra_is_named() -> None:
    program = "import sys; sys.modules['confluent_kafka'] = None; import wal_sink_backends.kafka.sink"
    env = {**os.environ, "PYTHONPATH": f"{CHECKOUT}:{CHECKOUT / 'backends'}"}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False)
    assert "wal-sink with its extra kafka, or: pip install confluent-kafka" in done.stderr


TOPIC = Topic("flights", "an-id", 3, {})


def test_a_record_is_the_entry_of_its_chunk_and_tells_where_the_rows_went() -> None:
    faults = []
    for case in CASES:
        if case.verdict == "new":
            written = msgspec.json.encode(LedgerRecord.of(case.chunk(), TOPIC))
            record = msgspec.json.decode(written, type=LedgerRecord)
            told = (record.format, record.topic, record.topic_id)
            if record.entry(SLOT) != LedgerEntry.of(case.chunk()) or told != (1, "flights", "an-id"):
                faults.append(f"{case}: {record}")
    assert faults == []
