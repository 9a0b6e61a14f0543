"""A finding: one line of a report about a machine, a store or a target, with the next step."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How serious a finding is."""

    OK = "OK"
    WARNING = "warning"
    """It works, but something may hurt later. Something that is unknown is at least a warning."""
    ERROR = "error"
    """A query or a drain fails, or its guarantee does not hold."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that was looked at, and the result. It must not contain a secret."""

    check: str
    """A short name for machines, such as `store.race`."""
    level: Level
    found: str
    """The result as a sentence without a full stop."""
    next_step: str = ""
    """The next step as a sentence without a full stop; empty only if the level is `OK`."""


def fine(check: str, found: str) -> Finding:
    """A finding that needs no step."""
    return Finding(check, Level.OK, found)


def risk(check: str, found: str, next_step: str) -> Finding:
    """A finding that may hurt later, or something that is unknown."""
    return Finding(check, Level.WARNING, found, next_step)


def fault(check: str, found: str, next_step: str) -> Finding:
    """A finding that must be corrected first."""
    return Finding(check, Level.ERROR, found, next_step)
