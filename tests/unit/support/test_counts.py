"""Numbers with their nouns."""

from __future__ import annotations

import pytest

from wal_sink.support.texts import counted, pending_text, text_table


def test_a_number_stands_with_its_noun() -> None:
    cases: list[tuple[int, str, str]] = [
        (0, "row", "0 rows"),
        (1, "row", "1 row"),
        (2, "row", "2 rows"),
        (1200, "row", "1,200 rows"),
        (1, "batch", "1 batch"),
        (3, "batch", "3 batches"),
        (2, "dead letter", "2 dead letters"),
    ]
    for count, thing, told in cases:
        assert counted(count, thing) == told


def test_what_a_signal_left_is_one_line() -> None:
    cases: list[tuple[int, str]] = [
        (0, "no batch is pending"),
        (1, "1 batch pending, delivered at the next start"),
        (5, "5 batches pending, delivered at the next start"),
    ]
    for batches, told in cases:
        assert pending_text(batches) == told


def test_columns_stand_in_line_and_no_line_ends_in_blanks() -> None:
    assert text_table(("name", "n"), [("a", "1"), ("longer", "22")]) == "name    n\na       1\nlonger  22"


def test_empty_headings_are_left_out() -> None:
    assert text_table(("", ""), [("a", "1"), ("longer", "22")]) == "a       1\nlonger  22"


def test_a_table_without_rows_shows_its_headings() -> None:
    assert text_table(("name", "n"), []) == "name  n"


def test_a_row_that_lacks_a_column_makes_no_table() -> None:
    with pytest.raises(ValueError, match="shorter"):
        text_table(("name", "n"), [("a",)])
