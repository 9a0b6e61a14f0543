# python examples/kafka_to_kafka.py [--brokers HOST:PORT] [--kills 20] [--events 60000]
"""A Kafka topic → counts and sums in windows of event time, with a watermark → another topic, exactly once.

The query's process is killed repeatedly at random moments. The messages that consumers of the second topic see are then
compared with a batch computation over the same events. Without `--brokers`, a broker from this checkout's tests is
started on this machine.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from confluent_kafka import Producer
from pyspark.sql.functions import count, window
from pyspark.sql.functions import sum as sum_of
from support.kafka import Child, Topic, brokers_at, kill, spark_with_kafka, wait_at_most

from wal_sink import WalSink
from wal_sink_backends.kafka import KafkaSink

WINDOW_S = 60
WATERMARK_S = 30
EVENTS_PER_S = 10
OUT_OF_ORDER_S = 15
LONGEST_S = 2.0
BATCHES_A_LIFE = 2
"""A process that completed this many batches is killed at once, so that work remains for the next processes."""
SENSORS = 5
CLOSING = "closing"
"""The sensor of the last events: they move the watermark past all windows except their own."""

Event = tuple[str, int, int]
"""Sensor, second of event time, value."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--brokers", help="HOST:PORT of a cluster; topics are created there")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--events", type=int, default=60_000)
    parser.add_argument("--seed", type=int, default=7, help="seed for the moments of the kills")
    parser.add_argument(
        "--query", nargs=5, metavar=("FOLDER", "BROKERS", "FROM", "TO", "PER_BATCH"), help=argparse.SUPPRESS
    )
    options = parser.parse_args()
    if options.query:
        run_query(*options.query)
        return
    with tempfile.TemporaryDirectory() as folder, brokers_at(options.brokers, Path(folder)) as brokers:
        run(Path(folder), brokers, options)


def run(folder: Path, brokers: str, options: argparse.Namespace) -> None:
    """Write the events, run and kill the query, compare the result."""
    per_batch = options.events // (options.kills * (BATCHES_A_LIFE + 1) + 1)
    number, events = random.getrandbits(30), list(events_of(options.events))
    with closing(Topic(brokers, f"events-{number}")) as source, closing(Topic(brokers, f"windows-{number}")) as target:
        produce(brokers, source.name, events)
        program = [sys.executable, __file__, "--query", folder, brokers, source.name, target.name, str(per_batch)]
        live_and_die(program, folder, options.kills, random.Random(options.seed))
        found = [((row["sensor"], row["start"]), (row["events"], row["total"])) for row in target.read()]
    expected = windows_of(events)
    times = Counter(window for window, _ in found)
    lost = len(expected.keys() - times.keys())
    repeated = len(found) - len(times)
    wrong = sum(expected.get(window) != values for window, values in found)
    print(f"{len(expected)} windows expected: {lost} lost, {repeated} repeated, {wrong} wrong")
    assert (lost, repeated, wrong) == (0, 0, 0)
    print(f"ok: {len(events)} events in {len(expected)} windows, each once and right, after {options.kills} kills")


def live_and_die(program: list[str | Path], folder: Path, kills: int, chance: random.Random) -> None:
    """Start the query's process repeatedly and kill it while it works; let the last process finish.

    Two of three processes are killed a random time after their next batch. The third is killed a random time after its
    takeover from the previous process, which may be before its first new batch.
    """
    before_a_batch = 0
    for number in range(kills):
        done, takeovers = completed(folder), taken_over(folder)
        with Child(program, log=folder / "log") as child:
            if number % 3 < 2:
                child.wait_until(lambda: completed(folder) > done, "a batch was complete")  # noqa: B023
            else:
                child.wait_until(lambda: taken_over(folder) > takeovers, "it took over")  # noqa: B023
            wait_at_most(chance.uniform(0, LONGEST_S), lambda: completed(folder) >= done + BATCHES_A_LIFE)  # noqa: B023
            kill(child)
        before_a_batch += completed(folder) == done
    print(f"killed {kills} times, {before_a_batch} of them before a new batch was complete")
    with Child(program, log=folder / "log") as child:
        child.succeed()


def completed(folder: Path) -> int:
    return len(list((folder / "checkpoint" / "commits").glob("[0-9]*")))


def taken_over(folder: Path) -> int:
    """The number of queries that began to write into the WAL."""
    return len(list((folder / "wal" / "terms" / "stager").glob("[0-9]*")))


def run_query(folder: str, brokers: str, source: str, target: str, per_batch: str) -> None:
    """Run the query in this process until it has read all events."""
    spark = spark_with_kafka()
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", brokers).option("subscribe", source)
    reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", per_batch)
    events = reader.load().selectExpr("from_json(string(value), 'sensor string, at long, value long') AS event")
    windows = (
        events.selectExpr("event.sensor", "timestamp_seconds(event.at) AS at", "event.value")
        .withWatermark("at", f"{WATERMARK_S} seconds")
        .groupBy(window("at", f"{WINDOW_S} seconds"), "sensor")
        .agg(count("*").alias("events"), sum_of("value").alias("total"))
        .selectExpr("sensor", "unix_seconds(window.start) AS start", "events", "total")
    )
    # After a kill, the next process waits at most so long for the transaction that was left open.
    sink = KafkaSink(brokers, target, key="sensor", ledger_topic=f"{target}-ledger", transaction_timeout_s=10)
    with WalSink(sink, wal=f"{folder}/wal", checkpoint=f"{folder}/checkpoint") as served:
        served.run(windows.writeStream.outputMode("append").trigger(availableNow=True))
    spark.stop()


def events_of(wanted: int) -> Iterator[Event]:
    """Events of `SENSORS` sensors, out of order by less than the watermark's delay."""
    chance = random.Random(1)
    for number in range(wanted):
        late_s = chance.randrange(OUT_OF_ORDER_S)
        yield f"sensor-{chance.randrange(SENSORS)}", 1_000 + number // EVENTS_PER_S - late_s, chance.randrange(1_000)


def windows_of(events: list[Event]) -> dict[tuple[str, int], tuple[int, int]]:
    """The batch computation: number and sum of events, by sensor and start of the window."""
    windows: dict[tuple[str, int], tuple[int, int]] = {}
    for sensor, at, value in events:
        window_of = (sensor, at - at % WINDOW_S)
        number, total = windows.get(window_of, (0, 0))
        windows[window_of] = (number + 1, total + value)
    return windows


def produce(brokers: str, topic: str, events: list[Event]) -> None:
    """Write the events in turn into the topic's partitions, and one closing event at the end of each partition."""
    producer = Producer({"bootstrap.servers": brokers, "enable.idempotence": True})
    last = max(at for _, at, _ in events)
    closing_events = [(CLOSING, last + WINDOW_S + 2 * WATERMARK_S, 0)] * Topic.PARTITIONS
    for number, (sensor, at, value) in enumerate([*events, *closing_events]):
        message = json.dumps({"sensor": sensor, "at": at, "value": value})
        producer.produce(topic, message, partition=number % Topic.PARTITIONS)
        producer.poll(0)
        if number % 50_000 == 49_999:
            producer.flush()
    assert producer.flush(60) == 0


if __name__ == "__main__":
    main()
