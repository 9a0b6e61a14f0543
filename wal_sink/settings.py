"""How the log is written (`Settings`) and how one sink is served (`Delivery`): plain, frozen, validated values."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal

from wal_sink.arguments.values import check_bool, check_count, check_seconds, is_number, one_of, spelled_class
from wal_sink.errors import ConfigError
from wal_sink.redaction import mask_url, redacted

GuaranteeName = Literal["exactly_once", "at_least_once", "at_most_once"]
Where = Literal["auto", "driver", "executors"]

MAX_SEGMENT_BYTES = 512 << 20
"""A delivery task reads a segment whole, in one request; more than this has no place in a worker's memory."""

MIN_RETENTION_BATCHES = 100
"""What Spark keeps of its own checkpoint (`spark.sql.streaming.minBatchesToRetain`)."""


@spelled_class
@dataclass(frozen=True, slots=True)
class Settings:
    """The log's own settings. They apply to batches staged from now on; what is staged keeps its chunks and keys."""

    chunk_rows: int = 10_000
    """Most rows handed to a sink in one call."""
    chunk_bytes: int = 32 << 20
    """Most bytes (as Arrow holds them) handed to a sink in one call; a larger single row goes alone."""
    segment_bytes: int = 64 << 20
    """Parquet bytes after which a staging task starts its next segment."""
    max_pending_batches: int | None = None
    """Staging waits while so many batches are staged and not delivered by every sink of this run."""
    max_pending_bytes: int | None = None
    """The same, in segment bytes. One batch may always be pending."""
    max_delivery_tasks: int | None = None
    """Most Spark task slots delivery takes; None: one less than the cluster has, at least one."""
    retention_batches: int = 200
    """Delivered batches whose markers and segments are kept, so that a rolled back checkpoint is recognised."""

    single_writer: bool = False
    """Accepts a store that cannot create-if-absent: then nothing but you keeps two drivers off one WAL."""

    def __post_init__(self) -> None:
        _at_least_1(self, "chunk_rows", "chunk_bytes", "segment_bytes", "retention_batches")
        _at_least_1_or_none(self, "max_pending_batches", "max_pending_bytes", "max_delivery_tasks")
        check_bool("single_writer", self.single_writer)
        if self.segment_bytes > MAX_SEGMENT_BYTES:
            raise ConfigError(f"segment_bytes={self.segment_bytes}: expected at most {MAX_SEGMENT_BYTES}")
        if self.retention_batches < MIN_RETENTION_BATCHES:
            raise ConfigError(
                f"retention_batches={self.retention_batches}: expected at least {MIN_RETENTION_BATCHES}, because "
                "Spark keeps that many batches of its checkpoint and a roll-back to any of them must be recognised"
            )


def check_chunks(settings: Settings, what: str, max_rows: int | None, max_bytes: int | None) -> None:
    """Refuse settings that make larger chunks than a sink takes; None: it takes any."""
    rows = min(settings.chunk_rows, max_rows or settings.chunk_rows)
    size = min(settings.chunk_bytes, max_bytes or settings.chunk_bytes)
    if (rows, size) != (settings.chunk_rows, settings.chunk_bytes):
        raise ConfigError(
            f"{what}: its target takes no chunks of chunk_rows={settings.chunk_rows}, "
            f"chunk_bytes={settings.chunk_bytes}. Pass settings=Settings(chunk_rows={rows}, chunk_bytes={size}) to "
            "WalSink, or choose a sink that takes more at once"
        )


@spelled_class
@dataclass(frozen=True, slots=True)
class Delivery:
    """How one sink is served: the sink itself and the policies around it."""

    to: object
    """A callable of one `Chunk`, a `Sink`, a wrapped writer, or the URL of a backend. Shown without credentials."""
    guarantee: GuaranteeName | None = None
    """None: the strongest the sink can honour. Asking for more than that is refused at start."""
    where: Where = "auto"
    """Where the sink runs. `auto`: on executors, and small batches in the driver with an unpickled copy of the sink.

    `driver`: in the driver's process, this very object. While a call that timed out still runs in it, a copy of it is
    called; one that cannot be pickled has then failed for good.
    """
    order: Literal["batch", "total"] = "batch"
    """`batch`: the segments of a batch side by side; `total`: one after the other. Batches are always in order."""
    max_concurrency: int | None = None
    """Most segments of a batch on their way to the sink at once; None: as many as there are task slots for them."""
    rows_per_s: float | None = None
    """Most rows a second the sink is given, on average, by all tasks together; None: no limit. Each task sends one
    chunk at once and waits after it; a sink of whole segments or batches waits between those. Not of `TwoPhaseSink`.
    """
    max_attempts: int = 8
    """Tries of a batch in a row without any progress before the committer gives up."""
    budget_s: float = 600
    """Seconds of a batch without any progress before the committer gives up."""
    attempt_timeout_s: float = 120
    """Seconds one call of the sink may take; after that its outcome is unknown."""
    on_rejected: Literal["halt", "dead_letter"] = "halt"
    """What happens when the sink returns `Rejected`. `halt`: delivery stops, and a new start sends the chunk again.
    `dead_letter`: the rows are kept beside the WAL under their keys (`DeadLetters`), and delivery goes on.
    """
    keep_segments: bool = True
    """Of a `TwoPhaseSink`: whether the WAL keeps the rows besides, against a target that loses what it prepared. False
    saves writing them twice, and is permitted where every sink of the WAL is a two-phase one that says so.
    """
    on_gone: Literal["halt", "prepare_again"] = "halt"
    """Of a `TwoPhaseSink`: what happens when a handle is gone that may have been committed before. `halt`: delivery
    stops. `prepare_again`: the kept rows are prepared and committed again, which repeats what was committed before.
    """
    on_failure: Literal["stop", "park"] = "stop"
    """What a committer that gave up does: stop the query, or only this sink's delivery."""
    start_from: Literal["earliest", "next"] | None = None
    """Where a new name begins on a WAL that has history; required there."""

    def __post_init__(self) -> None:
        _one_of(self, "guarantee", None, "exactly_once", "at_least_once", "at_most_once")
        _one_of(self, "where", "auto", "driver", "executors")
        _one_of(self, "order", "batch", "total")
        _one_of(self, "on_rejected", "halt", "dead_letter")
        check_bool("keep_segments", self.keep_segments)
        _one_of(self, "on_gone", "halt", "prepare_again")
        _one_of(self, "on_failure", "stop", "park")
        _one_of(self, "start_from", None, "earliest", "next")
        _at_least_1(self, "max_attempts")
        _at_least_1_or_none(self, "max_concurrency")
        if self.rows_per_s is not None and not (is_number(self.rows_per_s) and 0 < self.rows_per_s < math.inf):
            raise ConfigError(f"rows_per_s={self.rows_per_s!r}: expected a number of rows above 0")
        for name in ("budget_s", "attempt_timeout_s"):
            check_seconds(name, getattr(self, name), above_0=True)

    def __repr__(self) -> str:
        to = repr(mask_url(self.to)) if isinstance(self.to, str) else redacted(repr(self.to))
        policies = [f"{field.name}={getattr(self, field.name)!r}" for field in fields(self) if field.name != "to"]
        return f"Delivery({', '.join([f'to={to}', *policies])})"


def _at_least_1(owner: object, *names: str) -> None:
    for name in names:
        check_count(name, getattr(owner, name))


def _at_least_1_or_none(owner: object, *names: str) -> None:
    _at_least_1(owner, *(name for name in names if getattr(owner, name) is not None))


def _one_of(owner: object, name: str, *allowed: object) -> None:
    one_of(name, getattr(owner, name), allowed)
