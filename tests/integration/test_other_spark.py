"""A query goes on with another version of Spark, newer or older, and nothing is lost or doubled."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.spark_versions import VERSIONS, run_on
from tests.support.streams import SESSION, Home

pytestmark = pytest.mark.spark

DRIVER = (
    SESSION.format(master="local[2]")
    + """
import sys
from pathlib import Path
from tests.support.streams import Home
place = Home(Path(sys.argv[1]))
place.run(spark, place.lines)
print("SPARK", spark.version, flush=True)
spark.stop()
"""
)


def test_an_upgrade_and_a_downgrade_of_spark_lose_and_double_nothing(tmp_path: Path) -> None:
    place = Home(tmp_path / "place")
    for number, version in enumerate((VERSIONS[0], VERSIONS[-1], VERSIONS[0])):
        place.feed.add(range(10 * number, 10 * number + 10))
        assert f"SPARK {version}" in run_on(version, DRIVER, place.root, log=tmp_path / f"log-{number}")
        assert sorted(place.lines.ids()) == list(range(10 * number + 10))
