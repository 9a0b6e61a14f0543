"""Dead letters sent again: whatever crashes, each row is in the target once, or still among the dead letters."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from tests.house.kit import Crash, simulated_runtime
from tests.house.log import MARGIN, Log, TakeOver, WalRecord, claim, paths
from tests.house.protocol import keep_rejected, keep_unknown
from tests.house.sinks import Chunk, LedgerEntry, Position, Rejected, Sink, SinkContext, TransactionalSink
from tests.house.stores import Store, StoreSpec
from tests.support.repairs import remade
from tests.support.small_run import Place
from tests.support.time_limits import noting_limits
from tests.unit.protocol.test_rejections import Changing, Keyed, Ledger, OneAtATime, Plain, Target, ids_of, rows_in
from wal_sink import ConfigError, DeadLetters, DeliveryError, PermanentError
from wal_sink.errors import CorruptError, FencedError, HistoryError, StoreError
from wal_sink.log.records import Replayed
from wal_sink.operate.replay import ReplayResult
from wal_sink.settings import Delivery, Retry
from wal_sink.sinks.chunk import refusal_key
from wal_sink.support.calls import CallTimedOutError
from wal_sink.testing import FakeQuery
from wal_sink.testing.simulation.faults import FaultyStore
from wal_sink.wrap import foreach_batch

ROWS = 9
REFUSED = [1, 4, 7]
"""Of the ids that `place` delivers, those a target of these tests refuses."""


class Repaired(Plain):
    """A target that takes what it refused."""

    def write(self, chunk: Chunk) -> Rejected | None:
        self.target["rows"] = (*self.target.get("rows", ()), *ids_of(chunk))
        return None


def refusing(chunk: Chunk) -> Rejected | None:
    refused = {index: "no good" for index, row in enumerate(_numbers_of(chunk)) if row in REFUSED}
    return Rejected(refused) if refused else None


def _numbers_of(chunk: Chunk) -> list[Any]:
    return chunk.table.column(1).to_pylist()


def delivered(sink: object = refusing, **delivery: Any) -> Place:
    """A WAL of one batch of one segment, delivered, with its dead letters."""
    place = Place(rows=lambda _: [ROWS])
    run = place.open({"a": Delivery(sink, on_rejected="dead_letter", **delivery)})
    next(place.query().batches(run, 1))
    run.deliver_all()
    return place


_runs = itertools.count()


def letters(place: Place, store: Store | None = None) -> DeadLetters:
    return DeadLetters(Log(store or place.wal, simulated_runtime(next(_runs)), f"replay-{next(_runs)}"), name="a")


def left(place: Place) -> list[int]:
    return sorted(row for kept in letters(place).due() for row in kept.letter.chunk.rows)


# Rows that are sent, and their records.


def test_what_was_refused_is_sent_again_under_lasting_keys() -> None:
    place, seen = delivered(), list[tuple[str, list[str]]]()

    def take(chunk: Chunk) -> None:
        seen.append((chunk.key, chunk.row_keys()))

    due = list(letters(place).due())
    assert letters(place).replay(take) == ReplayResult(letters=3, rows=3, rejected=0)
    assert seen == [(kept.letter.chunk.key, kept.letter.chunk.row_keys()) for kept in due]
    assert len({key for key, _ in seen}) == 3
    assert left(place) == []
    assert [kept.replayed for kept in letters(place).all()] == [True] * 3


def test_what_is_refused_again_is_a_new_dead_letter() -> None:
    place = delivered()
    first = list(letters(place).due())

    assert letters(place).replay(lambda _: Rejected({0: "still no good"})) == ReplayResult(3, 0, 3)

    second = list(letters(place).due())
    assert [kept.letter.replay_of for kept in second] == [kept.letter.path for kept in first]
    assert [kept.letter.chunk.rows for kept in second] == [kept.letter.chunk.rows for kept in first]
    assert [kept.letter.reasons for kept in second] == [("still no good",)] * 3
    assert letters(place).replay(lambda _: None) == ReplayResult(3, 3, 0)


def test_a_batch_that_is_still_being_delivered_has_nothing_to_replay() -> None:
    place = Place(rows=lambda _: [ROWS])

    def fails_later(chunk: Chunk) -> Rejected | None:
        if chunk.rows[0] >= 4:
            raise PermanentError("gone")
        return refusing(chunk)

    run = place.open({"a": Delivery(fails_later, on_rejected="dead_letter")})
    next(place.query().batches(run, 1))
    with pytest.raises(DeliveryError):
        run.deliver_all()

    assert [kept.letter.chunk.rows for kept in letters(place).all()] == [(1,)]
    assert list(letters(place).due()) == []


def test_rows_of_unknown_outcome_are_sent_only_when_asked_for() -> None:
    place = delivered(guarantee="at_most_once")
    letter = next(letters(place).due()).letter
    keep_unknown(Log(place.wal, simulated_runtime(1), "run"), "a", 5, letter.chunk, reason="no answer")

    assert len(list(letters(place).due())) == 3
    assert len(list(letters(place).due(unknown=True))) == 4
    assert letters(place).replay(lambda _: None).letters == 3
    assert letters(place).replay(lambda _: None, unknown=True).letters == 1
    assert list(letters(place).due(unknown=True)) == []


@pytest.mark.parametrize(("given", "limit_s"), [({}, 120.0), ({"retry": Retry(attempt_timeout_s=7.0)}, 7.0)])
def test_every_call_of_a_replay_is_limited_in_time(given: dict[str, Any], limit_s: float) -> None:
    limits: dict[str, set[float]] = {}
    log = Log(delivered().wal, noting_limits(limits), "replay")
    DeadLetters(log, name="a").replay(lambda _: None, **given)

    assert limits == {call: {limit_s} for call in ["open", "write", "close"]}


def test_the_sink_is_told_whose_rows_come_again_and_that_it_is_in_the_driver() -> None:
    contexts: list[SinkContext] = []

    class Opened(Repaired):
        def open(self, context: SinkContext) -> None:
            contexts.append(context)

    place = delivered()
    wal = Log(place.wal, simulated_runtime(), "look").find(WalRecord, paths.WAL)
    assert wal is not None
    letters(place).replay(Opened(Target()))

    assert set(contexts) == {SinkContext(wal.wal_id, "a", 1, 0, ("batch", "row"), on_executor=False)}


def _refused_at_once() -> Place:
    """Two rows in one dead letter."""
    place = Place()
    sink = Delivery(lambda _: Rejected(dict.fromkeys(range(2), "no")), on_rejected="dead_letter")
    run = place.open({"a": sink})
    next(FakeQuery(place.checkpoint, lambda *_: [pa.table({"id": [1, 4]})]).batches(run, 1))
    run.deliver_all()
    return place


def test_rows_that_are_refused_again_keep_the_slot_they_had_at_first() -> None:
    place = delivered()
    slots = {kept.letter.chunk.position.slot for kept in letters(place).due()}
    for _ in range(2):
        letters(place).replay(lambda _: Rejected({0: "again"}))

    assert {kept.letter.chunk.position.slot for kept in letters(place).all()} == slots


def test_rows_that_are_refused_again_are_counted_once_however_often_a_replay_was_broken_off() -> None:
    refused = remade(_refused_at_once)
    for first in range(12, 22):
        for second in range(12, 24):
            place = refused()
            path = next(letters(place).due()).letter.path
            life(place, OneAtATime(Target()), first)
            life(place, OneAtATime(Target()), second)
            letters(place).replay(OneAtATime(Target()))

            record = Log(place.wal, simulated_runtime(), "look").find(Replayed, paths.replayed(path))
            assert record is not None
            assert (record.rows, record.rejected) == (0, 2), (first, second)


def test_rows_that_are_replayed_have_a_separate_slot_and_another_key() -> None:
    place = delivered()
    (letter, *_) = (kept.letter for kept in letters(place).due())
    keep_unknown(Log(place.wal, simulated_runtime(1), "run"), "a", 5, letter.chunk, reason="no answer")
    sent: dict[str, Chunk] = {}
    claim(Log(place.wal, simulated_runtime(2), "another"), paths.replayer_role("a"))

    letters(place).replay(lambda chunk: sent.__setitem__(chunk.position.slot, chunk), unknown=True)

    old = letter.chunk.position
    refused = sent[f"{old.slot}/0/000000-000000000000-000000000002-000000"]
    assert refused.position == Position(refused.position.slot, 0, old.rows, old.segment_id)
    assert (refused.key, refused.term) == (refusal_key(old, letter.chunk.rows, 0), 2)
    unknown = sent[f"{old.slot}/0/000005-{letter.chunk.rows[0]:012d}-{letter.chunk.rows[-1] + 1:012d}"]
    assert unknown.key == letter.chunk.key


def test_a_dead_letter_in_a_listing_shows_its_file_and_how_much_but_no_rows() -> None:
    place = delivered()
    letters(place).replay(lambda _: Rejected({0: "secret"}))

    newest = next(letters(place).all())
    assert repr(newest) == (
        "KeptLetter('000000-000000000000-000000000002-000001.parquet', batch_id=0, rows=1, kept='rejected', "
        "replayed=False)"
    )


def test_a_sink_in_use_by_a_replay_is_refused_to_others_with_the_name_of_the_replay() -> None:
    place = delivered()
    refused = list[str]()

    class Shared(Plain):
        def write(self, chunk: Chunk) -> None:  # noqa: ARG002 - the same for each
            with pytest.raises(ConfigError) as caught:
                letters(delivered()).replay(self)
            refused.append(str(caught.value))

    letters(place).replay(Shared(Target()))

    replay = f"the replay of sink 'a' of {place.wal.root}"
    assert f"{replay} already uses: rows of one could be written" in refused[0]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("row 5", "last({slot!r}) returned 'row 5': expected None, or a Position of the slot {slot!r}"),
        (ConnectionError("gone"), "last({slot!r}) raised ConnectionError: gone"),
        (Position("", 0, 4, "s"), "last({slot!r}): the slot of this dead letter is at batch 0, row 4"),
    ],
    ids=["no position", "a failure", "another position"],
)
def test_an_answer_about_a_slot_that_is_no_answer_is_told_with_the_question(answer: object, said: str) -> None:
    asked = list[str]()

    class Answering(Ledger):
        def last(self, slot: str) -> Any:
            asked.append(slot)
            if isinstance(answer, Exception):
                raise answer
            return replace(answer, slot=slot) if isinstance(answer, Position) else answer

    with pytest.raises((DeliveryError, HistoryError)) as caught:
        letters(_refused_at_once()).replay(Answering(Target()))

    assert said.format(slot=asked[0]) in str(caught.value)


def test_a_failure_ends_it_and_the_next_goes_on_from_there() -> None:
    place, calls = delivered(), itertools.count()

    def second_fails(_: Chunk) -> None:
        if next(calls) == 1:
            raise PermanentError("gone")

    told = r"dead letter .*: .*second_fails.* refused permanently: gone\. 1 dead letter \(\d rows?\) sent before this"
    with pytest.raises(DeliveryError, match=told):
        letters(place).replay(second_fails)
    assert letters(place).replay(lambda _: None).letters == 2


def test_a_failure_that_may_pass_is_retried_within_the_attempts() -> None:
    place, calls, keys = delivered(), itertools.count(), list[str]()

    def each_fails_twice(chunk: Chunk) -> None:
        if next(calls) % 3 != 2:
            raise ConnectionError("gone")
        keys.append(chunk.key)

    with pytest.raises(DeliveryError, match=r"gone\. 0 dead letters \(0 rows\) sent before this one"):
        letters(place).replay(each_fails_twice, retry=Retry(attempts=2))
    assert next(calls) == 2
    assert letters(place).replay(each_fails_twice).letters == len(set(keys)) == 3


def test_a_call_that_timed_out_is_not_repeated_since_it_may_still_use_the_sink() -> None:
    place, calls = delivered(), list[Chunk]()

    def times_out(chunk: Chunk) -> None:
        calls.append(chunk)
        raise CallTimedOutError("after 120 s")

    with pytest.raises(DeliveryError, match="timed out"):
        letters(place).replay(times_out)
    assert len(calls) == 1


def test_a_replay_at_the_same_time_is_fenced() -> None:
    place = delivered()

    def another_begins(_: Chunk) -> None:
        letters(place).replay(lambda _: None)

    with pytest.raises(FencedError, match="term 1 of 'replayer-a'"):
        letters(place).replay(another_begins)
    assert left(place) == []


def test_two_that_keep_the_same_rows_at_once_cannot_both_go_on() -> None:
    place = delivered()
    log = Log(place.wal, simulated_runtime(2), "another")

    def other_was_first(chunk: Chunk) -> Rejected:
        path = next(letters(place).due()).letter.path.replace("-000000.parquet", "-000001.parquet")
        keep_rejected(log, path, chunk, ["theirs"], answered=True)
        return Rejected({0: "ours"})

    with pytest.raises(DeliveryError, match=r"was written by another replay\. .*Repeat the replay"):
        letters(place).replay(other_was_first)


@pytest.mark.parametrize("to", [foreach_batch(lambda _df, _batch: None)])
def test_a_writer_of_whole_batches_gets_no_single_rows(to: object) -> None:
    with pytest.raises(ConfigError, match="cannot receive single rows"):
        letters(delivered()).replay(to)


def test_a_wal_without_such_a_sink_says_which_it_has(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no sink 'b'; it has 'a'"):
        DeadLetters(Log(delivered().wal, simulated_runtime(0), "r"), name="b")
    with pytest.raises(ConfigError, match="has no sink 'default'; it has none"):
        DeadLetters(str(tmp_path))


@pytest.mark.parametrize(
    ("wal", "options", "said"),
    [
        ("memory://wal", "key=x", "storage_options: expected a mapping of names to values"),
        (None, None, "wal=None: expected text"),
    ],
)
def test_where_the_wal_is_must_be_told_rightly(wal: Any, options: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=f"^{said}"):
        DeadLetters(wal, storage_options=options)


@pytest.mark.parametrize(("given", "options"), [({}, {}), ({"storage_options": {"key": "x"}}, {"key": "x"})])
def test_the_store_is_opened_with_its_options(
    given: dict[str, Any], options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, opened = delivered(), list[StoreSpec]()

    def note(spec: StoreSpec) -> Store:
        opened.append(spec)
        return place.wal

    monkeypatch.setattr("wal_sink.operate.replay.open_store", note)

    assert len(list(DeadLetters("memory://wal", name="a", **given).due())) == 3
    assert opened == [StoreSpec("memory://wal", options)]


def test_the_newest_refusal_of_a_row_owns_it_though_its_outcome_was_unknown_at_first() -> None:
    place = delivered(lambda _: None)
    chunk = replace(next(letters(delivered()).due()).letter.chunk, key="its key")
    keep_unknown(Log(place.wal, simulated_runtime(1), "run"), "a", 0, chunk, reason="no answer")

    letters(place).replay(lambda _: Rejected({0: "no good"}), unknown=True)

    (kept,) = letters(place).all()
    assert (kept.letter.kept, kept.reasons) == ("rejected", ["no good"])


def test_a_replay_whose_earlier_terms_were_lost_goes_on_far_above_them() -> None:
    place = delivered()
    letters(place).replay(lambda _: Rejected({0: "still no good"}))
    folder = paths.terms(paths.replayer_role("a"))
    place.wal.delete([f"{folder}/{name}" for name in place.wal.list(folder)])
    terms: set[int | None] = set()

    letters(place).replay(lambda chunk: terms.add(chunk.term))

    assert terms == {MARGIN + 1}
    assert MARGIN + 1 in Log(place.wal, simulated_runtime(), "look").numbers(folder)


def test_a_replay_beside_another_is_refused_where_it_asks_and_the_end_of_one_is_recorded() -> None:
    place = delivered()

    def another_begins(_: Chunk) -> None:
        letters(place).replay(lambda _: None, take_over=TakeOver.IF_GONE)

    with pytest.raises(DeliveryError) as caught:
        letters(place).replay(another_begins)
    assert "HeldError" in str(caught.value)
    assert letters(place).replay(lambda _: None, take_over=TakeOver.IF_GONE).letters == 3


def test_a_folder_that_vanished_is_not_begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    place = delivered()
    begun: list[bool] = []

    def begin(*, is_there: bool = False) -> None:
        begun.append(is_there)
        raise StoreError("the mount is gone")

    monkeypatch.setattr(place.wal, "begin", begin)
    with pytest.raises(StoreError, match="the mount is gone"):
        letters(place).replay(lambda _: pytest.fail("nothing may be sent"))

    assert begun == [True]


def test_a_wal_whose_record_vanishes_meanwhile_is_told_with_a_younger_object() -> None:
    place = delivered()
    path = next(letters(place).due()).letter.path

    def loses_its_record(what: str, where: str) -> None:
        if what == "before list" and "dead-letters" in where:
            place.wal.delete([paths.WAL])

    with pytest.raises(CorruptError, match=path):
        letters(place, FaultyStore(place.wal, loses_its_record)).replay(lambda _: None)


class BreaksOff(Ledger):
    """It refuses the first row of a chunk, and the last row alone meets a lost connection."""

    def refused(self, chunk: Chunk) -> dict[int, str]:
        if chunk.num_rows < 2:
            raise ConnectionError("gone")
        return {0: "still no good"}


def test_a_part_of_a_dead_letter_comes_again_under_the_key_of_its_rows_and_their_refusal() -> None:
    place = delivered(lambda chunk: Rejected(dict.fromkeys(range(chunk.num_rows), "not yet")))
    whole, sent = next(letters(place).due()).letter.chunk, list[Chunk]()

    with pytest.raises(DeliveryError, match="gone"):
        letters(place).replay(BreaksOff(Target()))
    letters(place).replay(sent.append)

    assert sent[0].rows == whole.rows[1:]
    assert sent[0].key == refusal_key(whole.position, whole.rows[1:], 0)


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("answer", ["done", Rejected({9: "no such row"}), ConnectionError("gone")])
def test_a_failure_is_told_of_the_sink_and_the_dead_letter(transactional: bool, answer: object) -> None:
    class Answering(Ledger if transactional else Plain):  # type: ignore[misc]
        def write(self, chunk: Chunk) -> Any:  # noqa: ARG002 - it answers the same to all
            if isinstance(answer, Exception):
                raise answer
            return answer

    place = delivered()
    what = f"dead letter {place.wal.url_of(next(letters(place).due()).letter.path)}: Answering"
    with pytest.raises(DeliveryError) as caught:
        letters(place).replay(Answering(Target()))

    assert not re.search("None (returned|rejected|raised)", str(caught.value))
    assert what in str(caught.value)


class LooksUp(Repaired):
    def was_applied(self, key: str) -> bool:
        return key == self.target.get("known")


def test_what_a_target_knows_is_not_sent() -> None:
    place, target = delivered(), Target()
    target["known"] = next(letters(place).due()).letter.chunk.key

    letters(place).replay(LooksUp(target))

    assert len(target["rows"]) == 2


def test_a_target_that_remembers_what_it_refused_is_sent_it_under_another_key() -> None:
    keys, target = set[str](), Target()

    def refuses_all(chunk: Chunk) -> Rejected:
        keys.add(chunk.key)
        return Rejected(dict.fromkeys(range(chunk.num_rows), "not yet"))

    place = delivered(refuses_all)

    class Knows(Repaired):
        def was_applied(self, key: str) -> bool:
            return key in keys

    assert letters(place).replay(Knows(target)).rows == ROWS
    assert len(target["rows"]) == ROWS


def test_a_replay_that_a_plain_sink_answered_is_not_sent_to_another() -> None:
    place, target = delivered(lambda chunk: Rejected(dict.fromkeys(range(chunk.num_rows), "not yet"))), Target()

    def first_is_no_good(chunk: Chunk) -> Rejected:
        target["rows"] = (*target.get("rows", ()), *chunk.rows[1:])
        return Rejected({0: "still no good"})

    points = itertools.count()

    def dies_before_the_record(_what: str, where: str) -> None:
        if where.endswith(".replayed.json") and next(points) == 0:
            raise Crash(where)

    with pytest.raises(Crash):
        letters(place, FaultyStore(place.wal, dies_before_the_record)).replay(first_is_no_good)
    sent = len(target["rows"])
    taken = Target()
    for _ in range(2):
        letters(place).replay(Repaired(taken))

    assert sent + len(taken["rows"]) == ROWS


def test_what_another_sent_while_this_one_began_is_not_sent_again() -> None:
    place, sent = delivered(), list[str]()

    def another_is_quicker(what: str, where: str) -> None:
        if what == "before create" and "terms/replayer" in where and not sent:
            letters(place).replay(lambda chunk: sent.append(chunk.key))

    letters(place, FaultyStore(place.wal, another_is_quicker)).replay(lambda chunk: sent.append(chunk.key))

    assert len(sent) == len(set(sent)) == 3


# Crashes.


def life(place: Place, sink: Sink, deadly: int) -> int:
    """One process that replays and dies at the n-th operation on the store; how many it came by."""
    seen = 0

    def note(_what: str, where: str) -> None:
        nonlocal seen
        seen += 1
        if seen == deadly:
            raise Crash(where)

    with suppress(Crash):
        letters(place, FaultyStore(place.wal, note)).replay(sink)
    return seen


@pytest.mark.parametrize("make", [Keyed, Ledger, OneAtATime, Changing])
def test_no_crash_of_a_replay_loses_or_repeats_a_row(make: Callable[[Target], Sink]) -> None:
    rows = 5  # which makes three chunks and two dead letters
    refused = remade(lambda: _refused_by(make, rows))
    place, target = refused()
    points = life(place, make(target), deadly=0)
    assert points > 10
    for deadly in range(1, points + 1):
        place, target = refused()
        life(place, make(target), deadly)
        for _ in range(3):
            letters(place).replay(make(target))

        there = [row["id"] for row in rows_in(target)]
        waiting = [number for kept in letters(place).due() for number in ids_of(kept.letter.chunk)]
        assert sorted([*there, *waiting]) == list(range(rows)), deadly


def _refused_by(make: Callable[[Target], Sink], rows: int = ROWS) -> tuple[Place, Target]:
    """Delivered to a target that refuses rows, with ids as the first column."""
    target = Target()
    place = Place()
    run = place.open({"a": Delivery(make(target), on_rejected="dead_letter")})
    query = FakeQuery(place.checkpoint, lambda *_: [pa.table({"id": list(range(rows))})])
    next(query.batches(run, 1))
    run.deliver_all()
    return place, target


class OneForAll(TransactionalSink):
    """A target with one position for all slots, which does while each batch has one segment."""

    def __init__(self, *, refuses: bool) -> None:
        self.refuses = refuses
        self.at: LedgerEntry | None = None
        self.rows: list[Any] = []

    def last(self, slot: str) -> Position | None:
        return replace(self.at.position, slot=slot) if self.at else None

    def write(self, chunk: Chunk) -> Rejected | None:
        if LedgerEntry.is_known(self.at, chunk, "this target"):
            return None
        if self.refuses and (rejected := refusing(chunk)) is not None:
            return rejected
        self.rows += _numbers_of(chunk)
        self.at = LedgerEntry.of(chunk)
        return None


def test_a_target_that_does_not_keep_its_slots_apart_is_refused_and_nothing_counts_as_sent() -> None:
    """It would say of each dead letter that it has it, since it has a later row."""
    sink = OneForAll(refuses=True)
    place = delivered(sink)
    sink.refuses = False

    with pytest.raises(
        HistoryError, match=r"slot of this dead letter is at batch 0, row 9 .*mixes up positions of different slots"
    ):
        letters(place).replay(sink)

    assert left(place) == REFUSED


def test_a_policy_that_is_none_is_refused_before_anything_is_sent() -> None:
    place, policy = delivered(), cast("Any", 3)

    with pytest.raises(ConfigError, match=r"retry: expected Retry\(attempts=8, budget_s=600\), found a int"):
        letters(place).replay(lambda _: None, retry=policy)

    assert not place.wal.list(paths.terms(paths.replayer_role("a")))
