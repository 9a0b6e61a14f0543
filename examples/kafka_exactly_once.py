# python examples/kafka_exactly_once.py [--brokers HOST:PORT] [--kills 5] [--rows 20000]
"""A Spark query writes into a Kafka topic and is killed repeatedly in the middle of its work: each row arrives once.

Spark's own Kafka sink runs through the same test: as many kills, each after as many messages. Many of its rows arrive
more than once. Without `--brokers`, a broker from this checkout's tests is started on this machine.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from contextlib import closing
from pathlib import Path

from support.kafka import Child, Topic, brokers_at, kill, spark_with_kafka

from wal_sink import WalSink
from wal_sink_backends.kafka import KafkaSink

OURS, SPARKS = "wal-sink", "spark"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--brokers", help="HOST:PORT of a cluster; topics are created there")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--rows", type=int, default=20_000, help="in each micro-batch")
    parser.add_argument("--seed", type=int, default=7, help="seed for the moments of the kills")
    parser.add_argument("--query", nargs=4, metavar=("SINK", "FOLDER", "BROKERS", "TOPIC"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.query:
        run_query(*options.query)
        return
    with tempfile.TemporaryDirectory() as folder, brokers_at(options.brokers, Path(folder)) as brokers:
        compare(Path(folder), brokers, options)


def compare(folder: Path, brokers: str, options: argparse.Namespace) -> None:
    """Send the same rows through both sinks under the same kills, and count what consumers see."""
    files = options.kills + 3
    write_input(folder / "in", files, options.rows)
    expected = range(files * options.rows)
    chance = random.Random(options.seed)
    moments = [round(options.rows * chance.uniform(0.1, 1.0)) for _ in range(options.kills)]
    repeated = {}
    for sink in (SPARKS, OURS):
        with closing(Topic(brokers, f"orders-{sink}-{random.getrandbits(30)}")) as topic:
            live_and_die(sink, folder, brokers, topic, moments)
            seen = Counter(row["id"] for row in topic.read())
        lost = sum(row not in seen for row in expected)
        repeated[sink] = sum(times > 1 for times in seen.values())
        print(f"{sink}: killed {options.kills} times; {lost} rows lost, {repeated[sink]} more than once")
        if sink == OURS:
            assert sorted(seen.elements()) == list(expected)
    theirs = f"repeated {repeated[SPARKS]} of them" if repeated[SPARKS] else "repeated none of them in this run"
    print(
        f"ok: {len(expected)} rows, each once after {options.kills} kills; Spark's own sink, killed as often, {theirs}"
    )


def live_and_die(sink: str, folder: Path, brokers: str, topic: Topic, moments: list[int]) -> None:
    """Start the query's process and kill it after it sent the next number of messages; let the last process finish."""
    program = [sys.executable, __file__, "--query", sink, folder, brokers, topic.name]
    for messages in moments:
        with Child(program, log=folder / "log") as child:
            wanted = topic.messages() + messages
            child.wait_until(lambda: topic.messages() >= wanted, "it had sent so many messages")  # noqa: B023
            kill(child)
    with Child(program, log=folder / "log") as child:
        child.succeed()


def run_query(sink: str, folder: str, brokers: str, topic: str) -> None:
    """Run the query in this process until all files are read, one micro-batch per file."""
    spark = spark_with_kafka()
    stream = spark.readStream.schema("id long, price double").option("maxFilesPerTrigger", 1).json(f"{folder}/in")
    orders = stream.repartition(2)
    checkpoint = f"{folder}/checkpoint-{sink}"
    if sink == OURS:
        # After a kill, the next process waits at most so long for the transaction that was left open.
        target = KafkaSink(brokers, topic, key="id", ledger_topic=f"{topic}-ledger", transaction_timeout_s=10)
        with WalSink(target, wal=f"{folder}/wal", checkpoint=checkpoint) as served:
            served.run(orders.writeStream.trigger(availableNow=True))
    else:
        messages = orders.selectExpr("string(id) AS key", "to_json(struct(*)) AS value")
        writer = messages.writeStream.format("kafka").option("kafka.bootstrap.servers", brokers).option("topic", topic)
        writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    spark.stop()


def write_input(folder: Path, files: int, rows: int) -> None:
    folder.mkdir()
    for number in range(files):
        ids = range(number * rows, (number + 1) * rows)
        lines = (json.dumps({"id": row, "price": row % 100}) for row in ids)
        (folder / f"{number:04}.json").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
