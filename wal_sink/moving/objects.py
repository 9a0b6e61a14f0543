"""Copying single objects: what is read is checked before it is written, and what was written is read back."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from wal_sink.errors import CorruptError, HeldError
from wal_sink.moving.folders import Part
from wal_sink.recovery.inventory import marked_through
from wal_sink.recovery.sink_names import read_names
from wal_sink.reporting.logs import logger_of
from wal_sink.stores.base import ObjectMissing
from wal_sink.stores.create_once import create_once
from wal_sink.wal import paths
from wal_sink.wal.log import NOTHING, Log
from wal_sink.wal.records import Manifest, SegmentRef, SinkRecord, check_envelope
from wal_sink.wal.segment_reader import check_segment

WINDOW_BYTES = 64 << 20
"""Objects that are copied side by side have no more bytes together; a larger one is copied alone."""
_RECORD_BYTES = 64 << 10
"""Estimated size of a record."""
_RECORD = ".json"
_KEPT_MANIFESTS = 16
_OF_A_BATCH = re.compile(rf"{paths.BATCHES}/(?:[^/\d][^/]*/)?(\d{{{paths.BATCH_DIGITS}}})/", re.ASCII)

_logger = logger_of(__name__)


@dataclass(frozen=True, slots=True)
class _Object:
    """An object to copy."""

    path: str
    is_there: bool
    """Whether the target has an object under this path."""
    segment: SegmentRef | None = None
    """The manifest's entry, if this is a segment that a manifest names."""

    @property
    def size(self) -> int:
        """Its bytes, as far as they are known before it is read; otherwise those of a whole window."""
        if self.path.endswith(_RECORD):
            return _RECORD_BYTES
        return WINDOW_BYTES if self.segment is None else self.segment.bytes


class ObjectCopier:
    """Copies objects from one WAL to the same paths of another. Nothing is ever overwritten."""

    def __init__(self, source: Log, target: Log) -> None:
        self._source = source
        self._target = target
        self._segments: dict[str, Mapping[str, SegmentRef]] = {}
        """The segments that the manifests name which were read last, by path."""
        self._had_by_all: int | None = None
        self.damaged: list[str] = []
        """Damaged objects that were copied as they are, since every sink has their batches or passed over them."""

    def copy_part(self, part: Part, present: Collection[str]) -> Iterator[tuple[int, int]]:
        """Copy the objects of a folder. `present`: the names that the target has already; they are compared.

        Yields objects and bytes, now and then. Raises `CorruptError` for an object whose checksum does not match, or
        that is another one in the target, and `HeldError` if an object was deleted meanwhile.
        """
        there = {f"{part.folder}/{name}" for name in present}
        for window in _windows(_Object(path, path in there, self._segment(path)) for path in part.paths):
            sizes = self._source.runtime.side_by_side(self._copy, window)
            yield len(window), sum(sizes)

    def copy_record(self, path: str) -> int:
        """Copy one record. Returns its size."""
        return self._copy(_Object(path, is_there=False))

    def _copy(self, each: _Object) -> int:
        """A read, a create and a read; without the create if it is there. A read more if the object is damaged."""
        data = self._read(each.path)
        try:
            self._check(each, data)
        except CorruptError as error:
            self._accept(each.path, error)
            if self._read(each.path) != data:  # the answer was damaged, and nobody knows what the object holds
                raise
        store = self._target.store
        is_there = each.is_there or create_once(store, each.path, data, runtime=self._target.runtime)
        if is_there and store.read(each.path) == data:
            return len(data)
        raise CorruptError(
            f"{store.url_of(each.path)} is not equal to {self._source.store.url_of(each.path)}. The copy is not "
            "complete, and no process takes it for a WAL. If no query and no drain ever ran on the copy, delete its "
            "folder, then repeat the command"
        )

    def _read(self, path: str) -> bytes:
        try:
            return self._source.store.read(path)
        except ObjectMissing as error:
            raise changed(self._source, path) from error

    def _check(self, each: _Object, data: bytes) -> None:
        where = self._source.store.url_of(each.path)
        if each.path.endswith(_RECORD):
            check_envelope(data, where)
        elif each.segment is not None:
            check_segment(data, each.segment, where)

    def _segment(self, path: str) -> SegmentRef | None:
        manifest = paths.manifest_of_segment(path)
        return None if manifest is None else self._segments_of(manifest).get(path)

    def _segments_of(self, path: str) -> Mapping[str, SegmentRef]:
        """The segments that a manifest names. None if there is no manifest: the staging attempt was not completed."""
        if path not in self._segments:
            found = self._readable(path)
            if len(self._segments) == _KEPT_MANIFESTS:
                self._segments.pop(next(iter(self._segments)))
            self._segments[path] = {} if found is None else {each.path: each for each in found.segments}
        return self._segments[path]

    def _readable(self, path: str) -> Manifest | None:
        try:
            return self._source.find(Manifest, path)
        except CorruptError as error:
            self._accept(path, error)
            return None

    def _accept(self, path: str, error: CorruptError) -> None:
        """Raise the error of a damaged object, unless it belongs to a batch that no sink of the WAL needs any more.

        The copy of such an object is as good as the object. Left out, it would look lost, and its batch with it.
        """
        found = _OF_A_BATCH.match(path)
        if found is None or int(found[1]) > self._everywhere():
            raise error
        if path not in self.damaged:
            self.damaged.append(path)
            _logger.warning("%s. It was copied as it is, since every sink has its batch or passed over it", error)

    def _everywhere(self) -> int:
        """The newest batch that every sink has, passed over or begins after; -1 without sinks. Asked once, if anything
        is damaged.
        """
        if self._had_by_all is None:
            sinks = [sink.folder for sink in read_names(self._source).sinks if not sink.is_retired]
            self._had_by_all = min(map(self._through, sinks), default=NOTHING)
        return self._had_by_all

    def _through(self, sink: str) -> int:
        through = marked_through(self._source, sink)
        if through == NOTHING and (record := self._source.find(SinkRecord, paths.sink(sink))) is not None:
            return record.first_batch - 1
        return through


def _windows(every: Iterable[_Object]) -> Iterator[list[_Object]]:
    """The objects in groups that fit into memory together. One of unknown size is alone."""
    window: list[_Object] = []
    used = 0
    for each in every:
        if window and used + each.size > WINDOW_BYTES:
            yield window
            window, used = [], 0
        window.append(each)
        used += each.size
    if window:
        yield window


def changed(source: Log, where: str) -> HeldError:
    """The error for a WAL that other processes change while it is copied."""
    return HeldError(
        f"{source.store.root} changed while it was copied (at {where}): a process uses this WAL. The copy is not "
        "complete, and it is taken for no WAL. End the query and every drain of this WAL, then repeat the command: it "
        "copies what is left"
    )
