"""Every table on a terminal of 80 columns: no line is longer, no word is cut, and every value is still there."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from rich.cells import cell_len

from tests.support.command import invoke
from tests.support.staged_log import stage
from wal_sink import Chunk, Delivery, Rejected, WalSink
from wal_sink.cli.look import lines_of_batches, lines_of_status
from wal_sink.cli.printer import print_lines
from wal_sink.operate.batches import BatchView
from wal_sink.operate.status import SinkStatus, Status

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


@pytest.fixture(scope="module")
def wal(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A WAL at a long path with three sinks: a database, files, and an API that refuses a row of each chunk."""
    base = tmp_path_factory.mktemp("lake") / FOLDER
    table = pa.table(
        {"id": [1, 2], "customer": [f"{n} long names {'of a customer ' * 6}" for n in "ab"], "amount": [-1, 2]}
    )
    assert stage(base, 2, lambda *_: [table], chunk_rows=2) == [0, 1]
    to = {
        LONG: Delivery(f"sqlite:///{base}/t.db?table=orders_of_all_countries", start_from="earliest"),
        "files": Delivery(f"files://{base}/out?format=csv", start_from="earliest"),
        "api": Delivery(refuse, on_rejected="dead_letter", start_from="earliest"),
    }
    with WalSink(to, wal=str(base / "wal"), checkpoint=str(base / "checkpoint")):
        pass
    return str(base / "wal")


def fits(output: str) -> str:
    """The output, whose lines all fit; as one line, without the breaks within addresses."""
    assert [line for line in output.splitlines() if cell_len(line) > WIDTH] == []
    return re.sub(r"(?<=/)\n\s*", "", output)


def flat(output: str) -> str:
    return " ".join(output.split())


def test_no_line_is_longer_than_the_terminal(wal: str) -> None:
    verbs = (("status",), ("batches",), ("show", "1"), ("sinks list",), ("letters list",))
    for verb, *more in (*verbs, ("letters show", "1", "--name", "api")):
        fits(invoke(*verb.split(), wal, *more).stdout)


def test_status_keeps_each_sink_on_a_line_and_every_value_in_the_output(wal: str) -> None:
    output = invoke("status", wal).stdout
    assert {f"sink {name}" for name in (LONG, "files", "api")} <= {*output.splitlines()}
    whole = flat(fits(output))
    assert f"{FOLDER}/wal" in whole
    assert f"FilesSink('file://{Path(wal).parent}/out', format='csv')" in whole
    assert "kind: transactional; state: ended; delivered through: 1; pending: 0; term: 1; last held by: " in whole


def test_a_wider_terminal_shows_one_line_a_sink(monkeypatch: pytest.MonkeyPatch, wal: str) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    assert re.search(
        rf"^{LONG} +transactional +ended +1 +0 +1 +\S+ +SqlSink\(", invoke("status", wal).stdout, flags=re.MULTILINE
    )
    monkeypatch.delenv("COLUMNS")  # a pipe: nothing is broken
    assert re.search(
        rf"^{LONG} +transactional +ended .* mode='append'\)$", invoke("status", wal).stdout, flags=re.MULTILINE
    )


def test_the_longest_name_gets_a_line_for_itself(capsys: pytest.CaptureFixture[str]) -> None:
    sink = SinkStatus(
        name=LONGEST, kind="two-phase", identity=f"FilesTwoPhaseSink('{S3}/out')", delivered_through=123_456_789,
        pending_batches=12_345, term=12, held_by="ip-10-0-0-1.eu-central-1.compute.internal:31209",
        held_since="2026-11-24T10:22:21.086+00:00", state="unknown", folder="orders",
    )  # fmt: skip
    print_lines(
        lines_of_status(
            Status(
                wal=f"{S3}/wal", wal_id="w", query_id="q", checkpoint=f"{S3}/checkpoint", first_batch=0,
                location=f"{S3}/wal", newest_batch=123_469_134, low_water=123_456_689, stager_term=3, sinks=(sink,),
            )
        )
    )  # fmt: skip
    output = capsys.readouterr().out
    assert f"\nsink {LONGEST}\n" in output
    whole = flat(fits(output))
    assert "state: unknown; delivered through: 123456789; pending: 12,345; term: 12" in whole
    assert f"target: FilesTwoPhaseSink('{S3}/out')" in whole
    assert f"WAL {S3}/wal" in whole


def test_batches_count_the_sinks_if_all_have_a_batch_and_name_them_otherwise(wal: str) -> None:
    lines = [line for line in invoke("batches", wal).stdout.splitlines() if re.match(r" +\d", line)]
    assert [line.split("yes")[1].strip() for line in lines] == ["all 3 sinks"] * 2
    found = BatchView(7, 1, released=True, rows=2, bytes=10, segments=1, delivered_to=("api", "files"))
    assert re.search(r" yes +api, files *$", "\n".join(lines_of_batches([found], {"api", "files", LONG})), re.MULTILINE)
    none = lines_of_batches([replace(found, delivered_to=())], {"api"})
    assert re.search(r" yes +- *$", "\n".join(none), re.MULTILINE)


def test_show_gives_the_whole_path_of_each_segment_and_a_value_on_a_line(wal: str) -> None:
    output = fits(invoke("show", wal, "1").stdout)
    assert re.search(r"segment: batches/0{18}1/\d{10}-\d{10}/\d{6}-\d{4}-[0-9a-f]{32}\.parquet", flat(output))
    assert 'row 1\n    id        2\n    customer  "b long names' in output


def test_a_dead_letter_shows_its_reason_and_its_file(wal: str) -> None:
    output = invoke("letters", "list", wal).stdout
    assert f"first reason: {REASON}" in flat(output)
    assert re.search(r" file: \S+\.parquet ?", flat(fits(output)))
    assert f"reason {REASON}" in flat(invoke("letters", "show", wal, "1", "--name", "api").stdout)
