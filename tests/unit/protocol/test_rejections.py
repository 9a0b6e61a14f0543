"""Rows that a sink refuses become dead letters: whatever crashes, each row is in the target or among them, once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tests.house.log import Marker, paths
from tests.house.protocol import Rejections, SegmentResult, keep_rejected, read_dead_letter
from tests.house.sinks import Chunk, FailureKind, LedgerEntry, Position, Rejected, Sink, TransactionalSink, slot_name
from tests.support.one_segment import Stage, kind_of_failure
from tests.support.small_run import Place
from wal_sink.operate.replay import DeadLetters
from wal_sink.protocol.letters import RefusalTakenError
from wal_sink.settings import Delivery
from wal_sink.sinks.base import Lookup
from wal_sink.sinks.chunk import refusal_key
from wal_sink.testing import CrashMatrix, FakeQuery, crash_matrix

BATCHES = [pa.table({"id": list(range(start, start + 4))}) for start in (0, 4)]


def ids_of(chunk: Chunk) -> list[Any]:
    return chunk.table.column(0).to_pylist()


def refused_of(chunk: Chunk, most: int | None = None) -> dict[int, str]:
    """A third of all rows is refused; a target that tells of `most` at a time tells of the others later."""
    ids = ids_of(chunk)
    bad = [index for index, number in enumerate(ids) if number % 3 == 1]
    return {index: f"{ids[index]} is no good" for index in bad[:most]}


class Target(dict[Any, Any]):
    """Each of its methods is one step, in which nothing happens to a process."""

    def take(self, rows: list[Any]) -> None:
        self["rows"] = (*self.get("rows", ()), *rows)

    def answer(self, chunk: Chunk) -> Rejected | None:
        """As the first time, to whom brings the chunk again."""
        if ("answer", chunk.key) not in self:
            refused = refused_of(chunk)
            self.take(ids_of(chunk.without(refused)))
            self["answer", chunk.key] = Rejected(refused) if refused else None
        answer: Rejected | None = self["answer", chunk.key]
        return answer

    def commit(self, chunk: Chunk, refused: dict[int, str]) -> Rejected | None:
        """Rows and position, nothing of a chunk with a bad row."""
        slot = chunk.position.slot
        at = self.get(("position", slot))
        stored = LedgerEntry(self["term", slot], at) if at is not None else None
        if LedgerEntry.is_known(stored, chunk, "this target"):
            return None
        if refused:
            return Rejected(refused)
        rows = (*self.get("rows", ()), *ids_of(chunk))
        self.update({"rows": rows, ("position", slot): chunk.position, ("term", slot): chunk.term})
        return None


class Plain(Sink):
    def __init__(self, target: Target) -> None:
        self.target = target

    def write(self, chunk: Chunk) -> Rejected | None:
        refused = refused_of(chunk)
        self.target.take(ids_of(chunk.without(refused)))
        return Rejected(refused) if refused else None


class Keyed(Sink):
    """Answers a repeat as it answered the first. Rows and answer are stored in one step."""

    idempotent = True

    def __init__(self, target: Target) -> None:
        self.target = target

    def write(self, chunk: Chunk) -> Rejected | None:
        return self.target.answer(chunk)


class Ledger(TransactionalSink):
    """Rows and position in one step, nothing of a chunk with a bad row."""

    most: int | None = None

    def __init__(self, target: Target) -> None:
        self.target = target

    def last(self, slot: str) -> Position | None:
        position: Position | None = self.target.get(("position", slot))
        return position

    def write(self, chunk: Chunk) -> Rejected | None:
        return self.target.commit(chunk, self.refused(chunk))

    def refused(self, chunk: Chunk) -> dict[int, str]:
        return refused_of(chunk, self.most)


class OneAtATime(Ledger):
    most = 1


class Changing(Ledger):
    """Refuses other rows in every other process: two that hold the same chunk hear two answers."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        target["made"] = self.made = target.get("made", 0) + 1

    def refused(self, chunk: Chunk) -> dict[int, str]:
        return {index: "no" for index, number in enumerate(ids_of(chunk)) if number % 3 == self.made % 2}


def rows_in(target: Target) -> list[dict[str, Any]]:
    return [{"id": number} for number in target.get("rows", [])]


def keeping(make: Callable[[Target], Sink]) -> Callable[[Target], Delivery]:
    return lambda target: Delivery(make(target), on_rejected="dead_letter")


class SelfDestructing(Sink):
    """Empties the table that it is given, as pandas does to spare memory. Reading that table then ends the process."""

    def __init__(self, taken: list[Any]) -> None:
        self.taken = taken

    def write(self, chunk: Chunk) -> Rejected | None:
        refused = refused_of(chunk)
        ids = chunk.table.to_pandas(self_destruct=True, split_blocks=True)["id"].tolist()
        self.taken += [number for index, number in enumerate(ids) if index not in refused]
        return Rejected(refused) if refused else None


def test_a_sink_may_empty_the_table_it_is_given() -> None:
    taken: list[Any] = []
    place = Place()
    run = place.open({"a": Delivery(SelfDestructing(taken), on_rejected="dead_letter")})
    query = FakeQuery(place.checkpoint, lambda batch_id, _: [BATCHES[batch_id]])

    for _ in query.batches(run, 2):
        run.deliver_all()

    letters = DeadLetters(run.log, name="a").all()
    kept = [row for letter in letters for row in ids_of(letter.chunk)]
    assert (taken, kept) == ([0, 2, 3, 5, 6], [1, 4, 7])


@pytest.mark.parametrize("make", [Keyed, Ledger, OneAtATime, Changing])
def test_no_crash_loses_or_repeats_a_row(make: Callable[[Target], Sink]) -> None:
    matrix = crash_matrix(keeping(make), rows_in, Target, tables=BATCHES).check()

    assert matrix.lost == matrix.repeated == 0
    assert min(matrix.crashes, matrix.failures, matrix.takeovers) > 8


@pytest.mark.parametrize("make", [Keyed, Ledger, Changing])
def test_no_two_crashes_lose_or_repeat_a_row(make: Callable[[Target], Sink]) -> None:
    short = [table.slice(0, 3) for table in BATCHES[:2]]
    matrix = crash_matrix(
        keeping(make), rows_in, Target, tables=short, disturb=("dies",), each_line=False, every=4, double=True
    ).check()

    assert matrix.lost == matrix.repeated == 0
    assert matrix.crashes > 60


def takeovers_of_one_batch() -> CrashMatrix:
    """The few disturbances that are enough to find the bug of the next test."""
    return crash_matrix(keeping(Changing), rows_in, Target, tables=BATCHES[1:], disturb=("stands still",))


def test_without_the_empty_refusal_a_predecessor_could_still_keep_what_was_delivered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bug that the numbered refusals are there against is found by the same check."""

    def only_read(self: Rejections) -> Chunk:
        kept = {row for letter in self.read() for row in letter.chunk.rows}
        return self._chunk.without([index for index, row in enumerate(self._chunk.rows) if row in kept])

    monkeypatch.setattr(Rejections, "take_over", only_read)

    assert takeovers_of_one_batch().repeated > 0


def test_a_plain_sink_loses_nothing_and_repeats_a_chunk_at_most() -> None:
    matrix = crash_matrix(keeping(Plain), rows_in, Target, tables=BATCHES).check()

    assert matrix.lost == 0
    assert 0 < matrix.repeated <= matrix.permitted


# The letters that are kept, and their costs.


def bad_rows(chunk: Chunk) -> Rejected | None:
    """Rows 1 and 4 of the segment."""
    refused = {index: "no good" for index, row in enumerate(chunk.rows) if row in (1, 4)}
    return Rejected(refused) if refused else None


def kept_rows(stage: Stage) -> list[tuple[int, ...]]:
    folder = paths.dead_letter_folder("a", 0)
    names = stage.place.wal.list(folder)
    return [tuple(read_dead_letter(stage.place.wal, f"{folder}/{name}").chunk.rows) for name in names]


def test_refused_rows_are_kept_before_the_chunk_is_recorded() -> None:
    stage = Stage()

    result = stage.deliver(bad_rows, keeps_rejected=True)

    assert result == SegmentResult(0, 5, chunks=3, rejected=2)
    assert kept_rows(stage) == [(1,), (4,)]
    creates = [request for request in stage.place.requests if request.startswith("create")]
    first_kept = next(number for number, request in enumerate(creates) if "dead-letters" in request)
    first_recorded = next(number for number, request in enumerate(creates) if "progress" in request)
    assert first_kept < first_recorded


def test_a_chunk_that_was_answered_is_not_sent_again() -> None:
    stage, sent = Stage(), list[int]()
    stage.deliver(bad_rows, keeps_rejected=True)

    def again(chunk: Chunk) -> None:
        sent.append(chunk.rows[0])

    result = stage.deliver(again, keeps_rejected=True, task={"maybe_sent": True}, term=stage.given.term)

    assert sent == []
    assert kind_of_failure(result) is FailureKind.UNKNOWN  # the record of the chunk is another's


class KnownAlready(Plain):
    def was_applied(self, key: str) -> bool:  # noqa: ARG002
        return True


def test_a_lookup_counts_where_nothing_was_kept() -> None:
    stage, target = Stage(), Target()
    sink = KnownAlready(target)
    assert isinstance(sink, Lookup)

    assert not stage.deliver(sink, keeps_rejected=True, task={"maybe_sent": True, "start": 4}).failure
    assert target == {}


@pytest.mark.parametrize("index", [-1, 2])
def test_a_row_that_is_not_in_the_chunk_cannot_be_refused(index: int) -> None:
    stage = Stage()

    result = stage.deliver(lambda _: Rejected({index: "what?"}), keeps_rejected=True)

    assert result.failure is not None
    assert result.failure.kind is FailureKind.PERMANENT
    assert f"rejected row {index}: expected indices of rows in this chunk, from 0 to 1" in result.failure.message


def test_at_most_once_keeps_refused_rows_and_goes_on() -> None:
    stage = Stage()

    assert stage.deliver(bad_rows, at_most_once=True, keeps_rejected=True) == SegmentResult(0, 5, chunks=3, rejected=2)
    assert kept_rows(stage) == [(1,), (4,)]


def test_two_that_keep_at_once_cannot_both_go_on() -> None:
    """Another kept rows of the chunk between this one's question and its own answer."""
    stage = Stage()

    def other_was_first(chunk: Chunk) -> Rejected:
        path = paths.dead_letter("a", 0, 0, 0, 2, number=0)
        keep_rejected(stage.run.log, path, chunk.without([0]), ["theirs"], answered=True)
        return Rejected({0: "ours"})

    result = stage.deliver(other_was_first, keeps_rejected=True)

    assert result.failure is not None
    assert result.failure.kind is FailureKind.UNKNOWN
    assert "was written by another attempt at the same chunk" in result.failure.message
    assert result.rows == 0


def test_a_chunk_all_of_whose_rows_are_refused_still_moves_the_position() -> None:
    stage, target = Stage(), Target()

    class Nothing(Ledger):
        def write(self, chunk: Chunk) -> Rejected | None:
            if chunk.num_rows:
                return Rejected(dict.fromkeys(range(chunk.num_rows), "never"))
            return super().write(chunk)

    sink = Nothing(target)

    assert stage.deliver(sink, keeps_rejected=True) == SegmentResult(0, 5, chunks=3, rejected=5)
    assert target["rows"] == ()
    assert sink.last(slot_name("w", "a", 0)) == stage.position(5)


def test_reasons_hold_no_passwords() -> None:
    stage = Stage()
    stage.deliver(lambda _: Rejected({0: "https://me:hunter2@host/x says no"}), keeps_rejected=True)

    letter = read_dead_letter(stage.place.wal, paths.dead_letter("a", 0, 0, 0, 2, number=0))
    assert "says no" in letter.reasons[0]
    assert "hunter2" not in letter.reasons[0]


# Records of another policy.


def refused_before(stage: Stage, *, answered: bool) -> None:
    """A predecessor kept row 1 of the first chunk."""
    chunk = stage.first_chunk()
    path = paths.dead_letter("a", 0, 0, 0, 2, number=0)
    assert keep_rejected(stage.run.log, path, chunk.without([0]), ["no good"], answered=answered)


def test_what_was_kept_is_not_sent_after_the_policy_changed() -> None:
    stage, target = Stage(), Target()
    refused_before(stage, answered=False)

    class Taking(Ledger):
        def refused(self, chunk: Chunk) -> dict[int, str]:  # noqa: ARG002
            return {}

    result = stage.deliver(Taking(target), task={"maybe_sent": True})

    assert result == SegmentResult(0, 5, chunks=3)
    assert len(target["rows"]) == 4


def test_a_chunk_that_a_plain_sink_answered_is_not_sent_after_the_policy_changed() -> None:
    stage, sent = Stage(), list[int]()
    refused_before(stage, answered=True)

    assert stage.deliver(lambda chunk: sent.append(chunk.rows[0]), task={"maybe_sent": True}) == SegmentResult(
        0, 5, chunks=3
    )
    assert sent == [2, 4]


def held(term: int = 1) -> Chunk:
    """Of one segment's rows 4 and 5, as a task under some term has it in hand."""
    table = pa.table({"id": [4, 5]})
    return Chunk(table, 0, "key", "segment", range(4, 6), Position("slot", 0, 6, "segment"), term, 4)


def letters_of(stage: Stage) -> list[tuple[int, bool, int]]:
    """Of each refusal: the term, whether it was answered, how many rows."""
    folder, store = paths.dead_letter_folder("a", 0), stage.place.wal
    found = [read_dead_letter(store, f"{folder}/{name}") for name in store.list(folder)]
    return [(letter.chunk.term, letter.answered, letter.chunk.num_rows) for letter in found]


def test_an_empty_refusal_under_another_term_closes_nothing() -> None:
    stage = Stage()
    for term in (1, 2, 2):
        Rejections(stage.run.log, "a", 0, held(term)).take_over()

    assert letters_of(stage) == [(1, False, 0), (2, False, 0)]


def test_rows_refused_under_the_same_term_close_nothing() -> None:
    stage = Stage()
    Rejections(stage.run.log, "a", 0, held()).keep(held(), Rejected({1: "no"}), answered=False)

    rest = Rejections(stage.run.log, "a", 0, held()).take_over()

    assert ids_of(rest) == [4]
    assert letters_of(stage) == [(1, False, 1), (1, False, 0)]


def test_refusals_of_a_chunk_are_numbered_in_their_files_and_keys() -> None:
    stage = Stage()
    rejections = Rejections(stage.run.log, "a", 0, held())
    for _ in range(3):
        rejections.keep(held(), Rejected({0: "no"}), answered=False)

    folder, store = paths.dead_letter_folder("a", 0), stage.place.wal
    found = {name: read_dead_letter(store, f"{folder}/{name}").chunk.key for name in store.list(folder)}
    assert found == {
        f"000000-000000000004-000000000006-{number:06d}.parquet": refusal_key(held().position, [4], number)
        for number in range(3)
    }


def test_who_finds_the_next_refusal_taken_is_told_which_and_one_that_is_no_replay_names_none() -> None:
    stage = Stage()
    first, second = (Rejections(stage.run.log, "a", 0, held()) for _ in range(2))
    first.close(held())
    with pytest.raises(RefusalTakenError) as caught:
        second.close(held())

    path = paths.dead_letter("a", 0, 0, 4, 6, number=0)
    assert caught.value.where == stage.place.wal.url_of(path)
    assert read_dead_letter(stage.place.wal, path).replay_of == ""


def test_a_refusal_of_a_replay_has_the_next_number_after_the_dead_letter_that_it_names() -> None:
    stage = Stage()
    Rejections(stage.run.log, "a", 0, held()).keep(held(), Rejected({1: "no"}), answered=True)
    first, second = (paths.dead_letter("a", 0, 0, 4, 6, number=number) for number in range(2))
    letter = read_dead_letter(stage.place.wal, first)

    replay = Rejections(stage.run.log, "a", 0, letter.chunk, replayed=letter)
    replay.keep(letter.chunk, Rejected({0: "still no"}), answered=True)

    assert read_dead_letter(stage.place.wal, second).replay_of == first


def test_between_two_refusals_the_run_may_end() -> None:
    stage = Stage(should_stop=lambda: len(told) > 0)
    told = list[int]()

    class OneByOne(Ledger):
        def refused(self, chunk: Chunk) -> dict[int, str]:
            told.append(chunk.num_rows)
            return {0: "no"} if chunk.num_rows else {}

    result = stage.deliver(OneByOne(Target()), keeps_rejected=True)

    assert kind_of_failure(result) is FailureKind.STOPPED
    assert told == [2]


# The marker.


def test_the_marker_counts_what_was_refused_by_all_processes() -> None:
    place = Place(rows=lambda _: [5])
    run = place.open({"a": Delivery(bad_rows, on_rejected="dead_letter")})
    next(place.query().batches(run, 1))

    run.deliver_all()

    marker = run.log.find(Marker, paths.marker("a", 0))
    assert marker is not None
    assert (marker.rows, marker.rejected, marker.unknown) == (5, 2, 0)
