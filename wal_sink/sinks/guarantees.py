"""What holds for a sink, following from what its target is able to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from wal_sink.errors import ConfigError
from wal_sink.settings import Delivery, GuaranteeName
from wal_sink.sinks.base import BatchSink, Lookup, SegmentSink, Sink, TransactionalSink, TwoPhaseSink


class Ability(StrEnum):
    """The strongest thing a target is able to do."""

    ACCEPT = "plain"
    IGNORE_KNOWN_KEYS = "idempotent"
    LOOK_UP = "lookup"
    TRANSACTIONAL = "transactional"
    TWO_PHASE = "two-phase"
    SEGMENT_WRITER = "segment writer"
    BATCH_WRITER = "batch writer"


@dataclass(frozen=True, slots=True)
class Promise:
    """What one sink's delivery keeps, and how."""

    ability: Ability
    guarantee: GuaranteeName
    sentence: str

    @property
    def at_most_once(self) -> bool:
        return self.guarantee == "at_most_once"

    @property
    def ignores_repeats(self) -> bool:
        """Whether a batch may be sent a second time, whole, without anybody seeing it in the target."""
        return self.ability is Ability.IGNORE_KNOWN_KEYS and not self.at_most_once


def promise(sink: Sink | BatchSink, delivery: Delivery, name: str) -> Promise:
    """The promise for a sink under a requested guarantee; `ConfigError` if it cannot honour it, with the ways out."""
    ability = ability_of(sink)
    strongest = _strongest(sink, ability)
    wanted = delivery.guarantee or strongest
    if wanted == "at_most_once" and ability in {Ability.TRANSACTIONAL, Ability.TWO_PHASE}:
        wanted = "exactly_once"
    if wanted == "exactly_once" and strongest != "exactly_once":
        raise ConfigError(
            f"sink {name!r}: exactly_once is more than a {ability.value} sink can honour ({_WINDOW[ability]}). "
            "Ways out: mark it idempotent if its target ignores a chunk.key it has seen (@idempotent, or "
            f"idempotent = True), use a TransactionalSink, or ask for {strongest}"
        )
    if wanted == "at_most_once" and ability in _WITHOUT_CHUNKS:
        raise ConfigError(
            f"sink {name!r}: at_most_once needs a sink that is called chunk by chunk; a {ability.value} gets a whole "
            f"{'batch' if ability is Ability.BATCH_WRITER else 'segment'}. Ways out: a function of one Chunk, or "
            f"{strongest}"
        )
    if delivery.on_rejected == "dead_letter" and ability in _WITHOUT_CHUNKS:
        raise ConfigError(
            f"sink {name!r}: on_rejected='dead_letter' needs a sink that is called chunk by chunk and names the rows "
            f"that it refuses; a {ability.value} does not. Ways out: a function of one Chunk, or on_rejected='halt'"
        )
    if not delivery.keep_segments and ability is not Ability.TWO_PHASE:
        raise ConfigError(
            f"sink {name!r}: keep_segments=False needs a TwoPhaseSink, whose target holds the rows until they are "
            f"committed; a {ability.value} sink is sent what the WAL keeps. Leave keep_segments=True"
        )
    if delivery.rows_per_s is not None and ability is Ability.TWO_PHASE:
        raise ConfigError(
            f"sink {name!r}: rows_per_s={delivery.rows_per_s:g} cannot hold for a TwoPhaseSink, which is written while "
            "Spark stages rows; limit what the query reads in a batch (maxOffsetsPerTrigger, maxFilesPerTrigger)"
        )
    kept: GuaranteeName = "at_most_once" if wanted == "at_most_once" else strongest
    sentence = _sentence(ability, kept)
    if delivery.on_rejected == "dead_letter":
        sentence += "; rows that it refuses are kept as dead letters, and no sink has them"
    return Promise(ability, kept, sentence)


def ability_of(sink: Sink | BatchSink) -> Ability:
    if isinstance(sink, BatchSink):
        return Ability.BATCH_WRITER
    if isinstance(sink, TransactionalSink):
        return Ability.TRANSACTIONAL
    if isinstance(sink, TwoPhaseSink):
        return Ability.TWO_PHASE
    if isinstance(sink, SegmentSink):
        return Ability.SEGMENT_WRITER
    if sink.idempotent:
        return Ability.IGNORE_KNOWN_KEYS
    return Ability.LOOK_UP if isinstance(sink, Lookup) else Ability.ACCEPT


def _strongest(sink: Sink | BatchSink, ability: Ability) -> GuaranteeName:
    exact = ability in _EXACT or bool(sink.idempotent)
    return "exactly_once" if exact else "at_least_once"


_EXACT = frozenset({Ability.TRANSACTIONAL, Ability.TWO_PHASE, Ability.IGNORE_KNOWN_KEYS})

_WITHOUT_CHUNKS = frozenset({Ability.SEGMENT_WRITER, Ability.BATCH_WRITER, Ability.TWO_PHASE})
"""Kinds that are not sent chunks of their own: a chunk can be neither missing nor refused alone."""

_WINDOW = {
    Ability.ACCEPT: "one chunk per segment in flight may repeat per crash, takeover or retry",
    Ability.LOOK_UP: "one chunk per segment may repeat when a late request or a fenced process sends after the lookup",
    Ability.SEGMENT_WRITER: "the segments in flight may repeat per crash, takeover or retry, always with the same rows",
    Ability.BATCH_WRITER: "the whole batch may repeat per crash, takeover or retry, always with the same rows",
    Ability.IGNORE_KNOWN_KEYS: "nothing repeats in effect while the target remembers keys",
    Ability.TRANSACTIONAL: "nothing repeats and nothing is missing",
    Ability.TWO_PHASE: "nothing repeats and nothing is missing",
}


def _sentence(ability: Ability, guarantee: GuaranteeName) -> str:
    if guarantee == "at_most_once":
        return (
            "at most once: of the batch under way, the last chunk begun of each segment may be missing per crash, "
            "takeover or failure; those are kept as dead letters of unknown outcome; nothing repeats"
        )
    if guarantee == "exactly_once" and ability is Ability.TRANSACTIONAL:
        return "exactly once: rows and position are stored in one transaction; nothing repeats and nothing is missing"
    if guarantee == "exactly_once" and ability is Ability.TWO_PHASE:
        return (
            "exactly once: rows are held back invisibly until their batch is complete, then committed; each segment "
            "appears whole, nothing repeats and nothing is missing"
        )
    if guarantee == "exactly_once":
        return (
            f"exactly once in effect ({ability.value}): repeats carry the same "
            f"{'keys' if ability is Ability.IGNORE_KNOWN_KEYS else 'rows'}, which the target ignores"
        )
    return f"at least once: {_WINDOW[ability]}"
