"""Looking at a WAL: reads only, and claims no term. Needs no Spark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from wal_sink.delivery.progress import furthest_rows, recorded_chunks
from wal_sink.errors import ConfigError
from wal_sink.recovery.inventory import (
    Inventory,
    Lost,
    check_unserved_sinks,
    find_again,
    find_wal,
    held_batches,
    marked_through,
    newest_marked,
    take,
)
from wal_sink.recovery.location import current_location
from wal_sink.recovery.sink_names import KnownSink, read_names
from wal_sink.reporting.tables import html_table, text_table
from wal_sink.runtime.clock import SYSTEM
from wal_sink.sinks.json_rows import decimal_texts, plain_values
from wal_sink.stores.base import Store
from wal_sink.wal import paths
from wal_sink.wal.holders import holder_of
from wal_sink.wal.log import NOTHING, Log
from wal_sink.wal.records import Manifest, Marker, Release, SinkRecord
from wal_sink.wal.segment_reader import load_segment, read_chunks


@dataclass(frozen=True, slots=True, repr=False)
class SinkStatus:
    """State of one sink. `repr` is one line; all fields are attributes."""

    name: str
    kind: str
    identity: str
    delivered_through: int
    """The newest batch that the sink has; -1 if none."""
    pending_batches: int
    """Number of later batches in the WAL, complete or not."""
    term: int
    held_by: str
    """Host and process id of the last committer."""
    held_since: str
    """When it claimed its term."""
    state: str
    """`retired`, or the state of that process: `running`, `ended`, `gone` or `unknown`; `new` if there was none."""
    folder: str
    """The sink's first name, which is its folder in the WAL."""

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
    """The location that the WAL records; None if it records none. At another place it is a copy, or was moved."""
    newest_batch: int
    """The newest batch that has any object in the WAL; -1 if none."""
    low_water: int
    stager_term: int
    """The newest term of the stager; 0 if no run has staged yet."""
    sinks: tuple[SinkStatus, ...]

    def __repr__(self) -> str:
        newest, low = self.newest_batch, self.low_water
        return f"Status(wal={self.wal!r}, newest_batch={newest}, low_water={low}, sinks={self.sinks!r})"

    def __str__(self) -> str:
        """A few lines of at most 80 columns, unless an address or a name is long."""
        facts = text_table(("", ""), self._facts())
        return f"{facts}\n\n{text_table(_HEADINGS, self._sinks())}" if self.sinks else f"{facts}\n\n{_NO_SINK}"

    def _repr_html_(self) -> str:
        """The same for a notebook, with the target of each sink."""
        facts = html_table(("", ""), self._facts())
        rows = [(*row, sink.identity) for row, sink in zip(self._sinks(), self.sinks, strict=True)]
        return facts + (html_table((*_HEADINGS, "target"), rows) if rows else f"<p>{_NO_SINK}</p>")

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


_HEADINGS = ("sink", "kind", "state", "delivered through", "pending")
_NO_SINK = "no sink is registered"


def _batch_text(batch_id: int) -> str:
    return str(batch_id) if batch_id > NOTHING else "none"


@dataclass(frozen=True, slots=True)
class BatchView:
    """One batch, as its records show it."""

    batch_id: int
    attempts: int
    released: bool
    rows: int
    bytes: int
    segments: int
    delivered_to: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Delivered:
    """Delivery of one batch to one sink."""

    sink: str
    complete: bool
    """Whether its marker exists, or a later one: then the sink has the whole batch."""
    chunks: int
    """Number of progress records. The batch's marker may stand for the last one."""
    rows: int
    """Rows that the sink has, by these records."""
    skipped: bool = False
    """Whether a person ordered that the sink passes over the batch: then it lacks rows, though `complete` is True."""


@dataclass(frozen=True, slots=True)
class BatchDetail:
    """One batch with its records."""

    manifest: Manifest
    """The manifest that counts."""
    attempts: int
    release: Release | None
    delivered: tuple[Delivered, ...]


@dataclass(frozen=True, slots=True)
class StagedRows:
    """The first rows of a staged batch."""

    columns: tuple[str, ...]
    """Real names. Some may be equal."""
    keys: tuple[str, ...]
    """A key for each row, as `Chunk.row_keys` gives them."""
    rows: tuple[tuple[Any, ...], ...]
    """Values as `Chunk.to_json` writes them. Structs are dictionaries, decimals text, bytes unchanged."""


def _log(store: Store) -> Log:
    return Log(store, SYSTEM, run_id="")


def read_status(store: Store) -> Status:
    """Read the state of a WAL and its sinks. Raises `CorruptError`, also as `ObjectLost`, or `StoreError`."""
    log = _log(store)
    inventory = take(log)
    wal = inventory.wal
    low_water, held = held_batches(log, wal) if wal else (NOTHING, [])
    newest = max(held, default=low_water)
    return Status(
        wal=store.root,
        wal_id=wal.wal_id if wal else None,
        query_id=wal.query_id if wal else None,
        checkpoint=wal.checkpoint if wal else None,
        first_batch=wal.first_batch if wal else None,
        location=(current_location(log, wal, moved=inventory.has_moved) or None) if wal else None,
        newest_batch=newest,
        low_water=low_water,
        stager_term=max(log.numbers(paths.terms(paths.STAGER_ROLE)), default=0),
        sinks=tuple(_sink_status(log, sink, newest) for sink in _present_sinks(log, inventory)),
    )


def _present_sinks(log: Log, inventory: Inventory) -> list[KnownSink]:
    """The sinks that have any object, except forgotten ones."""
    known = set(check_unserved_sinks(log, inventory, ()))
    forgotten = inventory.known_sinks.keys() - known
    return [sink for sink in read_names(log).sinks if sink.folder not in forgotten]


def read_batches(
    store: Store, *, after: int = NOTHING, on_batch: Callable[[int, int], None] = lambda _done, _total: None
) -> list[BatchView]:
    """Every batch above low water and `after`, oldest first. Two or three requests a batch. Raises `ObjectLost`.

    `on_batch` is called before the first batch and after each one, with the number of batches read and their total.
    """
    log = _log(store)
    wal = find_wal(log)
    marked = {sink.name: _marked(log, sink.folder) for sink in read_names(log).sinks}
    held = held_batches(log, wal)[1] if wal else []
    wanted = [batch_id for batch_id in held if batch_id > after]
    found: list[BatchView] = []
    on_batch(0, len(wanted))
    for batch_id in wanted:
        found.append(_batch_view(log, batch_id, marked))
        on_batch(len(found), len(wanted))
    return found


def read_manifest(store: Store, batch_id: int) -> Manifest | None:
    """The manifest that counts for a batch: the released one, else the highest; None if there is none."""
    log = _log(store)
    release = log.find(Release, paths.release(batch_id))
    if release is not None:
        return log.find(Manifest, paths.manifest(batch_id, release.term, release.attempt))
    found = [paths.parse_manifest(name) for name in store.list(paths.batch(batch_id))]
    highest = max((name for name in found if name is not None), default=None)
    return log.find(Manifest, paths.manifest(batch_id, *highest)) if highest else None


def read_batch(store: Store, batch_id: int) -> BatchDetail | None:
    """One batch with its records; None if the WAL holds no manifest of it."""
    log = _log(store)
    manifest = read_manifest(store, batch_id)
    if manifest is None:
        return None
    return BatchDetail(
        manifest=manifest,
        attempts=sum(paths.parse_manifest(name) is not None for name in store.list(paths.batch(batch_id))),
        release=log.find(Release, paths.release(batch_id)),
        delivered=tuple(_delivered(log, sink, manifest) for sink in read_names(log).sinks),
    )


def read_rows(store: Store, manifest: Manifest, limit: int) -> StagedRows:
    """The first `limit` rows of a batch. Reads whole segments, checked; raises `CorruptError` if one is damaged."""
    keys: list[str] = []
    rows: list[tuple[Any, ...]] = []
    for ref in manifest.segments:
        if len(rows) >= limit:
            break
        data, where = load_segment(store, ref), store.url_of(ref.path)
        for start, end, table in read_chunks(
            data, ref, chunk_rows=manifest.chunk_rows, columns=manifest.columns, where=where
        ):
            wanted = min(end - start, limit - len(rows))
            keys += [f"{ref.id}-{row}" for row in range(start, start + wanted)]
            rows += plain_rows(table.slice(0, wanted))
            if len(rows) >= limit:
                break
    return StagedRows(manifest.columns, tuple(keys), tuple(rows))


def plain_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    """Rows for people. Values look as in JSON; those that JSON cannot hold, as Python prints them."""
    columns = [_plain_column(column, name) for name, column in zip(table.column_names, table.columns, strict=True)]
    return list(zip(*columns, strict=True)) if columns else [()] * table.num_rows


def _plain_column(column: Any, name: str) -> list[Any]:
    """Values of one column. A type that JSON rows cannot hold is printed by Python, so that looking always works."""
    if pa.types.is_decimal(column.type):
        return [text for part in column.chunks for text in decimal_texts(part)]
    try:
        return [_named(value) for value in plain_values(column, name)]
    except ConfigError:
        return [str(value) if value.is_valid else None for value in column]


def _named(value: Any) -> Any:
    """A nested value with the names of its fields."""
    if isinstance(value, msgspec.Struct):
        fields = msgspec.structs.fields(value)
        return {field.encode_name: _named(getattr(value, field.name)) for field in fields}
    if isinstance(value, msgspec.Raw):
        return bytes(value).decode()
    if isinstance(value, dict):
        return {name: _named(item) for name, item in value.items()}
    return [_named(item) for item in value] if isinstance(value, list) else value


def _marked(log: Log, name: str) -> range:
    """The batches that a sink's markers stand for: all from its first to the newest marker.

    A folder without a registration belongs to a forgotten sink, which has none.
    """
    newest = newest_marked(log, name)
    sink = _sink_record(log, name, f"a marker of batch {newest}" if newest > NOTHING else None)
    return range(sink.first_batch, newest + 1) if sink else range(0)


def _sink_record(log: Log, name: str, younger: str | None) -> SinkRecord | None:
    """A sink's registration; None if there is none. Raises `ObjectLost` if `younger` exists, which is made after it."""
    record = log.find(SinkRecord, paths.sink(name))
    if record is None and younger is not None:
        return find_again(log, SinkRecord, paths.sink(name), Lost.SINK, younger)
    return record


def _delivered(log: Log, known: KnownSink, manifest: Manifest) -> Delivered:
    name = known.folder
    marker = log.find(Marker, paths.marker(name, manifest.batch_id))
    complete = marker is not None or manifest.batch_id in _marked(log, name)
    found = recorded_chunks(log.store, name, manifest)
    skipped = marker is not None and marker.skipped
    rows = manifest.rows if complete and not skipped else sum(furthest_rows(found).values())
    return Delivered(sink=known.name, complete=complete, chunks=len(found), rows=rows, skipped=skipped)


def _sink_status(log: Log, known: KnownSink, newest_batch: int) -> SinkStatus:
    name = known.folder
    through = marked_through(log, name)
    role = paths.committer_role(name)
    term = max(log.numbers(paths.terms(role)), default=0)
    sink = _sink_record(log, name, paths.term(role, term) if term else None)
    holder = holder_of(log, role, term) if term else None
    first = max(through + 1, sink.first_batch if sink else 0)
    pending = [batch for batch in log.numbers(paths.BATCHES, after=first - 1) if batch <= newest_batch]
    return SinkStatus(
        name=known.name,
        kind=sink.sink_kind if sink else "?",
        identity=sink.identity if sink else "?",
        delivered_through=through,
        pending_batches=len(pending),
        term=term,
        held_by=holder.process if holder else "",
        held_since=holder.since if holder else "",
        state="retired" if known.is_retired else str(holder.state) if holder else "new",
        folder=name,
    )


def _batch_view(log: Log, batch_id: int, marked: dict[str, range]) -> BatchView:
    names = log.store.list(paths.batch(batch_id))
    manifest = read_manifest(log.store, batch_id)
    return BatchView(
        batch_id=batch_id,
        attempts=sum(paths.parse_manifest(name) is not None for name in names),
        released="release.json" in names,
        rows=manifest.rows if manifest else 0,
        bytes=manifest.bytes if manifest else 0,
        segments=len(manifest.segments) if manifest else 0,
        delivered_to=tuple(name for name, batches in marked.items() if batch_id in batches),
    )
