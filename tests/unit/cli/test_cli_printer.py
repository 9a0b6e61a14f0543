"""The printer: how values, facts, tables and sentences look, at each width, and what a terminal would obey."""

from __future__ import annotations

import io
import json
import os
import sys
from dataclasses import dataclass

import pytest

from wal_sink.cli.printer import (
    Answer,
    age_text,
    broken,
    clean,
    facts,
    pairs,
    print_answer,
    print_lines,
    size,
    table,
    value_text,
    width,
)


@dataclass
class Inner:
    rows: int = 1234
    bytes: int = 2048


@dataclass
class Row:
    name: str
    pending: Inner | None
    delivered_through: int = -1
    lag_s: float | None = None
    send_s: float | None = None
    is_exact: bool = True
    targets: tuple[str, ...] = ()


COLUMNS = ("sink=name", "pending.rows", "size=pending.bytes", "delivered_through", "lag_s", "send_s")
MORE = ("is_exact", "targets", ("first", lambda row: row.name[:1]))


@pytest.fixture(autouse=True)
def _of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_the_fields_of_a_dataclass_tell_how_its_values_look() -> None:
    assert list(facts(Row("b", Inner(), 12_345, 90.0, 0.25, is_exact=False, targets=("x", "y")), *COLUMNS, *MORE)) == [
        "sink               b",
        "rows               1,234",
        "size               2.0 KiB",
        "delivered through  12345",
        "lag s              90 s",
        "send s             0.250 s",
        "is exact           no",
        "targets            x, y",
        "first              b",
    ]
    assert [line.split()[-1] for line in facts(Row("b", None), *COLUMNS, *MORE)] == [
        *("b", "-", "-", "none", "unknown", "recorded", "yes", "-", "b"),
    ]


def test_a_document_is_json_and_a_finding_ends_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    print_answer(Answer({"row": Row("a", None)}), as_json=True)
    assert json.loads(capsys.readouterr().out)["row"]["delivered_through"] == -1
    with pytest.raises(SystemExit) as ended:
        print_answer(Answer({}, ["found"], 1), as_json=False)
    assert (ended.value.code, capsys.readouterr().out) == (1, "found\n")


def test_numbers_stand_at_the_right_and_a_row_that_is_too_wide_stands_below_its_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [Row("a", Inner(1), 7, targets=("x" * 30,)), Row("[b]", Inner(), 8)]
    columns = ("sink=name", "pending.rows", "to=targets")
    print_lines(table(rows, *columns))
    assert capsys.readouterr().out.splitlines() == [
        "sink   rows  to",
        f"a         1  {'x' * 30}",
        "[b]   1,234  -",
    ]
    monkeypatch.setenv("COLUMNS", "30")
    print_lines(table(rows, *columns))
    assert capsys.readouterr().out.splitlines() == [
        "sink a",
        "    rows: 1; to:",
        "    " + "x" * 26,
        "    xxxx",
        "sink [b]",
        "    rows: 1,234",
    ]
    assert list(table([], *columns)) == ["sink  rows  to"]


def test_one_long_cell_does_not_fill_up_every_row_of_a_pipe() -> None:
    rows = [Row("a", None, targets=("x" * 8000,)), Row("b", None, targets=("y",))]
    assert len(list(table(rows, "to=targets", "sink=name"))[-1]) < 200


def test_a_sentence_is_wrapped_on_a_terminal_and_whole_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "14")
    print_lines(["a sentence of some words", "  next: a sentence"])
    wrapped = ["a sentence", "  of some", "  words", "  next: a", "    sentence"]
    assert capsys.readouterr().out.splitlines() == wrapped
    monkeypatch.delenv("COLUMNS")
    print_lines(["a sentence of some words" * 20])
    assert capsys.readouterr().out.splitlines() == ["a sentence of some words" * 20]
    assert list(pairs([("offsets", "one\ntwo")], "  ")) == ["  offsets  one", "           two"]


def test_a_terminal_tells_how_wide_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS")
    assert width() == sys.maxsize
    monkeypatch.setattr("sys.stdout", Terminal())
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((90, 24)))
    assert width() == 90


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_breaks_between_words_and_after_slashes() -> None:
    expected = {
        "short": ["short"],
        "two words": ["two words"],
        "words that are broken": ["words that", "are broken"],
        "s3://lake/wal/orders": ["s3://lake/", "wal/orders"],
        "x" * 23: ["x" * 10, "x" * 10, "xxx"],
        "a\nb": ["a", "b"],
        "a\n\nb": ["a", "", "b"],
        "日本語日本語": ["日本語日本", "語"],
        "": [""],
    }
    assert {text: broken(text, 10) for text in expected} == expected


def test_a_line_holds_nothing_that_a_terminal_obeys() -> None:
    """Names of columns, and reasons why rows were refused, may come from anybody."""
    expected = {
        "\x1b[2J\x1b]0;title\x07": r"\x1b[2J\x1b]0;title\x07",
        "\x9b31m": r"\x9b31m",
        "a\rb\x7f": r"a\rb\x7f",
        "\u202ecba": r"\u202ecba",
        "two\n\tlines, é and 😀": "two\n\tlines, é and 😀",
    }
    assert {text: clean(text) for text in expected} == expected


def test_ages_sizes_and_values_of_rows() -> None:
    ages = {None: "unknown", 0.0: "0.0 s", 4.24: "4.2 s", 59.0: "59 s", 119.0: "119 s", 120.0: "2 min", 7200.0: "2 h"}
    ages |= {86_400.0 * 3: "3 d", -5.0: "-5.0 s (clocks differ)"}
    assert {seconds: age_text(seconds) for seconds in ages} == ages
    sizes = {0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 3 << 20: "3.0 MiB", 5 << 50: "5.0 PiB"}
    assert {count: size(count) for count in sizes} == sizes
    assert [value_text(value) for value in (None, "NULL", "a", 1, ["b"])] == ["NULL", '"NULL"', "a", "1", '["b"]']
    assert value_text("long text", longest=5) == "long…"


def test_a_wide_line_of_blanks_is_an_empty_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    print_lines(["x\n" + " " * 60 + "\ny"])
    assert capsys.readouterr().out == "x\n\ny\n"
