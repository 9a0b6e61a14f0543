"""The README's code blocks, run in order, as a reader would: one namespace, an empty folder, a stream and an API."""

from __future__ import annotations

import json
import re
import shlex
import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from tests.support.fixtures.spark import SPARK_CONF
from tests.support.processes import CHECKOUT, Child

ROWS = 60


class Api:
    """A target that ignores an Idempotency-Key it has seen."""

    def __init__(self) -> None:
        self.bodies: dict[str, list[dict[str, Any]]] = {}
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                api.bodies.setdefault(self.headers["Idempotency-Key"], json.loads(body))
                self.send_response(204)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
                del format, args

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/orders"

    def ids(self) -> list[int]:
        return sorted(row["id"] for body in self.bodies.values() for row in body)


@pytest.fixture
def api() -> Iterator[Api]:
    api = Api()
    thread = threading.Thread(target=api.server.serve_forever)
    thread.start()
    yield api
    api.server.shutdown()
    thread.join()
    api.server.server_close()


def python_blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (CHECKOUT / "README.md").read_text(), flags=re.MULTILINE | re.DOTALL)


def commands() -> list[list[str]]:
    """The lines that start with the command line's name, in order, without their comments."""
    lines = re.findall(r"^    (wal-sink .*)$", (CHECKOUT / "README.md").read_text(), flags=re.MULTILINE)
    found = [shlex.split(line, comments=True) for line in lines]
    assert [command[1] for command in found] == ["status", "batches", "show", "drain", "dead-letters", "estimate"]
    return found


PREAMBLE = """
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[2]").config(map=CONF)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
orders = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json("in")
"""


def test_the_code_blocks_do_what_they_say(api: Api, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(3):
        rows = [{"id": row} for row in range(number * 20, number * 20 + 20)]
        (tmp_path / "in" / f"{number}.json").write_text("\n".join(json.dumps(row) for row in rows))
    blocks = python_blocks()
    assert len(blocks) >= 3
    program = "\n".join([f"URL = {api.url!r}", f"CONF = {SPARK_CONF!r}", PREAMBLE, *blocks, "spark.stop()"])

    with Child.python(program, log=tmp_path / "reader.log", limit_s=200) as reader:
        printed = reader.succeed()

    assert api.ids() == list(range(ROWS))
    with closing(sqlite3.connect(tmp_path / "orders.db")) as database:
        assert sorted(database.execute("SELECT id FROM orders")) == [(row,) for row in range(ROWS)]
    for written in ("archive", "lake/orders"):
        table = ds.dataset(tmp_path / written, format="parquet", exclude_invalid_files=True).to_table()
        assert sorted(int(row) for row in table["id"].to_numpy()) == list(range(ROWS)), written
    assert "exactly once" in printed
    told = {}
    for command in commands():
        with Child([sys.executable, "-m", "wal_sink.cli", *command[1:]], log=tmp_path / "command.log") as child:
            told[command[1]] = child.succeed()
        assert "batch" in told[command[1]], command
    assert "0 batches delivered, through batch 2" in told["drain"]  # the query had delivered them all
    assert "0 dead letters" in told["dead-letters"]


def test_the_two_commands_are_targets_of_the_makefile() -> None:
    named = re.findall(r"^    make (\S+)", (CHECKOUT / "README.md").read_text(), flags=re.MULTILINE)
    targets = re.findall(r"^([a-z0-9-]+):", (CHECKOUT / "Makefile").read_text(), flags=re.MULTILINE)

    assert named == ["demo", "test"]
    assert set(named) <= set(targets)
