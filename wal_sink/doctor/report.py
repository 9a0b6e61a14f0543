"""The report of an examination: its findings, and the parts that were not examined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wal_sink.redaction import Redactor
from wal_sink.reporting.findings import Finding, Level


@dataclass(frozen=True, slots=True)
class Report:
    """All findings, in the order in which they were made."""

    findings: tuple[Finding, ...]
    not_examined: tuple[str, ...]
    """Parts that nobody asked for, each with the option that asks for it."""

    @property
    def worst(self) -> Level:
        """The most serious level; `OK` if there is no finding."""
        return max((finding.level for finding in self.findings), key=list(Level).index, default=Level.OK)

    def count(self, level: Level) -> int:
        return sum(finding.level is level for finding in self.findings)

    def plain(self) -> dict[str, object]:
        """The report as plain data for JSON."""
        return {
            "worst": str(self.worst),
            "findings": [
                {"check": one.check, "level": str(one.level), "found": one.found, "next_step": one.next_step}
                for one in self.findings
            ],
            "not_examined": list(self.not_examined),
        }


def shown_report(findings: Sequence[Finding], not_examined: Sequence[str], redactor: Redactor) -> Report:
    """The report without any known secret: texts of other libraries may hold one."""
    shown = (Finding(one.check, one.level, redactor(one.found), redactor(one.next_step)) for one in findings)
    return Report(tuple(shown), tuple(not_examined))
