"""Every command that changes a WAL refuses a copy of it. Which commands do so is found by running them."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import click
import pyarrow as pa
import pytest
from click.testing import CliRunner

import wal_sink.walsink
from tests.support.small_run import served_sink
from wal_sink.cli.main import main
from wal_sink.lifecycle.run import Run
from wal_sink.settings import Delivery, Settings
from wal_sink.sinks.base import Rejected
from wal_sink.sinks.chunk import Chunk
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import StoreSpec
from wal_sink.testing import FakeQuery
from wal_sink.wal import paths
from wal_sink.wal.holders import note_end

MODULE = """
def take(chunk):
    pass
"""
WRITING = {"drain", "dead-letters replay", "sinks retire", "sinks rename"}
"""Known commands of this program: the search below must find these, and may find more."""
VALUES = {"batch": "0", "name": "default", "old": "default", "to": "copied_targets:take"}
"""Values for the parameters that commands require. A new parameter needs a value here."""


def refuse_all(chunk: Chunk) -> Rejected:
    return Rejected(dict.fromkeys(range(chunk.num_rows), "none"))


@pytest.fixture
def wal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A WAL of one batch, which is delivered, with a dead letter. No process serves its sink."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(wal_sink.walsink, "current_session", lambda: None)
    (tmp_path / "copied_targets.py").write_text(MODULE)
    checkpoint = open_store(StoreSpec(str(tmp_path / "checkpoint")))
    run = Run(open_store(StoreSpec(str(tmp_path / "wal"))), checkpoint, Settings())
    run.open([served_sink(run, "default", Delivery(refuse_all, on_rejected="dead_letter"))])
    run.become_stager()
    for _ in FakeQuery(checkpoint, lambda *_: [pa.table({"id": [1]})]).batches(run, 1):
        run.deliver_all()
    run.end()
    note_end(run.log, paths.STAGER_ROLE, 1)
    return tmp_path / "wal"


def verbs(group: click.Group, *above: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command of the command line, of groups in groups too."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from verbs(command, *above, name)
        else:
            yield (*above, name), command


OF_A_WAL = {" ".join(names): command for names, command in verbs(main) if "wal" in {p.name for p in command.params}}


def arguments(command: click.Command, wal: Path) -> list[str]:
    """Return the arguments that a command requires, and the WAL."""
    given = {**VALUES, "wal": str(wal), "new": f"{wal.name}-other"}
    required = [parameter for parameter in command.params if parameter.required]
    options = [(max(each.opts, key=len), given[each.name or ""]) for each in required if isinstance(each, click.Option)]
    positional = [given[each.name or ""] for each in required if isinstance(each, click.Argument)]
    yes = ["--yes"] if any(each.name == "yes" for each in command.params) else []
    return [*positional, *itertools.chain.from_iterable(options), *yes]


def content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_the_search_finds_the_commands_that_are_known_to_write() -> None:
    assert set(OF_A_WAL) > WRITING


@pytest.mark.parametrize("verb", sorted(OF_A_WAL))
def test_a_command_that_writes_refuses_a_copy_of_a_wal(verb: str, wal: Path) -> None:
    shutil.copytree(wal, copy := wal.with_name("copy"))
    before = content(copy)

    there = CliRunner().invoke(main, [*verb.split(), *arguments(OF_A_WAL[verb], copy)])
    of_copy = content(copy)
    here = CliRunner().invoke(main, [*verb.split(), *arguments(OF_A_WAL[verb], wal)])

    assert here.exit_code == 0, (here.output, here.exception)
    writes = content(wal) != before
    assert writes or verb not in WRITING
    assert of_copy == before
    assert there.exit_code == (2 if writes else 0), (there.output, there.exception)
    assert ("Two copies of one WAL would deliver the same batches twice" in there.stderr) is writes
