"""A delivery task whose worker dies, and that Spark runs again."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.house.sinks import Rejected
from tests.support.lasting import Lasting
from tests.support.streams import Home, Lines, append_line
from wal_sink import Chunk, DeadLetters

pytestmark = pytest.mark.spark

ROWS, CHUNK_ROWS, REFUSED, DIES_AT = 8, 2, 4, 6
DRIVER = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from tests.integration.test_lost_tasks import CHUNK_ROWS, Refusing
from tests.support.fixtures.spark import SPARK_CONF
from tests.support.streams import Home
from wal_sink import Delivery, Settings

spark = SparkSession.builder.master("local[2,4]").config(map=SPARK_CONF).getOrCreate()  # up to four attempts a task
spark.sparkContext.setLogLevel("ERROR")
place = Home(Path(sys.argv[1]))
to = Delivery(Refusing(place.root / "out.jsonl", idempotent=True), where="executors", on_rejected="dead_letter")
with place.sink(to, settings=Settings(chunk_rows=CHUNK_ROWS)) as sink:
    sink.run(place.feed.stream(spark).coalesce(1).writeStream.trigger(availableNow=True))
"""


@dataclass(frozen=True)
class Refusing(Lines):
    """Refuses a row once, and would take it later. Then its worker dies, once."""

    def write(self, chunk: Chunk) -> Any:
        ids = chunk.table.column(0).to_pylist()
        if ids[0] == REFUSED and self._is_first_time("refused"):
            append_line(self.path, json.dumps(self._line(chunk, ids[1:])))
            return Rejected({0: "no partition for this row yet"})
        if ids[0] == DIES_AT and self._is_first_time("died"):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().write(chunk)

    def _line(self, chunk: Chunk, ids: list[Any]) -> dict[str, Any]:
        return {"batch": chunk.batch_id, "key": "rest", "term": chunk.term, "ids": ids, "pid": os.getpid(), "name": ""}

    def _is_first_time(self, what: str) -> bool:
        try:
            (self.path.parent / what).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def test_a_row_that_a_lost_task_kept_as_a_dead_letter_does_not_come_too(other_sparks: Lasting, tmp_path: Path) -> None:
    """All of it happens within the second before a record. The copy of the task knows nothing of the dead letter."""
    place = Home(tmp_path)
    place.feed.add(range(ROWS))

    other_sparks.run(DRIVER, place.root)

    assert (tmp_path / "died").exists()
    assert {sent.term for sent in place.lines.sent()} == {1, 2}
    assert set(place.lines.ids()) == set(range(ROWS)) - {REFUSED}
    (letter,) = DeadLetters(str(place.wal)).all()
    assert letter.chunk.table.column(0).to_pylist() == [REFUSED]
