"""Settings of the log and of the delivery to one sink: `Settings`, `Delivery` and `Retry`.

Plain, frozen values, validated where they are made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

from wal_sink.errors import ConfigError
from wal_sink.support.arguments import (
    check_bool,
    check_count,
    check_seconds,
    is_number,
    one_of,
)
from wal_sink.support.calls import MOST as MOST_THREADS
from wal_sink.support.secrets import mask_url, redacted

GuaranteeName = Literal["exactly_once", "at_least_once", "at_most_once"]
Where = Literal["auto", "driver", "executors"]

MAX_SEGMENT_BYTES = 512 << 20
"""Upper limit of `segment_bytes`. A delivery task reads a whole segment in one request, and more would not fit into a
worker's memory.
"""

MIN_RETENTION_BATCHES = 100
"""Number of batches that Spark keeps in its checkpoint (`spark.sql.streaming.minBatchesToRetain`)."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the log. They apply to batches staged from now on; batches already staged keep their chunks and
    keys.
    """

    chunk_rows: int = 10_000
    """Maximum number of rows handed to a sink in one call."""
    chunk_bytes: int = 32 << 20
    """Maximum number of bytes (as Arrow holds them) handed to a sink in one call. A single larger row is sent alone."""
    segment_bytes: int = 64 << 20
    """Parquet bytes after which a staging task starts its next segment."""
    max_pending_batches: int | None = None
    """Staging waits while this many batches are staged but not yet delivered by every sink of this run.
    One batch may always be pending.
    """
    max_delivery_tasks: int | None = None
    """Maximum number of Spark task slots for delivery, of all sinks together. None: one less than the cluster has, at
    least one; a delivery that takes 5 s at most, at the pace of the last batch, gets all.
    """
    retention_batches: int = 200
    """Number of delivered batches whose markers and segments are kept, so that a rolled-back checkpoint is recognised
    and a restored target can be caught up. Give all processes of a WAL the same number: the smallest counts.
    """

    single_writer: bool = False
    """True accepts a store without create-if-absent. You must then make sure that two drivers never write to one WAL.
    """

    def __post_init__(self) -> None:
        _at_least_1(self, "chunk_rows", "chunk_bytes", "segment_bytes", "retention_batches")
        _at_least_1_or_none(self, "max_pending_batches", "max_delivery_tasks")
        check_bool("single_writer", self.single_writer)
        if self.segment_bytes > MAX_SEGMENT_BYTES:
            raise ConfigError(f"segment_bytes={self.segment_bytes}: expected at most {MAX_SEGMENT_BYTES}")
        if self.retention_batches < MIN_RETENTION_BATCHES:
            raise ConfigError(
                f"retention_batches={self.retention_batches}: expected at least {MIN_RETENTION_BATCHES}, because "
                "Spark keeps that many batches in its checkpoint, and a roll-back to any of them must be recognised"
            )


def check_chunks(settings: Settings, what: str, max_rows: int | None, max_bytes: int | None) -> None:
    """Refuse settings that make larger chunks than a sink takes. None: the sink takes chunks of any size."""
    rows = min(settings.chunk_rows, max_rows or settings.chunk_rows)
    size = min(settings.chunk_bytes, max_bytes or settings.chunk_bytes)
    if (rows, size) != (settings.chunk_rows, settings.chunk_bytes):
        raise ConfigError(
            f"{what}: the target of this sink does not accept chunks of chunk_rows={settings.chunk_rows}, "
            f"chunk_bytes={settings.chunk_bytes}. Pass settings=Settings(chunk_rows={rows}, chunk_bytes={size}) to "
            "WalSink, or choose a sink that accepts larger chunks"
        )


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how long a failure that may pass is tried again. The pauses between attempts grow."""

    attempts: int = 8
    """Number of consecutive attempts without any progress before wal-sink gives up. Of a batch, or of a dead letter."""
    budget_s: float = 600
    """Seconds without any progress before wal-sink gives up."""
    attempt_timeout_s: float = 120
    """Maximum seconds for one call of the sink. After that, the outcome of the call is unknown."""

    def __post_init__(self) -> None:
        check_count("attempts", self.attempts)
        for name in ("budget_s", "attempt_timeout_s"):
            check_seconds(name, getattr(self, name), above_0=True)


def check_columns(value: object) -> None:
    """Raise `ConfigError` unless the argument `columns` can rename columns of some query."""
    if value is None:
        return
    if not isinstance(value, Mapping) or not all(
        isinstance(old, str) and (new is None or (isinstance(new, str) and new)) for old, new in value.items()
    ):
        raise ConfigError(
            f"columns={value!r}: expected names in the target by names in the query, and None to leave a column out, "
            'such as {"order_id": "id", "note": None}'
        )
    names = [new for new in value.values() if new is not None]
    if len({*names}) < len(names):
        raise ConfigError(f"columns={dict(value)!r}: two columns have the same name after renaming")


def check_retry(value: object) -> Retry:
    """The argument `retry`. Raises `ConfigError` if it is anything but a `Retry`."""
    if isinstance(value, Retry):
        return value
    raise ConfigError(f"retry: expected Retry(attempts=8, budget_s=600), found a {type(value).__name__}")


@dataclass(frozen=True, slots=True)
class Delivery:
    """Settings of the delivery to one sink: the sink itself and the policies around it."""

    to: object
    """A callable that takes one `Chunk`, a `Sink`, a wrapped writer, or the URL of a backend. `repr` shows it without
    credentials.
    """
    guarantee: GuaranteeName | None = None
    """Requested guarantee. None: the strongest one that the sink supports. If you request a stronger one, startup fails
    and the error lists your options.
    """
    where: Where = "auto"
    """Place where the sink runs. `auto`: on executors, and in the driver with an unpickled copy of the sink: small
    batches, and the questions to a transactional target what it has. So both must reach the target.

    `driver`: in the driver's process, with this very object. If a call timed out and still runs, a copy of the object
    is called instead; if the object cannot be pickled, delivery fails permanently.
    """
    max_concurrency: int | None = None
    """Number of segments of a batch that are in flight at once, at most. Batches are always in order.

    None: no limit but the task slots and threads. 1: total order, one segment after the other, and progress is recorded
    with each chunk.
    """
    threads_per_task: int = 1
    """Number of segments that one delivery task on an executor sends at once, at most 16. Each goes through its own
    copy of the sink, in its own thread, so the libraries that the sink uses must permit threads. The task holds one
    segment in memory for each thread. More than 1 helps where the store or the target makes a task wait.
    """
    rows_per_s: float | None = None
    """Maximum average rows per second over all tasks together. None: no limit. Each task sends one chunk at once and
    then waits; a sink of whole segments or batches waits between batches. A `TwoPhaseSink` does not support it.
    """
    roll_s: float | None = None
    """Seconds for which a complete batch waits for later ones, so that many small batches appear in one commit or file.
    For a `CommitSink` and a `TwoPhaseSink`. The end of a run waits for none. A sink name keeps it, or has none, for
    ever. None: each batch appears alone.
    """
    roll_bytes: int = 64 << 20
    """Segment bytes that end such a roll of batches. A larger batch appears alone."""
    retry: Retry = Retry()
    """Attempts at a batch, before the committer gives up."""
    on_rejected: Literal["halt", "dead_letter"] = "halt"
    """Reaction when the sink returns `Rejected`. `halt`: delivery stops, and a new start sends the chunk again.
    `dead_letter`: the rows are kept beside the WAL under their keys (`DeadLetters`), and delivery continues.
    """
    on_failure: Literal["stop", "park"] = "stop"
    """Reaction when the committer gives up: stop the query, or only this sink's delivery."""
    start_from: Literal["earliest", "next"] | int | None = None
    """First batch of a new sink name on a WAL that has history. Required in that case. A number is refused if the WAL
    may have deleted that batch, if another sink of the WAL or of this run has the same target (see `same_target`), and
    for a known sink that began with another batch.
    """
    through: int | None = None
    """Last batch of a new sink name: once the sink has it, the sink is retired. Only for processes that do not stage,
    and not for a `TwoPhaseSink`.
    """
    columns: Mapping[str, str | None] | None = None
    """Other names for columns, for this sink alone: `{"order_id": "id", "note": None}` renames one and leaves out one;
    all others keep their names. Arguments of the sink (`key`, `newer_by`) name columns as the target does. Dead letters
    keep the names of the query; a replay takes the same `columns`. A known sink may get other columns at a later start.
    Not for a `CommitSink`: rename in the query.
    """
    same_target: bool = False
    """True permits a number for `start_from` although another sink of the WAL has the same target, retired ones
    included. A batch that both deliver is there twice, unless the target ignores the keys that it knows. Also permits a
    known transactional sink whose table or topic has another name than at its registration.
    """

    def __post_init__(self) -> None:
        _one_of(self, "guarantee", None, "exactly_once", "at_least_once", "at_most_once")
        _one_of(self, "where", "auto", "driver", "executors")
        _one_of(self, "on_rejected", "halt", "dead_letter")
        _one_of(self, "on_failure", "stop", "park")
        if self.start_from is None or isinstance(self.start_from, str):
            _one_of(self, "start_from", None, "earliest", "next")
        else:
            _batch_id("start_from", self.start_from, "'earliest', 'next' or ")
        if self.through is not None:
            _batch_id("through", self.through)
        if self.through is not None and isinstance(self.start_from, int) and self.through < self.start_from:
            raise ConfigError(f"through={self.through}: expected at least start_from={self.start_from}")
        check_bool("same_target", self.same_target)
        check_columns(self.columns)
        check_retry(self.retry)
        _at_least_1_or_none(self, "max_concurrency")
        _at_least_1(self, "threads_per_task", "roll_bytes")
        if self.roll_s is not None:
            check_seconds("roll_s", self.roll_s, above_0=True)
        if self.roll_bytes > MAX_SEGMENT_BYTES:
            raise ConfigError(f"roll_bytes={self.roll_bytes}: expected at most {MAX_SEGMENT_BYTES}")
        if self.threads_per_task > MOST_THREADS:
            raise ConfigError(f"threads_per_task={self.threads_per_task}: expected 1 to {MOST_THREADS}")
        if self.threads_per_task > 1 and (self.max_concurrency == 1 or self.where == "driver"):
            found = "max_concurrency=1" if self.max_concurrency == 1 else "where='driver'"
            raise ConfigError(
                f"threads_per_task={self.threads_per_task} sends several segments at once on executors, and {found} "
                "sends one after the other. Leave out one of the two"
            )
        if self.rows_per_s is not None and not (is_number(self.rows_per_s) and 0 < self.rows_per_s < math.inf):
            raise ConfigError(f"rows_per_s={self.rows_per_s!r}: expected a number of rows above 0")

    def __repr__(self) -> str:
        to = repr(mask_url(self.to)) if isinstance(self.to, str) else redacted(repr(self.to))
        policies = [f"{field.name}={getattr(self, field.name)!r}" for field in fields(self) if field.name != "to"]
        return f"Delivery({', '.join([f'to={to}', *policies])})"


def _batch_id(name: str, value: object, other: str = "") -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ConfigError(f"{name}={value!r}: expected {other}the number of a batch, from 0 on")


def _at_least_1(owner: object, *names: str) -> None:
    for name in names:
        check_count(name, getattr(owner, name))


def _at_least_1_or_none(owner: object, *names: str) -> None:
    _at_least_1(owner, *(name for name in names if getattr(owner, name) is not None))


def _one_of(owner: object, name: str, *allowed: object) -> None:
    one_of(name, getattr(owner, name), allowed)
