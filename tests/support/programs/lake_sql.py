"""Statements of SQL on tables of a lake, run by Spark with its jars: python lake_sql.py JARS CONF STATEMENTS.

CONF is a JSON object of settings of Spark, STATEMENTS a JSON list. The last line is a JSON list of the rows of each.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession


def main(jars: str, settings: dict[str, str], statements: list[str]) -> None:
    """Run the statements in one session, in UTC."""
    conf: dict[str, bool | float | int | str | None] = {
        "spark.jars": ",".join(str(path) for path in sorted(Path(jars).glob("*.jar"))),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **settings,
    }
    spark = SparkSession.builder.master("local[2]").config(map=conf).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    found = [spark.sql(text).collect() for text in statements]
    spark.stop()
    sys.stdout.write(json.dumps([[list(row) for row in rows] for rows in found], default=str) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3]))
