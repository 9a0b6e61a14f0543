"""The archive for a bug report: no planted secret is in it, it is whole or not there, and it overwrites nothing."""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from wal_sink.checking.kinds import KINDS, Kind
from wal_sink.doctor.bundle import bundle, check_free, write
from wal_sink.doctor.contents import examine_contents
from wal_sink.doctor.report import Report, shown_report
from wal_sink.doctor.secrets import known_secrets
from wal_sink.doctor.structure import NEWEST, structure
from wal_sink.doctor.wal_checks import checkpoint_findings
from wal_sink.errors import ConfigError, StoreError
from wal_sink.inspection import read_status
from wal_sink.lifecycle.run import Run
from wal_sink.redaction import Redactor
from wal_sink.reporting.findings import fault
from wal_sink.runtime.clock import SYSTEM
from wal_sink.settings import Delivery, Settings
from wal_sink.sinks.base import Sink
from wal_sink.sinks.chunk import Chunk
from wal_sink.stores.base import Store
from wal_sink.stores.measured import MeasuredStore
from wal_sink.stores.memory import MemoryStore
from wal_sink.stores.spec import StoreSpec
from wal_sink.testing import FakeQuery, simulated_runtime
from wal_sink.testing.simulation.served import served_sink

_numbers = itertools.count()
NO_SECRETS = Redactor([])
HUSH = "hush"
"""A part of every planted secret."""


class Talkative(Sink):
    """A sink whose description holds a secret, which it must not."""

    def describe(self) -> str:
        return "hush-described(1)"

    def write(self, chunk: Chunk) -> None:
        del chunk


def new_wal(rows: Iterable[str] = ("hush-in-a-row",), batches: int = 2) -> MemoryStore:
    number = next(_numbers)
    wal, checkpoint = (MemoryStore(StoreSpec(f"memory://{one}-bundle-{number}")) for one in ("wal", "checkpoint"))
    run = Run(wal, checkpoint, Settings(), runtime=simulated_runtime())
    run.open([served_sink("default", Talkative(), Delivery(Talkative()), run.log, stages=False)])
    run.become_stager()
    query = FakeQuery(checkpoint, lambda _batch, _end: [pa.table({"hush-column": list(rows)})])
    for _ in query.batches(run, batches):
        run.deliver_all()
    return wal


def files_in(data: bytes) -> dict[str, str]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        members = archive.getmembers()
        assert all((one.uname, one.gname, one.uid, one.mode) == ("", "", 0, 0o600) for one in members)
        found = {one.name.removeprefix("wal-sink-bundle/"): archive.extractfile(one) for one in members}
        return {name: file.read().decode() for name, file in found.items() if file is not None}


def record(store: Store, path: str, kind: str, **body: object) -> None:
    envelope = {"format": 1, "kind": kind, "crc32": 0, "body": body}
    store.create(path, msgspec.json.encode(envelope))


def test_nothing_planted_is_in_the_archive() -> None:
    wal = new_wal()
    status = read_status(wal)
    record(wal, "sinks/default/errors/0000000001.json", "error", error="duplicate key (hush-row)", term=3)
    record(wal, "repairs/0000000001.json", "repair", why="hush-why", arguments=["hush-argument"], who="hush")
    record(
        wal, "sinks/default/begun/0000000000000000000-0123456789abcdef0123456789abcdef.token.json", "token", token=HUSH
    )
    record(wal, "moves/0000000001.json", "move", number=1, location="s3://hush-bucket", moved_from="s3://hush")
    record(wal, "low-water/0000000000000000000.json", "low-water", batch_id="hush hush", marked={"hush": 1})
    wal.create("hush-foreign-password.json", b"{}")
    wal.create("batches/hush/x", b"hush")
    record(wal, "terms/stager/0000000009.json", "term", **{"hush hush": 1, "holder": {"host": "hush", "pid": 4}})
    environ = {
        "SHOP_PASSWORD": "hush-variable",
        "HUSH_IS_A_NAME": "hush-value",
        "URL": "postgresql://etl:hush-env@db/shop",
    }
    options = {"secret": "hush-option", "nested": {"token": "hush-nested"}}
    url = "sftp://me:hush-url@host/wal"
    secrets = known_secrets(environ, [options], [url], "kafka://host/topic?sasl.password=hush-query")
    texts = [*sorted(secrets), "postgresql://etl:hush-env@db/shop", "password=hush-unknown"]
    findings = [fault("target", f"the server says: {text}", f"look at {text}") for text in texts]
    redact = Redactor(secrets)
    report = shown_report(findings, ["hush-option"], redact)
    files = files_in(bundle(report, status, wal, environ, redact))
    shown = {name: text.replace("HUSH_IS_A_NAME", "") for name, text in files.items()}
    assert [name for name, text in shown.items() if HUSH in text.lower()] == []
    assert json.loads(files["environment.json"]) == sorted(environ)
    assert list(files) == [
        "README.txt",
        "doctor.json",
        "status.json",
        "environment.json",
        "machine.json",
        "structure.jsonl",
    ]


METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}'


@pytest.mark.parametrize(
    "text",
    [
        "hush 4711",
        "v9\nhush",
        f'v1\n{METADATA}\n{{"hush_topic":{{"0":',
        f'v2\n{METADATA}\nit\'s a "hush" topic',
        'v2\n{"hush": ',
        'v1\n{"controlBatchInfo":{"hush":"hush-topic"}}\n1',
        "v2\n{}\n" + "x" * 50 + "'" * 9 + "hush",
    ],
)
@pytest.mark.parametrize("file", ["offsets/1", "metadata", "commits/1"])
def test_no_text_of_a_damaged_checkpoint_is_in_the_archive(text: str, file: str) -> None:
    wal = new_wal()
    checkpoint = MemoryStore(StoreSpec(wal.root.replace("memory://wal-", "memory://checkpoint-")))
    checkpoint.delete([file])
    checkpoint.create(file, text.encode())
    status = read_status(wal)
    findings = [
        *checkpoint_findings(checkpoint, wal.root, status),
        *examine_contents(wal, status, checkpoint, SYSTEM).findings,
    ]
    archive = bundle(shown_report(findings, [], NO_SECRETS), status, wal, (), NO_SECRETS)
    told = files_in(archive)["doctor.json"]
    assert HUSH not in told
    assert "checkpoint.batches" in told or '"checkpoint"' in told


def test_words_beside_a_quoted_text_stay() -> None:
    text = "Spark's offsets: expected a line, found b'it\\'s hush' and \"hush's\"; Spark's next step is 'hush"
    archive = bundle(
        Report((fault("checkpoint", text, "x"), fault("target", "'hush'", "x")), ()), None, None, (), NO_SECRETS
    )
    (told, other) = json.loads(files_in(archive)["doctor.json"])["findings"]
    left = "(text left out)"
    assert told["found"] == f"Spark's offsets: expected a line, found {left} and {left}; Spark's next step is {left}"
    assert other["found"] == "'hush'"


def test_it_holds_what_a_bug_report_needs() -> None:
    wal = new_wal()
    files = files_in(bundle(Report((), ()), read_status(wal), wal, [], NO_SECRETS))
    status = json.loads(files["status.json"])
    assert (status["newest_batch"], status["sinks"][0]["delivered_through"]) == (1, 1)
    assert status["sinks"][0]["target"] == "(another)"
    entries = [json.loads(line) for line in files["structure.jsonl"].splitlines()]
    by_kind = {entry["kind"]: entry["body"] for entry in entries if "kind" in entry}
    assert {"wal", "manifest", "release", "marker", "sink", "term"} <= by_kind.keys()
    assert by_kind["manifest"]["batch_id"] == 1
    assert by_kind["manifest"]["segments"][0]["rows"] == 1
    assert by_kind["manifest"]["offsets"].startswith("(str of length")
    assert by_kind["marker"]["rows"] == 1
    assert json.loads(files["machine.json"])["system"]
    assert json.loads(files["doctor.json"])["worst"] == "OK"


def test_without_a_wal_there_is_no_structure() -> None:
    files = files_in(bundle(Report((), ()), None, None, [], NO_SECRETS))
    assert files["structure.jsonl"] == ""
    assert json.loads(files["status.json"]) is None


def test_requests_are_bounded_however_many_batches_are_pending() -> None:
    wal = new_wal(batches=3)
    for batch in range(3, 10_000):
        wal.create(f"batches/{batch:019d}/manifest-0000000001-0000000001.json", b"{}")
    requests: list[str] = []

    class Counted(MeasuredStore):
        def read(self, path: str) -> bytes:
            requests.append(path)
            return super().read(path)

        def list(self, prefix: str, *, after: str = "", recursive: bool = False) -> list[str]:
            requests.append(prefix)
            return super().list(prefix, after=after, recursive=recursive)

    entries = list(structure(Counted(wal)))
    assert len(requests) < 40
    batches = next(entry for entry in entries if entry.get("folder") == "batches/")
    assert (batches["names"], batches["described"]) == (10_000, NEWEST)


def test_what_cannot_be_read_is_told_by_its_class() -> None:
    wal = new_wal()

    class Refusing(MeasuredStore):
        def list(self, prefix: str, *, after: str = "", recursive: bool = False) -> list[str]:
            if prefix == "terms/":
                raise StoreError("hush")
            return super().list(prefix, after=after, recursive=recursive)

    wal.create("low-water/0000000000000000000.json", b"hush")
    wal.create("moves/0000000001.json", b'{"body": "hush", "kind": ["hush"]}')
    wal.create("probe/20260101T000000Z-0123456789abcdef0123456789abcdef.json", b"hush")
    wal.create("batches/0000000000000000007/manifest-0000000001-0000000001.json", b'{"body": {"segments": ["hush"]}}')
    record(wal, "sinks/default/retired.json", "retired", dropped=1.5, rows=[1, 2], holder="hush", segments=3)
    entries = list(structure(Refusing(wal)))
    assert HUSH not in json.dumps(entries)
    assert {"folder": "terms/", "error": "StoreError"} in entries
    by_path: Mapping[str, Any] = {entry["object"]: entry for entry in entries if "object" in entry}
    assert by_path["low-water/0000000000000000000.json"]["error"] == "DecodeError"
    assert by_path["moves/0000000001.json"]["body"] == "(str of length 4)"
    assert by_path["sinks/default/retired.json"]["body"]["dropped"] == "(float)"


def test_the_file_is_for_this_user_alone(tmp_path: Path) -> None:
    file = tmp_path / "report.tar.gz"
    before = os.umask(0)
    try:
        write(file, b"data", SYSTEM)
    finally:
        os.umask(before)
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.read_bytes() == b"data"
    assert list(tmp_path.iterdir()) == [file]


def test_no_file_is_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "report.tar.gz"
    file.write_text("mine")
    with pytest.raises(ConfigError, match="never overwritten"):
        check_free(file)
    with pytest.raises(ConfigError, match="never overwritten"):
        write(file, b"data", SYSTEM)
    assert file.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [file]
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="never overwritten"):
        write(tmp_path / "link", b"data", SYSTEM)
    assert not (tmp_path / "nowhere").exists()


def test_a_part_that_somebody_made_is_no_archive_of_ours(tmp_path: Path) -> None:
    file = tmp_path / "report.tar.gz"
    runtime = simulated_runtime(1)
    (tmp_path / f".report.tar.gz.{simulated_runtime(1).new_id()}.part").write_text("")
    with pytest.raises(FileExistsError):
        write(file, b"data", runtime)
    assert not file.exists()


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        write(tmp_path / "nowhere" / "report.tar.gz", b"data", SYSTEM)


@pytest.mark.parametrize("step", ["fsync", "link"])
def test_ctrl_c_leaves_no_half_file(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, step, interrupt)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "report.tar.gz", b"data", SYSTEM)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.pattern)
def test_an_object_of_every_known_kind_is_none_of_another_program(kind: Kind) -> None:
    """`KINDS` are those of docs/FORMAT.md: tests/unit/checking/test_faults.py compares them."""
    wal = MemoryStore(StoreSpec(f"memory://kinds-bundle-{next(_numbers)}"))
    texts = {"name": "default", "role": "stager", "time": "20260101T000000Z"}
    path = re.sub(r"<(\w+)(?::(\d+))?>", lambda token: texts.get(token[1], "0" * int(token[2] or 32)), kind.pattern)
    assert kind.compiled.fullmatch(path)
    wal.create(path, b"{}")
    entries = list(structure(wal))
    assert [entry for entry in entries if entry.get("of other programs")] == []
    assert path in [entry.get("object") for entry in entries]
