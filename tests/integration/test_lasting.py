"""The process in which programs of tests run one after the other: what a program does is not passed on to the next."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.lasting import Lasting
from tests.support.processes import ChildError

SAYS = "import os, sys; print('said', *sys.argv[1:], os.environ.get('LEFT'), os.getpid())"


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lasting]:
    with Lasting(tmp_path_factory.mktemp("lasting") / "process", limit_s=120.0) as process:
        yield process


def said(lasting: Lasting) -> list[str]:
    return lasting.run(SAYS, "a word").split()


def test_a_program_that_fails_is_told_and_the_next_one_runs_in_the_same_process(lasting: Lasting) -> None:
    before = said(lasting)
    with pytest.raises(ChildError, match=r"(?s)the program ended with 1, expected 0.*ZeroDivisionError"):
        lasting.run("1 / 0")
    with pytest.raises(ChildError, match="the program ended with 3, expected 0"):
        lasting.run("raise SystemExit(3)")
    assert before[:3] == ["said", "a", "word"]
    assert said(lasting) == before


def test_the_environment_is_restored(lasting: Lasting) -> None:
    lasting.run("import os; os.environ['LEFT'] = 'behind'")
    assert said(lasting)[3] == "None"


@pytest.mark.spark
def test_each_program_has_a_spark_with_its_own_master_or_the_same_without_what_was_set(
    other_sparks: Lasting, tmp_path: Path
) -> None:
    program = """
import sys
from tests.support.fixtures.spark import SPARK_CONF
from pyspark.sql import SparkSession
spark = SparkSession.builder.master(sys.argv[1]).config(map=SPARK_CONF).getOrCreate()
print("HAS", spark.sparkContext.master, spark.conf.get("spark.sql.shuffle.partitions"), spark.sparkContext.startTime)
spark.conf.set("spark.sql.shuffle.partitions", "7")
"""
    own = [other_sparks.run(program, f"local[{cores}]").split("HAS ")[1].split() for cores in (1, 2)]
    assert [has[:2] for has in own] == [["local[1]", "2"], ["local[2]", "2"]]
    with Lasting(tmp_path / "one") as one:
        first, second = (one.run(program, "local[1]").split("HAS ")[1].split() for _ in range(2))
    assert first[1] == "2"
    assert second == first


def test_a_spark_has_nothing_of_the_configuration_that_another_program_began_the_jvm_with(tmp_path: Path) -> None:
    program = """
import sys
from pyspark.sql import SparkSession
from tests.support.fixtures.spark import SPARK_CONF
conf = {**SPARK_CONF, **dict(told.split("=") for told in sys.argv[1:])}
spark = SparkSession.builder.master("local[1]").config(map=conf).getOrCreate()
print("HAS", spark.sparkContext.getConf().get("spark.test.left", "nothing"), flush=True)
spark.stop()
"""
    with Lasting(tmp_path / "process", one_spark=False) as process:
        has = [process.run(program, *told).split("HAS ")[1].split()[0] for told in (["spark.test.left=behind"], [])]
    assert has == ["behind", "nothing"]
