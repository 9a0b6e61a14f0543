"""Tables that objects print: columns stand in line."""

from __future__ import annotations

import pytest

from wal_sink.reporting.tables import text_table

ROWS = [("a", "1"), ("longer", "22")]


def test_columns_stand_in_line_and_no_line_ends_in_blanks() -> None:
    assert text_table(("name", "n"), ROWS) == "name    n\na       1\nlonger  22"


def test_empty_headings_are_left_out() -> None:
    assert text_table(("", ""), ROWS) == "a       1\nlonger  22"


def test_a_table_without_rows_shows_its_headings() -> None:
    assert text_table(("name", "n"), []) == "name  n"


def test_a_row_that_lacks_a_column_makes_no_table() -> None:
    with pytest.raises(ValueError, match="shorter"):
        text_table(("name", "n"), [("a",)])
