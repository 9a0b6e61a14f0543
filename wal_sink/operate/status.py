"""The state of a WAL and of its sinks, by a few requests for each sink, and Spark's newest commit beside it.

Nothing about the commit fails: the unknown is told as unknown.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from wal_sink.errors import WalSinkError
from wal_sink.log import paths
from wal_sink.log.log import NOTHING
from wal_sink.operate.look import SinkOfWal, WalFacts
from wal_sink.protocol.checkpoint import Checkpoint
from wal_sink.protocol.checkpoint_formats import CheckpointFiles
from wal_sink.stores.base import Store
from wal_sink.support.secrets import redacted
from wal_sink.support.texts import text_table

_HEADINGS = ("sink", "kind", "state", "delivered through", "pending")
_NO_SINK = "no sink is registered"


@dataclass(frozen=True, slots=True)
class SparkCommit:
    """The newest batch that Spark completed."""

    newest: int | None
    """-1 if Spark completed none; None if it is unknown."""
    unknown_because: str = ""


def read_commit(files: CheckpointFiles, query_id: str | None) -> SparkCommit:
    """Spark's newest commit in a checkpoint of the given query. One read and one listing; never raises `WalSinkError`.

    The entries of another query say nothing about this WAL.
    """
    checkpoint = Checkpoint(files)
    try:
        found = checkpoint.query_id()
        if found is None:
            return SparkCommit(None, f"{checkpoint.root} holds no query id")
        if found != query_id:
            return SparkCommit(None, f"{checkpoint.root} belongs to another query ({found})")
        return SparkCommit(checkpoint.newest_commit())
    except WalSinkError as error:
        return SparkCommit(None, redacted(error))


@dataclass(frozen=True, slots=True, repr=False)
class SinkStatus:
    """State of one sink. `repr` is one line; all fields are attributes."""

    name: str
    kind: str
    identity: str
    delivered_through: int
    """The newest batch that the sink has; -1 if none."""
    pending_batches: int
    """Number of later batches in the WAL that it still gets, complete or not."""
    term: int
    held_by: str
    """Host and process id of the last committer."""
    held_since: str
    """When it claimed its term."""
    state: str
    """`retired`, or the state of that process: `running`, `ended`, `gone` or `unknown`; `new` if there was none."""
    folder: str
    """The sink's first name, which is its folder in the WAL."""
    is_holder: bool = False
    """Whether it is the sink of a catch-up: it gets nothing, and keeps batches from being deleted."""
    first_batch: int = 0
    """The batch with which the sink begins."""
    last_batch: int | None = None
    """The last batch that it gets (`through`); None if it has no last one."""

    def __repr__(self) -> str:
        return (
            f"SinkStatus({self.name!r}, kind={self.kind!r}, state={self.state!r}, "
            f"delivered_through={self.delivered_through}, pending_batches={self.pending_batches})"
        )


@dataclass(frozen=True, slots=True, repr=False)
class Status:
    """State of a WAL, as its store shows it. `print` shows it as a table, and so does a notebook."""

    wal: str
    wal_id: str | None
    query_id: str | None
    checkpoint: str | None
    first_batch: int | None
    location: str | None
    """The location that the WAL records; None if there is no WAL yet. At another place it is a copy, or was moved."""
    newest_batch: int
    """The newest batch that has any object in the WAL; -1 if none."""
    low_water: int
    stager_term: int
    """The newest term of the stager; 0 if no run has staged yet."""
    sinks: tuple[SinkStatus, ...]
    """Each has `name`, `kind`, `state`, `delivered_through`, `pending_batches`, and who serves it (`held_by`)."""

    def __repr__(self) -> str:
        newest, low = self.newest_batch, self.low_water
        return f"Status(wal={self.wal!r}, newest_batch={newest}, low_water={low}, sinks={self.sinks!r})"

    def __str__(self) -> str:
        """A few lines of at most 80 columns, unless an address or a name is long."""
        facts = text_table(("", ""), self._facts())
        return f"{facts}\n\n{text_table(_HEADINGS, self._sinks())}" if self.sinks else f"{facts}\n\n{_NO_SINK}"

    def _facts(self) -> list[tuple[str, str]]:
        if self.wal_id is None:
            return [("WAL", f"{self.wal} (no batch was staged here yet)")]
        return [
            ("WAL", self.wal),
            ("checkpoint", str(self.checkpoint)),
            ("newest batch", _batch_text(self.newest_batch)),
            ("deleted through", _batch_text(self.low_water)),
        ]

    def _sinks(self) -> list[tuple[str, ...]]:
        return [
            (sink.name, sink.kind, sink.state, _batch_text(sink.delivered_through), str(sink.pending_batches))
            for sink in self.sinks
        ]


def _batch_text(batch_id: int) -> str:
    return str(batch_id) if batch_id > NOTHING else "none"


def older_checkpoint(spark: SparkCommit, *, newest_batch: int, delivered_through: int) -> str:
    """Why the checkpoint is older than the WAL; empty if it is not, or if Spark's newest commit is unknown.

    `newest_batch`, `delivered_through`: of the WAL, read before the commit. A batch is delivered only after Spark
    completed it, and only the batch after the newest complete one can be staged.
    """
    if spark.newest is None or (delivered_through <= spark.newest and newest_batch <= spark.newest + 1):
        return ""
    completed = "no batch" if spark.newest < 0 else f"batches through {spark.newest} only"
    known = f"was delivered through {delivered_through}"
    if delivered_through <= spark.newest:
        known = f"holds batches through {newest_batch}"
    return (
        f"the checkpoint is older than the WAL, which {known}, while Spark completed {completed}. The checkpoint was "
        "restored to an older state, or is another copy. Before the query starts, run wal-sink verify WAL "
        "--checkpoint URL, and restore a newer checkpoint if you can. If the query reads the same input under the "
        "same batch ids as before, wal-sink recognises these batches. A changed option such as maxFilesPerTrigger "
        "makes it read other input (HistoryError)"
    )


def read_status(store: Store) -> Status:
    """Read the state of a WAL and its sinks. Raises `CorruptError` or `StoreError`."""
    return status_of(WalFacts(store))


def status_of(facts: WalFacts) -> Status:
    """The state of a WAL and its sinks. Raises as `read_status`."""
    wal, low_water = facts.wal, facts.low_water
    return Status(
        wal=facts.log.store.root,
        wal_id=wal.wal_id if wal else None,
        query_id=wal.query_id if wal else None,
        checkpoint=wal.checkpoint if wal else None,
        first_batch=wal.first_batch if wal else None,
        location=facts.location,
        newest_batch=max(facts.batches, default=low_water),
        low_water=low_water,
        stager_term=facts.newest_term(paths.STAGER_ROLE),
        sinks=tuple(_sink_status(sink, facts.batches) for sink in facts.sinks),
    )


def _sink_status(found: SinkOfWal, held: Sequence[int]) -> SinkStatus:
    through = found.through
    sink = found.registration(paths.term(paths.committer_role(found.folder), found.term) if found.term else None)
    holder = found.holder
    first = max(through + 1, sink.first_batch if sink else 0)
    last = sink.through if sink else None
    end = NOTHING if found.is_retired else sys.maxsize if last is None else last
    return SinkStatus(
        name=found.name,
        kind=sink.sink_kind if sink else "?",
        identity=sink.identity if sink else "?",
        delivered_through=through,
        pending_batches=sum(first <= batch <= end for batch in held),
        term=found.term,
        held_by=holder.process if holder else "",
        held_since=holder.since if holder else "",
        state="retired" if found.is_retired else str(holder.state) if holder else "new",
        folder=found.folder,
        is_holder=sink is not None and sink.is_holder,
        first_batch=sink.first_batch if sink else 0,
        last_batch=last,
    )
