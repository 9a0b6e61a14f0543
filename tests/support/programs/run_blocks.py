"""Runs the Python blocks of a page, in order, in one namespace: `python run_blocks.py PAGE URL FOLDER [NAME=VALUE …]`.

FOLDER is empty; it gets the input of `orders`. Every NAME=VALUE is a setting of Spark. `tests.support.code_blocks`
describes what the blocks find.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tests.support.code_blocks import Block, blocks_of
from tests.support.fixtures.spark import SPARK_CONF

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES, ROWS_PER_FILE = 2, 30
SCHEMA = "id long, name string, amount double"


def main(page: str, url: str, folder: str, *settings: str) -> None:
    """Run the blocks. An exception of a block ends the program; its traceback has the page's lines."""
    blocks = [block for block in blocks_of(page) if block.runs]
    module = ModuleType("__main__")  # pickle carries what is defined here to executors
    sys.modules["__main__"] = module
    namespace = vars(module)
    namespace["URL"] = url
    session = _session(settings) if _names(blocks) & {"spark", "orders"} else None
    if session is not None:
        namespace |= {"spark": session, "orders": _orders(session, Path(folder))}
    for block in blocks:
        exec(compile(block.source, page, "exec"), namespace)  # noqa: S102 - a page of this repository


def _names(blocks: list[Block]) -> set[str]:
    """Return the names that the blocks use."""
    trees = [ast.parse(block.code) for block in blocks]
    return {node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _session(settings: tuple[str, ...]) -> SparkSession:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - most pages need no Spark

    given = dict(setting.split("=", 1) for setting in settings)
    session = SparkSession.builder.master("local[2]").config(map={**SPARK_CONF, **given}).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _orders(spark: SparkSession, folder: Path) -> Any:
    for number in range(FILES):
        ids = range(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE)
        rows = ({"id": row, "name": f"name {row}", "amount": row / 4} for row in ids)
        (folder / f"{number}.json").write_text("\n".join(map(json.dumps, rows)))
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
