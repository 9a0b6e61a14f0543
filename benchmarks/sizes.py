"""Sizes of a run: the amount of work, and the time limit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """One choice of sizes."""

    name: str
    minutes: float
    """The time limit of the whole run. Rounds that would not fit are skipped, and the results list them."""
    rounds: int
    table_rows: int
    table_files: int
    """Each is one partition of its batch."""
    files_per_batch: int
    flight_rows: int
    sql_rows: int
    """Number of rows of the table that are written into a database."""
    small_batches: int
    """Micro-batches of `small_rows` rows."""
    logged_rows: int
    """Number of rows for Flink's sink with its log on files, which is fifty times as slow as without a log."""
    backend_rows: int
    """Number of rows for each backend without Spark; slow backends get a part of them."""
    grouped_rows: int
    """Rows of each batch of the grouped query; at least as many as it has groups."""
    rounds_without_target: int
    """Maximum number of rounds of contests without a target."""
    warm_up: bool = True
    small_rows: int = 1000
    grouped_batches: int = 6


FULL = Sizes(
    name="full",
    minutes=29,
    rounds=5,
    table_rows=3_000_000,
    table_files=12,
    files_per_batch=4,
    flight_rows=336_776,
    sql_rows=1_500_000,
    small_batches=40,
    logged_rows=120_000,
    backend_rows=300_000,
    grouped_rows=10_000,
    rounds_without_target=3,
)
QUICK = Sizes(
    name="quick",
    minutes=4.3,
    rounds=2,
    table_rows=1_000_000,
    table_files=8,
    files_per_batch=4,
    flight_rows=336_776,
    sql_rows=300_000,
    small_batches=15,
    logged_rows=40_000,
    backend_rows=150_000,
    grouped_rows=10_000,
    rounds_without_target=1,
    grouped_batches=2,
)
TINY = Sizes(
    name="tiny",
    minutes=4,
    rounds=1,
    table_rows=4_000,
    table_files=4,
    files_per_batch=2,
    flight_rows=2_000,
    sql_rows=2_400,
    small_batches=2,
    logged_rows=2_000,
    backend_rows=20_000,
    grouped_rows=1_000,
    rounds_without_target=1,
    grouped_batches=1,
    warm_up=False,
    small_rows=10,
)
SIZES = {sizes.name: sizes for sizes in (FULL, QUICK, TINY)}
