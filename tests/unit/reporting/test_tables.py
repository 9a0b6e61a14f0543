"""Tables that objects print: columns that stand in line, and HTML that no text of a user can leave."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from wal_sink.reporting.tables import html_table, text_table

ROWS = [("a", "1"), ("longer", "22")]


def test_columns_stand_in_line_and_no_line_ends_in_blanks() -> None:
    assert text_table(("name", "n"), ROWS) == "name    n\na       1\nlonger  22"


def test_empty_headings_are_left_out() -> None:
    assert text_table(("", ""), ROWS) == "a       1\nlonger  22"
    assert html_table(("", ""), ROWS).count("<tr>") == 2


def test_a_table_without_rows_shows_its_headings() -> None:
    assert text_table(("name", "n"), []) == "name  n"


def test_a_row_that_lacks_a_column_makes_no_table() -> None:
    with pytest.raises(ValueError, match="shorter"):
        text_table(("name", "n"), [("a",)])


def test_an_html_table_is_plain_html() -> None:
    style = 'style="text-align: left"'
    heading, row = f"<tr><th {style}>name</th></tr>", f"<tr><td {style}>a</td></tr>"
    assert html_table(("name",), [("a",)]) == f"<table>{heading}{row}</table>"


class _Cells(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:  # noqa: ARG002
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.mark.parametrize(
    "text", ["<script>alert(1)</script>", "</td></table><b>", 'a" onclick="x', "a & b < c", "&lt;"]
)
def test_every_text_is_escaped(text: str) -> None:
    found = _Cells()
    found.feed(html_table((text, "n"), [(text, "1")]))
    assert found.tags == ["table", "tr", "th", "th", "tr", "td", "td"]
    assert "".join(found.texts) == f"{text}n{text}1"
