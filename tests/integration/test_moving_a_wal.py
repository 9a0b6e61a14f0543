"""Moving a WAL with the tools of the stores, by the lines of docs/operations/moving.md."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import wal_sink.walsink
from tests.house.cli import main
from tests.house.log import note_end, paths
from tests.house.protocol import Run
from tests.house.stores import Store, StoreSpec, open_store
from tests.support.components import require
from tests.support.processes import CHECKOUT
from tests.support.servers.seaweedfs import SeaweedServer
from tests.support.waiting import PATIENCE_S
from wal_sink.settings import Settings
from wal_sink.testing import FakeQuery

pytestmark = pytest.mark.s3

PAGE = (CHECKOUT / "docs/operations/moving.md").read_text()
TO_S3, TO_DISK = re.findall(r"^ +\$ (aws s3 .*|rsync .*)\n +\$ (aws s3 .*|cp .*)$", PAGE, re.MULTILINE)
"""The lines of the page: everything but `wal.json`, then `wal.json`."""
_numbers = itertools.count()


@dataclass(frozen=True)
class Wal:
    """A place of a WAL, the tools that reach it, and the rows that its sink got."""

    url: str
    folder: Path
    options: Mapping[str, Any] = field(default_factory=dict)

    def store(self) -> Store:
        return open_store(StoreSpec(self.url, self.options))

    def stage(self, through: int) -> Run:
        files = open_store(StoreSpec(str(self.folder / "checkpoint")))
        run = Run(self.store(), files, Settings())
        run.open()
        run.become_stager()
        list(
            FakeQuery(files, lambda batch, _: [pa.table({"id": [2 * batch, 2 * batch + 1]})]).batches(run, through + 1)
        )
        return run

    def given(self) -> tuple[str, str]:
        """Its options, on the command line."""
        return ("--storage-options", json.dumps(self.options))

    def drain(self, *more: str, code: int | None = 0) -> Result:
        to = ("--to", f"sqlite:///{self.folder}/rows.db?table=rows", "--start-from", "earliest")
        where = ("--checkpoint", str(self.folder / "checkpoint"))
        done = CliRunner().invoke(main, ["drain", self.url, *to, *where, *self.given(), *more])
        assert code in {None, done.exit_code}, (done.output, done.exception)
        return done

    def verify(self, code: int = 0) -> None:
        done = CliRunner().invoke(main, ["verify", self.url, *self.given()])
        assert done.exit_code == code, (done.output, done.exception)

    def rows(self) -> list[int]:
        with closing(sqlite3.connect(self.folder / "rows.db")) as database:
            return sorted(row for (row,) in database.execute("SELECT id FROM rows"))


@pytest.fixture
def places(tmp_path: Path, seaweedfs: SeaweedServer, monkeypatch: pytest.MonkeyPatch) -> tuple[Wal, Wal, Wal]:
    """A WAL of three batches on a disk, of which the sink has the first; a place on S3; another disk."""
    require(
        bool(shutil.which("aws") and shutil.which("rsync")), "install awscli and rsync (apt-get install awscli rsync)"
    )
    monkeypatch.setattr(wal_sink.walsink, "current_session", lambda: None)
    options = seaweedfs.storage_options
    for name, value in {
        "AWS_ACCESS_KEY_ID": options["key"],
        "AWS_SECRET_ACCESS_KEY": options["secret"],
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    disk = Wal(str(tmp_path / "wal"), tmp_path)
    ended(disk.stage(0))
    disk.drain()
    ended(disk.stage(2))
    s3 = Wal(f"s3://{seaweedfs.bucket}/moved-{next(_numbers)}", tmp_path, options)
    return disk, s3, Wal(str(tmp_path / "large"), tmp_path)


def ended(run: Run) -> None:
    """As if its process had ended in order."""
    run.end()
    note_end(run.log, paths.STAGER_ROLE, max(run.log.numbers(paths.terms(paths.STAGER_ROLE))))


def lines(old: Wal, new: Wal) -> Iterator[list[str]]:
    """The commands of the page for these places."""
    for line in TO_S3 if "s3://" in old.url + new.url else TO_DISK:
        there = line.replace("s3://lake/wal/shop", new.url).replace("/mnt/large/shop", new.url)
        tool, *arguments = shlex.split(there.replace("s3://old/wal/shop", old.url).replace("/srv/wal/shop", old.url))
        # Before 2.13 aws knows no AWS_ENDPOINT_URL, and would ask Amazon.
        server = ["--endpoint-url", str({**old.options, **new.options}["endpoint_url"])] if tool == "aws" else []
        yield [tool, *server, *arguments]


def copy(old: Wal, new: Wal) -> None:
    for line in lines(old, new):
        subprocess.run(line, check=True, capture_output=True, timeout=PATIENCE_S)


@pytest.mark.parametrize("way", ["to S3", "to a disk", "from S3"])
def test_a_wal_is_moved_by_the_lines_of_the_page(places: tuple[Wal, Wal, Wal], way: str) -> None:
    disk, s3, large = places
    old, new = {"to S3": (disk, s3), "to a disk": (disk, large), "from S3": (s3, large)}[way]
    if old is s3:
        copy(disk, s3)
        disk.store().delete([paths.WAL])
        s3.drain("--moved-from", disk.url)
        ended(s3.stage(2))

    copy(old, new)
    new.verify()
    assert "Two copies of one WAL" in new.drain(code=2).output
    said = new.drain("--moved-from", old.url, code=2).output
    assert ("Both places would deliver" in said) != (old is s3)  # no options for S3: out of sight
    old.store().delete([paths.WAL])

    new.drain("--moved-from-gone" if old is s3 else "--moved-from", old.url)

    assert new.rows() == list(range(6))
    assert "must have existed" in old.drain(code=1).output
    ended(new.stage(4))
    new.drain()
    assert new.rows() == list(range(10))


def test_a_copy_that_is_killed_opens_nowhere_and_the_same_lines_complete_it(places: tuple[Wal, Wal, Wal]) -> None:
    old, new, _ = places
    first, last = lines(old, new)
    with subprocess.Popen(first, stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + PATIENCE_S
        while not new.store().list("") and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
    assert new.store().list("")
    assert "must have existed" in new.drain("--moved-from", old.url, code=1).output
    subprocess.run(last, check=True, capture_output=True, timeout=PATIENCE_S)  # too early: not everything is there
    new.store().delete([_some_manifest(new)])
    old_record = old.store().read(paths.WAL)
    old.store().delete([paths.WAL])
    early = new.drain("--moved-from", old.url, code=None)  # what is found first depends on where the copy was killed
    assert early.exit_code
    assert "copy the WAL again" in early.output or "must have existed" in early.output
    old.store().create(paths.WAL, old_record)

    copy(old, new)
    old.store().delete([paths.WAL])
    new.drain("--moved-from", old.url)

    assert new.rows() == list(range(6))


def _some_manifest(wal: Wal) -> str:
    names = wal.store().list("", recursive=True)
    return next((name for name in names if "/manifest-" in name), next(name for name in names if name != paths.WAL))


def test_a_wal_that_lives_while_it_is_copied_delivers_from_one_place_only(places: tuple[Wal, Wal, Wal]) -> None:
    old, new, _ = places
    run = old.stage(3)
    copy(old, new)
    old.store().delete([paths.WAL])
    assert "Stop that process first" in new.drain("--moved-from", old.url, code=1).output

    note_end(run.log, paths.STAGER_ROLE, max(run.log.numbers(paths.terms(paths.STAGER_ROLE))))
    batches = FakeQuery(open_store(StoreSpec(str(old.folder / "checkpoint"))), lambda *_: [pa.table({"id": [8, 9]})])
    list(batches.batches(run, 5))  # it lives, whatever its record says
    assert "copy the WAL again" in new.drain("--moved-from", old.url, code=2).output
    first, _ = lines(old, new)
    subprocess.run(first, check=True, capture_output=True, timeout=PATIENCE_S)

    new.drain("--moved-from", old.url)

    assert new.rows() == list(range(10))
    new.verify()
