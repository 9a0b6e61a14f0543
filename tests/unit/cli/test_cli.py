"""The command line: every verb for people and for machines, exit codes, and no secret anywhere."""

from __future__ import annotations

import decimal
import importlib
import json
import re
import shutil
import sqlite3
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import msgspec
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from tests.house.cli import main
from tests.house.log import WalRecord, decode, encode
from tests.house.protocol import CommitterPool
from tests.support.command import invoke, invoke_json
from tests.support.staged_log import stage
from tests.support.verbs import verbs
from wal_sink.cli import options
from wal_sink.settings import Delivery, Retry

BATCHES = 3
ROWS = 5
SECRET = "hush-hush-0123"  # noqa: S105 - a dummy
MODULE = """
import threading

class Keeper:
    def __init__(self): self.rows = []
    def __call__(self, chunk):
        with open("taken.txt", "a") as file:
            file.write(f"{chunk.batch_id} {chunk.num_rows}\\n")
take = Keeper()
number = 7

let_go = threading.Event()

def slow(chunk):
    if chunk.batch_id:
        assert let_go.wait(60)

def fail(chunk):
    from wal_sink import PermanentError
    raise PermanentError("the target is gone")

def refuse(chunk):
    from wal_sink import Rejected
    return Rejected({0: "not this one"})

from wal_sink import TwoPhaseSink
class Fixed(TwoPhaseSink):
    on_gone = property(lambda self: "halt")
    begin = write = prepare = commit = abort = close = lambda self, *_: None
fixed = Fixed()
"""


def rows_of(batch_id: int, _end: int) -> list[pa.Table]:
    return [pa.table({"id": [batch_id * 100 + row for row in range(ROWS)], "name": ["a", None, "[b]", "c", "d"]})]


@pytest.fixture
def wal(tmp_path: Path) -> str:
    """A WAL of three complete batches that nobody has drained."""
    assert stage(tmp_path, BATCHES, rows_of, chunk_rows=2) == [0, 1, 2]
    return str(tmp_path / "wal")


def drained(wal: str, target: str, *more: str, code: int = 0) -> Result:
    return invoke("drain", wal, "--to", target, "--start-from", "earliest", *more, code=code)


def table_of(path: Path) -> list[tuple[int, str | None]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute("SELECT id, name FROM t ORDER BY id").fetchall()
    finally:
        connection.close()


def test_status_of_a_wal_without_sinks(wal: str) -> None:
    found = invoke_json("status", wal)
    assert (found["exists"], found["newest_batch"], found["sinks"], found["stager_term"]) == (True, 2, [], 1)
    assert "no sink is registered" in invoke("status", wal).stdout


def test_a_folder_without_a_wal_is_told_in_a_line(tmp_path: Path) -> None:
    folder = tmp_path / "nothing"
    verbs = (
        ("status",),
        ("batches",),
        ("show", "0"),
        ("drain", "--to", "files:///x"),
        ("sinks list",),
        ("sinks retire", "x"),
        ("sinks rename", "x", "y"),
        ("letters list",),
        ("status", "--max-lag", "1d"),
    )
    for verb, *more in verbs:
        assert "holds no wal.json" in invoke(*verb.split(), str(folder), *more, code=1).output, verb
        assert not folder.exists(), verb
    found = invoke_json("status", str(folder), code=1)
    assert (found["exists"], found["wal_id"]) == (False, None)


def test_batches_and_show_tell_which_sinks_have_each_batch(wal: str, tmp_path: Path) -> None:
    drained(wal, f"sqlite:///{tmp_path}/t.db?table=t", "--name", "table")
    found = invoke_json("batches", wal)
    assert [(view["batch_id"], view["rows"], view["attempts"]) for view in found] == [(n, ROWS, 1) for n in range(3)]
    assert all(view["released"] and view["delivered_to"] == ["table"] for view in found)
    assert f"{BATCHES} batches, {BATCHES * ROWS} rows" in invoke("batches", wal).stdout
    assert [view["batch_id"] for view in invoke_json("batches", wal, "--after", "1")] == [2]
    (sink,) = invoke_json("show", wal, "0")["delivered"]
    assert (sink["sink"], sink["complete"], sink["rows"]) == ("table", True, ROWS)
    assert "transactional" in invoke("status", wal).stdout


def test_show_gives_records_segments_and_rows(wal: str) -> None:
    found = invoke_json("show", wal, "1", "--rows", "3")
    assert found["manifest"]["batch_id"] == 1
    assert found["release"] is None
    assert found["rows"]["columns"] == ["id", "name"]
    assert found["rows"]["rows"] == [[100, "a"], [101, None], [102, "[b]"]]
    segment = found["manifest"]["segments"][0]
    assert found["rows"]["keys"] == [f"{segment['id']}-{row}" for row in range(3)]
    text = invoke("show", wal, "1", "--rows", "3").stdout  # brackets are no markup
    assert all(part in text for part in ("[b]", "NULL", "102", ".parquet", "CRC-32"))


def test_show_keeps_nested_names_and_tells_null_from_a_text_that_says_so(tmp_path: Path) -> None:
    """Structs were shown as Row(f0=…), in whatever a reader had to guess which field that is."""
    inner = {"name": "a", "tags": [{"k": 1, "v": None}], "paid": decimal.Decimal("1.20")}
    table = pa.table({"p": [inner, None], "s": ["NULL", None], "b": [b"x", None], "e": ["", " x"]})
    assert stage(tmp_path, 1, lambda *_: [table]) == [0]

    first, second = invoke_json("show", str(tmp_path / "wal"), "0")["rows"]["rows"]
    text = invoke("show", str(tmp_path / "wal"), "0").stdout

    assert first[:2] == [{"name": "a", "tags": [{"k": 1, "v": None}], "paid": "1.20"}, "NULL"]
    assert second[:2] == [None, None]
    lines = [line.strip() for line in text.splitlines()]
    assert [line for line in lines if line.startswith("s ")] == ['s  "NULL"', "s  NULL"]
    assert [line for line in lines if line.startswith("e ")] == ['e  ""', 'e  " x"']
    assert '{"name": "a", "' in text
    assert "b'x'" in text


def test_show_of_a_batch_that_is_not_there_names_those_that_are(wal: str) -> None:
    assert "holds batches 0 to 2" in invoke("show", wal, "9", code=1).output


def test_drain_into_a_table_delivers_everything_once(wal: str, tmp_path: Path) -> None:
    target = f"sqlite:///{tmp_path}/t.db?table=t"
    first = json.loads(drained(wal, target, "--json").stdout)
    again = invoke_json("drain", wal, "--to", target)
    assert (first["batches"], first["delivered_through"], again["batches"]) == (BATCHES, 2, 0)
    assert first["guarantee"].startswith("exactly once")
    assert [row for row, _ in table_of(tmp_path / "t.db")] == [n * 100 + m for n in range(3) for m in range(ROWS)]


def test_a_drain_counts_from_the_first_batch_of_a_new_sink(wal: str, tmp_path: Path) -> None:
    drained = invoke_json("drain", wal, "--to", f"sqlite:///{tmp_path}/t.db?table=t", "--start-from", "2")
    assert (drained["batches"], drained["delivered_through"]) == (1, 2)


def test_a_drain_opens_no_strange_checkpoint_that_the_wal_names(wal: str, tmp_path: Path) -> None:
    """Anyone who can write to the WAL would choose which code of fsspec reads which file. Some of it runs templates."""
    file = Path(wal) / "wal.json"
    strange = ("reference::file:///tmp/t.json", "simplecache::http://127.0.0.1:9/x", "http://127.0.0.1:9/x", "zip://x")
    into = ["--to", f"sqlite:///{tmp_path / 'orders.db'}?table=orders", "--start-from", "earliest"]
    for recorded in strange:
        changed = msgspec.structs.replace(decode(WalRecord, file.read_bytes(), "wal.json"), checkpoint=recorded)
        file.write_bytes(encode(changed))
        result = invoke("drain", wal, *into, code=2)
        assert f"records the checkpoint {recorded}" in " ".join(result.output.split())
        assert "Pass this kind of address yourself with --checkpoint" in result.output
    invoke("drain", wal, *into, "--checkpoint", str(tmp_path / "checkpoint"))


def test_drain_to_an_object_of_a_module_in_the_current_directory(
    wal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = own_module(tmp_path, monkeypatch)
    result = drained(wal, f"{module}:take", "--guarantee", "at_least_once")
    assert "at least once" in result.stdout
    taken = (tmp_path / "taken.txt").read_text().splitlines()
    assert taken == [f"{batch} {rows}" for batch in range(BATCHES) for rows in (2, 2, 1)]


def test_follow_ends_when_time_is_up(wal: str, tmp_path: Path) -> None:
    drained(wal, f"sqlite:///{tmp_path}/t.db?table=t", "--follow", "--timeout", "0.2")
    assert len(table_of(tmp_path / "t.db")) == BATCHES * ROWS


def test_a_timeout_holds_for_the_backlog_too(wal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = own_module(tmp_path, monkeypatch)
    stop = CommitterPool.stop

    def stopping(pool: CommitterPool, grace_s: float) -> bool:
        pool._stopping.set()
        importlib.import_module(module).let_go.set()  # the chunk in hand is finished now
        return stop(pool, grace_s)

    monkeypatch.setattr(CommitterPool, "stop", stopping)
    result = drained(wal, f"{module}:slow", "--timeout", "0.5", code=1)
    (sink,) = invoke_json("status", wal)["sinks"]
    assert "the time of 0.5 s is over" in result.stderr
    assert f"{sink['pending_batches']} pending" in result.stderr
    assert sink["delivered_through"] < BATCHES - 1
    assert invoke_json("drain", wal, "--to", f"{module}:slow")["delivered_through"] == BATCHES - 1


def test_a_target_that_gave_up_is_exit_code_1(wal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = own_module(tmp_path, monkeypatch)
    result = drained(wal, f"{module}:fail", code=1)
    assert "the target is gone" in result.stderr
    assert "DeliveryError" in result.stderr
    assert result.stdout == ""


def test_what_the_target_refuses_is_kept_if_asked_for(
    wal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = own_module(tmp_path, monkeypatch)
    assert "not this one" in drained(wal, f"{module}:refuse", code=1).stderr
    drained(wal, f"{module}:refuse", "--on-rejected", "dead_letter")
    assert invoke_json("status", wal)["sinks"][0]["delivered_through"] == BATCHES - 1
    assert invoke_json("letters", "list", wal)


def test_every_policy_of_a_delivery_can_be_given() -> None:
    names = {field.name for field in (*fields(Delivery), *fields(Retry))} | {"on_gone", "order"}
    said_otherwise = {"to", "guarantee", "start_from", "through", "same_target", "retry"}
    of_a_cluster_or_a_query = {"where", "max_concurrency", "threads_per_task", "on_failure"}
    assert set(options.POLICIES) == names - said_otherwise - of_a_cluster_or_a_query


def own_module(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the user's in the current directory, under a name no other test has."""
    name = f"targets_{abs(hash(str(folder)))}"
    (folder / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    return name


def test_a_target_that_cannot_be_is_exit_code_2(wal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = {
        "nowhere": "expected the URL of a backend",
        "pigeon://loft/topic": "no backend serves the scheme",
        "sqlite:///t.db": "expected the name of a table",
        "no_such_module_at_all:take": "cannot be imported",
        "json:nothing": "has no attribute 'nothing'",
        "json:__name__": "cannot be delivered to",
    }
    for target, told in refused.items():
        assert told in drained(wal, target, code=2).stderr
    take = f"{own_module(tmp_path, monkeypatch)}:take"
    fixed = drained(wal, take.replace("take", "fixed"), "--on-gone", "prepare_again", code=2).stderr
    assert "--on-gone cannot be set for Fixed" in fixed
    beyond = drained(wal, take, "--guarantee", "exactly_once", code=2).stderr
    assert "a plain sink does not support exactly_once" in beyond


def test_a_new_name_must_say_where_it_starts(wal: str, tmp_path: Path) -> None:
    result = invoke("drain", wal, "--to", f"sqlite:///{tmp_path}/t.db?table=t", code=2)
    assert "is new to" in result.stderr
    assert "--start-from earliest" in result.stderr
    assert invoke_json("status", wal)["sinks"] == []


def test_usage_errors_are_exit_code_2() -> None:
    for args in ("drain", "show", "status", "no-such-verb", "status x --no-such", "status x --max-lag soon"):
        assert "Usage: " in invoke(*args.split(), code=2).stderr
    former = invoke("dead-letters", "list", code=2).stderr
    assert "No such command 'dead-letters'. Did you mean 'letters'?" in former


def test_debug_lets_the_error_through(wal: str) -> None:
    result = CliRunner().invoke(main, ["--debug", "drain", wal, "--to", "nowhere"])
    assert type(result.exception).__name__ == "ConfigError"


def test_help_names_every_verb() -> None:
    text = invoke("--help").stdout
    sections = re.findall(r"^(\w+):$|^  ([\w-]+)  +\S", text.partition("--help")[2], flags=re.MULTILINE)
    assert [title for title, _ in sections if title] == ["Look", "Deliver", "Check", "Change"]
    assert [verb for _, verb in sections if verb] == list(main.commands)
    assert "..." not in text.partition("--help")[2]  # a summary that is cut off


def test_every_option_of_every_verb_is_explained() -> None:
    for verb in verbs():
        assert "  --json" in invoke(*verb.split(), "--help").stdout
        command: Any = main
        for name in verb.split():
            command = command.commands[name]
        assert [option.name for option in command.params if isinstance(option, click.Option) and not option.help] == []


def test_a_drain_that_is_told_of_a_move_opens_the_wal_where_it_lies_now(wal: str, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(wal, moved)
    target = ("--to", f"sqlite:///{tmp_path}/rows.db?table=rows", "--start-from", "earliest")

    refused = invoke("drain", str(moved), *target, code=2)
    seen_before = invoke("status", str(moved)).output
    two_places = invoke("drain", str(moved), *target, "--moved-from", wal, code=2)
    shutil.rmtree(wal)
    out_of_sight = invoke("drain", str(moved), *target, "--moved-from", wal, code=2)
    invoke("drain", str(moved), *target, "--moved-from-gone", wal)

    assert "that folder exists too, and holds the same WAL" in refused.stderr
    assert "Both places would deliver the same batches" in two_places.stderr
    assert f"--moved-from-gone file://{Path(wal).resolve()}" in out_of_sight.stderr
    assert f"--moved-from file://{Path(wal).resolve()}" in refused.stderr
    assert str(moved) in (moved / "moves/0000000001.json").read_text()
    assert "lies at" in seen_before
    assert "lies at" not in invoke("status", str(moved)).output


@pytest.mark.processes
def test_secrets_of_options_are_never_shown(wal: str) -> None:
    env = {"WAL_SINK_STORAGE_OPTIONS": json.dumps({"secret": SECRET})}
    for args in (["status", wal], ["batches", wal], ["show", wal, "0"], ["status", wal, "--json"]):
        CliRunner(env=env).invoke(main, args)
        assert SECRET not in CliRunner(env=env).invoke(main, args).output
    retries = {"config_kwargs": {"retries": {"max_attempts": 0}, "connect_timeout": 1}}
    more = {"key": SECRET, "secret": SECRET, "endpoint_url": "http://127.0.0.1:9", **retries}
    assert SECRET not in invoke("status", "s3://bucket/wal", "--storage-options", json.dumps(more), code=1).output
