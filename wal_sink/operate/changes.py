"""Records of who changed a sink, when and why: one for each `skip`, `catch-up`, `sinks retire` and `sinks rename`.

It is created before the first change. Every step of these commands may be repeated, so a command that was killed is
completed by the same command, which finds the record and goes on under it.

A live query and a drain may run beside such a command, finished or not: they never read these records. The commands
change a WAL only by means that the protocol already allows to another process at any time: they claim a term, so that
the process that served the sink stops, and create records that such a process could have created.
"""

from __future__ import annotations

import getpass
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import msgspec

from wal_sink.log import paths
from wal_sink.log.log import Log
from wal_sink.log.sink_records import ChangeRecord
from wal_sink.support.clock import process_identity
from wal_sink.support.secrets import MASK, is_secret_name, mask_url, redacted

TARGET = "(target)"
"""Argument that nobody types: the description of the target that `--to` named. Another one makes another command."""
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://")


@dataclass(frozen=True, slots=True)
class Order:
    """A change as a user orders it."""

    verb: str
    """The command, as in `sinks retire`."""
    folder: str
    """First name of the sink that is changed. The command is the same under every name of the sink."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """The arguments that make it the same command, but for the sink: plain data, which is kept without secrets. A name
    that begins with `--` is an option, and one in parentheses is not typed.
    """
    why: str = ""

    def is_same(self, record: ChangeRecord) -> bool:
        """Whether a record is that of the same command."""
        return record.verb == self.verb and record.arguments == as_stored(self.arguments)


def write_down(log: Log, order: Order, plan: Mapping[str, Any]) -> ChangeRecord:
    """Create the record of a change that begins now. A listing and a create."""
    while True:
        number = max(log.numbers(paths.changes(order.folder)), default=0) + 1
        record = ChangeRecord(
            number=number,
            verb=order.verb,
            arguments=as_stored(order.arguments),
            who=who(),
            why=redacted(order.why),
            plan=as_stored(plan),
            run_id=log.run_id,
            **log.stamp(),
        )
        if log.create(paths.change(order.folder, number), record):
            return record


def read_changes(log: Log, folder: str) -> list[ChangeRecord]:
    """The changes of a sink, oldest first. A listing, and a read for each. Raises `CorruptError`."""
    numbers = log.numbers(paths.changes(folder))
    return list(
        log.runtime.side_by_side(lambda number: log.require(ChangeRecord, paths.change(folder, number)), numbers)
    )


def find_same(log: Log, order: Order) -> ChangeRecord | None:
    """The newest record of the same command, completed or not; None if there is none."""
    return next((each for each in reversed(read_changes(log, order.folder)) if order.is_same(each)), None)


def command_of(record: ChangeRecord, name: str) -> str:
    """The command of a change of the sink `name`, as a user types it, with `WAL` for the address and `***` for a
    secret.
    """
    words = [
        "wal-sink",
        record.verb,
        "WAL",
        *([record.arguments.get("(old)", name)] if record.verb.startswith("sinks ") else []),
    ]
    typed = {key: value for key, value in record.arguments.items() if not key.startswith("(")}
    for value in (value for key, value in typed.items() if not key.startswith("--")):
        words += _spelled(value)
    if not record.verb.startswith("sinks "):
        words += ["--name", name]
    for key, value in typed.items():
        if key.startswith("--"):
            words += [key] if value is True else [word for each in _spelled(value) for word in (key, each)]
    return " ".join([*words, "--why", *_spelled(record.why)] if record.why else words)


def who() -> str:
    """The user and the process of this command."""
    here = process_identity()
    return f"{_user()}@{here.host}/{here.pid}"


def as_stored(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Plain data as it is read back, without anything that looks like a secret: descriptions come from users' code."""
    stored: dict[str, Any] = _without_secrets(msgspec.json.decode(msgspec.json.encode(facts)))
    return stored


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container may run under a user id without a name
        return "unknown"


def _spelled(value: object) -> list[str]:
    return [shlex.quote(str(each)) for each in (value if isinstance(value, list) else [value])]


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_secrets(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_without_secrets(each) for each in value]
    return _typed(value) if isinstance(value, str) else value


def _typed(text: str) -> str:
    """An argument without secrets, so that it can be typed again. A URL keeps its options up to the first one that may
    be secret: an unencoded secret may go on behind any mark. In an `http` URL these are the ones behind `#`.
    """
    if not (url := _URL.match(text)):
        return redacted(text)
    masked = mask_url(text)
    _, begin, options = text.partition("#" if url["scheme"].lower().startswith("http") else "?")
    for option in () if masked.endswith(MASK) else re.findall(r"[?&#][^?&#]*", begin + options):
        name, _, value = option.partition("=")
        if is_secret_name(name[1:]) or "@" in unquote(option) or "://" in unquote(value):
            return f"{masked}{name}={MASK}"
        masked += option
    return masked
