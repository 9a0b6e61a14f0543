"""`wal-sink verify`: every checksum and every reference of a WAL. Reads only."""

from __future__ import annotations

from typing import Any

import click

from wal_sink.checking.verify import Check
from wal_sink.cli import checks, options


@click.command(short_help="Check every checksum and reference of a WAL.")
@click.argument("wal")
@checks.range_options(short=True)
@options.storage_options
@options.as_json
@checks.ends_at_ctrl_c("verify")
def verify(*, wal: str, first: int, last: int | None, resume_after: int | None, as_json: bool, **more: Any) -> None:
    """Read every object of a WAL, and compare checksums, sizes, row counts and references. Writes nothing.

    A query, a drain and a collection may run meanwhile. The command reads every segment, so it takes as long as a
    download of the WAL. If it is stopped, it says how to go on. Exit code 1: at least one fault was found.
    """
    store = checks.opened_wal(options.wal_spec(wal, more["option"], more["storage_options_json"]))
    batches = checks.range_of(first, last, resume_after)
    checks.run("verify", store, lambda on_batch: Check(store, batches, on_batch=on_batch), as_json=as_json)
