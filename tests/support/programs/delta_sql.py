"""Statements of SQL on a Delta table, run by Spark with Delta Lake's jars: python delta_sql.py JARS TABLE STATEMENTS.

STATEMENTS is a JSON list, in which `{table}` is the table. The last line is a JSON list of the rows of each.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession


def main(jars: str, table: str, statements: list[str]) -> None:
    """Run the statements in one session, in UTC."""
    conf: dict[str, bool | float | int | str | None] = {
        "spark.jars": ",".join(str(path) for path in sorted(Path(jars).glob("*.jar"))),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    spark = SparkSession.builder.master("local[2]").config(map=conf).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    found = [spark.sql(text.replace("{table}", f"delta.`{table}`")).collect() for text in statements]
    spark.stop()
    sys.stdout.write(json.dumps([[list(row) for row in rows] for rows in found], default=str) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
