"""The pages of the ready sinks have one pattern."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.processes import CHECKOUT
from wal_sink_backends.sql.base.changes import deleted_table
from wal_sink_backends.sql.base.dialect import LEDGER, Limits, Replacing
from wal_sink_backends.sql.sink import dialect_of

PAGES = ("sql", "kafka", "redis", "http", "dynamodb", "delta", "iceberg", "files")
PATTERN = "Set on the target, Example, Options, Limits, What no ledger can see, Sizes"


@pytest.mark.parametrize("page", PAGES)
def test_a_page_begins_with_its_promise_and_has_the_headings_of_all(page: str) -> None:
    text = re.sub(r"```.*?```", "", (CHECKOUT / f"docs/sinks/{page}.md").read_text(), flags=re.DOTALL)
    _, promise, *_ = text.split("\n\n")
    assert re.fullmatch(r"[^.]*\bexactly once\b[^.]*\.", promise), promise
    assert ", ".join(re.findall(r"^## (.+)", text, flags=re.MULTILINE)) == PATTERN


def test_the_page_on_sql_has_the_statements_that_make_ledger_and_table_of_deletes() -> None:
    """Without schema, quotes and IF NOT EXISTS."""
    (shown,) = re.findall(
        r"```sql\n-- PostgreSQL\n(CREATE.*?)```", (CHECKOUT / "docs/sinks/sql.md").read_text(), re.DOTALL
    )
    run: list[str] = []
    for server in ("postgresql", "mariadb"):
        dialect: Any = dialect_of(f"{server}://host/public", Limits(1, 1, 1), schema=None, password_env=None)
        replacing = Replacing(("id",), ("pos",))
        run += [
            dialect.ledger_ddl.format(LEDGER),
            *dialect.remembering(None, "orders", deleted_table("orders"), replacing),
        ]
    found = re.sub("-- MariaDB, MySQL|IF NOT EXISTS|public.?\\.", "", f"{shown}{'; '.join(run)};")
    words = re.findall(r"\w+|[(),;]", found)
    assert words[: len(words) // 2] == words[len(words) // 2 :]
