"""Ready sinks of two kinds under a real Spark whose driver is killed: each row is in the target once.

`tests/contract/` and `make chaos` hold more of the sinks, without Spark.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.chaos.backend_deaths import Target
from tests.chaos.backends import TARGETS
from tests.support.processes import Child
from tests.support.streams import SESSION, Home

pytestmark = pytest.mark.spark

ROWS_PER_BATCH = 40
BATCHES_PER_LIFE = 4
KILLS = 2
LIVES = 8
"""On a slow machine, a driver may have finished its work before it is killed. Then there is another life."""

DRIVER = (
    SESSION.format(master="local[2]")
    + """
import json, sys
from pathlib import Path
from tests.support.streams import Home, small_chunks
place, sinks, once = Home(Path(sys.argv[1])), json.loads(sys.argv[2]), sys.argv[3] == "once"
writer = place.feed.stream(spark).selectExpr("id", "concat('word ', id) AS word").writeStream
with place.sink(sinks, settings=small_chunks(10)) as sink:
    sink.run(writer.trigger(availableNow=True) if once else writer)
"""
)
SINKS = {"sqlite": "SQLite", "files": "files, two-phase"}


def test_a_driver_that_is_killed_amid_its_batches_loses_and_doubles_no_row(tmp_path: Path) -> None:
    place = Home(tmp_path)
    with ExitStack() as stack:
        targets = dict[str, Target]()
        for sink, name in SINKS.items():
            (tmp_path / sink).mkdir()
            targets[sink] = stack.enter_context(TARGETS[name](tmp_path / sink))
        urls = json.dumps({sink: target.url for sink, target in targets.items()})

        def driver(mode: str) -> Child:
            return Child.python(DRIVER, place.root, urls, mode, log=place.root / "driver.log")

        given = killed_at = lives = 0
        while lives < KILLS or (killed_at == given and lives < LIVES):
            lives += 1
            batches = given + BATCHES_PER_LIFE
            place.feed.add(*(range(n * ROWS_PER_BATCH, (n + 1) * ROWS_PER_BATCH) for n in range(given, batches)))
            with driver("on") as child:
                second = place.checkpoint / "offsets" / str(given + 1)
                child.wait_until(second.exists, "it began its second batch")
                child.kill()
            given = batches
            killed_at = len(list((place.checkpoint / "commits").glob("[0-9]*")))
        with driver("once") as child:
            child.succeed()
        arrived = {sink: sorted(target.ids()) for sink, target in targets.items()}
        assert arrived == {sink: list(range(given * ROWS_PER_BATCH)) for sink in SINKS}
