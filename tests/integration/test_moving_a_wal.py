"""Moving the WAL of a real query to S3 with the command line, which is killed on its way, and going on there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.processes import python_environment
from tests.support.streams import Home
from tests.support.waiting import PATIENCE_S
from wal_sink.runtime.clock import SYSTEM
from wal_sink.stores.base import Store
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import StoreSpec
from wal_sink.wal import paths
from wal_sink.wal.holders import note_end
from wal_sink.wal.log import Log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.servers.s3_server import S3Server

pytestmark = [pytest.mark.spark, pytest.mark.s3]

KILLED_AT = (1, 8, 16, 30)
"""Numbers of objects in the new place at which the command is killed."""


def command(wal: str, new: str, server: S3Server, *more: str) -> dict[str, Any]:
    environment = python_environment({"WAL_SINK_COPY_OPTIONS": json.dumps(server.storage_options)})
    arguments = [sys.executable, "-m", "wal_sink.cli", "copy", wal, new, "--move", "--yes", *more]
    return {"args": arguments, "env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


def content(store: Store) -> dict[str, bytes]:
    names = [name for name in store.list("", recursive=True) if not name.startswith("probe/")]
    return {name: store.read(name) for name in names if name not in (paths.COPY, paths.COPIED)}


def test_a_query_goes_on_at_the_new_place_although_the_move_was_killed(
    spark: SparkSession, tmp_path: Path, s3_server: S3Server, s3_url: str
) -> None:
    """Nothing is lost, nothing comes twice, and the earlier place is refused."""
    place = Home(tmp_path)
    place.feed.add(*([number] for number in range(8)))
    place.run(spark, place.lines)
    place.feed.add([8], [9])
    place.run(spark, None)  # two batches that nobody has
    wal, new = str(place.wal), f"{s3_url}/moved"
    forget_this_process(wal)

    there = open_store(StoreSpec(new, s3_server.storage_options))
    for count in KILLED_AT:
        with (
            held(s3_server, partial(has_objects, there, count)) as reached,
            subprocess.Popen(**command(wal, new, s3_server)) as process,
        ):
            try:
                assert reached.wait(PATIENCE_S)
            finally:
                os.kill(process.pid, signal.SIGKILL)
        assert paths.WAL not in there.list("")
    done = subprocess.run(**command(wal, new, s3_server, "--json"), timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["move"]

    assert content(there) == content(open_store(StoreSpec(wal)))
    place.feed.add([10])
    moved = replace(place, wal_url=new)
    moved.run(spark, place.lines, storage_options=s3_server.storage_options)
    assert (place.lines.ids(), place.lines.repeats()) == (list(range(11)), 0)


@contextmanager
def held(server: S3Server, condition: Callable[[], bool]) -> Iterator[threading.Event]:
    """Hold back what is written to the new place once the condition holds, which sets the event, and refuse it then."""
    running = server._server._server
    assert running is not None
    answered, reached, ended = running.app, threading.Event(), threading.Event()

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] != "PUT" or "/moved/" not in environ["PATH_INFO"] or not condition():
            return answered(environ, start_response)
        reached.set()
        ended.wait(2 * PATIENCE_S)
        start_response("503 Service Unavailable", [("Content-Length", "0")])
        return []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "app", answer)
        try:
            yield reached
        finally:
            ended.set()


def has_objects(store: Store, count: int) -> bool:
    return len(store.list("", recursive=True)) >= count


def forget_this_process(wal: str) -> None:
    """Record that the stager's process ended: this test goes on in it."""
    log = Log(open_store(StoreSpec(wal)), SYSTEM, SYSTEM.new_id())
    note_end(log, paths.STAGER_ROLE, max(log.numbers(paths.terms(paths.STAGER_ROLE))))
