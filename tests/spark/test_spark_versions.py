"""Tests run on every Spark that wal-sink allows."""

import re
import sys
import tomllib

import pyspark

from tests.support.processes import CHECKOUT
from tests.support.spark_versions import ALL_VERSIONS, VERSIONS
from wal_sink.spark.environment import KNOWN


def minor(version: str) -> tuple[int, int]:
    major, second = version.split(".")[:2]
    return int(major), int(second)


def test_each_known_minor_version_is_pinned_once_and_the_package_allows_these_alone() -> None:
    wanted = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["spark"]
    requirement = next(line for line in wanted if line.startswith("pyspark"))
    allowed = re.fullmatch(r"pyspark>=(\d+)\.(\d+),<(\d+)\.(\d+)", requirement)
    assert allowed is not None, f"expected a range such as pyspark>=4.0,<4.4, found {requirement}"
    numbers = list(map(int, allowed.groups()))
    newest = max(KNOWN)
    assert (tuple(numbers[:2]), tuple(numbers[2:])) == (min(KNOWN), (newest[0], newest[1] + 1))
    assert [minor(version) for version in ALL_VERSIONS] == sorted(KNOWN)
    assert minor(pyspark.__version__) == newest
    assert set(VERSIONS) == {one for one in ALL_VERSIONS if minor(one) != (3, 5) or sys.version_info < (3, 12)}
