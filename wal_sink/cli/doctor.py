"""`wal-sink doctor`: examine a machine, a store, a checkpoint and a target before something fails."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from wal_sink.checkpoint.formats import CheckpointFiles
from wal_sink.cli import options
from wal_sink.cli.group import FOUND_SOMETHING
from wal_sink.cli.output import print_json
from wal_sink.cli.tables import print_text
from wal_sink.cli.targets import target
from wal_sink.cli.working import working
from wal_sink.doctor import bundle
from wal_sink.doctor.bucket_rules import bucket_findings
from wal_sink.doctor.contents import examine_contents
from wal_sink.doctor.credentials import credential_findings
from wal_sink.doctor.machine import machine_findings
from wal_sink.doctor.report import Report, shown_report
from wal_sink.doctor.secrets import known_secrets
from wal_sink.doctor.store_probes import probe_store
from wal_sink.doctor.target_checks import NO_ROWS, newest_schema, target_findings
from wal_sink.doctor.wal_checks import checkpoint_findings, recorded_checkpoint, wal_findings
from wal_sink.errors import WalSinkError
from wal_sink.inspection import Status
from wal_sink.recovery.location import is_plain
from wal_sink.redaction import Redactor, mask_url
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


@click.command(short_help="Examine machine, store, checkpoint and target.")
@click.argument("wal", required=False)
@click.option("--checkpoint", metavar="URL", help="The query's checkpoint. Default: the one that the WAL records.")
@click.option("--to", "to", metavar="URL|MODULE:OBJECT", help="The target: a backend's URL, or an object to import.")
@click.option("--master", metavar="MASTER", help="Start Spark there, and look at its workers: local[*], spark://…")
@click.option("--single-writer", is_flag=True, help="You set Settings(single_writer=True) for this WAL.")
@click.option(
    "--bundle",
    "bundle_file",
    type=click.Path(path_type=Path),
    metavar="FILE.tar.gz",
    help="Write the results into a redacted archive for a bug report. Look at it before you send it.",
)
@options.storage_options
@options.checkpoint_options
@options.as_json
def doctor(*, wal: str | None, bundle_file: Path | None, as_json: bool, **more: Any) -> None:
    """Examine where a query or a drain is to run. Each line is OK, a warning or an error, with the next step.

    Without WAL only this machine is examined. The store is probed by about 40 requests; all probes are deleted. The
    batches that are delivered next are compared with each other and with the checkpoint; wal-sink audit compares all.
    No row is sent, no term is claimed, and neither the WAL nor the target is changed. Exit code 1 if there is an error.

    \b
        wal-sink doctor s3://lake/wal/orders --to 'postgresql://etl@db/shop?table=orders'
        wal-sink doctor wal/orders --master 'local[2]' --json
        wal-sink doctor wal/orders --bundle report.tar.gz
    """
    examination = _Examination(wal, more)
    if bundle_file is not None:
        bundle.check_free(bundle_file)
    with working("examining"):
        report = examination.report()
        if bundle_file is not None:
            _write_bundle(bundle_file, examination, report)
    if as_json:
        written = str(bundle_file) if bundle_file is not None else None
        print_json({"wal": examination.shown, **report.plain(), "bundle": written})
    else:
        print_report(report)
        if bundle_file is not None:
            print_text(f"written: {bundle_file}. Look at it before you send it", hang="  ")
    if report.worst is Level.ERROR:
        sys.exit(FOUND_SOMETHING)


def _write_bundle(file: Path, examination: _Examination, report: Report) -> None:
    store, status = examination.store, examination.status
    data = bundle.bundle(report, status, store, os.environ, examination.secrets_removed())
    bundle.write(file, data, SYSTEM)


def print_report(report: Report) -> None:
    """Print a report for people: a line for each finding, and its next step below."""
    for one in report.findings:
        print_text(f"{one.level:<{_WIDTH}}{one.check}: {one.found}", hang="  ")
        if one.next_step:
            print_text(f"  next: {one.next_step}", hang="    ")
    if report.not_examined:
        print_text(f"not examined: {'; '.join(report.not_examined)}", hang="  ")
    errors, warnings = report.count(Level.ERROR), report.count(Level.WARNING)
    print_text(f"{counted(errors, 'error')}, {counted(warnings, 'warning')}")


@dataclass(slots=True)
class _Examination:
    """One call of the command: the addresses, and what is known so far."""

    wal: str | None
    more: dict[str, Any]
    spec: StoreSpec | None = None
    checkpoint_options: dict[str, object] | None = None
    """None: those of the WAL."""
    store: Store | None = None
    status: Status | None = None
    checkpoint: CheckpointFiles | None = None
    """None: it was not opened, or something is wrong with it."""
    not_looked_at: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.wal is not None:
            self.spec = options.wal_spec(self.wal, self.more["option"], self.more["storage_options_json"])
        pairs, text = self.more["checkpoint_option"], self.more["checkpoint_options_json"]
        if pairs or text:
            self.checkpoint_options = options.merged_options(pairs, text, "--checkpoint-option")

    @property
    def shown(self) -> str | None:
        return self.spec.safe_url if self.spec else None

    def report(self) -> Report:
        """Examine all parts that the options name."""
        findings = [*self._findings()]
        return shown_report(findings, [*self._left_out(), *self.not_looked_at], self.secrets_removed())

    def secrets_removed(self) -> Redactor:
        """Removes each secret that this process knows."""
        given = [self.checkpoint_options or {}, self.spec.options if self.spec else {}]
        urls = [url for url in (self.wal, self.more["checkpoint"]) if url is not None]
        return Redactor(known_secrets(os.environ, given, urls, self.more["to"] or ""))

    def _left_out(self) -> list[str]:
        asked = {
            "store, credentials and checkpoint (give WAL)": self.wal,
            "the target (give --to)": self.more["to"],
            "Spark's workers (give --master)": self.more["master"],
        }
        return [what for what, given in asked.items() if given is None]

    def _findings(self) -> Iterator[Finding]:
        yield from machine_findings()
        yield from java_findings()
        if self.more["master"] is not None:
            yield from worker_findings(self.more["master"], self.spec)
        if self.spec is not None:
            yield from credential_findings(self.spec, os.environ, Path.home())
            yield from self._of_store(self.spec)
        if self.more["to"] is not None:
            yield from self._of_target(self.more["to"])

    def _of_store(self, spec: StoreSpec) -> Iterator[Finding]:
        try:
            self.store = open_store(spec)
        except WalSinkError as failure:
            yield fault("store", told(failure), _CORRECT)
            return
        self.status, of_wal = wal_findings(self.store, SYSTEM)
        yield from of_wal
        yield from probe_store(self.store, SYSTEM, single_writer=self.more["single_writer"])
        yield from bucket_findings(self.store)
        yield from self._of_checkpoint(spec, self.store)
        yield from self._of_contents(self.store)

    def _of_contents(self, store: Store) -> Sequence[Finding]:
        """The batches that matter next. A WAL that cannot be read has a line already."""
        if self.status is None:
            self.not_looked_at.append("the batches of the WAL, which cannot be read")
        if self.status is None or self.status.wal_id is None:
            return ()
        examined = examine_contents(store, self.status, self.checkpoint, SYSTEM)
        self.not_looked_at += examined.left_out
        return examined.findings

    def _of_checkpoint(self, spec: StoreSpec, store: Store) -> Sequence[Finding]:
        check, given = "checkpoint", self.more["checkpoint"]
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
        found = checkpoint_findings(files, spec.url, self.status)
        if all(one.level is Level.OK for one in found):
            self.checkpoint = files
        return found

    def _of_target(self, named: str) -> Iterator[Finding]:
        schema = None
        if self.store is not None and self.status is not None:
            schema, damage = newest_schema(self.store, self.status)
            yield from damage
        try:
            sink = target(named)
        except WalSinkError as failure:
            yield fault("target", told(failure), _CORRECT)
            return
        unread = self.wal is not None and self.status is None
        why = "the WAL could not be read" if unread else NO_ROWS
        yield from target_findings(sink, schema, SYSTEM, no_schema=why)
