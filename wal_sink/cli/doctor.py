"""`wal-sink doctor`: examine Java, workers, a store, a checkpoint and a target before something fails."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import click

from wal_sink.cli import options
from wal_sink.cli.group import FOUND_SOMETHING
from wal_sink.cli.output import print_json
from wal_sink.cli.tables import print_text
from wal_sink.cli.targets import target
from wal_sink.cli.working import working
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
from wal_sink.operate.look import WalFacts
from wal_sink.operate.status import Status
from wal_sink.recovery.location import is_plain
from wal_sink.redaction import mask_url
from wal_sink.reporting.counts import counted
from wal_sink.reporting.findings import Finding, Level, fault, risk
from wal_sink.reporting.texts import told
from wal_sink.runtime.clock import SYSTEM
from wal_sink.spark.examination import java_findings, worker_findings
from wal_sink.spark.session.checkpoint_files import checkpoint_files, checkpoint_location
from wal_sink.stores.base import Store
from wal_sink.stores.opening import open_store
from wal_sink.stores.spec import StoreSpec

_WIDTH = len("warning") + 1
_CORRECT = "correct the cause, then repeat this command"
_LEFT_OUT = {
    "wal": "store and checkpoint (give WAL)",
    "to": "the target (give --to)",
    "master": "Spark's workers (give --master)",
}


@click.command(short_help="Examine Java, store, checkpoint and target.")
@click.argument("wal", required=False)
@click.option("--checkpoint", metavar="URL", help="The query's checkpoint. Default: the one that the WAL records.")
@click.option("--to", "to", metavar="URL|MODULE:OBJECT", help="The target: a backend's URL, or an object to import.")
@click.option("--master", metavar="MASTER", help="Start Spark there, and look at its workers: local[*], spark://…")
@click.option("--single-writer", is_flag=True, help="You set Settings(single_writer=True) for this WAL.")
@options.storage_options
@options.checkpoint_options
@options.as_json
def doctor(*, as_json: bool, **given: Any) -> None:
    """Examine where a query or a drain is to run. Each line is OK, a warning or an error, with the next step.

    Without WAL only Java is examined. The store is probed by about 40 requests; all probes are deleted. No row is sent,
    no term is claimed, and neither the WAL nor the target is changed. wal-sink verify reads the batches. Exit code 1 if
    there is an error.

    \b
        wal-sink doctor s3://lake/wal/orders --to 'postgresql://etl@db/shop?table=orders'
        wal-sink doctor wal/orders --master 'local[2]' --json
    """
    examination = _Examination(given)
    with working("examining"):
        findings = [*examination.findings()]
    left_out = [what for name, what in _LEFT_OUT.items() if given[name] is None]
    errors, warnings = (sum(one.level is level for one in findings) for level in (Level.ERROR, Level.WARNING))
    if as_json:
        worst = Level.ERROR if errors else Level.WARNING if warnings else Level.OK
        wal = examination.spec.safe_url if examination.spec else None
        print_json({"wal": wal, "worst": worst, "findings": [*map(asdict, findings)], "not_examined": left_out})
    else:
        _print(findings, left_out)
        print_text(f"{counted(errors, 'error')}, {counted(warnings, 'warning')}")
    if errors:
        sys.exit(FOUND_SOMETHING)


def _print(findings: Sequence[Finding], left_out: Sequence[str]) -> None:
    """Print a line for each finding, and its next step below."""
    for one in findings:
        print_text(f"{one.level:<{_WIDTH}}{one.check}: {one.found}", hang="  ")
        if one.next_step:
            print_text(f"  next: {one.next_step}", hang="    ")
    if left_out:
        print_text(f"not examined: {'; '.join(left_out)}", hang="  ")


@dataclass(slots=True)
class _Examination:
    """One call of the command: its arguments, and the state of the WAL once it was read."""

    given: dict[str, Any]
    spec: StoreSpec | None = None
    checkpoint_options: dict[str, object] | None = None
    store: Store | None = None
    facts: WalFacts | None = None
    status: Status | None = None

    def __post_init__(self) -> None:
        given = self.given
        if given["wal"] is not None:
            self.spec = options.wal_spec(given["wal"], given)
        self.checkpoint_options = given["checkpoint_options"]

    def findings(self) -> Iterator[Finding]:
        """Examine all parts that the options name."""
        yield from java_findings()
        if self.given["master"] is not None:
            yield from worker_findings(self.given["master"], self.spec)
        if self.spec is not None:
            yield from self._of_store(self.spec)
        if self.given["to"] is not None:
            yield from self._of_target(self.given["to"])

    def _of_store(self, spec: StoreSpec) -> Iterator[Finding]:
        try:
            self.store = open_store(spec)
        except WalSinkError as failure:
            yield fault("store", told(failure), _CORRECT)
            return
        self.facts = WalFacts(self.store)
        self.status, of_wal = wal_findings(self.facts)
        yield from of_wal
        yield from probe_store(self.store, SYSTEM, single_writer=self.given["single_writer"])
        yield from bucket_findings(self.store)
        yield from self._of_checkpoint(spec, self.store)

    def _of_checkpoint(self, spec: StoreSpec, store: Store) -> Sequence[Finding]:
        check, given = "checkpoint", self.given["checkpoint"]
        recorded, why_not = recorded_checkpoint(store, self.status, SYSTEM)
        if given is None and recorded is None:
            return [risk(check, f"unknown: {why_not}", "give --checkpoint")]
        if given is None and not is_plain(str(recorded)):
            return [risk(check, f"not opened: the WAL records {mask_url(str(recorded))}", "give --checkpoint")]
        try:
            location = checkpoint_location(given or str(recorded), None)
            files = checkpoint_files(location, self.checkpoint_options, spec, None)
        except WalSinkError as failure:
            return [fault(check, told(failure), _CORRECT)]
        return checkpoint_findings(files, spec.url, self.status)

    def _of_target(self, named: str) -> Iterator[Finding]:
        schema = None
        if self.facts is not None and self.status is not None:
            schema, damage = newest_schema(self.facts)
            yield from damage
        try:
            sink = target(named)
        except WalSinkError as failure:
            yield fault("target", told(failure), _CORRECT)
            return
        unread = self.given["wal"] is not None and self.status is None
        why = "the WAL could not be read" if unread else NO_ROWS
        yield from target_findings(sink, schema, SYSTEM, no_schema=why)
