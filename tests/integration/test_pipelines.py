"""A declarative pipeline whose sink is `format("wal_sink")`: no code of wal-sink is in it."""

from __future__ import annotations

from pathlib import Path

import pyspark
import pytest

from tests.support.processes import Child, python_environment
from tests.support.streams import Home
from wal_sink import Delivery

pytestmark = pytest.mark.spark

LIMIT_S = 420.0

SPEC = """
name: orders
libraries:
  - glob:
      include: transformations/**
storage: {storage}
"""
FLOW = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
dp.create_sink("staged", "wal_sink", {{"wal": "{wal}"}})

@dp.append_flow(target="staged")
def rows():
    return spark.readStream.schema("id long").json("{folder}")
"""


def test_a_declarative_pipeline_stages_and_a_drain_delivers(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.feed.add(range(10), range(10, 25))
    (tmp_path / "transformations").mkdir()
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(storage=(tmp_path / "storage").as_uri()))
    (tmp_path / "transformations" / "flow.py").write_text(FLOW.format(wal=home.wal, folder=home.feed.folder))
    spark_home = Path(pyspark.__file__).parent
    program: list[str | Path] = [spark_home / "bin" / "spark-pipelines", "run"]
    environment = python_environment({"SPARK_HOME": str(spark_home)})
    with Child(program, log=tmp_path / "log", env=environment, cwd=tmp_path, limit_s=LIMIT_S) as child:
        child.succeed()
    (checkpoint,) = (metadata.parent for metadata in (tmp_path / "storage").rglob("metadata"))
    with home.sink(Delivery(home.lines, start_from="earliest"), checkpoint=str(checkpoint)) as sink:
        sink.drain()
    assert home.lines.ids() == list(range(25))
