"""Every verb of the command line with arguments for a WAL that `Place` makes: a table for the tests of all verbs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
from click.testing import CliRunner, Result

from tests.house.cli import main
from tests.house.log import Log, note_end, paths
from tests.house.operate import write_down
from tests.house.protocol import Run
from tests.house.stores import Store, StoreSpec, open_store
from tests.house.support import SYSTEM
from wal_sink.cli.sources import STORAGE_VARIABLE
from wal_sink.operate.changes import Order
from wal_sink.settings import Settings
from wal_sink.testing import FakeQuery

BATCHES = 3
_MODULE = """
from wal_sink import PermanentError, Rejected

def refuse(chunk):
    return Rejected({0: "not this one"}) if chunk.batch_id == 0 else None

def take(chunk):
    pass

def fail(chunk):
    if chunk.batch_id > 0:
        raise PermanentError("the target is gone")
"""


@dataclass(frozen=True)
class Place:
    """A WAL of three complete batches, with a checkpoint and the module of its sinks.

    `letters` has every batch and one dead letter, `orders` is a table with every batch, and `late` lacks two batches.
    One skip was ordered and killed.
    """

    folder: Path
    wal: str
    options: Mapping[str, Any] = field(default_factory=dict)
    copy: Path = Path("copy")
    """A folder that does not exist yet."""

    @property
    def checkpoint(self) -> str:
        return str(self.folder / "checkpoint")

    @property
    def table(self) -> str:
        return f"sqlite:///{self.folder / 'orders.db'}?table=orders"

    @property
    def restored(self) -> str:
        """The same table, restored to a moment before its first row."""
        return f"sqlite:///{self.folder / 'restored.db'}?table=orders"

    @property
    def environment(self) -> dict[str, str]:
        return {STORAGE_VARIABLE: json.dumps(self.options)}

    def store(self) -> Store:
        return open_store(StoreSpec(self.wal, self.options))

    def module(self, name: str) -> str:
        return f"verbs_sinks:{name}"

    def make(self) -> None:
        """Stage the batches and serve the sinks. The folder must be on `sys.path`."""
        (self.folder / "verbs_sinks.py").write_text(_MODULE)
        checkpoint = open_store(StoreSpec(self.checkpoint))
        run = Run(self.store(), checkpoint, Settings(chunk_rows=2))
        run.open()
        run.become_stager()
        list(FakeQuery(checkpoint, lambda *_: [pa.table({"id": [1, 2, 3]})]).batches(run, BATCHES))
        run.end()
        note_end(run.log, paths.STAGER_ROLE, 1)  # this process lives on
        self._drain("letters", self.module("refuse"), "--on-rejected", "dead_letter")
        self._drain("orders", self.table)
        self._drain("late", self.module("fail"), code=1)
        log = Log(self.store(), SYSTEM, SYSTEM.new_id())
        write_down(log, Order("skip", "late", {"batch": 9}, why="a test"), {})

    def invoke(self, *args: str) -> Result:
        return CliRunner(env=self.environment).invoke(main, args)

    def _drain(self, name: str, target: str, *more: str, code: int = 0) -> None:
        done = self.invoke("drain", self.wal, "--to", target, "--name", name, "--start-from", "earliest", *more)
        assert done.exit_code == code, (done.output, done.exception)


@dataclass(frozen=True)
class Row:
    """How a verb is called."""

    arguments: Callable[[Place], list[str]]
    writes: bool = False
    """Whether it changes the WAL."""
    needs_wal: bool = True
    """Whether it fails where there is none."""
    lists: bool = True
    """Whether it lists a folder of the WAL."""


WHY = ("--yes", "--why", "a test")
ROWS: Mapping[str, Row] = {
    "status": Row(lambda place: [place.wal], needs_wal=False),
    "batches": Row(lambda place: [place.wal]),
    "show": Row(lambda place: [place.wal, "1"]),
    "report": Row(lambda place: [place.wal, "--output", f"{place.copy}.html"]),
    "drain": Row(lambda place: [place.wal, "--to", place.module("take"), "--name", "late"], writes=True),
    "sinks list": Row(lambda place: [place.wal]),
    "sinks retire": Row(lambda place: [place.wal, "late", "--drop-pending", "2", "--why", "a test"], writes=True),
    "sinks rename": Row(lambda place: [place.wal, "late", "later", "--why", "a test"], writes=True),
    "letters list": Row(lambda place: [place.wal, "--name", "letters"]),
    "letters show": Row(lambda place: [place.wal, "0", "--name", "letters"]),
    "letters replay": Row(lambda place: [place.wal, "--to", place.module("take"), "--name", "letters"], writes=True),
    "letters delete": Row(lambda place: [place.wal, "--name", "letters", "--all", "--yes"], writes=True),
    "verify": Row(lambda place: [place.wal, "--checkpoint", place.checkpoint, "--to", place.table, "--name", "orders"]),
    "doctor": Row(lambda place: [place.wal, "--checkpoint", place.checkpoint, "--to", place.table], needs_wal=False),
    "estimate": Row(lambda _: ["--segments", "2"], needs_wal=False),
    "skip": Row(lambda place: [place.wal, "1", "--name", "late", *WHY], writes=True),
    "catch-up": Row(
        lambda place: [place.wal, "--name", "orders", "--to", place.restored, "--empty", *WHY], writes=True
    ),
    "settle": Row(
        lambda place: [place.wal, f"{place.copy}-rest", "--checkpoint", str(place.copy), "--newest", "complete"]
    ),
}
"""Each verb, in the order of the help."""


def verbs(group: click.Group = main, before: str = "") -> Iterator[str]:
    """Yield the verbs of the command line, those of groups with the group's name."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from verbs(command, f"{before}{name} ")
        else:
            yield f"{before}{name}"
