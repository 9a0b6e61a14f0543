"""README: its code blocks run in order, as a reader would type them, and each target has what the text says."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pyarrow.dataset as ds
import pytest
import s3fs

from tests.support.code_blocks import BUCKET, README, blocks_of
from tests.support.fixtures.code_blocks import PAGE_LIMIT, name_at_the_api
from tests.support.processes import CHECKOUT
from tests.support.servers.http_target import HttpTarget
from tests.support.servers.s3_server import S3Server

TEXT = (CHECKOUT / README).read_text()
ROWS = list(range(60))
MOST_LINES = 120
EXAMPLE_ENDS_BY = 25


@PAGE_LIMIT
@pytest.mark.spark
def test_the_code_blocks_do_what_they_say(
    run_page: Callable[[str], str], http_target: HttpTarget, lake: S3Server, tmp_path: Path
) -> None:
    printed = run_page(README)

    folder = tmp_path / "page"
    assert ids_in(folder / "events.db", "events", "value") == list(range(1_000))
    assert ids_in(folder / "orders.db", "orders", "id") == ROWS
    assert ids_of_files(ds.dataset(folder / "lake/orders", format="parquet", exclude_invalid_files=True)) == ROWS
    on_s3 = s3fs.S3FileSystem(**lake.storage_options, use_listings_cache=False)
    assert ids_of_files(ds.dataset(f"{BUCKET}/orders", filesystem=on_s3, format="parquet")) == ROWS
    posted = http_target.store.rows(name_at_the_api(README))
    assert sorted(int(row["id"]) for row in posted) == ROWS
    assert "database: exactly once" in printed
    assert "api: exactly once in effect" in printed


def ids_in(path: Path, table: str, column: str) -> list[int]:
    with closing(sqlite3.connect(path)) as database:
        return sorted(row for (row,) in database.execute(f"SELECT {column} FROM {table}"))


def ids_of_files(found: ds.Dataset) -> list[int]:
    return sorted(map(int, found.to_table()["id"].to_numpy()))


def test_the_commands_of_readme_are_targets_of_the_makefile() -> None:
    named = re.findall(r"^    make (\S+)", TEXT, flags=re.MULTILINE)
    targets = re.findall(r"^([a-z0-9-]+):", (CHECKOUT / "Makefile").read_text(), flags=re.MULTILINE)

    assert named == ["demo", "test"]
    assert set(named) <= set(targets)


def test_readme_is_short_and_begins_with_an_example_that_runs() -> None:
    first, *_ = blocks_of(README)
    assert len(TEXT.splitlines()) <= MOST_LINES
    assert first.runs
    assert first.line + len(first.code.splitlines()) <= EXAMPLE_ENDS_BY


def test_every_block_of_readme_runs() -> None:
    assert [block for block in blocks_of(README) if not block.runs] == []


def test_every_target_of_the_ready_sinks_is_in_the_table() -> None:
    pages = {path.name for path in (CHECKOUT / "docs/sinks").glob("*.md")} - {"index.md", "types.md"}
    targets = " ".join(re.findall(r"^\| ([^|]*) \|", TEXT, flags=re.MULTILINE))
    assert pages == set(re.findall(r"\]\(docs/sinks/([\w-]+\.md)\)", targets))
