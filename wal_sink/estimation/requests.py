"""Number of requests that the protocol sends, counted as its code sends them.

`tests/spark/test_estimation.py` runs the code and compares.

The count covers a run without failures, and the takeover of a batch after a crash. A request that finds nothing, such
as the check for a newer process's term, counts too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

from wal_sink.committer.collection import COLLECT_EVERY_BATCHES, KEPT_LOW_WATERS
from wal_sink.delivery.recording import LOOK_S, RECORD_S
from wal_sink.estimation.plan import Shape, StoreModel
from wal_sink.sinks.guarantees import Ability
from wal_sink.wal import paths

TERMS = "terms"
ROOT = ""
"""Folder of a listing of the WAL's root."""
PROBE = "probe"
CHECKPOINT = "the checkpoint"
SHARDS_OF_BATCHES = f"{paths.BATCHES}/<shard>"
"""All shards together. Each has an equal share."""
SHARDS_OF_SINKS = f"{paths.SINKS}/<shard>"


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests by kind, and the number of objects that the deletes name. Averages are fractions."""

    puts: float = 0
    gets: float = 0
    lists: float = 0
    deletes: float = 0
    keys_deleted: float = 0

    def __add__(self, other: Requests) -> Requests:
        return Requests(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    def times(self, factor: float) -> Requests:
        """These requests, multiplied by a factor."""
        return Requests(*(getattr(self, each.name) * factor for each in fields(self)))

    @property
    def total(self) -> float:
        """Number of requests of all kinds."""
        return self.puts + self.gets + self.lists + self.deletes


Traffic = Mapping[str, Requests]
"""Requests by top folder of the WAL (`batches`, `sinks`, …), with separate entries for their shards."""


def total(traffic: Traffic) -> Requests:
    """The requests of all folders together."""
    return sum(traffic.values(), Requests())


def joined(*parts: Traffic) -> Traffic:
    """The sum of several traffics, folder by folder."""
    folders = dict.fromkeys(folder for part in parts for folder in part)
    return {folder: sum((part[folder] for part in parts if folder in part), Requests()) for folder in folders}


def scaled(traffic: Traffic, factor: float) -> Traffic:
    """The traffic with every folder's requests multiplied by a factor."""
    return {folder: requests.times(factor) for folder, requests in traffic.items()}


@dataclass(frozen=True, slots=True)
class Pace:
    """Delivery of a batch to one sink: its tasks, and the time that one of them needs for a chunk."""

    tasks: int = 1
    on_executors: bool = False
    chunk_s: float = 0.0

    def chunks_in(self, seconds: float) -> float:
        """Number of chunks after which so many seconds have passed; infinite if a chunk takes no time."""
        return math.ceil(seconds / self.chunk_s) if self.chunk_s else math.inf

    def shares(self, segments: int, chunks: int) -> Iterator[tuple[int, int]]:
        """Number of tasks that have equal shares, and of chunks in such a share. Both kinds of shares follow."""
        tasks = max(1, min(self.tasks, segments))
        fewer, more = divmod(segments, tasks)
        for count, share in ((more, fewer + 1), (tasks - more, fewer)):
            if count and share:
                yield count, round(share * chunks / segments)


@dataclass(frozen=True, slots=True)
class Protocol:
    """Facts that decide how many requests a batch takes: the store, the sinks, the number of kept batches, and the pace
    of delivery.
    """

    store: StoreModel
    ability: Ability
    at_most_once: bool
    sinks: int
    retention_batches: int
    pace: Pace = Pace()
    makes_milestones: bool = False
    """Whether the retention has an age or bytes."""

    @property
    def records_by_time(self) -> bool:
        """Whether progress is recorded by time, not by chunks."""
        return self.ability is Ability.IGNORE_KNOWN_KEYS and not self.at_most_once

    @property
    def looks_by_time(self) -> bool:
        """Whether a check for a newer process's term is good for some time."""
        return self.records_by_time or self.ability is Ability.TRANSACTIONAL

    def of_batch(self, shape: Shape) -> Traffic:
        """Requests to stage a batch, release it, deliver it to every sink and mark it."""
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
        """Number of progress records in the sink's folder, and in its shards."""
        records = self.records(shape)
        return (0, records) if shape.spreads_progress else (records, 0)

    def checks(self, shape: Shape) -> int:
        """Number of checks for a newer process's term while one sink gets a batch. The check before the release is not
        included.
        """
        # The check before the release also covers the first send if the batch has only one segment.
        covered = 1 if shape.segments == 1 else 0
        if self.ability is Ability.BATCH_WRITER:
            return 1
        if self.ability is Ability.SEGMENT_WRITER:
            return shape.segments - covered
        if self.looks_by_time:
            return self._looks(shape.segments, shape.chunks, covered=shape.segments == 1)
        return shape.chunks if self.at_most_once else shape.chunks - covered

    def _looks(self, segments: int, chunks: int, *, covered: bool) -> int:
        """Checks where one is good for some time. `covered`: the first send needs none. In the driver, the check before
        the release counts. A task on executors does not know when that was.
        """
        every, looks = self.pace.chunks_in(LOOK_S), 0
        for tasks, share in self.pace.shares(segments, chunks):
            first = int(covered) if self.pace.on_executors else 0
            looks += tasks * self._looks_of_task(share - first, every)
        return looks

    def _looks_of_task(self, chunks: int, every: float) -> int:
        """Checks before so many chunks, of which the first on executors needs one."""
        if chunks <= 0:
            return 0
        return int(self.pace.on_executors) + int((chunks - 1) // every)

    def records(self, shape: Shape) -> int:
        """Number of progress records of a batch for one sink. For a single segment, the marker replaces the last
        one.
        """
        if self.ability in {Ability.TRANSACTIONAL, Ability.BATCH_WRITER}:
            return 0
        if self.records_by_time:
            return self._timed_records(shape.segments, shape.chunks, alone=shape.segments == 1)
        if self.at_most_once:
            return shape.chunks
        covered = 1 if shape.segments == 1 else 0
        return (shape.segments if self.ability is Ability.SEGMENT_WRITER else shape.chunks) - covered

    def _timed_records(self, segments: int, chunks: int, *, alone: bool) -> int:
        """Records by time: each time, one for each segment with chunks since the last time. `alone`: the batch has no
        other segment, so that the marker replaces a record at its end.
        """
        if (every := self.pace.chunks_in(RECORD_S)) == math.inf:
            return 0
        between = int(every)
        in_segment, records = max(1, round(chunks / max(1, segments))), 0
        for tasks, share in self.pace.shares(segments, chunks):
            times = share // between
            if not times:
                continue
            through = times * between
            # Where a segment ends between two times, both it and the next one are recorded.
            ends = (through - 1) // in_segment - (through - 1) // math.lcm(between, in_segment)
            records += tasks * (times + ends - int(alone and through == share))
        return records

    def of_collection(self, shape: Shape) -> Traffic:
        """Requests to collect `COLLECT_EVERY_BATCHES` batches, which happens once in so many batches."""
        every, store = COLLECT_EVERY_BATCHES, self.store
        records, _ = self._beside_and_spread(shape)
        beside = shape.segments - shape.spread_segments
        of_batches = _in_shards((group.spread_partitions, group.files_per_partition) for group in shape.groups)
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
            **self._of_milestones(kept // every),
        }

    def _of_milestones(self, kept: int) -> Traffic:
        """Requests of a collection for the milestones, of which so many are kept: one comes and one goes. Without any,
        it looks whether another run made some.
        """
        if not self.makes_milestones:
            return {paths.MILESTONES: Requests(lists=1)}
        return {paths.MILESTONES: Requests(puts=1, lists=self.store.listings(kept), keys_deleted=1)}

    def _records_in_shards(self, shape: Shape) -> list[int]:
        """Number of progress records of a batch in each shard that has some."""
        records = self.records(shape)
        if not (shape.spreads_progress and records):
            return []
        if self.records_by_time:  # of chance segments
            shards = min(paths.SHARDS, shape.segments, records)
            return [len(range(number, records, shards)) for number in range(shards)]
        ordinals: list[tuple[range, int]] = []
        for group in shape.groups:
            of_segment = 1 if self.ability is Ability.SEGMENT_WRITER else group.chunks_each
            first = sum(len(others) for others, _ in ordinals)
            ordinals.append((range(first, first + group.count), of_segment))
        counts = _in_shards(ordinals)
        counts[0] -= sum(counts) - records  # the one that the marker replaces
        return [count for count in counts if count]

    def _of_collecting_shards(self, objects: Sequence[int]) -> Requests:
        """Requests to collect shards. `objects`: number of objects of a batch in each shard."""
        store, every = self.store, COLLECT_EVERY_BATCHES
        of_shard = [store.listings(self.retention_batches + every) + every * store.listings(count) for count in objects]
        of_batch = sum(objects)
        return Requests(lists=sum(of_shard), deletes=every * store.deletes(of_batch), keys_deleted=every * of_batch)

    def of_start(self, *, collected: bool = True) -> Traffic:
        """Requests of a run that opens a WAL with history, finds nothing to deliver, and becomes its stager.

        `collected`: True if the history is long enough for low water, whose newest record is then read.
        """
        kept, store, sinks = self.retention_batches + COLLECT_EVERY_BATCHES, self.store, self.sinks
        return {
            PROBE: Requests(puts=2, gets=1, lists=1, deletes=1, keys_deleted=1),
            ROOT: Requests(lists=1),
            paths.WAL: Requests(gets=1),
            paths.LOW_WATER: Requests(gets=int(collected), lists=2 * store.listings(KEPT_LOW_WATERS)),
            # The stager reads the newest batch's manifest and release, and lists the folder of its attempt.
            paths.BATCHES: Requests(gets=self._marked_reads() * sinks, lists=2 * store.listings(kept) + 1),
            # The present names of the sinks and their retirement, read before and after the term is claimed.
            paths.SINKS: Requests(gets=3 * sinks, lists=1 + sinks * (1 + store.listings(kept))),
            TERMS: Requests(puts=sinks + 1, lists=sinks + 2),
        }

    def _marked_reads(self) -> int:
        """Number of reads of the newest marked batch's release and manifest: a transactional target must still hold
        that batch.
        """
        return 2 if self.ability is Ability.TRANSACTIONAL else 0

    def of_takeover(self, shape: Shape, done: Done) -> Traffic:
        """Requests to take over a released batch that another run began to deliver, for one sink, up to its marker."""
        store = self.store
        chunks_left = shape.chunks - done.chunks
        kept_apart = self.ability in {Ability.TRANSACTIONAL, Ability.BATCH_WRITER}
        lost = done.begun if self.at_most_once else 0  # their last chunk becomes a dead letter
        looked = 0 if kept_apart else self.progress_listings(shape, self._records_of(done))
        sends = self._sends(done.open_segments(shape), chunks_left)
        # The position of a transactional target is read only after its segment.
        first_read = 0 if self.ability is Ability.TRANSACTIONAL else done.whole
        beside = shape.segments - shape.spread_segments
        read_beside = max(0, beside - first_read) + min(lost, beside)
        # The batch may be marked after all. A target that ignores repeats does not need this check.
        looked_after = int(self.at_most_once or self.ability is not Ability.IGNORE_KNOWN_KEYS)
        read_spread = shape.segments - max(beside, first_read) + max(0, lost - beside)
        records_left = self._records_left(shape, done, sends)
        checked = 0 if kept_apart else done.begun
        spread = shape.spreads_progress
        return {
            paths.BATCHES: Requests(gets=2 + looked_after + read_beside),
            SHARDS_OF_BATCHES: Requests(gets=read_spread),
            TERMS: Requests(gets=1 + self._checks_left(done.open_segments(shape), chunks_left, sends)),
            # A run reads low water once, before its first collection.
            paths.LOW_WATER: Requests(lists=store.listings(KEPT_LOW_WATERS)),
            paths.SINKS: Requests(
                puts=(0 if spread else records_left) + lost + 1,
                gets=1 + (0 if spread else checked) + lost + self._doubted(done.open_segments(shape), chunks_left),
                # A later marker would cover this batch, so markers are listed before the first send.
                lists=(0 if spread else looked)
                + store.listings(lost)
                + store.listings(self.retention_batches + COLLECT_EVERY_BATCHES),
            ),
            SHARDS_OF_SINKS: Requests(puts=records_left, gets=checked, lists=looked) if spread else Requests(),
        }

    def _doubted(self, segments: int, chunks: int) -> int:
        """Number of chunks for which a dead letter is looked for, since another process may have sent them."""
        if self.at_most_once or self.ability in _WITHOUT_CHUNKS:
            return 0
        return chunks if self.looks_by_time else segments

    def _checks_left(self, segments: int, chunks: int, sends: int) -> int:
        """Checks after the takeover. The first send of each task needs one, in the driver too."""
        if not self.looks_by_time:
            return sends
        every = self.pace.chunks_in(LOOK_S)
        shares = self.pace.shares(segments, chunks) if segments else ()
        return sum(tasks * (1 + int((share - 1) // every)) for tasks, share in shares if share)

    def progress_listings(self, shape: Shape, records: int) -> int:
        """Number of requests to read the progress of a batch."""
        shards = paths.SHARDS if shape.spreads_progress else 1
        return shards * self.store.listings(math.ceil(records / shards))

    def _sends(self, segments: int, chunks: int) -> int:
        if self.ability is Ability.BATCH_WRITER:
            return 1
        return segments if self.ability is Ability.SEGMENT_WRITER else chunks

    def _records_left(self, shape: Shape, done: Done, sends: int) -> int:
        if self.ability in {Ability.TRANSACTIONAL, Ability.BATCH_WRITER}:
            return 0
        alone = shape.segments == 1
        if self.records_by_time:
            return self._timed_records(done.open_segments(shape), shape.chunks - done.chunks, alone=alone)
        return sends if self.at_most_once else max(0, sends - int(alone))

    def _records_of(self, done: Done) -> int:
        return done.begun if self.ability is Ability.SEGMENT_WRITER else done.chunks


def _in_shards(groups: Iterable[tuple[range, int]]) -> list[int]:
    """Number of objects in each shard that has some. `groups`: numbers, and the objects of each of these numbers."""
    counts: Counter[int] = Counter()
    for numbers, of_each in groups:
        for first in range(min(paths.SHARDS, len(numbers))):
            same = numbers[first :: paths.SHARDS]
            counts[same[0] % paths.SHARDS] += len(same) * of_each
    return [count for _, count in sorted(counts.items())]


_WITHOUT_CHUNKS = {Ability.SEGMENT_WRITER, Ability.BATCH_WRITER}


@dataclass(frozen=True, slots=True)
class Done:
    """Progress of a batch when its run ended, as its progress records tell."""

    begun: int = 0
    """Number of segments with a record."""
    whole: int = 0
    """Number of segments of which every row is recorded."""
    chunks: int = 0
    """Number of chunks with a record."""

    def open_segments(self, shape: Shape) -> int:
        """Number of segments that are not fully recorded."""
        return shape.segments - self.whole


def checkpoint_gets(sinks: int, polls: float) -> float:
    """Maximum number of reads of the checkpoint for a batch: its offsets twice; for each sink its gate, and the next
    one.
    """
    return 2 + sinks * (polls + 1)


def polls_until(commit_delay_s: float, first_s: float, longest_s: float) -> int:
    """Number of reads with which a committer waits for a batch's completion, which comes this long after staging."""
    asked, at_s, pause_s = 1, first_s, first_s / 2
    while at_s < commit_delay_s and pause_s < longest_s:
        at_s += pause_s
        pause_s = min(longest_s, pause_s * 2)
        asked += 1
    return asked + max(0, math.ceil((commit_delay_s - at_s) / longest_s))
