"""The guarantee of a sink. It follows from the abilities of its target."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from wal_sink.errors import ConfigError
from wal_sink.settings import Delivery, GuaranteeName
from wal_sink.sinks.base import BatchSink, CommitSink, Lookup, SegmentSink, Sink, TransactionalSink, TwoPhaseSink


class Ability(StrEnum):
    """The strongest ability of a target."""

    ACCEPT = "plain"
    IGNORE_KNOWN_KEYS = "idempotent"
    LOOK_UP = "lookup"
    TRANSACTIONAL = "transactional"
    TWO_PHASE = "two-phase"
    COMMIT = "commit"
    SEGMENT_WRITER = "segment writer"
    BATCH_WRITER = "batch writer"


_BY_CLASS: tuple[tuple[type, Ability], ...] = (
    (BatchSink, Ability.BATCH_WRITER),
    (TransactionalSink, Ability.TRANSACTIONAL),
    (TwoPhaseSink, Ability.TWO_PHASE),
    (CommitSink, Ability.COMMIT),
    (SegmentSink, Ability.SEGMENT_WRITER),
)


@dataclass(frozen=True, slots=True)
class Promise:
    """The guarantee that delivery to one sink keeps, and how it keeps it."""

    ability: Ability
    guarantee: GuaranteeName
    sentence: str

    @property
    def at_most_once(self) -> bool:
        return self.guarantee == "at_most_once"

    @property
    def is_positioned(self) -> bool:
        """Whether the target itself stores how far the sink is, with the rows."""
        return self.ability in {Ability.TRANSACTIONAL, Ability.COMMIT}

    @property
    def records_progress(self) -> bool:
        """Whether the WAL has records of the rows that the sink has of a batch."""
        return not (self.is_positioned or self.ability is Ability.BATCH_WRITER)

    @property
    def ignores_repeats(self) -> bool:
        """True if a whole batch may be sent a second time without any visible effect in the target."""
        return self.ability is Ability.IGNORE_KNOWN_KEYS and not self.at_most_once


class Guarantees(dict[str, str]):
    """The guarantee of each sink by its name, as one sentence. `print` shows a line for each."""

    def __str__(self) -> str:
        return "\n".join(f"{name}: {sentence}" for name, sentence in self.items()) or _NO_SINK


_NO_SINK = "no sink: batches are only staged"


def promise(sink: Sink | BatchSink, delivery: Delivery, name: str) -> Promise:
    """The promise for a sink under the requested guarantee. Raises `ConfigError`, with the options, if the sink does
    not support it.
    """
    ability = ability_of(sink)
    strongest = _strongest(sink, ability)
    wanted = delivery.guarantee or strongest
    if wanted == "at_most_once" and ability in _NEVER_REPEATING:
        wanted = "exactly_once"
    if wanted == "exactly_once" and strongest != "exactly_once":
        raise ConfigError(
            f"sink {name!r}: a {ability.value} sink does not support exactly_once ({_WINDOW[ability]}). Your options: "
            "mark the sink idempotent if the target ignores a chunk.key that it has already received (@idempotent, or "
            f"idempotent = True), use a TransactionalSink, or request {strongest}"
        )
    if wanted == "at_most_once" and ability in _WITHOUT_CHUNKS:
        raise ConfigError(
            f"sink {name!r}: at_most_once needs a sink that is called chunk by chunk; a {ability.value} receives a "
            f"whole {'batch' if ability is Ability.BATCH_WRITER else 'segment'}. Your options: a function of one "
            f"Chunk, or {strongest}"
        )
    _refuse_policies(sink, ability, delivery, name)
    kept: GuaranteeName = "at_most_once" if wanted == "at_most_once" else strongest
    sentence = _sentence(ability, kept)
    if delivery.on_rejected == "dead_letter":
        sentence += "; rows that it refuses are kept as dead letters and are not in the target"
    if isinstance(sink, TwoPhaseSink) and sink.on_gone == "prepare_again":
        sentence += (
            "; a transaction that the target lost is prepared again, so its rows repeat if it was committed before"
        )
    return Promise(ability, kept, sentence)


def _refuse_policies(sink: Sink | BatchSink, ability: Ability, delivery: Delivery, name: str) -> None:
    """Raise `ConfigError` for a policy that this kind of sink does not support."""
    names_none = ability in _WITHOUT_CHUNKS or not getattr(sink, "names_refused_rows", True)
    if delivery.on_rejected == "dead_letter" and names_none:
        raise ConfigError(
            f"sink {name!r}: on_rejected='dead_letter' needs a sink that is called chunk by chunk and names the rows "
            f"that it refuses; its kind is {ability.value}. Your options: a function of one Chunk, HttpSink "
            "with body='rows' or check=…, or on_rejected='halt'"
        )
    if not getattr(sink, "keep_segments", True) and ability is not Ability.TWO_PHASE:
        raise ConfigError(
            f"sink {name!r}: keep_segments=False needs a TwoPhaseSink, because the target of such a sink holds the "
            f"rows until they are committed. A {ability.value} sink receives the rows from the WAL. Leave "
            "keep_segments=True"
        )
    if delivery.rows_per_s is not None and ability in {Ability.TWO_PHASE, Ability.COMMIT}:
        raise ConfigError(
            f"sink {name!r}: a {ability.value} sink does not support rows_per_s={delivery.rows_per_s:g} because the "
            "rows of a batch appear at once. Limit the rows of a batch instead (maxOffsetsPerTrigger, "
            "maxFilesPerTrigger)"
        )
    if delivery.columns and ability is Ability.COMMIT:
        raise ConfigError(
            f"sink {name!r}: a {ability.value} sink gets whole segments as they were staged, so it does not support "
            "columns. Rename and leave out columns in the query: df.withColumnRenamed(…), df.drop(…)"
        )
    if delivery.roll_s is not None and (
        ability not in {Ability.TWO_PHASE, Ability.COMMIT} or not getattr(sink, "keep_segments", True)
    ):
        raise ConfigError(
            f"sink {name!r}: roll_s={delivery.roll_s:g} needs a CommitSink or a TwoPhaseSink with keep_segments=True: "
            f"only such a sink, and no {ability.value} one, shows many batches at once. Leave out roll_s"
        )
    if ability is Ability.COMMIT and (delivery.max_concurrency == 1 or delivery.threads_per_task > 1):
        raise ConfigError(
            f"sink {name!r}: a {ability.value} sink shows all rows of a batch at once, so it supports neither "
            "max_concurrency=1 (total order) nor threads_per_task. Leave them out"
        )
    if ability is Ability.BATCH_WRITER and delivery.max_concurrency is not None:
        raise ConfigError(
            f"sink {name!r}: max_concurrency needs a sink that is called "
            f"for each segment. A {ability.value} gets the batch as one DataFrame: repartition or sort that"
        )


def ability_of(sink: Sink | BatchSink) -> Ability:
    """The strongest ability of a sink, by its class and its claims."""
    for kind, ability in _BY_CLASS:
        if isinstance(sink, kind):
            return ability
    if sink.idempotent:
        return Ability.IGNORE_KNOWN_KEYS
    return Ability.LOOK_UP if isinstance(sink, Lookup) else Ability.ACCEPT


def _strongest(sink: Sink | BatchSink, ability: Ability) -> GuaranteeName:
    exact = ability in _EXACT or bool(sink.idempotent)
    return "exactly_once" if exact else "at_least_once"


_NEVER_REPEATING = frozenset({Ability.TRANSACTIONAL, Ability.TWO_PHASE, Ability.COMMIT})
_EXACT = _NEVER_REPEATING | {Ability.IGNORE_KNOWN_KEYS}

_WITHOUT_CHUNKS = frozenset({Ability.SEGMENT_WRITER, Ability.BATCH_WRITER, Ability.TWO_PHASE, Ability.COMMIT})
"""Kinds of sinks that do not get single chunks: a single chunk can be neither missing nor refused."""

_WINDOW = {
    Ability.ACCEPT: "a crash, takeover or retry may repeat at most one chunk per in-flight segment",
    Ability.LOOK_UP: "one chunk per segment may repeat if a late request or fenced process sends it after the look-up",
    Ability.SEGMENT_WRITER: "a crash, takeover or retry may repeat the in-flight segments, always with the same rows",
    Ability.BATCH_WRITER: "a crash, takeover or retry may repeat the whole batch, always with the same rows",
    Ability.IGNORE_KNOWN_KEYS: "repeats have no effect while the target remembers keys",
    Ability.TRANSACTIONAL: "nothing repeats and nothing is missing",
    Ability.TWO_PHASE: "nothing repeats and nothing is missing",
    Ability.COMMIT: "nothing repeats and nothing is missing",
}


def _sentence(ability: Ability, guarantee: GuaranteeName) -> str:
    if guarantee == "at_most_once":
        return (
            "at most once: after a crash, takeover or failure, the last chunk begun of each segment of the batch in "
            "flight may be missing; these chunks are kept as dead letters of unknown outcome; nothing repeats"
        )
    if guarantee == "exactly_once" and ability is Ability.TRANSACTIONAL:
        return "exactly once: rows and position are stored in one transaction; nothing repeats and nothing is missing"
    if guarantee == "exactly_once" and ability is Ability.COMMIT:
        return (
            "exactly once: all rows of a batch appear in one commit, with their position; nothing repeats and nothing "
            "is missing"
        )
    if guarantee == "exactly_once" and ability is Ability.TWO_PHASE:
        return (
            "exactly once: rows stay invisible until their batch is complete, then they are committed; each segment "
            "appears whole, nothing repeats and nothing is missing"
        )
    if guarantee == "exactly_once":
        return (
            f"exactly once in effect ({ability.value}): repeats carry the same "
            f"{'keys' if ability is Ability.IGNORE_KNOWN_KEYS else 'rows'}, which the target ignores"
        )
    return f"at least once: {_WINDOW[ability]}"
