"""`wal-sink doctor`: examine Java, workers, a store, a checkpoint and a target before something fails."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import click

from wal_sink.cli import options
from wal_sink.cli.opened import Wal, target
from wal_sink.cli.printer import Answer
from wal_sink.cli.sources import checkpoint_options
from wal_sink.cli.working import FOUND_SOMETHING, working
from wal_sink.errors import WalSinkError
from wal_sink.operate.doctor import (
    NO_ROWS,
    bucket_findings,
    checkpoint_findings,
    newest_schema,
    probe_store,
    recorded_checkpoint,
    target_findings,
    wal_findings,
)
from wal_sink.operate.status import Status
from wal_sink.protocol.location import is_plain
from wal_sink.settings import check_columns
from wal_sink.sinks.renaming import Renaming
from wal_sink.spark.checkpoint_files import checkpoint_files, checkpoint_location
from wal_sink.spark.examination import java_findings, worker_findings
from wal_sink.support.clock import SYSTEM
from wal_sink.support.secrets import mask_url
from wal_sink.support.texts import Finding, Level, counted, fault, risk, told

_WIDTH = len("warning") + 1
_CORRECT = "correct the cause, then repeat this command"
_NEVER = "the batches and their delivery (wal-sink status, wal-sink verify)"
_LEFT_OUT = {
    "wal": "store and checkpoint (give WAL)",
    "to": "the target (give --to)",
    "master": "Spark's workers (give --master)",
}


@options.verb("doctor", "Examine Java, store, checkpoint and target.", wal="optional")
@options.checkpoint
@options.to("The target: a backend's URL, or an object to import.", required=False)
@options.delivery_policies("columns")
@click.option("--master", metavar="MASTER", help="Start Spark there, and look at its workers: local[*], spark://…")
@click.option("--single-writer", is_flag=True, help="You set Settings(single_writer=True) for this WAL.")
def doctor(**given: Any) -> Answer:
    """Examine where a query or a drain is to run. Each line is OK, a warning or an error, with the next step.

    Without WAL only Java is examined. The store is probed by about 40 requests; all probes are deleted. No row is sent,
    no term is claimed, and neither the WAL nor the target is changed. wal-sink verify reads the batches. Exit code 1 if
    there is an error.

    \b
        wal-sink doctor s3://lake/wal/orders --to 'postgresql://etl@db/shop?table=orders'
        wal-sink doctor wal/orders --master 'local[2]' --json
    """
    with working("examining"):
        findings = [*_findings(given)]
    left_out = [*(what for name, what in _LEFT_OUT.items() if given[name] is None), _NEVER]
    errors, warnings = (sum(one.level is level for one in findings) for level in (Level.ERROR, Level.WARNING))
    document = {
        "wal": given["wal"].spec.safe_url if given["wal"] else None,
        "worst": Level.ERROR if errors else Level.WARNING if warnings else Level.OK,
        "findings": findings,
        "not_examined": left_out,
    }
    counts = f"{counted(errors, 'error')}, {counted(warnings, 'warning')}"
    return Answer(document, [*_lines(findings, left_out), counts], FOUND_SOMETHING if errors else 0)


def _lines(findings: Sequence[Finding], left_out: Sequence[str]) -> Iterator[str]:
    """A line for each finding, and its next step below."""
    for one in findings:
        yield f"{one.level:<{_WIDTH}}{one.check}: {one.found}"
        if one.next_step:
            yield f"  next: {one.next_step}"
    yield f"not examined: {'; '.join(left_out)}"


def _findings(given: Mapping[str, Any]) -> Iterator[Finding]:
    """Examine all parts that the options name."""
    wal: Wal | None = given["wal"]
    status: Status | None = None
    yield from java_findings()
    if given["master"] is not None:
        yield from worker_findings(given["master"], wal.spec if wal else None)
    if wal is not None:
        status = yield from _of_store(wal, given)
    if given["to"] is not None:
        yield from _of_target(given["to"], wal, status, given["columns"])


def _of_store(wal: Wal, given: Mapping[str, Any]) -> Generator[Finding, None, Status | None]:
    """Examine the store and the checkpoint. Returns the state of the WAL, if it could be read."""
    try:
        store = wal.store
    except WalSinkError as failure:
        yield fault("store", told(failure), _CORRECT)
        return None
    status, of_wal = wal_findings(wal.facts)
    yield from of_wal
    yield from probe_store(store, SYSTEM, single_writer=given["single_writer"])
    yield from bucket_findings(store)
    yield from _of_checkpoint(wal, status, given["checkpoint"])
    return status


def _of_checkpoint(wal: Wal, status: Status | None, given: str | None) -> Sequence[Finding]:
    check = "checkpoint"
    recorded, why_not = recorded_checkpoint(wal.facts, status)
    if given is None and recorded is None:
        return [risk(check, f"unknown: {why_not}", "give --checkpoint")]
    if given is None and not is_plain(str(recorded)):
        return [risk(check, f"not opened: the WAL records {mask_url(str(recorded))}", "give --checkpoint")]
    try:
        location = checkpoint_location(given or str(recorded), None)
        files = checkpoint_files(location, checkpoint_options(), wal.spec, None)
    except WalSinkError as failure:
        return [fault(check, told(failure), _CORRECT)]
    return checkpoint_findings(files, wal.spec.url, status)


def _of_target(
    named: str, wal: Wal | None, status: Status | None, columns: Mapping[str, str | None] | None
) -> Iterator[Finding]:
    schema = None
    if wal is not None and status is not None:
        schema, damage = newest_schema(wal.facts)
        yield from damage
    try:
        check_columns(columns)
        schema = Renaming.of(columns).schema(schema)
        sink = target(named)
    except WalSinkError as failure:
        yield fault("target", told(failure), _CORRECT)
        return
    why = "the WAL could not be read" if wal is not None and status is None else NO_ROWS
    yield from target_findings(sink, schema, SYSTEM, no_schema=why)
