"""The rights that each verb needs on S3, as MinIO enforces them: with these it works, without any one it says which
is missing.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import wal_sink.walsink
from tests.house.cli import main
from tests.house.kit import resolve, served_sink
from tests.house.log import note_end, paths
from tests.house.protocol import Run
from tests.house.sinks import Chunk
from tests.house.stores import StoreSpec, open_store
from tests.support.minio_policies import CHECKPOINT, LOG, POLICIES, actions, example, granting, options_with, without
from tests.support.servers.minio import MinioServer
from wal_sink.errors import WalSinkError
from wal_sink.operate.doctor import PERMISSION
from wal_sink.settings import Settings
from wal_sink.testing import FakeQuery

pytestmark = pytest.mark.s3

GET, PUT, DELETE, LIST = "s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:ListBucket"
TARGETS = """
from wal_sink import PermanentError, Rejected
from wal_sink_backends.sql import SqlSink
ledger = SqlSink("sqlite:///ledger.db", "orders")
def refuse(chunk): return Rejected({0: "not this one"})
def take(chunk): pass
def fail(chunk): raise PermanentError("the target is gone")
"""
_numbers = itertools.count()


@dataclass(frozen=True)
class Rights:
    """The actions of a verb on the objects of the log, on those of the checkpoint, and on the bucket."""

    arguments: Sequence[str]
    """The arguments of a call that works: WAL, CHECKPOINT, COPY and DATABASE stand for addresses."""
    log: Sequence[str] = ()
    checkpoint: Sequence[str] = ()
    bucket: Sequence[str] = (LIST,)
    after: str = ""
    """The target to which the log was drained before: `refuse` leaves dead letters, `fail` a sink without any row,
    `ledger` a table with its ledger.
    """
    wishes: Sequence[str] = ()
    """Actions on the bucket whose absence is only a warning."""


_DRAIN = ("WAL", "--to", "DATABASE", "--checkpoint", "CHECKPOINT", "--start-from", "earliest")
_WHY = ("--why", "a test", "--yes")
RIGHTS: Mapping[str, Rights] = {
    "status": Rights(["WAL"], [GET]),
    "batches": Rights(["WAL"], [GET]),
    "show": Rights(["WAL", "0"], [GET]),
    "drain": Rights(_DRAIN, [GET, PUT, DELETE], [GET]),
    "sinks list": Rights(["WAL"], [GET], after="refuse"),
    "sinks retire": Rights(["WAL", "default", "--drop-pending", "9"], [GET, PUT], after="refuse"),
    "sinks rename": Rights(["WAL", "default", "other"], [GET, PUT], after="refuse"),
    "letters list": Rights(["WAL"], [GET], after="refuse"),
    "letters show": Rights(["WAL", "0"], [GET], after="refuse"),
    "letters replay": Rights(["WAL", "--to", "targets_here:take"], [GET, PUT], after="refuse"),
    "verify": Rights(["WAL", "--checkpoint", "CHECKPOINT"], [GET], [GET], after="refuse"),
    "settle": Rights(["WAL", "REPORT", "--checkpoint", "COPY", "--newest", "complete"], [GET], after="fail"),
    "skip": Rights(["WAL", "0", *_WHY], [GET, PUT], after="fail"),
    "catch-up": Rights(["WAL", "--to", "DATABASE", "--empty", *_WHY], [GET, PUT], after="ledger"),
    "report": Rights(["WAL", "-o", "REPORT"], [GET], after="refuse"),
    "letters delete": Rights(["WAL", "--batch", "0", "--yes"], [GET, PUT, DELETE], after="refuse"),
    "estimate": Rights(["--rows-per-second", "10"], bucket=()),
    "doctor": Rights(["WAL", "--checkpoint", "CHECKPOINT"], [GET, PUT, DELETE], [GET], [LIST], wishes=(PERMISSION,)),
}
"""One row for each verb. A new verb needs a row."""
READERS = sorted(verb for verb, rights in RIGHTS.items() if set(rights.log) <= {GET} and not rights.checkpoint)


def verbs(group: click.Group, head: str = "") -> Iterator[str]:
    for name, verb in group.commands.items():
        if isinstance(verb, click.Group):
            yield from verbs(verb, f"{head}{name} ")
        else:
            yield head + name


class Place:
    """A log of two batches in MinIO, with its checkpoint."""

    def __init__(self, minio: MinioServer, folder: Path, *, after: str) -> None:
        self.minio = minio
        self.name = f"rights-{next(_numbers)}"
        self.root = f"s3://{minio.bucket}/{self.name}"
        self.folder = folder
        stage(self.root, minio.storage_options)
        if after:
            done = self.call(
                "drain", [*_DRAIN[:2], f"targets_here:{after}", *_DRAIN[3:], "--on-rejected", "dead_letter"]
            )
            assert done.exit_code == (1 if after == "fail" else 0), done.output

    def call(self, verb: str, arguments: Sequence[str], policy: Mapping[str, Any] | None = None) -> Result:
        options = self.minio.storage_options if policy is None else options_with(self.minio, policy, self.name)
        addresses = {
            "WAL": f"{self.root}/{LOG}",
            "CHECKPOINT": f"{self.root}/{CHECKPOINT}",
            "COPY": str(self.folder / f"copy-{next(_numbers)}"),
            "REPORT": str(self.folder / f"report-{next(_numbers)}.html"),
            "DATABASE": f"sqlite:///{self.folder}/rows-{next(_numbers)}.db?table=orders",
        }
        given = [addresses.get(argument, argument) for argument in arguments]
        env = {"WAL_SINK_STORAGE_OPTIONS": json.dumps(options)}
        return CliRunner(env=env).invoke(main, [*verb.split(), *given], catch_exceptions=False)


def stage(root: str, options: Mapping[str, object], *, drained: bool = False) -> None:
    """Run two batches of a query. With `drained`, deliver, mark and collect them, too."""
    checkpoint = open_store(StoreSpec(f"{root}/{CHECKPOINT}", options))
    run = Run(open_store(StoreSpec(f"{root}/{LOG}", options)), checkpoint, Settings(retention_batches=100))
    delivery, sink = resolve(take_nothing)
    run.open([served_sink("own", sink, delivery, run.log)] if drained else [])
    run.become_stager()
    query = FakeQuery(checkpoint, lambda batch, _end: [pa.table({"id": [batch]})])
    for _ in query.batches(run, 2):
        if drained:
            run.deliver_all()
    run.end()
    note_end(run.log, paths.STAGER_ROLE, 1)


def take_nothing(_chunk: Chunk) -> None:
    return None


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of a command, with targets to import."""
    (tmp_path / "targets_here.py").write_text(TARGETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(wal_sink.walsink, "current_session", lambda: None)
    return tmp_path


def test_every_verb_has_its_row() -> None:
    assert sorted(verbs(main)) == sorted(RIGHTS)


def test_the_page_lists_the_rights_of_every_verb() -> None:
    page = (POLICIES.parents[2] / "docs" / "SECURITY.md").read_text()
    rows = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("| `") and line.count("|") == 5]
    listed = [
        (verb, [re.findall(r"s3:\w+", cell) for cell in cells[1:]])
        for cells in rows
        for verb in re.findall("`(.+?)`", cells[0])
    ]
    found = dict(listed)
    assert len(listed) == len(found), "a verb stands in two rows"
    wanted = {verb: [[*one.log], [*one.checkpoint], [*one.bucket]] for verb, one in RIGHTS.items()}
    assert found == wanted
    assert all(wish in page for one in RIGHTS.values() for wish in one.wishes)


@pytest.mark.parametrize("verb", RIGHTS)
def test_a_verb_works_with_its_rights_and_names_each_missing_one(verb: str, minio: MinioServer, folder: Path) -> None:
    rights = RIGHTS[verb]
    policy = granting(rights.log, rights.checkpoint, rights.bucket)
    for statement, action in actions(policy):
        place = Place(minio, folder, after=rights.after)
        refused = place.call(verb, rights.arguments, without(policy, statement, action))
        assert refused.exit_code == 1, (verb, statement, action, refused.output)
        assert f"this request needs {action}:" in refused.output, (verb, statement, action, refused.output)
    done = Place(minio, folder, after=rights.after).call(verb, rights.arguments, policy)
    assert done.exit_code == 0, done.output
    for wish in rights.wishes:
        assert f"unknown: these credentials have no permission to read it ({wish})" in done.output


@pytest.mark.parametrize("verb", ["drain", "sinks retire", "letters replay"])
def test_the_policy_of_a_reader_writes_nothing(verb: str, minio: MinioServer, folder: Path) -> None:
    rights = RIGHTS[verb]
    place = Place(minio, folder, after=rights.after)
    before = open_store(StoreSpec(place.root, minio.storage_options)).list("", recursive=True)
    refused = place.call(verb, rights.arguments, example("reader"))
    assert (refused.exit_code, "this request needs" in refused.output) == (1, True), refused.output
    assert open_store(StoreSpec(place.root, minio.storage_options)).list("", recursive=True) == before


@pytest.mark.parametrize("name", ["reader", "drain", "doctor"])
def test_a_policy_grants_what_its_verbs_need_and_no_more(name: str) -> None:
    chosen = READERS if name == "reader" else [name]
    wanted = {
        *(("Log", action) for verb in chosen for action in RIGHTS[verb].log),
        *(("Checkpoint", action) for verb in chosen for action in RIGHTS[verb].checkpoint),
        *(("Bucket", action) for verb in chosen for action in (*RIGHTS[verb].bucket, *RIGHTS[verb].wishes)),
    }
    found = {(statement.replace("Listings", "Bucket"), action) for statement, action in actions(example(name))}
    assert found == wanted


def test_the_policy_of_a_drain_grants_what_every_verb_but_the_doctor_needs() -> None:
    """Each verb works with its own rights, as another test shows."""
    drain = RIGHTS["drain"]
    more = {
        verb
        for verb, rights in RIGHTS.items()
        if not (set(rights.log) <= set(drain.log) and set(rights.checkpoint) <= set(drain.checkpoint))
    }
    assert more == set()


def test_the_policy_of_the_doctor_leaves_nothing_unknown(minio: MinioServer, folder: Path) -> None:
    done = Place(minio, folder, after="").call("doctor", RIGHTS["doctor"].arguments, example("doctor"))
    assert done.exit_code == 0, done.output
    assert "no permission" not in done.output


def test_a_query_works_with_its_policy_and_names_each_missing_right(minio: MinioServer) -> None:
    """The query is simulated, and writes its checkpoint with the same rights as its log."""
    policy = example("query")
    # Spark itself deletes old entries of the checkpoint; a simulated query has none.
    for statement, action in set(actions(policy)) - {("Checkpoint", DELETE)}:
        name = f"query-{next(_numbers)}"
        options = options_with(minio, without(policy, statement, action), name)
        with pytest.raises(WalSinkError, match=f"this request needs {action}:"):
            stage(f"s3://{minio.bucket}/{name}", options, drained=True)
    name = f"query-{next(_numbers)}"
    stage(f"s3://{minio.bucket}/{name}", options_with(minio, policy, name), drained=True)
    found = open_store(StoreSpec(f"s3://{minio.bucket}/{name}/{LOG}", minio.storage_options)).list("sinks/own/markers")
    assert found
