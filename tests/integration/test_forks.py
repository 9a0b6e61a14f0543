"""A driver whose program forks: what the child does when it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes import Child
from tests.support.streams import SESSION, Home

pytestmark = pytest.mark.spark

BATCHES, ROWS = 6, 10
DRIVER = """
import os, sys, time
from pathlib import Path
from tests.support.streams import Home
from tests.support.waiting import wait_until

place = Home(Path(sys.argv[1]))
with place.sink() as sink:
    query = sink.start(place.writer(spark))
    wait_until(lambda: place.lines.ids(), "the first batch is delivered", timeout_s=200)
    if not (pid := os.fork()):
        sys.exit(0)
    os.waitpid(pid, 0)
    print("child ended, query active:", query.isActive, flush=True)
    query.awaitTermination()
print("left", flush=True)
spark.stop()
"""


def test_a_forked_child_that_exits_does_not_end_the_stream_of_its_parent(tmp_path: Path) -> None:
    place = Home(tmp_path)
    place.feed.add(*(range(batch * ROWS, (batch + 1) * ROWS) for batch in range(BATCHES)))
    program = SESSION.format(master="local[2]") + DRIVER
    with Child.python(program, place.root, log=tmp_path / "log", limit_s=240) as child:
        child.succeed()
    assert place.lines.ids() == list(range(BATCHES * ROWS))
