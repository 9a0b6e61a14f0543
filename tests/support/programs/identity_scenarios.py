"""The program of `test_every_spark.py`, for each version of Spark. It prints the results as JSON.

It makes every call to Spark's private interface by which wal-sink identifies the caller of `stage`, on the real Spark.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from tests.house.protocol import planned_ms
from tests.support.fixtures.spark import SPARK_CONF
from tests.support.streams import Home
from tests.support.waiting import wait_until
from wal_sink import ConfigError
from wal_sink.spark.identity import BatchRows, QueryIdentity, identity_of
from wal_sink.spark.private import active, cloned, private
from wal_sink.spark.query import _Fields

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

seen: dict[str, Any] = {}


def outcome(call: Callable[[], object]) -> str:
    try:
        call()
    except ConfigError as error:
        return str(error)
    return "accepted"


def on_a_thread(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join(60)


def look(spark: SparkSession, place: Home, df: DataFrame, batch_id: int) -> None:
    """Note which query is identified as the caller, in every possible way."""
    spark.sparkContext.setJobGroup("mine", "my jobs")
    static = spark.createDataFrame([(1,)], "id long")
    frames = {"batch": df, "static join": static.join(df, "id"), "static": static, "derived": df.groupBy("id").count()}
    told = {name: facts(identity_of(frame, batch_id)) for name, frame in frames.items()}
    on_a_thread(lambda: told.update({"batch on a thread": facts(identity_of(df, batch_id))}))
    on_a_thread(lambda: seen.update({"static on a thread": outcome(lambda: identity_of(static, batch_id))}))
    caller = identity_of(df, batch_id)
    on_its_thread = [caller.is_on_its_thread()]
    on_a_thread(lambda: on_its_thread.append(caller.is_on_its_thread()))
    entry = (place.checkpoint / "offsets" / str(batch_id)).read_text()
    metadata = json.loads((place.checkpoint / "metadata").read_text())
    seen["told"] = told
    seen["expected"] = [metadata["id"], str(place.checkpoint), planned_ms(entry), batch_id]
    seen["on its thread"] = on_its_thread
    seen["another batch"] = outcome(lambda: identity_of(df, batch_id + 1))


def facts(caller: QueryIdentity) -> list[Any]:
    location = caller.checkpoint.removeprefix("file:")
    return [caller.query_id, location, caller.planned_ms, caller.batch_id, caller.run_id, caller.query.isActive]


def chain(spark: SparkSession, place: Home) -> None:
    """Run a chain in another session, while another query of the first session runs."""
    own = spark.newSession()
    own.conf.set("spark.sql.shuffle.partitions", "1")
    beside = spark.readStream.format("rate").load().writeStream.format("noop")
    kept: list[Any] = []
    other = beside.option("checkpointLocation", str(place.root / "beside")).start()

    def on_batch(df: DataFrame, batch_id: int) -> None:
        seen.setdefault("first", []).append(identity_of(df, batch_id).is_first)
        if batch_id == 0:
            look(spark, place, df, batch_id)
        if batch_id == 0:
            rows = BatchRows()
            rows.refuse_earlier(df.groupBy("id").count(), identity_of(df, batch_id))
            kept.extend((df, rows))
        else:
            seen["kept"] = outcome(lambda: kept[1].refuse_earlier(kept[0], identity_of(df, batch_id)))
        first, second = df.where("id % 2 = 0"), df.where("id % 2 = 1")
        sink.stage(first.union(second), batch_id)
        seen["second call"] = outcome(lambda: other_sink.stage(second, batch_id))

    place.feed.add(range(5), range(5, 10))
    sink, other_sink = place.sink(), place.sink()
    writer = place.writer(own).foreachBatch(on_batch).option("checkpointLocation", f"file://{place.checkpoint}")
    query = writer.start()
    query.awaitTermination(120)
    seen["run"] = str(query.runId)
    other.stop()
    sink.close()
    seen["outside"] = outcome(lambda: place.sink().stage(spark.range(1), 0))


def again(spark: SparkSession, place: Home) -> None:
    """Continue the chain: two batches, with idle triggers between them."""

    def on_batch(df: DataFrame, batch_id: int) -> None:
        seen["first"].append(identity_of(df, batch_id).is_first)
        sink.stage(df, batch_id)

    with place.sink() as sink:
        stream = place.feed.stream(spark).writeStream.foreachBatch(on_batch)
        query = stream.option("checkpointLocation", str(place.checkpoint)).start()
        for ids in (range(10, 12), range(12, 15)):
            place.feed.add(ids)
            query.processAllAvailable()
            wait_until(lambda: not query.status["isDataAvailable"], "an idle trigger")
        query.stop()


def clones(spark: SparkSession) -> None:
    """Note what a clone of a session keeps, whom its changes reach, and which session is active where it is used."""

    def state(session: SparkSession) -> list[Any]:
        plus = session.sql("SELECT plus(x) AS y FROM kept").first()
        assert plus is not None
        return [session.catalog.currentDatabase(), plus.y, session.conf.get("my.own")]

    own = spark.newSession()
    own.sql("CREATE DATABASE cloned_db")
    own.sql("USE cloned_db")
    own.sql("CREATE TEMP VIEW kept AS SELECT 5 AS x")
    own.udf.register("plus", lambda x: x + 1, "int")
    own.conf.set("my.own", "mine")
    clone = cloned(own)
    seen["clone"] = [state(clone)]
    clone.sql("USE default")
    clone.sql("CREATE OR REPLACE TEMP VIEW kept AS SELECT 7 AS x")
    clone.conf.set("my.own", "the clone's")
    seen["clone"] += [state(clone), state(own)]

    def ask() -> None:
        told = [SparkSession.getActiveSession() is None]
        with active(clone):
            java = private(clone, "_jsparkSession")
            of_jvm = getattr(private(clone.sparkContext, "_jvm"), java.getClass().getName())
            told += [of_jvm.getActiveSession().get() == java, SparkSession.getActiveSession() is spark]
        seen["active"] = [*told, SparkSession.getActiveSession() is None]

    on_a_thread(ask)


def leftovers(spark: SparkSession, place: Home) -> None:
    def refused(writer: Any) -> str:
        return outcome(lambda: place.sink().start(writer))

    def fresh() -> Any:
        return place.writer(spark)

    seen["leftovers"] = {
        "option": refused(fresh().option("CHECKPOINTLOCATION", "/nowhere/old")),
        "format": refused(fresh().format("console")),
        "path": refused(fresh().option("path", "/nowhere")),
        "foreachBatch": refused(fresh().foreachBatch(print)),
        "foreach": refused(fresh().foreach(print)),
        "partitionBy": refused(fresh().partitionBy("id")),
    }
    if hasattr(fresh(), "clusterBy"):  # since Spark 4.0
        seen["leftovers"]["clusterBy"] = refused(fresh().clusterBy("id"))
    modes = ("append", "update", "complete")
    seen["output modes"] = [str(_Fields(fresh().outputMode(mode)).read("outputMode")) for mode in modes]
    used = fresh().option("checkpointLocation", str(place.checkpoint)).queryName("named")
    for ids in (range(15, 20), range(20, 25)):
        place.feed.add(ids)
        with place.sink() as sink:
            sink.run(used)


def main() -> None:
    place = Home(Path(sys.argv[1]))
    spark = SparkSession.builder.master("local[2]").config(map=SPARK_CONF).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    seen["version"] = spark.version
    chain(spark, place)
    again(spark, place)
    leftovers(spark, place)
    clones(spark)
    seen["delivered"] = place.lines.ids()
    sys.stdout.write(f"\nSEEN {json.dumps(seen)}\n")


if __name__ == "__main__":
    main()
