"""Kinds of objects in a WAL, by the pattern of their paths. docs/FORMAT.md lists the same patterns.

A new kind of object is one line in `KINDS`, and one in the table of faults of tests/unit/operate.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache

from wal_sink.log.records import (
    BegunRecord,
    LowWater,
    Manifest,
    Marker,
    Move,
    PreparedRecord,
    Progress,
    Record,
    Release,
    Replayed,
    RollRecord,
    SinkRecord,
    SkippedBatch,
    TermRecord,
    TokenRecord,
    WalRecord,
)
from wal_sink.log.sink_records import (
    ChangeRecord,
    EndedRecord,
    ErrorRecord,
    NameRecord,
    OwnerRecord,
    RenamedRecord,
    RetiredRecord,
)


class Lives(StrEnum):
    """When an object of a kind may be deleted."""

    FOR_EVER = "for ever"
    UNTIL_COLLECTED = "until its batch is collected"
    FREELY = "until any process or person deletes it"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of object."""

    pattern: str
    """The path, as docs/FORMAT.md writes it. `<batch:19>` is a number of at least 19 digits, `<name>` any text."""
    record: type[Record] | None = None
    """The record in it. None: the object is no record."""
    lives: Lives = Lives.FOR_EVER
    compiled: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "compiled", re.compile(_TOKEN.sub(_matched, re.escape(self.pattern)), re.ASCII))


_TOKEN = re.compile(r"<(\w+)(?::(\d+))?>")


def _matched(token: re.Match[str]) -> str:
    """The regular expression of a part of a pattern."""
    name, digits = token[1], token[2]
    if digits is None:
        return r"[^/.]+" if name in {"transaction", "id", "time"} else r"[^/]+"
    return rf"\d{{{digits}}}" if name == "batch" else rf"(?:\d{{{digits}}}|[1-9]\d{{{digits},}})"


_SEGMENT = "<term:10>-<attempt:10>/<partition:6>-<file_index:4>-<id>.parquet"
_LETTER = "sinks/<name>/dead-letters/<batch:19>/<ordinal:6>-<first:12>-<end:12>"
_COLLECTED, _FREELY = Lives.UNTIL_COLLECTED, Lives.FREELY

KINDS = (
    Kind("wal.json", WalRecord),
    Kind("terms/<role>/<term:10>.json", TermRecord),
    Kind("terms/<role>/<term:10>.ended.json", EndedRecord),
    Kind("batches/<batch:19>/manifest-<term:10>-<attempt:10>.json", Manifest, _COLLECTED),
    Kind("batches/<batch:19>/release.json", Release, _COLLECTED),
    Kind("batches/<batch:19>/skipped.json", SkippedBatch, _COLLECTED),
    Kind(f"batches/<batch:19>/{_SEGMENT}", None, _COLLECTED),
    Kind("sinks/<name>/sink.json", SinkRecord),
    Kind("sinks/<name>/progress/<batch:19>/<ordinal:6>-<rows:12>.json", Progress, _COLLECTED),
    Kind("sinks/<name>/markers/<batch:19>.json", Marker, _COLLECTED),
    Kind(f"{_LETTER}.parquet", None, _FREELY),
    Kind(f"{_LETTER}-<number:6>.parquet", None, _FREELY),
    Kind(f"{_LETTER}.replayed.json", Replayed, _FREELY),
    Kind(f"{_LETTER}-<number:6>.replayed.json", Replayed, _FREELY),
    Kind("sinks/<name>/begun/<batch:19>-<transaction>.json", BegunRecord, _FREELY),
    Kind("sinks/<name>/begun/<batch:19>-<transaction>.token.json", TokenRecord, _FREELY),
    Kind("sinks/<name>/progress/<batch:19>/prepared-<ordinal:6>-<number:6>.json", PreparedRecord, _COLLECTED),
    Kind("sinks/<name>/progress/<batch:19>/roll.json", RollRecord, _COLLECTED),
    Kind("sinks/<name>/progress/<batch:19>/<partition:6>-<file_index:4>-<id>.parquet", None, _COLLECTED),
    Kind("sinks/<name>/retired.json", RetiredRecord),
    Kind("sinks/<name>/names/<number:10>.json", NameRecord),
    Kind("sinks/<name>/renamed.json", RenamedRecord),
    Kind("sinks/<name>/owner.json", OwnerRecord),
    Kind("sinks/<name>/forgotten"),
    Kind("sinks/<name>/changes/<number:10>.json", ChangeRecord),
    Kind("sinks/<name>/errors/<number:10>.json", ErrorRecord, _FREELY),
    Kind("low-water/<batch:19>.json", LowWater, _FREELY),
    Kind("moves/<number:10>.json", Move),
    Kind("probe/<time>-<id>.json", None, _FREELY),
)
"""Every kind of object that this version knows."""

TOP = frozenset(kind.pattern.partition("/")[0] + ("/" if "/" in kind.pattern else "") for kind in KINDS)
"""Names that may stand in the root of a WAL. Folders end in `/`."""

OF_A_SINK = frozenset(
    name + ("/" if slash else "")
    for kind in KINDS
    if kind.pattern.startswith("sinks/<name>/")
    for name, slash, _ in [kind.pattern.removeprefix("sinks/<name>/").partition("/")]
)
"""Names that may stand in the folder of a sink."""


@cache
def _by_top() -> dict[str, list[Kind]]:
    found: dict[str, list[Kind]] = {}
    for kind in KINDS:
        found.setdefault(kind.pattern.partition("/")[0], []).append(kind)
    return found


def kind_of(path: str) -> Kind | None:
    """The kind of the object under a path; None if no version of wal-sink that this one knows makes such a path."""
    of_folder = _by_top().get(path.partition("/")[0], ())
    return next((kind for kind in of_folder if kind.compiled.fullmatch(path)), None)
