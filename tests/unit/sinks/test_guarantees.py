"""The guarantee follows from what a target is able to do; more than that is refused, with the ways out."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.house.sinks import (
    Ability,
    BatchSink,
    Chunk,
    Position,
    ReleasedBatch,
    SegmentSink,
    Sink,
    TransactionalSink,
    as_sink,
    promise,
)
from tests.support.vault import Vault, VaultSink
from wal_sink.errors import ConfigError
from wal_sink.settings import Delivery, GuaranteeName
from wal_sink.sinks.base import idempotent
from wal_sink.sinks.guarantees import ability_of


class Plain(Sink):
    def write(self, chunk: Chunk) -> None: ...


class Keyed(Plain):
    idempotent = True


class LooksUp(Plain):
    def was_applied(self, key: str) -> bool:
        return bool(key)


class Ledger(Plain, TransactionalSink):
    def last(self, slot: str) -> Position | None: ...


class Segments(SegmentSink):
    def write_segment(self, ordinal: int, batch_id: int, chunks: Iterable[Chunk]) -> None: ...


class Batches(BatchSink):
    def write_batch(self, batch: ReleasedBatch) -> None: ...


class KeyedSegments(Segments):
    idempotent = True


class KeyedBatches(Batches):
    idempotent = True


ROWS = [
    (Plain(), Ability.ACCEPT, "at_least_once", "may repeat at most one chunk per in-flight segment"),
    (Keyed(), Ability.IGNORE_KNOWN_KEYS, "exactly_once", "exactly once in effect"),
    (LooksUp(), Ability.LOOK_UP, "at_least_once", "if a late request or fenced process sends it after the look-up"),
    (Ledger(), Ability.TRANSACTIONAL, "exactly_once", "in one transaction; nothing repeats and nothing is missing"),
    (Segments(), Ability.SEGMENT_WRITER, "at_least_once", "may repeat the in-flight segments"),
    (Batches(), Ability.BATCH_WRITER, "at_least_once", "may repeat the whole batch"),
    (KeyedSegments(), Ability.SEGMENT_WRITER, "exactly_once", "exactly once in effect"),
    (KeyedBatches(), Ability.BATCH_WRITER, "exactly_once", "exactly once in effect"),
]
IDS = [type(row[0]).__name__ for row in ROWS]
Row = tuple[Sink | BatchSink, Ability, GuaranteeName, str]


def promised(sink: Sink | BatchSink, guarantee: GuaranteeName | None = None) -> tuple[str, str]:
    given = promise(sink, Delivery(sink, guarantee=guarantee), "orders")
    return given.guarantee, given.sentence


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_without_asking_one_gets_the_strongest_the_target_can_honour(row: Row) -> None:
    sink, ability, strongest, sentence = row

    assert ability_of(sink) is ability
    guarantee, said = promised(sink)
    assert guarantee == strongest
    assert sentence in said
    assert "\n" not in said
    assert "repeat" in said


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_asking_for_exactly_once_gets_it_or_is_refused_with_reason_and_ways_out(row: Row) -> None:
    sink, ability, strongest, _ = row
    if strongest == "exactly_once":
        assert promised(sink, "exactly_once")[0] == "exactly_once"
        return

    with pytest.raises(ConfigError, match="does not support exactly_once") as refused:
        promised(sink, "exactly_once")

    message = str(refused.value)
    for part in (
        "sink 'orders'",
        f"a {ability.value} sink",
        "may repeat",
        "@idempotent",
        "TransactionalSink",
        strongest,
    ):
        assert part in message


@pytest.mark.parametrize("sink", [Plain(), Keyed(), LooksUp()], ids=lambda sink: type(sink).__name__)
def test_at_most_once_is_kept_by_sinks_that_get_chunks(sink: Sink) -> None:
    guarantee, said = promised(sink, "at_most_once")

    assert guarantee == "at_most_once"
    assert "may be missing" in said
    assert "kept as dead letters of unknown outcome" in said


@pytest.mark.parametrize(
    "sink", [Segments(), KeyedSegments(), Batches(), KeyedBatches()], ids=lambda s: type(s).__name__
)
def test_at_most_once_is_refused_for_sinks_that_get_more_than_a_chunk(sink: Sink | BatchSink) -> None:
    with pytest.raises(ConfigError, match="at_most_once needs a sink that is called chunk by chunk") as refused:
        promised(sink, "at_most_once")

    assert "a function of one Chunk" in str(refused.value)


def test_a_transactional_sink_asked_for_at_most_once_keeps_exactly_once_which_is_both() -> None:
    assert promised(Ledger(), "at_most_once")[0] == "exactly_once"


def test_a_decorated_function_is_idempotent_and_a_bare_one_is_not() -> None:
    @idempotent
    def post(chunk: Chunk) -> None: ...

    def put(chunk: Chunk) -> None: ...

    assert promised(as_sink(post))[0] == "exactly_once"
    assert promised(as_sink(put))[0] == "at_least_once"


def test_a_transactional_sink_that_also_looks_up_is_transactional() -> None:
    class Both(Ledger, LooksUp): ...

    assert ability_of(Both()) is Ability.TRANSACTIONAL


def test_an_idempotent_sink_that_also_looks_up_is_idempotent() -> None:
    class Both(Keyed, LooksUp): ...

    assert ability_of(Both()) is Ability.IGNORE_KNOWN_KEYS


@pytest.mark.parametrize("to", [42, "text", None, object()])
def test_what_is_no_sink_is_refused(to: object) -> None:
    with pytest.raises(ConfigError, match="cannot be delivered to"):
        as_sink(to)


def test_a_class_in_place_of_an_instance_is_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match="pass an instance"):
        as_sink(Plain)


class Whole(Plain):
    names_refused_rows = False


@pytest.mark.parametrize("to", [Segments(), Batches(), Whole()])
def test_a_sink_that_names_no_refused_rows_cannot_have_dead_letters(to: Sink | BatchSink) -> None:
    with pytest.raises(ConfigError, match="sink 'orders': on_rejected='dead_letter' needs a sink that is called chunk"):
        promise(to, Delivery(to, on_rejected="dead_letter"), "orders")


def test_a_policy_for_segments_is_refused_where_a_batch_is_written_in_one_call() -> None:
    with pytest.raises(ConfigError, match="max_concurrency needs a sink that is called for each segment"):
        promise(Batches(), Delivery(Batches(), max_concurrency=1), "orders")
    promise(Segments(), Delivery(Segments(), max_concurrency=1), "orders")


def test_the_guarantee_says_that_refused_rows_are_kept_as_dead_letters() -> None:
    halting = promise(Plain(), Delivery(Plain()), "orders").sentence
    keeping = promise(Plain(), Delivery(Plain(), on_rejected="dead_letter"), "orders").sentence
    assert keeping == f"{halting}; rows that it refuses are kept as dead letters and are not in the target"


def test_a_transaction_that_is_prepared_again_is_said_with_the_guarantee() -> None:
    again = promise(VaultSink(Vault(), on_gone="prepare_again"), Delivery(None), "orders").sentence
    assert again.endswith("is prepared again, so its rows repeat if it was committed before")


def test_what_holds_for_a_target_that_stores_its_position_is_said_in_one_sentence() -> None:
    assert promise(Ledger(), Delivery(None), "orders").sentence == (
        "exactly once: rows and position are stored in one transaction; nothing repeats and nothing is missing"
    )
