"""Processes that write by `SqlSink`, for tests that kill, stop and wake them.

As a program it imports everything once, which takes longest, and forks the writers. Each writer waits for a signal.
Arguments: URL, folder, seconds to wait for a lock, and for each writer `ordinal:batches:term`.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.support.processes import POLL_S, Child
from wal_sink.errors import FencedError
from wal_sink.sinks.base import SinkContext
from wal_sink.sinks.chunk import Chunk, Position
from wal_sink_backends.sql.sink import SqlSink

FENCED, GAVE_UP, FAILED = 3, 4, 5
BATCH_ROWS = 600
_CHUNK_ROWS = 200
_ATTEMPTS = 60
_LIMIT_S = 90.0


class Writer:
    """One of the writers, as the test sees it."""

    def __init__(self, nursery: Child, folder: Path, number: int) -> None:
        self._nursery = nursery
        self._base = folder / str(number)

    @property
    def output(self) -> str:
        return self._file("log").read_text() if self._file("log").exists() else ""

    def go(self) -> None:
        self._nursery.wait_until(self._file("pid").exists, "its writers waited", _LIMIT_S)
        self._file("go").touch()

    def wait_for_output(self, text: str) -> None:
        self._nursery.wait_until(lambda: text in self.output, f"a writer said {text!r}", _LIMIT_S)

    def signal(self, number: signal.Signals) -> None:
        os.kill(int(self._file("pid").read_text()), number)

    def wait(self) -> int:
        """Return its exit code. A negative code is the signal that ended it."""
        end = self._file("exit")
        self._nursery.wait_until(end.exists, "a writer ended", _LIMIT_S)
        return int(end.read_text())

    def _file(self, kind: str) -> Path:
        return self._base.with_suffix(f".{kind}")


@contextmanager
def writers(url: str, folder: Path, *whose: str, busy_timeout_s: float = 1) -> Iterator[Sequence[Writer]]:
    """Start a writer for each `ordinal:batches:term`. Each begins at its `go()`, and all are ended with the block."""
    with Child.python(Path(__file__), url, str(folder), str(busy_timeout_s), *whose, log=folder / "all.log") as nursery:
        yield [Writer(nursery, folder, number) for number in range(len(whose))]


def _main(url: str, folder: Path, busy_timeout_s: float, whose: Sequence[str]) -> None:
    pa.table({"id": [1]})  # imports pandas
    numbers = {}
    for number, who in enumerate(whose):
        pid = os.fork()
        if not pid:
            os._exit(_life(SqlSink(url, "flights", busy_timeout_s=busy_timeout_s), folder / str(number), who))
        numbers[pid] = number
        _tell(folder / f"{number}.pid", str(pid))
    while numbers:
        pid, status = os.wait()
        _tell(folder / f"{numbers.pop(pid)}.exit", str(os.waitstatus_to_exitcode(status)))
    time.sleep(_LIMIT_S)  # the test ends this process once all writers have ended


def _tell(path: Path, text: str) -> None:
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").rename(path)


def _life(sink: SqlSink, base: Path, who: str) -> int:
    ordinal, batches, term = map(int, who.split(":"))
    with base.with_suffix(".log").open("w", buffering=1) as log:
        while not base.with_suffix(".go").exists():
            time.sleep(POLL_S)
        try:
            _write(sink, ordinal, batches, term, log)
        except FencedError as error:
            print("fenced", error, file=log)
            return FENCED
        except Exception as error:  # noqa: BLE001 - written for the test, which fails
            print("failed", type(error).__name__, error, file=log)
            return FAILED
    return 0


def _write(sink: SqlSink, ordinal: int, batches: int, term: int, log: Any) -> None:
    slot = f"wal/default/{ordinal}"
    context = SinkContext(wal_id="wal", sink="default", term=term, batch_id=0, columns=("id",), on_executor=True)
    _patiently(lambda: sink.open(context), log)
    last = _patiently(lambda: sink.last(slot), log)
    for batch in range(last.batch_id if last else 0, batches):
        before = last
        for first in range(0, BATCH_ROWS, _CHUNK_ROWS):
            one = dataclasses.replace(_chunk(slot, ordinal, batch, first, term), follows=before)
            _patiently(partial(sink.write, one), log)
            print("wrote", batch, first, file=log)
            last = one.position
    sink.close()


def _chunk(slot: str, ordinal: int, batch: int, first: int, term: int) -> Chunk:
    segment, end = f"{ordinal}-{batch}", first + _CHUNK_ROWS
    ids = [ordinal * 10**9 + batch * 1000 + row for row in range(first, end)]
    return dataclasses.replace(
        Chunk.of(pa.table({"id": ids, "pad": ["x" * 50] * _CHUNK_ROWS}), key=f"{segment}-{first}"),
        batch_id=batch,
        segment_id=segment,
        rows=range(first, end),
        position=Position(slot, batch, end, segment),
        term=term,
        start=first,
    )


def _patiently(call: Callable[[], Any], log: Any) -> Any:
    """Retry temporary failures, as the core does."""
    for _ in range(_ATTEMPTS):
        try:
            return call()
        except FencedError:
            raise
        except Exception as error:  # noqa: BLE001 - the driver may raise anything
            print("again", type(error).__name__, error, file=log)
            time.sleep(0.1)
    raise TimeoutError("gave up")


if __name__ == "__main__":
    _main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), sys.argv[4:])
