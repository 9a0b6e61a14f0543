"""WAL on HDFS (a real name node and data node): what a run costs. `test_cloud_stores.py` kills drivers."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.streams import Home
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.servers.hdfs import Hdfs

pytestmark = [pytest.mark.spark, pytest.mark.hdfs]


def test_a_steady_batch_creates_four_objects_and_lists_nothing(spark: SparkSession, hdfs: Hdfs, tmp_path: Path) -> None:
    folder = hdfs.new_folder()
    place = Home(tmp_path, wal_url=hdfs.url + folder)
    sink = place.sink()
    with hdfs.counting() as at_start:
        place.feed.add([0])
        query = sink.start(place.feed.stream(spark).repartition(1).writeStream)
        query.processAllAvailable()
        settle(hdfs, folder, 1)
    place.feed.add([1], [2])
    query.processAllAvailable()
    settle(hdfs, folder, 3)
    with hdfs.counting() as seen:
        place.feed.add([3])
        query.processAllAvailable()
        settle(hdfs, folder, 4)
    sink.close()
    assert place.lines.ids() == [0, 1, 2, 3]
    assert sum(line.startswith("listStatus ") for line in at_start) > 0, "a start lists"

    asked = Counter(line.split()[0] for line in seen)
    assert {name: asked[name] for name in ("create", "rename", "mkdirs", "listStatus", "delete")} == {
        "create": 4,  # segment, manifest, release, marker
        "rename": 4,
        "mkdirs": 1,  # of the attempt
        "listStatus": 0,
        "delete": 0,
    }, seen
    assert sum(line.startswith("open ") and line.endswith(".parquet") for line in seen) == 1


def settle(hdfs: Hdfs, folder: str, markers: int) -> None:
    """Wait until so many markers were created and renamed, which is the last call of a batch that counts."""
    named = f" {folder}/sinks/"

    def renamed() -> list[str]:
        return [line for line in hdfs.asked() if line.startswith("rename ") and named in line and "/markers/" in line]

    wait_until(lambda: len(renamed()) >= markers, f"{markers} markers")
    time.sleep(1.5)  # hdfs-native's own closes
