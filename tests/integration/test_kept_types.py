"""What becomes of a value of each type in each kind of column: measured, and held to docs/sinks/types.md."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from tests.house.spark import version_of
from tests.support.kept_types import COMMAND, PAGE, measured_all
from tests.support.servers.databases import PASSWORD, PASSWORD_VARIABLE, MariadbServer, PostgresqlServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(version_of(pyspark.__version__) < (4, 0), reason="Spark has DataFrame.toArrow since 4.0"),
]


def test_every_value_comes_back_equal_or_as_the_page_says(
    spark: SparkSession,
    postgresql: PostgresqlServer,
    mariadb: MariadbServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, PASSWORD)
    wrong, text = measured_all(spark, postgresql, mariadb, tmp_path)
    assert wrong == [], "correct the sink, or SPELLINGS and the page"
    assert PAGE.read_text() == text, COMMAND
