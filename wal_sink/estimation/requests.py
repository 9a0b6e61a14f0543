"""How many requests the protocol sends, counted as its code sends them.

`tests/unit/estimation/test_estimation.py` runs the code and compares.

Only what a run without failures sends is counted, and what takes a batch over after a crash. A request that finds
nothing, as the look for a successor's term does, is a request.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from wal_sink.committer.collection import COLLECT_EVERY_BATCHES, KEPT_LOW_WATERS
from wal_sink.estimation.plan import Shape, StoreModel
from wal_sink.sinks.guarantees import Ability
from wal_sink.wal import paths

TERMS = "terms"
ROOT = ""
"""Of the listing of a WAL's own folder."""
PROBE = "probe"
CHECKPOINT = "the checkpoint"
SHARDS_OF_BATCHES = f"{paths.BATCHES}/<shard>"
"""All shards together, each of which has an equal share."""
SHARDS_OF_SINKS = f"{paths.SINKS}/<shard>"


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests by kind, and the objects that the deletes name. Fractions where they are averages."""

    puts: float = 0
    gets: float = 0
    lists: float = 0
    deletes: float = 0
    keys_deleted: float = 0

    def __add__(self, other: Requests) -> Requests:
        return Requests(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    def times(self, factor: float) -> Requests:
        return Requests(*(getattr(self, each.name) * factor for each in fields(self)))

    @property
    def total(self) -> float:
        return self.puts + self.gets + self.lists + self.deletes


Traffic = Mapping[str, Requests]
"""Requests by top folder of the WAL (`batches`, `sinks`, …), those of its shards apart."""


def total(traffic: Traffic) -> Requests:
    return sum(traffic.values(), Requests())


def joined(*parts: Traffic) -> Traffic:
    folders = dict.fromkeys(folder for part in parts for folder in part)
    return {folder: sum((part[folder] for part in parts if folder in part), Requests()) for folder in folders}


def scaled(traffic: Traffic, factor: float) -> Traffic:
    return {folder: requests.times(factor) for folder, requests in traffic.items()}


@dataclass(frozen=True, slots=True)
class Protocol:
    """What decides how many requests a batch takes: the store, the sinks, how many batches are kept."""

    store: StoreModel
    ability: Ability
    at_most_once: bool
    sinks: int
    retention_batches: int

    def of_batch(self, shape: Shape) -> Traffic:
        """Staging a batch, releasing it, delivering it to every sink, marking it."""
        spread, checks = shape.spread_segments, 1 + self.checks(shape)
        beside = shape.segments - spread
        records, spread_records = self._beside_and_spread(shape)
        return {
            paths.BATCHES: Requests(puts=beside + 2, gets=self.sinks * beside),
            SHARDS_OF_BATCHES: Requests(puts=spread, gets=self.sinks * spread),
            TERMS: Requests(gets=self.sinks * checks),
            paths.SINKS: Requests(puts=self.sinks * (records + 1)),
            SHARDS_OF_SINKS: Requests(puts=self.sinks * spread_records),
        }

    def _beside_and_spread(self, shape: Shape) -> tuple[int, int]:
        """Progress records in the sink's folder, and in its shards."""
        records = self.records(shape)
        return (0, records) if shape.spreads_progress else (records, 0)

    def checks(self, shape: Shape) -> int:
        """Looks for a successor's term while one sink gets a batch; the one before the release is another."""
        # The only segment's first send is covered by the look before the release.
        covered = 1 if shape.segments == 1 else 0
        if self.ability is Ability.BATCH_WRITER:
            return 1
        if self.ability is Ability.SEGMENT_WRITER:
            return shape.segments - covered
        return shape.chunks if self.at_most_once else shape.chunks - covered

    def records(self, shape: Shape) -> int:
        """Progress records of a batch and one sink. The marker stands for the last one of an only segment."""
        if self.ability in {Ability.TRANSACTIONAL, Ability.BATCH_WRITER}:
            return 0
        if self.at_most_once:
            return shape.chunks
        covered = 1 if shape.segments == 1 else 0
        return (shape.segments if self.ability is Ability.SEGMENT_WRITER else shape.chunks) - covered

    def of_collection(self, shape: Shape) -> Traffic:
        """Collecting `COLLECT_EVERY_BATCHES` batches, once in so many."""
        every, store = COLLECT_EVERY_BATCHES, self.store
        records, _ = self._beside_and_spread(shape)
        beside = shape.segments - shape.spread_segments
        of_batches = [count * shape.files_per_partition for count in _in_shards(paths.SPREAD_FROM, shape.partitions)]
        of_sinks = self._records_in_shards(shape)
        kept = self.retention_batches + every
        markers = store.listings(kept)
        folders = store.listings(kept) + every * store.listings(records) if records else store.listings(len(of_sinks))
        below_sinks = every * self.sinks * (records + 1)
        below_batches = every * (beside + 2)
        return {
            paths.LOW_WATER: Requests(puts=1, lists=2 * store.listings(KEPT_LOW_WATERS + 1), keys_deleted=1),
            TERMS: Requests(gets=1),
            paths.SINKS: Requests(
                gets=2 * self.sinks,
                lists=3 * store.listings(self.sinks) + self.sinks * (3 * markers + folders),
                keys_deleted=below_sinks,
            ),
            SHARDS_OF_SINKS: self._of_collecting_shards(of_sinks).times(self.sinks),
            paths.BATCHES: Requests(
                lists=store.listings(kept + len(of_batches)) + every * store.listings(beside + 2),
                deletes=store.deletes(below_batches + below_sinks + 1),
                keys_deleted=below_batches,
            ),
            SHARDS_OF_BATCHES: self._of_collecting_shards(of_batches),
        }

    def _records_in_shards(self, shape: Shape) -> list[int]:
        """How many progress records of a batch each shard has that has some."""
        if not (shape.spreads_progress and (records := self.records(shape))):
            return []
        return [count * records // shape.segments for count in _in_shards(0, shape.segments)]

    def _of_collecting_shards(self, objects: list[int]) -> Requests:
        """Of a batch so many objects lie in each shard."""
        store, every = self.store, COLLECT_EVERY_BATCHES
        of_shard = [store.listings(self.retention_batches + every) + every * store.listings(count) for count in objects]
        of_batch = sum(objects)
        return Requests(lists=sum(of_shard), deletes=every * store.deletes(of_batch), keys_deleted=every * of_batch)

    def of_start(self, *, collected: bool = True) -> Traffic:
        """A run that opens a WAL which has a past, finds nothing to deliver, and becomes its stager.

        `collected`: whether that past is long enough for low water, whose newest record is read.
        """
        kept, store, sinks = self.retention_batches + COLLECT_EVERY_BATCHES, self.store, self.sinks
        return {
            PROBE: Requests(puts=2, gets=1, lists=1, deletes=1, keys_deleted=1),
            ROOT: Requests(lists=1),
            paths.WAL: Requests(gets=1),
            paths.LOW_WATER: Requests(gets=int(collected), lists=2 * store.listings(KEPT_LOW_WATERS)),
            # The stager looks at the newest batch: at its manifest, its release and the folder of its attempt.
            paths.BATCHES: Requests(gets=self._marked_reads() * sinks, lists=2 * store.listings(kept) + 1),
            # What the sinks are called now, and whether one is retired, before and after its term is claimed.
            paths.SINKS: Requests(gets=3 * sinks, lists=1 + sinks * (1 + store.listings(kept))),
            TERMS: Requests(puts=sinks + 1, lists=sinks + 2),
        }

    def _marked_reads(self) -> int:
        """Reads of the newest marked batch's release and manifest: a transactional target is asked for that batch."""
        return 2 if self.ability is Ability.TRANSACTIONAL else 0

    def of_takeover(self, shape: Shape, done: Done) -> Traffic:
        """Taking a released batch over that another run began to deliver, for one sink, up to its marker."""
        store = self.store
        chunks_left = shape.chunks - done.chunks
        kept_apart = self.ability in {Ability.TRANSACTIONAL, Ability.BATCH_WRITER}
        doubted = 0 if self.at_most_once or self.ability in _WITHOUT_CHUNKS else done.open_segments(shape)
        lost = done.begun if self.at_most_once else 0  # their last chunk becomes a dead letter
        looked = 0 if kept_apart else self.progress_listings(shape, self._records_of(done))
        covered = 1 if shape.segments == 1 else 0
        sends = self._sends(done.open_segments(shape), chunks_left)
        # What a transactional target has, it tells only once its segment was read.
        first_read = 0 if self.ability is Ability.TRANSACTIONAL else done.whole
        beside = shape.segments - shape.spread_segments
        read_beside = max(0, beside - first_read) + min(lost, beside)
        # Whether it was marked after all; a target that ignores repeats is not harmed by one.
        looked_after = int(self.at_most_once or self.ability is not Ability.IGNORE_KNOWN_KEYS)
        read_spread = shape.segments - max(beside, first_read) + max(0, lost - beside)
        records_left = self._records_left(sends, covered)
        checked = 0 if kept_apart else done.begun
        spread = shape.spreads_progress
        kept_listings = 1 if self.ability is Ability.TRANSACTIONAL else 0  # of dead letters, which tell what was sent
        return {
            paths.BATCHES: Requests(gets=2 + looked_after + read_beside),
            SHARDS_OF_BATCHES: Requests(gets=read_spread),
            TERMS: Requests(gets=1 + sends),
            # A run looks once, before it first collects.
            paths.LOW_WATER: Requests(lists=store.listings(KEPT_LOW_WATERS)),
            paths.SINKS: Requests(
                puts=(0 if spread else records_left) + lost + 1,
                gets=1 + (0 if spread else checked) + lost + doubted,
                # A later marker would stand for this batch: it is looked for before the first send.
                lists=(0 if spread else looked)
                + store.listings(lost)
                + kept_listings
                + store.listings(self.retention_batches + COLLECT_EVERY_BATCHES),
            ),
            SHARDS_OF_SINKS: Requests(puts=records_left, gets=checked, lists=looked) if spread else Requests(),
        }

    def progress_listings(self, shape: Shape, records: int) -> int:
        """Requests that it takes to look at the progress of a batch."""
        shards = paths.SHARDS if shape.spreads_progress else 1
        return shards * self.store.listings(math.ceil(records / shards))

    def _sends(self, segments: int, chunks: int) -> int:
        if self.ability is Ability.BATCH_WRITER:
            return 1
        return segments if self.ability is Ability.SEGMENT_WRITER else chunks

    def _records_left(self, sends: int, covered: int) -> int:
        if self.ability in {Ability.TRANSACTIONAL, Ability.BATCH_WRITER}:
            return 0
        return sends if self.at_most_once else max(0, sends - covered)

    def _records_of(self, done: Done) -> int:
        return done.begun if self.ability is Ability.SEGMENT_WRITER else done.chunks


def _in_shards(first: int, end: int) -> list[int]:
    """How many of the numbers from `first` to `end` each shard has that has some."""
    counts = (len(range(first + number, end, paths.SHARDS)) for number in range(paths.SHARDS))
    return [count for count in counts if count]


_WITHOUT_CHUNKS = {Ability.SEGMENT_WRITER, Ability.BATCH_WRITER}


@dataclass(frozen=True, slots=True)
class Done:
    """How far a batch had come when its run ended, as its progress records tell."""

    begun: int = 0
    """Segments with a record."""
    whole: int = 0
    """Segments of which every row is recorded."""
    chunks: int = 0
    """Chunks with a record."""

    def open_segments(self, shape: Shape) -> int:
        return shape.segments - self.whole


def checkpoint_gets(sinks: int, polls: float) -> float:
    """Reads of the checkpoint for a batch, at most: its offsets twice, and for each sink its gate and the next one."""
    return 2 + sinks * (polls + 1)


def polls_until(commit_delay_s: float, first_s: float, longest_s: float) -> int:
    """How often a committer asks for a batch's completion, which comes so long after it was staged."""
    asked, at_s, pause_s = 1, first_s, first_s / 2
    while at_s < commit_delay_s:
        at_s += pause_s
        pause_s = min(longest_s, pause_s * 2)
        asked += 1
    return asked
