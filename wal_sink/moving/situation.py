"""Whether a WAL, its place and a checkpoint belong together; and if not, what each sink would get twice or never.

Reads only the records of the WAL and the checkpoint, and no target.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from wal_sink.checkpoint.reader import Checkpoint
from wal_sink.errors import ConfigError, CorruptError, HistoryError, StoreError, WalSinkError
from wal_sink.moving.ending import Ending, ending_of, manifest_of
from wal_sink.recovery.inventory import Lost, held_batches, marked_through, require
from wal_sink.recovery.location import canonical, current_location, doubt_of_absence, is_moved_to, third_place
from wal_sink.recovery.sink_names import KnownSink, read_names
from wal_sink.redaction import redacted
from wal_sink.reporting.texts import text_of
from wal_sink.wal import paths
from wal_sink.wal.log import NOTHING, Log
from wal_sink.wal.records import Manifest, SinkRecord, WalRecord

MOST_READ = 64
"""The most batches whose manifest is read for the numbers of rows. Beyond them, the numbers are lower bounds."""


class Match(StrEnum):
    """How a checkpoint fits a WAL."""

    SAME = "same"
    """It is that of the WAL, as new as the WAL."""
    BEHIND = "behind"
    """It is that of the WAL, restored to an older state: the WAL holds later batches."""
    AHEAD = "ahead"
    """It is that of the WAL, and has batches that the WAL lacks."""
    DIVERGED = "diverged"
    """It is that of the WAL, as new as the WAL, but the WAL holds a batch with other input."""
    FOR_DRAINS = "drains"
    """`adopt` made it from the WAL. No query goes on from it."""
    OTHER = "other"
    """Another query made it."""
    NONE = "none"
    """It has no query yet: it is new, or was deleted."""


class There(StrEnum):
    """The content of the place that a WAL records, if the WAL lies at another one."""

    SAME_WAL = "same"
    OTHER_WAL = "other"
    NO_WAL = "nothing"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Batches:
    """Some consecutive batches."""

    first: int | None = None
    """None: there are no such batches."""
    last: int | None = None
    rows: int = 0
    """Rows in those whose manifest was read."""
    is_exact: bool = True
    """Whether these are all rows."""

    @property
    def count(self) -> int:
        return 0 if self.first is None or self.last is None else self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Share:
    """The batches that one sink would get twice, or never, if the WAL is used as it is."""

    sink: str
    kind: str
    through: int
    """The newest batch that it has; -1: none."""
    twice: Batches
    never: Batches


@dataclass(frozen=True, slots=True)
class PlaceFound:
    """The place of a WAL that lies elsewhere than it records."""

    here: str
    said: str
    """Place that the WAL records."""
    there: There
    unknown_because: str = ""
    sinks: tuple[Share, ...] = ()
    """`twice`: batches that the sink got from the recorded place since. `never`: batches that only that place holds."""
    sinks_unknown_because: str = ""
    """Why the share of a sink, or of all, is not known."""


@dataclass(frozen=True, slots=True)
class QueryFound:
    """A checkpoint compared with the WAL."""

    checkpoint: str
    match: Match
    query_id: str | None
    committed: int
    """The newest batch that Spark completed by this checkpoint; -1: none."""
    newest: int
    """The newest batch that the WAL knows; -1: none."""
    low_water: int
    ending: Ending
    diverged: int | None = None
    """The first batch that this checkpoint planned with other source offsets than the WAL has; None: none is known.
    Only batches count that a sink lacks or that Spark runs again."""
    offsets: tuple[str, ...] = ()
    """Where the input of the last certainly completed batch ends: a line for each source, as Spark wrote it."""
    undecided_rows: int | None = None
    undecided_offsets: tuple[str, ...] = ()
    """The same two of the undecided batch of `ending`."""
    sinks: tuple[Share, ...] = ()
    """By a new WAL for this checkpoint's query: `twice` if that query reads its input from the beginning (of a
    checkpoint that is behind: from where it stands), `never` unless this WAL is drained before.
    """


class _Counted:
    """Rows of batches. Reads a bounded number of manifests, each once."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._rows: dict[int, int | None] = {}

    def of(self, first: int, last: int) -> Batches:
        """The batches `first` to `last`, the newest of them counted first."""
        if first > last:
            return Batches()
        counted = [self._rows_of(batch_id) for batch_id in range(last, max(first, last - MOST_READ + 1) - 1, -1)]
        known = [rows for rows in counted if rows is not None]
        return Batches(first, last, sum(known), len(known) == last - first + 1)

    def _rows_of(self, batch_id: int) -> int | None:
        if batch_id not in self._rows:
            if len(self._rows) >= MOST_READ:
                return None
            self._rows[batch_id] = None
            try:
                manifest = manifest_of(self._log, batch_id)
            except (CorruptError, ConfigError):
                return None
            self._rows[batch_id] = None if manifest is None else manifest.rows
        return self._rows[batch_id]


@dataclass(frozen=True, slots=True)
class _View:
    """A WAL and the newest commit of a checkpoint."""

    wal: WalRecord
    committed: int
    newest: int
    ending: Ending


@dataclass(frozen=True, slots=True)
class _Sink:
    name: str
    kind: str
    folder: str
    first_batch: int
    through: int


def look_at_place(log: Log, wal: WalRecord, recorded: Log | str) -> PlaceFound | None:
    """Compare the place of a WAL with the recorded one; None if they are the same, or if none is recorded.

    `recorded`: the log at the recorded place, or the reason why it cannot be looked at. A few requests for each sink.
    Raises `ConfigError` if the recorded place says that the WAL was moved to a third one.
    """
    here, said = canonical(log.store.root), current_location(log, wal, moved=True)
    if said in {"", here}:
        return None
    there, why = look_there(recorded, wal.wal_id, said)
    if isinstance(recorded, str) or there is not There.SAME_WAL:
        return PlaceFound(here, said, there, why)
    shares, unknown = [], []
    try:
        refuse_third(recorded, wal, here, said)
        for found in _shares_of_place(log, wal, recorded):
            if isinstance(found, Share):
                shares.append(found)
            else:
                unknown.append(found)
    except (CorruptError, StoreError) as error:
        unknown.append(redacted(text_of(error)))
    return PlaceFound(here, said, there, "", tuple(shares), "; ".join(unknown))


def look_there(recorded: Log | str, wal_id: str, said: str) -> tuple[There, str]:
    """The content of the place `said`, and why it is unknown. A read. It is the same WAL even where it is damaged."""
    if isinstance(recorded, str):
        return There.UNKNOWN, recorded
    try:
        other = recorded.find(WalRecord, paths.WAL)
    except WalSinkError as error:
        return There.UNKNOWN, redacted(text_of(error))
    if other is not None:
        return There.SAME_WAL if other.wal_id == wal_id else There.OTHER_WAL, ""
    doubt = doubt_of_absence(said)
    return There.UNKNOWN if doubt else There.NO_WAL, doubt


def refuse_third(recorded: Log, wal: WalRecord, here: str, said: str) -> None:
    """Raise `ConfigError` if the earlier place says that the WAL was moved to another place than `here`."""
    now = current_location(recorded, wal, moved=True)
    if now not in {"", said} and not is_moved_to(now, here):
        raise third_place(here, said, now)


def look_at_query(log: Log, wal: WalRecord, checkpoint: Checkpoint) -> QueryFound:
    """Compare a checkpoint with a WAL. A few requests for each sink, and up to `MOST_READ` manifests.

    Raises the errors of both stores, and `CorruptError` if a record of either is damaged.
    """
    query_id = checkpoint.query_id()
    committed = checkpoint.newest_commit()  # before the batches of the WAL, which may grow
    low_water, held = held_batches(log, wal)
    sinks = list(_sinks(log))
    marked = max([low_water, *(sink.through for sink in sinks)])
    ending = ending_of(log, held, marked=marked, first_batch=wal.first_batch)
    newest = max([low_water, wal.first_batch - 1, *held])
    view = _View(wal, committed, newest, ending)
    match = _match(view, checkpoint, query_id)
    diverged = _diverged(log, checkpoint, _compared(held, sinks, match, committed))
    if match is Match.SAME and diverged is not None:
        match = Match.DIVERGED
    last = _readable(log, ending.through)
    undecided = None if ending.undecided is None else _readable(log, ending.undecided)
    counted = _Counted(log)
    return QueryFound(
        checkpoint=checkpoint.root,
        match=match,
        query_id=query_id,
        committed=committed,
        newest=newest,
        low_water=low_water,
        ending=ending,
        diverged=diverged,
        offsets=_offsets(last),
        undecided_rows=None if undecided is None else undecided.rows,
        undecided_offsets=_offsets(undecided),
        sinks=tuple(_share(view, sink, match, counted) for sink in sinks),
    )


def _match(view: _View, checkpoint: Checkpoint, query_id: str | None) -> Match:
    if query_id is None:
        return Match.NONE
    if query_id != view.wal.query_id:
        return Match.OTHER
    if checkpoint.is_for_drains():
        return Match.FOR_DRAINS
    if any(checkpoint.repartition(missing) is None for missing in range(view.newest + 1, view.committed + 1)):
        return Match.AHEAD
    # A live query may have gone on since its newest commit was read.
    through = view.ending.through
    is_behind = view.committed < through and checkpoint.newest_commit() < through
    return Match.BEHIND if is_behind else Match.SAME


def _share(view: _View, sink: _Sink, match: Match, counted: _Counted) -> Share:
    committed, newest = view.committed, view.newest
    begin = max(view.wal.first_batch, sink.first_batch)
    after = max(sink.through + 1, begin)
    if match is Match.AHEAD:
        twice, never = Batches(), Batches(newest + 1, committed, 0, is_exact=False)
    elif match is Match.BEHIND:
        never = counted.of(after, min(newest, committed))
        twice = counted.of(max(begin, committed + 1), sink.through)
    elif match in {Match.SAME, Match.DIVERGED}:
        twice = never = Batches()
    else:
        never = counted.of(after, newest)  # first: these rows are in no other place
        twice = counted.of(begin, sink.through)
    return Share(sink.name, sink.kind, sink.through, twice, never)


def _shares_of_place(log: Log, wal: WalRecord, recorded: Log) -> Iterator[Share | str]:
    """The share of every sink of the recorded place that is not retired or forgotten here, also of one that is retired
    there; or why it is unknown.
    """
    here, ended = {}, set()
    for known in read_names(log).sinks:
        if known.is_retired or is_forgotten(log, known):
            ended.add(known.folder)
        elif (own := _sink_of(log, known)) is not None:
            here[own.folder] = own
    newest, beyond = _newest(log, wal), _newest(recorded, wal)
    counted = _Counted(recorded)
    for known in read_names(recorded).sinks:
        if known.folder in ended:
            continue
        try:
            if is_forgotten(recorded, known):
                yield f"sink {known.name!r} was forgotten there"
            elif (sink := _sink_of(recorded, known)) is not None:
                own_through = here[sink.folder].through if sink.folder in here else NOTHING
                begin = max(wal.first_batch, sink.first_batch)
                twice = counted.of(max(begin, own_through + 1), sink.through)
                never = counted.of(max(begin, newest + 1), beyond)
                yield Share(sink.name, sink.kind, own_through, twice, never)
        except CorruptError as error:
            yield redacted(text_of(error))


def _newest(log: Log, wal: WalRecord) -> int:
    low_water, held = held_batches(log, wal)
    return max([low_water, wal.first_batch - 1, *held])


def _sinks(log: Log) -> Iterator[_Sink]:
    """The sinks that a WAL still serves. Those of a replay, retired and forgotten ones do not get every batch."""
    for known in read_names(log).sinks:
        if not known.is_retired and not is_forgotten(log, known) and (sink := _sink_of(log, known)) is not None:
            yield sink


def is_forgotten(log: Log, known: KnownSink) -> bool:
    """Whether a person put the mark beside a sink. Everything else of it may be deleted. One listing."""
    return paths.FORGOTTEN in log.store.list(f"{paths.SINKS}/{known.folder}")


def _sink_of(log: Log, known: KnownSink) -> _Sink | None:
    """A sink and what it has; None for one of a replay."""
    record = _record(log, known)
    if record.is_replay:
        return None
    return _Sink(known.name, record.sink_kind, known.folder, record.first_batch, marked_through(log, known.folder))


def _record(log: Log, known: KnownSink) -> SinkRecord:
    return require(log, SinkRecord, paths.sink(known.folder), Lost.SINK, f"{paths.SINKS}/{known.folder}/")


def _compared(held: Iterable[int], sinks: Iterable[_Sink], match: Match, committed: int) -> list[int]:
    """The batches whose input is compared with the checkpoint.

    Of a restored checkpoint, those that Spark runs again. Of one that is as new as the WAL, those that a sink lacks: a
    drain would stop at them. A batch that runs now is left out, since it is still being staged.
    """
    if match is Match.BEHIND:
        return [batch_id for batch_id in held if batch_id > committed]
    if match is Match.SAME:
        needed = min((sink.through for sink in sinks), default=NOTHING)
        return [batch_id for batch_id in held if needed < batch_id <= committed]
    return []


def _diverged(log: Log, checkpoint: Checkpoint, batches: Iterable[int]) -> int | None:
    """The first of these batches of which the checkpoint has other offsets than the WAL. One listing; two or three
    requests for each batch of which the checkpoint still has an entry.
    """
    for batch_id in sorted(set(batches).intersection(checkpoint.planned())):
        manifest = _readable(log, batch_id)
        text = checkpoint.offsets_text(batch_id)
        if manifest is None or text in {None, manifest.offsets}:
            continue
        try:
            found = checkpoint.fingerprint(batch_id, str(text), manifest.rule)
        except HistoryError:
            continue  # the entry before it is gone, which tells the files of a source
        if found != manifest.fingerprint:
            return batch_id
    return None


def _readable(log: Log, batch_id: int) -> Manifest | None:
    if batch_id == NOTHING:
        return None
    try:
        return manifest_of(log, batch_id)
    except (CorruptError, ConfigError):
        return None


def _offsets(manifest: Manifest | None) -> tuple[str, ...]:
    return () if manifest is None else tuple(redacted(line) for line in manifest.offsets.split("\n")[2:])
