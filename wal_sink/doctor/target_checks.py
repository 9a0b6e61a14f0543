"""Examining a target through its sink, without opening a delivery: no term is claimed, and nothing is written."""

from __future__ import annotations

from typing import Any

from wal_sink.errors import WalSinkError
from wal_sink.inspection.batches import read_manifest
from wal_sink.inspection.status import Status
from wal_sink.reporting.counts import counted
from wal_sink.reporting.findings import Finding, fault, fine, risk
from wal_sink.reporting.texts import name_of, told
from wal_sink.runtime.clock import Runtime
from wal_sink.sinks.base import BatchSink, Sink
from wal_sink.sinks.examined import Examined
from wal_sink.sinks.failures import SinkFailedError
from wal_sink.sinks.session import call_sink
from wal_sink.stores.base import Store
from wal_sink.wal.records import Manifest
from wal_sink.wal.segment_reader import load_segment, read_chunks

CHECK = "target"
TIMEOUT_S = 60.0
_BATCHES = 8
"""Newest batches among which one with rows is looked for."""


NO_ROWS = "no staged rows were found"


def target_findings(
    sink: Sink | BatchSink, schema: Any, runtime: Runtime, *, no_schema: str = NO_ROWS
) -> list[Finding]:
    """Findings about the target of a sink. `schema` is that of `newest_schema`, or None because of `no_schema`."""
    named = name_of(sink)
    if not isinstance(sink, Examined):
        return [
            risk(
                CHECK,
                f"{named}: unknown, since this kind of sink cannot be examined without a delivery",
                "deliver a batch to a copy of the target, or see wal_sink.testing for tests of a sink",
            )
        ]
    timed_call = runtime.new_timed_call()
    try:
        found = call_sink(timed_call, f"examining {named}", sink.examine, schema, timeout_s=TIMEOUT_S)
    except SinkFailedError as failure:
        return [fault(CHECK, str(failure), "correct the cause, then repeat this command")]
    finally:
        timed_call.close()
    return [*found, _fit(schema, named, no_schema)]


def _fit(schema: Any, named: str, no_schema: str) -> Finding:
    """Whether rows were compared with the target."""
    check = f"{CHECK}.rows"
    if schema is None:
        step = "repeat this command with the address of a WAL that holds a batch with rows"
        return risk(check, f"unknown whether rows fit {named}: {no_schema}", step)
    return fine(check, f"the newest staged rows have {counted(len(schema), 'column')}, and none of these is refused")


def newest_schema(store: Store, status: Status) -> tuple[Any, list[Finding]]:
    """The Arrow schema of the newest staged rows, None if none were found; and findings about damage on the way.

    Looks at up to eight batches, and reads the smallest segment of one.
    """
    oldest = max(status.low_water + 1, status.first_batch or 0, status.newest_batch - _BATCHES + 1)
    try:
        for batch_id in range(status.newest_batch, oldest - 1, -1):
            manifest = read_manifest(store, batch_id)
            if manifest is not None and (schema := _schema_of(store, manifest)) is not None:
                return schema, []
    except WalSinkError as failure:
        return None, [fault("wal.rows", told(failure), "see the message; wal-sink show WAL BATCH shows one batch")]
    return None, []


def _schema_of(store: Store, manifest: Manifest) -> Any:
    """The schema of a batch's rows; None if it has none, or keeps none."""
    kept = [ref for ref in manifest.segments if ref.kept and ref.rows]
    if not kept:
        return None
    ref = min(kept, key=lambda one: one.bytes)
    chunks = read_chunks(
        load_segment(store, ref),
        ref,
        chunk_rows=manifest.chunk_rows,
        columns=manifest.columns,
        where=store.url_of(ref.path),
    )
    _, _, table = next(iter(chunks))
    return table.schema
