"""The journal of a WAL's repairs: what a person changed, when and why, and whether the change was completed.

`repairs/<number>.json` is created before the first change of a repair, with the whole plan. After the last change,
`repairs/<number>.done.json` is created. A repair without its end is unfinished: the process was killed, or the store
failed. Then the same command completes it, by the plan of the record. Every step of a repair may be repeated.

The numbers put all repairs into one order. A repair looks for unfinished ones, then creates the record with the next
number. If another process created that record first, it looks again. So of two repairs that would change the same
objects, one is refused, whichever of them begins first.

A live query and a drain may run beside a repair, finished or not: they never read the journal. A repair changes a WAL
only by means that the protocol already allows to another process at any time. It claims a term, so that the process
that served a sink stops. It creates records that could have been created by such a process. It deletes objects that no
process can name any more. Each verb says in its module which of these it does. So a WAL is valid after every step of a
repair, whether or not the next step follows.
"""

from __future__ import annotations

import getpass
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from wal_sink.errors import ConfigError, CorruptError, HeldError, ObjectLost
from wal_sink.redaction import mask_typed, redacted
from wal_sink.runtime.clock import process_identity
from wal_sink.wal import paths
from wal_sink.wal.holders import Holding, state_of
from wal_sink.wal.log import Log
from wal_sink.wal.repair_records import RepairedRecord, RepairRecord

DONE = "done"
GIVEN_UP = "given up"
TARGET = "(target)"
"""Argument that nobody types: the description of the target that `--to` named. Another one makes another command."""
WHOLE_WAL = ("",)
"""`touches` of a repair that excludes every other one."""


@dataclass(frozen=True, slots=True)
class Order:
    """A repair as a user orders it."""

    verb: str
    """The command, as in `sinks retire`."""
    arguments: Mapping[str, Any]
    """The arguments that make it the same command: plain data, which is kept without secrets. A name that begins with
    `--` is an option, and one in parentheses is not typed. Arguments that change nothing in the WAL (such as a time
    limit) do not belong here.
    """
    touches: tuple[str, ...] = WHOLE_WAL
    """Beginnings of the paths that it may change."""
    why: str = ""
    names_sink: bool = False
    """Whether `--name` names the sink that `touches` names too. Then it is the same command under every name of the
    sink: a rename in between changes nothing.
    """


@dataclass(frozen=True, slots=True)
class Entry:
    """One repair of a WAL."""

    begun: RepairRecord
    ended: RepairedRecord | None = None
    is_resumed: bool = field(default=False, compare=False)
    """Whether an earlier call began it, which may have made some of its changes."""
    damage: str = ""
    """Why the record of its beginning cannot be read; empty if it can. `begun` is empty then."""

    @property
    def number(self) -> int:
        return self.begun.number

    @property
    def plan(self) -> dict[str, Any]:
        """Everything that the repair does."""
        return self.begun.plan

    @property
    def result(self) -> dict[str, Any]:
        """The effect, as it was reported at the end. Empty as long as it is unfinished."""
        return self.ended.result if self.ended is not None else {}

    @property
    def state(self) -> str:
        """`done`, `given up` or `unfinished`."""
        return self.ended.outcome if self.ended is not None else "unfinished"


@dataclass(frozen=True, slots=True)
class _Found:
    """The names in the journal."""

    newest: int = 0
    open: tuple[int, ...] = field(default=())


def begin(log: Log, order: Order, plan: Mapping[str, Any]) -> Entry:
    """Write down that a repair begins. Returns the unfinished repair of the same command, if there is one: go on by its
    plan, not by `plan`.

    Raises `HeldError` as `find_unfinished` does. One listing and one create, if no repair is unfinished.
    """
    while True:
        found = _look(log)
        if (entry := _same_or_none(log, order, found)) is not None:
            return entry
        number = found.newest + 1
        record = RepairRecord(
            number=number,
            verb=order.verb,
            arguments=_as_stored(order.arguments),
            touches=order.touches,
            who=who(),
            holder=process_identity(),
            why=redacted(order.why),
            plan=_as_stored(plan),
            run_id=log.run_id,
            **log.stamp(),
        )
        if log.create(paths.repair(number), record):
            return Entry(record)


def find_unfinished(log: Log, order: Order) -> Entry | None:
    """The unfinished repair of the same command; None if there is none. Creates nothing.

    Raises `HeldError` if another unfinished repair changes the same objects, or if a process of this machine is still
    at work on the same repair. One listing, and one read for each unfinished repair.
    """
    return _same_or_none(log, order, _look(log))


def finish(log: Log, entry: Entry, result: Mapping[str, Any]) -> Entry:
    """Write down that a repair was completed. If another process did so first, its record counts. One create."""
    return _end(log, entry, outcome=DONE, result=result, why="")


@contextmanager
def begun(log: Log, order: Order, plan: Mapping[str, Any]) -> Iterator[Entry]:
    """`begin`, for changes that are refused as a whole. If the block raises `ConfigError` or `HeldError`, the repair is
    given up with the reason, unless an earlier call began it.
    """
    entry = begin(log, order, plan)
    try:
        yield entry
    except (ConfigError, HeldError) as error:
        if not entry.is_resumed:
            _end(log, entry, outcome=GIVEN_UP, result={}, why=f"refused: {error}")
        raise


def find_repair(log: Log, number: int) -> Entry:
    """A repair that may be given up, ended or not. One whose record cannot be read has `damage`.

    Raises `ConfigError` if there is no such repair or if it was completed, and `HeldError` if its process runs on this
    machine. Two reads.
    """
    begun = _read_begun(log, number) if number > 0 else None
    if begun is None:
        raise ConfigError(f"{log.store.root} has no repair {number}; see wal-sink repairs list")
    _refuse_running(log, begun.begun)
    entry = replace(begun, ended=log.find(RepairedRecord, paths.repaired(number)))
    return _not_done(log, entry)


def note_given_up(log: Log, entry: Entry, result: Mapping[str, Any], *, why: str) -> Entry:
    """Write down that an unfinished repair will not be completed. Its changes so far stay. One create.

    Raises `ConfigError` if it was completed meanwhile.
    """
    return _not_done(log, _end(log, entry, outcome=GIVEN_UP, result=result, why=why))


def ended_already(log: Log, entry: Entry) -> ConfigError:
    """The error for a repair that is not unfinished."""
    ended = entry.ended
    return ConfigError(
        f"repair {entry.number} of {log.store.root} is not unfinished: it ended at {ended.created if ended else '-'} "
        f"({ended.outcome if ended else '-'})"
    )


def read_journal(log: Log, *, last: int | None = None) -> list[Entry]:
    """The repairs of a WAL, oldest first; with `last`, only so many of the newest, and every unfinished one.

    One listing, and up to two reads for each repair.
    """
    names = log.store.list(paths.REPAIRS)
    begun, ended = _numbers(names)
    newest = begun if last is None else begun[max(0, len(begun) - last) :]
    wanted = sorted({*newest, *(number for number in begun if number not in ended)})
    return list(log.runtime.side_by_side(lambda number: _read(log, number, has_ended=number in ended), wanted))


def command_of(begun: RepairRecord, *, why: bool = True) -> str:
    """The command of a repair, as a user types it, with `WAL` for the address and `***` for a secret. `-` if its record
    cannot be read.
    """
    if not begun.verb:
        return "-"
    words = ["wal-sink", begun.verb, "WAL"]
    typed = {name: value for name, value in begun.arguments.items() if not name.startswith("(")}
    places = {name: value for name, value in typed.items() if not name.startswith("--")}
    for value in places.values():
        words += _spelled(value)
    for name, value in typed.items():
        if name not in places and value is not False:
            words += [name] if value is True else [word for each in _spelled(value) for word in (name, each)]
    return " ".join([*words, "--why", *_spelled(begun.why)] if why and begun.why else words)


def who() -> str:
    """The user and the process of this command."""
    here = process_identity()
    return f"{_user()}@{here.host}/{here.pid}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container may run under a user id without a name
        return "unknown"


def _spelled(value: object) -> list[str]:
    return [shlex.quote(str(each)) for each in (value if isinstance(value, list) else [value])]


def _look(log: Log) -> _Found:
    begun, ended = _numbers(log.store.list(paths.REPAIRS))
    return _Found(max([*begun, *ended], default=0), tuple(number for number in begun if number not in ended))


def _numbers(names: Sequence[str]) -> tuple[list[int], set[int]]:
    """The repairs that began, ascending, and those that ended."""
    begun = sorted(number for name in names if (number := paths.parse_number(name)) is not None)
    return begun, {number for name in names if (number := paths.parse_repaired(name)) is not None}


def _read(log: Log, number: int, *, has_ended: bool) -> Entry:
    entry = _read_begun(log, number) or Entry(log.require(RepairRecord, paths.repair(number)))
    return replace(entry, ended=log.require(RepairedRecord, paths.repaired(number)) if has_ended else None)


def _read_begun(log: Log, number: int) -> Entry | None:
    """The beginning of a repair, also if its record cannot be read. None if there is none."""
    try:
        begun = log.find(RepairRecord, paths.repair(number))
    except CorruptError as error:
        empty = RepairRecord(number=number, verb="", who="unknown", run_id="", id="", created="unknown")
        return Entry(empty, damage=str(error))
    return None if begun is None else Entry(begun)


def _not_done(log: Log, entry: Entry) -> Entry:
    if entry.state == DONE:
        raise ended_already(log, entry)
    return entry


def _same_or_none(log: Log, order: Order, found: _Found) -> Entry | None:
    same = None
    for number in found.open:
        begun = _begun_of_open(log, number)
        if _is_same(begun, order):
            _refuse_running(log, begun)
            same = Entry(begun, is_resumed=True)
        elif _overlap(begun.touches, order.touches):
            raise HeldError(
                f"repair {number} of {log.store.root} is not finished ({begun.verb}, begun by {begun.who} at "
                f"{begun.created}), and it changes the same objects. Complete it first with the same command: "
                f"{command_of(begun)}{_meaning(begun)}. Or give it up: wal-sink repairs give-up WAL {number} --why TEXT"
            )
    return same


def _begun_of_open(log: Log, number: int) -> RepairRecord:
    try:
        return log.require(RepairRecord, paths.repair(number))
    except ObjectLost:
        raise
    except CorruptError as error:
        raise CorruptError(
            f"repair {number} of {log.store.root} is not finished, and nobody knows what it changes: {error}. Restore "
            f"the record. If that is not possible, give the repair up: wal-sink repairs give-up WAL {number} --why TEXT"
        ) from error


def _is_same(begun: RepairRecord, order: Order) -> bool:
    """Whether a record is that of the same command."""
    if begun.verb != order.verb:
        return False
    wanted, found = _as_stored(order.arguments), dict(begun.arguments)
    if order.names_sink and tuple(begun.touches) == order.touches:
        wanted.pop("--name", None)
        found.pop("--name", None)
    return found == wanted


def _meaning(begun: RepairRecord) -> str:
    """The meaning of `--to`, where that is one: the same text may name another target elsewhere."""
    return f" (--to is {begun.arguments[TARGET]} there)" if TARGET in begun.arguments else ""


def _as_stored(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Plain data as it is read back, without anything that looks like a secret: descriptions come from users' code."""
    stored: dict[str, Any] = _without_secrets(msgspec.json.decode(msgspec.json.encode(facts)))
    return stored


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_secrets(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_without_secrets(each) for each in value]
    return mask_typed(value) if isinstance(value, str) else value


def _overlap(some: Sequence[str], others: Sequence[str]) -> bool:
    return any(one.startswith(other) or other.startswith(one) for one in some for other in others)


def _refuse_running(log: Log, begun: RepairRecord) -> None:
    """Raise `HeldError` if another process of this machine is at work on the repair."""
    if begun.holder == process_identity() or state_of(begun.holder) is not Holding.RUNNING:
        return
    raise HeldError(
        f"repair {begun.number} of {log.store.root} ({begun.verb}) is under way: {begun.who} began it at "
        f"{begun.created}, and this process runs on this machine. Wait until it ends, or stop it first"
    )


def _end(log: Log, entry: Entry, *, outcome: str, result: Mapping[str, Any], why: str) -> Entry:
    record = RepairedRecord(
        number=entry.number,
        outcome=outcome,
        who=who(),
        why=redacted(why),
        result=_as_stored(result),
        run_id=log.run_id,
        **log.stamp(),
    )
    return Entry(entry.begun, log.create_or_find(paths.repaired(entry.number), record)[0])
