"""Every table on a terminal of 80 columns: no line is longer, no word is cut, and every value is still there."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from rich.cells import cell_len

import wal_sink.walsink
from tests.house.cli import main
from tests.house.protocol import Run
from tests.house.stores import StoreSpec, open_store
from tests.support.processes import python_environment
from wal_sink import Chunk, Delivery, Rejected, WalSink
from wal_sink.cli.batches import print_batches
from wal_sink.cli.status import print_status
from wal_sink.cli.tables import Listing, broken, print_text
from wal_sink.operate.batches import BatchView
from wal_sink.operate.status import SinkStatus, Status
from wal_sink.settings import Settings
from wal_sink.testing import FakeQuery

WIDTH = 80
LONG = "orders-warehouse-postgresql-eu-central-1"
LONGEST = "n" * 64
FOLDER = "analytics-lake-production-eu-central-1/streaming/write-ahead-logs/orders-v2"
REASON = "value out of range: amount -1 is below the minimum of 0 that the API accepts for this account"
S3 = f"s3://{FOLDER}"


def refuse(_chunk: Chunk) -> Rejected:
    return Rejected({0: REASON})


@pytest.fixture(autouse=True)
def _a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setattr(wal_sink.walsink, "current_session", lambda: None)


@pytest.fixture(scope="module")
def wal(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A WAL at a long path with three sinks: a database, files, and an API that refuses a row of each chunk."""
    base = tmp_path_factory.mktemp("lake") / FOLDER
    wal, checkpoint = str(base / "wal"), str(base / "checkpoint")
    run = Run(open_store(StoreSpec(wal)), open_store(StoreSpec(checkpoint)), Settings(chunk_rows=2))
    run.open()
    run.become_stager()
    table = pa.table(
        {"id": [1, 2], "customer": [f"{n} long names {'of a customer ' * 6}" for n in "ab"], "amount": [-1, 2]}
    )
    assert list(FakeQuery(open_store(StoreSpec(checkpoint)), lambda *_: [table]).batches(run, 2)) == [0, 1]
    to = {
        LONG: Delivery(f"sqlite:///{base}/t.db?table=orders_of_all_countries", start_from="earliest"),
        "files": Delivery(f"files://{base}/out?format=csv", start_from="earliest"),
        "api": Delivery(refuse, on_rejected="dead_letter", start_from="earliest"),
    }
    with WalSink(to, wal=wal, checkpoint=checkpoint):
        pass
    return wal


def shown(*args: str) -> str:
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def fits(output: str) -> str:
    """The output, whose lines all fit; as one line, without the breaks within addresses."""
    assert [line for line in output.splitlines() if cell_len(line) > WIDTH] == []
    return re.sub(r"(?<=/)\n\s*", "", output)


def flat(output: str) -> str:
    return " ".join(output.split())


@pytest.mark.parametrize(
    "args",
    [
        ("status",),
        ("batches",),
        ("show", "1"),
        ("sinks", "list"),
        ("letters", "list"),
        ("letters", "show", "1"),
    ],
    ids=" ".join,
)
def test_no_line_is_longer_than_the_terminal(args: tuple[str, ...], wal: str) -> None:
    verb, number = (args[:-1], args[-1:]) if args[-1].isdigit() else (args, ())
    name = ("--name", "api") if number and verb[0] == "letters" else ()
    fits(shown(*verb, wal, *number, *name))


def test_status_keeps_each_sink_on_a_line_and_every_value_in_the_output(wal: str) -> None:
    output = shown("status", wal)
    lines = output.splitlines()
    assert re.search(rf"^{LONG} +ended +1 +0$", output, flags=re.MULTILINE)
    assert re.search(r"^files +ended +1 +0$", output, flags=re.MULTILINE)
    assert "sink" in lines[lines.index("") + 2]
    whole = flat(fits(output))
    assert f"{FOLDER}/wal" in whole
    assert f"FilesSink('file://{Path(wal).parent}/out', format='csv')" in whole
    assert "kind: transactional; term: 1; last held by: " in whole


def test_a_wider_terminal_shows_one_line_a_sink(monkeypatch: pytest.MonkeyPatch, wal: str) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    assert re.search(
        rf"^{LONG} +transactional +ended +1 +0 +1 +\S+ +SqlSink\(", shown("status", wal), flags=re.MULTILINE
    )


def test_the_longest_name_gets_a_line_for_itself(capsys: pytest.CaptureFixture[str]) -> None:
    sink = SinkStatus(
        name=LONGEST, kind="two-phase", identity=f"FilesTwoPhaseSink('{S3}/out')", delivered_through=123_456_789,
        pending_batches=12_345, term=12, held_by="ip-10-0-0-1.eu-central-1.compute.internal:31209",
        held_since="2026-11-24T10:22:21.086+00:00", state="unknown", folder="orders",
    )  # fmt: skip
    print_status(
        Status(
            wal=f"{S3}/wal", wal_id="w", query_id="q", checkpoint=f"{S3}/checkpoint", first_batch=0,
            location=f"{S3}/wal", newest_batch=123_469_134, low_water=123_456_689, stager_term=3, sinks=(sink,),
        )
    )  # fmt: skip
    output = capsys.readouterr().out
    assert f"\n{LONGEST}\n" in output
    assert re.search(r"^ +unknown +123456789 +12,345$", output, flags=re.MULTILINE)
    assert f"target: FilesTwoPhaseSink('{S3}/out')" in fits(output)
    assert f"WAL {S3}/wal" in flat(fits(output))


def test_batches_count_the_sinks_if_all_have_a_batch_and_name_them_otherwise(
    wal: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [line for line in shown("batches", wal).splitlines() if re.match(r" +\d", line)]
    assert [line.split("yes")[1].strip() for line in lines] == ["all 3 sinks"] * 2
    found = BatchView(7, 1, released=True, rows=2, bytes=10, segments=1, delivered_to=("api", "files"))
    print_batches([found], {"api", "files", LONG})
    assert re.search(r" yes +api, files *$", capsys.readouterr().out, re.MULTILINE)
    print_batches([replace(found, delivered_to=())], {"api"})
    assert re.search(r" yes +- *$", capsys.readouterr().out, re.MULTILINE)


def test_show_gives_the_whole_path_of_each_segment_and_a_value_on_a_line(wal: str) -> None:
    output = fits(shown("show", wal, "1"))
    assert re.search(r"segment: batches/0{18}1/\d{10}-\d{10}/\d{6}-\d{4}-[0-9a-f]{32}\.parquet$", output, re.MULTILINE)
    assert 'row 1\n    id        2\n    customer  "b long names' in output


def test_a_dead_letter_shows_its_reason_and_its_file(wal: str) -> None:
    output = shown("letters", "list", wal)
    assert f"first reason: {REASON}" in flat(output)
    assert re.search(r"^ +file: \S+\.parquet$", output, re.MULTILINE)
    assert f"reason {REASON}" in flat(shown("letters", "show", wal, "1", "--name", "api"))


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("short", ["short"]),
        ("two words", ["two words"]),
        ("words that are broken", ["words that", "are broken"]),
        ("s3://lake/wal/orders", ["s3://lake/", "wal/orders"]),
        ("x" * 23, ["x" * 10, "x" * 10, "xxx"]),
        ("a\nb", ["a", "b"]),
        ("a\n\nb", ["a", "", "b"]),
        ("日本語日本語", ["日本語日本", "語"]),
        ("", [""]),
    ],
)
def test_a_line_breaks_between_words_and_after_slashes(text: str, lines: list[str]) -> None:
    assert broken(text, 10) == lines


def test_columns_that_move_stand_below_their_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    listing = Listing("name", "+long", ">n", "~m")
    listing.add("a", "x" * 30, 1, 22)
    listing.add("[b]", None, 1234, None)
    listing.print()
    assert capsys.readouterr().out.splitlines() == [
        "name      n",
        "a         1",
        "    long:",
        "      " + "x" * 24,
        "      " + "x" * 6,
        "    m: 22",
        "[b]   1,234",
    ]


def test_a_table_that_fits_is_not_changed(capsys: pytest.CaptureFixture[str]) -> None:
    listing = Listing("name", "+long", ">n")
    listing.add("a", "x" * 10, 1)
    listing.print()
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "name  long        n",
        "a     xxxxxxxxxx  1",
    ]


def test_a_sentence_is_wrapped_on_a_terminal_and_whole_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "12")
    print_text("a sentence of some words", hang="  ")
    assert capsys.readouterr().out.splitlines() == ["a sentence", "  of some", "  words"]
    monkeypatch.delenv("COLUMNS")
    print_text("a sentence of some words")
    assert capsys.readouterr().out.splitlines() == ["a sentence of some words"]


def ageless(output: str) -> str:
    """The output without the ages, which grow from one look to the next."""
    return re.sub(r"[0-9.]+ (s|min) ago", "an age ago", output)


@pytest.mark.processes
def test_a_real_terminal_of_80_columns(wal: str) -> None:
    """rich reads the width of the terminal itself."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, WIDTH, 0, 0))
    environment = {name: value for name, value in python_environment().items() if name != "COLUMNS"}
    command = [sys.executable, "-m", "wal_sink.cli", "--quiet", "status", wal]  # a slow machine would show a spinner
    process = subprocess.Popen(
        command, stdin=follower, stdout=follower, stderr=follower, env={**environment, "TERM": "xterm"}
    )
    os.close(follower)
    output = b""
    try:
        while part := _read(leader):
            output += part
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait(30)
        os.close(leader)
    seen = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.decode()).replace("\r\n", "\n").replace("\r", "")
    assert ageless(flat(fits(seen))) == ageless(flat(fits(shown("status", wal))))


def _read(leader: int) -> bytes:
    try:
        return os.read(leader, 65536)
    except OSError:  # Linux answers so once the process has closed its end
        return b""
