"""`skip`: a sink goes on behind a batch that it can never get; nothing else is lost, doubled or taken for doubled."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

import wal_sink.operate.ledgers
from tests.house.log import FORMAT, Log, Marker, SinkRecord, TakeOver, TermRecord, claim, decode, encode, paths
from tests.house.operate import (
    Check,
    changes_of,
    plan_skip,
    read_changes,
    rename,
    retire,
    skip,
    skip_order,
    write_down,
)
from tests.house.sinks import Chunk, Rejected
from tests.support.forgetting import Forgetful, Target, rows_of
from tests.support.repairs import end_roles, killed_everywhere, log_on
from tests.support.small_run import Place, Recorder
from tests.support.vault import Vault, VaultSink
from wal_sink import idempotent
from wal_sink.errors import (
    ConfigError,
    CorruptError,
    DeliveryError,
    FencedError,
    HeldError,
    HistoryError,
    PermanentError,
)
from wal_sink.log.records import SkippedBatch
from wal_sink.operate.changes import find_same
from wal_sink.operate.skip import Skipped, SkipPlan, planned
from wal_sink.testing import Crash

ROWS = [5, 3]
"""Rows of the two segments of each batch, in chunks of two."""


def poison(chunk: Chunk) -> None:
    """Refuse batch 1, from its second chunk on."""
    if chunk.batch_id == 1 and chunk.start >= 2:
        raise PermanentError("this row can never be stored")


class Poisoned(Forgetful):
    """The same, of a transactional target."""

    def commit(self, chunk: Chunk) -> Rejected | None:
        poison(chunk)
        return super().commit(chunk)


def stuck(make: Callable[[], object], healthy: Callable[[], object], **delivery: Any) -> Place:
    """A WAL of three complete batches of which the sink `a` has the first, and cannot get the second."""
    place = Place(rows=lambda _: ROWS)
    run = place.open({"a": healthy(), "b": Recorder()}, **delivery)
    place.stream(run, 0)
    end_roles(place.wal)
    run = place.open({"a": make(), "b": Recorder()}, **delivery)
    list(place.query().batches(run, 3))
    with pytest.raises(DeliveryError):
        run.advance(run.committers[0])
    end_roles(place.wal)
    return place


def plain(**delivery: Any) -> Place:
    return stuck(lambda: Recorder(poison), Recorder, **delivery)


def in_a_ledger() -> tuple[Place, Target]:
    """The same with a transactional target."""
    target = Target()
    return stuck(lambda: Poisoned(target), lambda: Forgetful(target)), target


def failed(place: Place, sink: object, batches: int) -> Place:
    """The place, of which a sink cannot get a batch up to this number."""
    run = place.open({"a": sink})
    list(place.query().batches(run, batches))
    with pytest.raises(DeliveryError):
        run.deliver_all()
    end_roles(place.wal)
    return place


def skipped(
    place: Place,
    batch_id: int = 1,
    *,
    log: Log | None = None,
    take_over: TakeOver = TakeOver.IF_GONE,
    to: object = None,
) -> Skipped:
    """Do the same as the command."""
    log = log or log_on(place.wal)
    order = skip_order(log, "a", batch_id, why="poison")
    begun = find_same(log, order)
    plan = planned(begun) if begun else plan_skip(log, "a", batch_id, to=to)
    return skip(log, order, plan, take_over=take_over, to=to)


def marker(place: Place, batch_id: int) -> Marker:
    return log_on(place.wal).require(Marker, paths.marker("a", batch_id))


def is_marked(place: Place, batch_id: int) -> bool:
    return log_on(place.wal).find(Marker, paths.marker("a", batch_id)) is not None


def drained(place: Place, to: object, **delivery: Any) -> None:
    place.open({"a": to}, **delivery).deliver_all()
    end_roles(place.wal)


# --- the sink goes on


def test_a_plain_sink_goes_on_behind_the_batch_and_the_rows_it_got_are_told() -> None:
    place = plain()

    done = skipped(place)
    later = Recorder()
    drained(place, later)

    assert done.outcome == "skipped"
    assert (done.plan.rows, done.plan.sent_rows) == (8, 2)
    assert done.plan.may_have == "and up to one more chunk of each segment"
    assert set(later.batches) == {2}
    made = marker(place, 1)
    assert (made.skipped, made.rows, made.run_id) == (True, 2, "repair")
    assert Check(place.wal).run() == []
    [record] = read_changes(log_on(place.wal), "a")
    assert (record.verb, record.why, record.plan["sent_rows"]) == ("skip", "poison", 2)
    [change] = changes_of(log_on(place.wal), "a", "orders")
    assert (change.outcome, change.command) == ("done", "wal-sink skip WAL 1 --name orders --why poison")
    assert skipped(place).outcome == "skipped"
    assert len(read_changes(log_on(place.wal), "a")) == 1


def test_other_sinks_get_the_batch() -> None:
    place = plain()
    skipped(place)
    other = Recorder()

    place.open({"b": other}).deliver_all()

    assert set(other.batches) == {1, 2}


def test_an_idempotent_sink_goes_on_behind_it() -> None:
    place = stuck(lambda: idempotent(Recorder(poison)), lambda: idempotent(Recorder()))

    assert skipped(place).plan.may_have == "and the rows of about one more second"
    later = Recorder()
    drained(place, idempotent(later))
    assert set(later.batches) == {2}


def test_the_next_batch_of_a_transactional_sink_is_not_taken_for_a_known_one() -> None:
    place, target = in_a_ledger()
    before = marker(place, 0)

    assert "only the ledger" in skipped(place).plan.may_have
    drained(place, Forgetful(target))

    assert [row for row in target.rows if row[0] == 2] == [row for row in rows_of(ROWS, ROWS, ROWS) if row[0] == 2]
    assert len(set(target.rows)) == len(target.rows)
    made = marker(place, 1)
    assert made.last_delivered_rows == before.last_delivered_rows == (5, 3)
    assert made.last_delivered_batch == 0
    newest = marker(place, 2)
    assert (newest.last_delivered_batch, newest.skipped) == (2, False)


def test_a_transactional_target_that_lost_the_rows_before_it_is_still_noticed() -> None:
    place, target = in_a_ledger()
    skipped(place)
    target.commits.clear()

    with pytest.raises(HistoryError, match="batch 0 was delivered and marked, but the target holds nothing"):
        drained(place, Forgetful(target))


def test_a_fenced_process_that_goes_on_sending_it_harms_no_later_batch() -> None:
    """Its chunk of batch 1 arrives when batch 2 is there."""
    place, target = in_a_ledger()
    run = place.open({"a": Forgetful(target)})
    skipped(place, take_over=TakeOver.ALWAYS)
    drained(place, Forgetful(target))
    rows = target.rows

    with pytest.raises(FencedError):
        run.deliver_all()

    assert target.rows == rows


def test_the_ledger_of_a_transactional_target_tells_what_it_has() -> None:
    place, target = in_a_ledger()

    done = skipped(place, to=Forgetful(target))

    assert (done.plan.target_rows, done.plan.sent_rows, done.plan.may_have) == ((2, 0), 2, "")
    made = marker(place, 1)
    assert (made.rows, made.skipped_rows) == (2, (2, 0))
    drained(place, Forgetful(target))
    assert target.rows == sorted([(1, 0, 0), (1, 0, 1), *(row for row in rows_of(ROWS, ROWS, ROWS) if row[0] != 1)])


def test_the_ledger_is_asked_again_when_nobody_else_may_deliver() -> None:
    place, target = in_a_ledger()
    order = skip_order(log_on(place.wal), "a", 1, why="")
    plan = plan_skip(log_on(place.wal), "a", 1, to=Forgetful(target))
    target.forget(1)

    done = skip(log_on(place.wal), order, plan, take_over=TakeOver.IF_GONE, to=Forgetful(target))

    assert (plan.target_rows, done.plan.target_rows) == ((2, 0), (0, 0))
    assert planned(read_changes(log_on(place.wal), "a")[0]) == plan


def test_a_skip_that_is_completed_when_the_sink_is_further_does_not_ask() -> None:
    place, target = in_a_ledger()
    log = log_on(place.wal)
    write_down(log, skip_order(log, "a", 1, why=""), _fields(plan_skip(log, "a", 1)))
    drained(place, Forgetful(target))

    assert skipped(place, to=Forgetful(target)).outcome == "delivered"


def test_a_target_that_cannot_tell_or_of_another_history_is_refused() -> None:
    place, target = in_a_ledger()
    with pytest.raises(ConfigError, match="Only a transactional target can tell"):
        skipped(place, to=Recorder())
    with pytest.raises(ConfigError, match=r"sink 'a' is a plain sink"):
        skipped(plain(), to=Forgetful(target))
    target.commits[-1] = replace(
        target.commits[-1],
        entry=replace(target.commits[-1].entry, position=replace(target.commits[-1].entry.position, segment_id="x")),
    )
    with pytest.raises(HistoryError, match="This is not the target of this sink"):
        skipped(place, to=Forgetful(target))
    lose(place, 1, "manifest")
    assert skipped(place, to=Forgetful(target)).plan.target_rows is None


class Slow(Poisoned):
    """A target to which the chunk in flight comes late: `late` sends it."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.flying: list[Chunk] = []

    def commit(self, chunk: Chunk) -> Rejected | None:
        if chunk.batch_id == 1 and chunk.start >= 2:
            self.flying.append(chunk)
        return super().commit(chunk)

    def late(self) -> None:
        for chunk in self.flying:
            Forgetful(self.target).commit(chunk)


def unended(place: Place, number: int) -> None:
    """As if nobody knew whether the process of a term of sink `a` ended."""
    place.wal.delete([paths.ended(paths.committer_role("a"), number)])


@pytest.mark.parametrize("is_ended", [True, False])
def test_the_rows_in_the_ledger_are_exact_only_if_nobody_can_add_some(is_ended: bool) -> None:
    target = Target()
    slow = Slow(target)
    place = stuck(lambda: slow, lambda: Forgetful(target))
    if not is_ended:
        unended(place, 2)

    done = skipped(place, take_over=TakeOver.ALWAYS, to=Forgetful(target))

    made = marker(place, 1)
    assert (done.plan.sent_rows, made.rows) == (2, 2)
    if is_ended:
        assert (made.skipped_rows, done.plan.target_rows, done.plan.may_have) == ((2, 0), (2, 0), "")
        return
    assert (made.skipped_rows, done.plan.target_rows) == (None, None)
    assert "nobody knows whether every earlier process ended" in done.plan.may_have
    slow.late()
    drained(place, Forgetful(target))
    assert len(set(target.rows)) == len(target.rows)


def test_a_process_before_the_last_one_counts_too() -> None:
    """The sink was started once more after it, and that start did nothing."""
    place, target = in_a_ledger()
    unended(place, 2)
    claim(replace(log_on(place.wal), run_id="another"), paths.committer_role("a"))
    end_roles(place.wal)

    assert skipped(place, to=Forgetful(target)).plan.target_rows is None


def test_terms_that_one_run_claimed_end_with_it() -> None:
    """A lost attempt goes on under the next term. Only the last one has a record of its end."""
    place, target = in_a_ledger()
    unended(place, 2)
    log = log_on(place.wal)
    record = log.require(TermRecord, paths.term(paths.committer_role("a"), 2))
    log.create(paths.term(paths.committer_role("a"), 3), msgspec.structs.replace(record, term=3, **log.stamp()))
    end_roles(place.wal)

    assert skipped(place, to=Forgetful(target)).plan.target_rows == (2, 0)


def test_a_term_whose_record_is_damaged_may_be_held() -> None:
    place, target = in_a_ledger()
    path = paths.term(paths.committer_role("a"), 2)
    claim(log_on(place.wal), paths.committer_role("a"))
    end_roles(place.wal)
    place.wal.delete([path])
    place.wal.create(path, b"damaged")

    assert skipped(place, to=Forgetful(target)).plan.target_rows is None


def test_of_many_starts_nobody_knows_whether_all_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal_sink.operate.ledgers, "MOST_TERMS", 1)
    place, target = in_a_ledger()

    assert skipped(place, to=Forgetful(target)).plan.target_rows is None


def test_a_target_that_is_behind_is_another_one_and_nothing_is_skipped() -> None:
    """A mistyped path of SQLite makes an empty database."""
    place, target = in_a_ledger()
    with pytest.raises(HistoryError, match=r"batch 0 was delivered.*holds nothing.*--to"):
        skipped(place, to=Forgetful(Target()))
    assert read_changes(log_on(place.wal), "a") == []

    log = log_on(place.wal)
    order, plan = skip_order(log, "a", 1, why=""), plan_skip(log, "a", 1)
    with pytest.raises(HistoryError, match="holds nothing"):
        skip(log, order, plan, take_over=TakeOver.IF_GONE, to=Forgetful(Target()))
    assert not is_marked(place, 1)
    end_roles(place.wal)
    assert skipped(place, to=Forgetful(target)).plan.target_rows == (2, 0)


def test_a_slot_that_the_batch_does_not_use_must_be_there_too() -> None:
    target = Target()
    place = Place(rows=lambda batch: [2] if batch == 1 else ROWS)
    place.stream(place.open({"a": Forgetful(target)}), 0)

    class Refusing(Forgetful):
        def commit(self, chunk: Chunk) -> Rejected | None:
            raise PermanentError(f"no {chunk.key}")

    failed(place, Refusing(target), 2)
    target.forget(9, slot=1)

    with pytest.raises(HistoryError, match="batch 0 was delivered"):
        skipped(place, to=Forgetful(target))


@pytest.mark.parametrize(("start", "known"), [(0, None), (2, (2, 0))])
def test_before_the_first_delivery_an_empty_ledger_proves_nothing(start: int, known: tuple[int, ...] | None) -> None:
    class Refusing(Forgetful):
        def commit(self, chunk: Chunk) -> Rejected | None:
            if chunk.start >= start:
                raise PermanentError(f"no {chunk.key}")
            return super().commit(chunk)

    target = Target()
    place = failed(Place(rows=lambda _: ROWS), Refusing(target), 1)

    done = skipped(place, 0, to=Forgetful(target))

    made = marker(place, 0)
    assert made.skipped_rows == known
    assert ("nothing of this sink" in done.plan.may_have) == (known is None)


def test_a_target_that_gives_no_answer_leaves_the_skip_unfinished() -> None:
    class Silent(Forgetful):
        def positions(self, slots: Any) -> Any:
            raise PermanentError(f"no answer about {slots}")

    place, target = in_a_ledger()
    log = log_on(place.wal)
    order, plan = skip_order(log, "a", 1, why=""), plan_skip(log, "a", 1)

    with pytest.raises(DeliveryError, match="no answer about"):
        skip(log, order, plan, take_over=TakeOver.IF_GONE, to=Silent(target))

    assert [change.outcome for change in changes_of(log_on(place.wal), "a", "a")] == ["unfinished"]
    end_roles(place.wal)
    assert skipped(place).outcome == "skipped"


def test_an_at_most_once_sink_gets_nothing_twice() -> None:
    place = plain(guarantee="at_most_once")

    assert skipped(place).plan.may_have == "some of which it may have lost"
    later = Recorder()
    drained(place, later, guarantee="at_most_once")
    assert set(later.batches) == {2}


def killed_inside_a_call(**delivery: Any) -> Place:
    """An at-most-once sink whose process ended in the second chunk of batch 1: nobody knows whether it arrived."""
    place = plain(guarantee="at_most_once", **delivery)
    for name in log_on(place.wal).store.list(folder := paths.dead_letter_folder("a", 1)):
        log_on(place.wal).store.delete([f"{folder}/{name}"])  # the process that ended by itself kept the chunk
    return place


def kept_rows(place: Place) -> list[tuple[int, int]]:
    names = map(paths.parse_dead_letter, log_on(place.wal).store.list(paths.dead_letter_folder("a", 1)))
    return [(name.first_row, name.end_row) for name in names if name is not None and name.number is None]


def test_a_skip_that_is_killed_at_any_request_keeps_the_chunk_in_flight() -> None:
    for place in killed_everywhere(
        killed_inside_a_call, lambda place: place.wal, lambda log, place: skipped(place, log=log)
    ):
        assert skipped(place).outcome == "skipped"
        assert kept_rows(place) == [(2, 4)]


def test_the_chunk_in_flight_of_an_at_most_once_sink_becomes_a_dead_letter() -> None:
    place = killed_inside_a_call()

    assert skipped(place).outcome == "skipped"
    made = marker(place, 1)
    assert (kept_rows(place), made.unknown) == ([(2, 4)], 2)


def test_the_chunk_in_flight_becomes_a_dead_letter_in_a_retirement_that_was_interrupted_too() -> None:
    place = killed_inside_a_call()
    for _ in range(2):
        retire(log_on(place.wal), "a", drop_pending=9, take_over=TakeOver.IF_GONE, why="")
        assert kept_rows(place) == [(2, 4)]
        for name in log_on(place.wal).store.list(folder := paths.dead_letter_folder("a", 1)):
            log_on(place.wal).store.delete([f"{folder}/{name}"])


def test_a_chunk_in_flight_that_is_lost_is_told(caplog: pytest.LogCaptureFixture) -> None:
    place = killed_inside_a_call()
    lose(place, 1, "parquet")

    assert skipped(place).outcome == "skipped"
    assert "rows that batch 1 may lack are not kept" in caplog.text
    assert kept_rows(place) == []


def test_rows_in_dead_letters_are_counted() -> None:
    def refuse(chunk: Chunk) -> Rejected | None:
        poison(chunk)
        return Rejected({0: "bad"}) if chunk.batch_id == 1 else None

    place = stuck(lambda: Recorder(refuse), Recorder, on_rejected="dead_letter")

    assert skipped(place).plan.dead_letter_rows == 1
    assert marker(place, 1).rejected == 1


def test_a_sink_without_any_marker_skips_its_first_batch() -> None:
    place = failed(Place(rows=lambda _: ROWS), Recorder(lambda chunk: poison(chunk) if chunk.batch_id else _raise()), 2)

    skipped(place, 0)

    later = Recorder()
    drained(place, later)
    assert set(later.batches) == {1}


def _raise() -> None:
    raise PermanentError("no")


def test_a_batch_that_was_sent_as_a_whole_is_told_as_such() -> None:
    """Only its marker is missing."""
    place = Place(rows=lambda _: ROWS)
    run = place.open({"a": Recorder()})
    list(place.query().batches(run, 1))
    create = run.log.store.create

    def die(path: str, data: bytes) -> None:
        if path == paths.marker("a", 0):
            raise Crash
        create(path, data)

    run.log.store.create = die  # type: ignore[method-assign]
    with pytest.raises(Crash):
        run.deliver_all()
    end_roles(place.wal)

    plan = plan_skip(log_on(place.wal), "a", 0)

    assert (plan.rows, plan.sent_rows, plan.may_have) == (8, 8, "")


# --- lost objects


def lose(place: Place, batch_id: int, part: str) -> None:
    found = place.wal.list(paths.batch(batch_id), recursive=True)
    place.wal.delete(f"{paths.batch(batch_id)}/{name}" for name in found if part in name)


@pytest.mark.parametrize("part", ["parquet", "manifest", "", "release"])
@pytest.mark.parametrize("kind", ["plain", "transactional"])
def test_a_batch_that_lost_objects_can_be_skipped(part: str, kind: str) -> None:
    target = Target()
    make: Callable[[], object] = (lambda: Forgetful(target)) if kind == "transactional" else Recorder
    place = stuck(lambda: Poisoned(target) if kind == "transactional" else Recorder(poison), make)
    lose(place, 1, part)
    if part == "release":  # the batch is whole: it is released anew when it is drained
        with pytest.raises(ConfigError, match=r"batch 1 of .* was not released"):
            skipped(place)
        return

    done = skipped(place)
    place.stream(place.open({"a": make()}), 3)
    end_roles(place.wal)
    drained(place, make())

    assert is_marked(place, 3)
    assert (done.plan.rows is None) == (part != "parquet")
    assert done.plan.is_empty == (part == "")
    kept = log_on(place.wal).find(SkippedBatch, paths.skipped(1))
    assert (kept is not None) == (part == "")


@pytest.mark.parametrize("kind", ["plain", "transactional"])
@pytest.mark.parametrize("part", ["manifest", ""])
def test_a_start_right_after_the_skip_needs_no_manifest(part: str, kind: str) -> None:
    """The newest marker is that of the skipped batch."""
    target = Target()
    make: Callable[[], object] = (lambda: Forgetful(target)) if kind == "transactional" else Recorder
    place = stuck(lambda: Poisoned(target) if kind == "transactional" else Recorder(poison), make)
    lose(place, 1, part)
    skipped(place)

    run = place.open({"a": make()})
    run.committers[0].confirm_marked()
    assert run.committers[0].next_batch() == 2
    run.deliver_all()
    assert not marker(place, 2).skipped


def test_a_damaged_manifest_counts_as_lost() -> None:
    place, target = in_a_ledger()
    [name] = [name for name in place.wal.list(paths.batch(1)) if name.startswith("manifest")]
    path = f"{paths.batch(1)}/{name}"
    place.wal.delete([path])
    place.wal.create(path, b"damaged")

    assert skipped(place).plan.rows is None
    drained(place, Forgetful(target))
    assert is_marked(place, 2)


def test_a_manifest_of_another_format_is_not_taken_for_a_lost_one() -> None:
    place = plain()
    [name] = [name for name in place.wal.list(paths.batch(1)) if name.startswith("manifest")]
    path = f"{paths.batch(1)}/{name}"
    record = json.loads(place.wal.read(path)) | {"format": FORMAT + 1}
    place.wal.delete([path])
    place.wal.create(path, json.dumps(record).encode())

    with pytest.raises(ConfigError, match=f"format {FORMAT + 1}"):
        skipped(place)


def test_the_oldest_batch_that_is_gone_as_a_whole_is_explained_and_other_sinks_still_stop_there() -> None:
    """A rule of the bucket deleted it. The WAL could not even be opened."""
    place = Place(rows=lambda _: ROWS)
    run = place.open({"a": Recorder(), "b": Recorder()})
    list(place.query().batches(run, 3))
    end_roles(place.wal)
    lose(place, 0, "")
    with pytest.raises(CorruptError, match="must have existed"):
        place.open({"a": Recorder()})

    skipped(place, 0)

    later = Recorder()
    place.open({"a": later}).deliver_all()
    assert set(later.batches) == {1, 2}
    with pytest.raises(HistoryError, match="holds no manifest"):
        place.open({"b": Recorder()}).deliver_all()


def test_the_newest_batch_is_not_skipped_while_spark_may_run_it_again() -> None:
    place = Place(rows=lambda _: ROWS)
    run = place.open({"a": Recorder()})
    place.stream(run, 0)
    list(place.query().batches(run, 2))
    end_roles(place.wal)
    lose(place, 1, "")

    with pytest.raises(ConfigError, match="Spark may run this batch again"):
        skipped(place)


# --- refused


@pytest.mark.parametrize("batch_id", [0, 2])
def test_only_the_next_batch_can_be_skipped(batch_id: int) -> None:
    with pytest.raises(ConfigError, match=r"sink 'a' would get batch 1 next"):
        skipped(plain(), batch_id)


def test_a_batch_that_nobody_tried_to_deliver_is_not_skipped() -> None:
    place = Place(rows=lambda _: ROWS)
    list(place.query().batches(place.open({"a": Recorder()}), 2))
    end_roles(place.wal)

    with pytest.raises(ConfigError, match=r"batch 0 of .* was not released: no process has tried to deliver it yet"):
        skipped(place, 0)


def test_a_sink_that_does_not_exist_or_is_retired_skips_nothing() -> None:
    place = plain()
    with pytest.raises(ConfigError, match="has no sink 'x'"):
        skip_order(log_on(place.wal), "x", 1, why="")
    retire(log_on(place.wal), "a", drop_pending=9, take_over=TakeOver.IF_GONE)
    with pytest.raises(ConfigError, match="was retired"):
        skipped(place)


def test_a_renamed_sink_is_found_under_its_present_name() -> None:
    place = plain()
    rename(log_on(place.wal), "a", "c", take_over=TakeOver.IF_GONE)
    log = log_on(place.wal)

    plan = plan_skip(log, "c", 1)

    assert (plan.folder, plan.name) == ("a", "c")
    assert skip_order(log, "c", 1, why="").folder == "a"


def test_a_two_phase_sink_is_refused_with_the_reason() -> None:
    place = Place(rows=lambda _: ROWS)
    place.stream(place.open({"a": VaultSink(Vault())}), 0)
    end_roles(place.wal)

    with pytest.raises(ConfigError, match="two-phase sink: the target holds prepared transactions"):
        skipped(place)


def test_a_batch_writer_may_have_all_rows() -> None:
    place = plain()
    log = log_on(place.wal)
    record = place.wal.read(paths.sink("a"))
    place.wal.delete([paths.sink("a")])

    known = decode(SinkRecord, record, "x")
    place.wal.create(paths.sink("a"), encode(msgspec.structs.replace(known, sink_kind="batch writer")))

    assert "it may have all of them" in plan_skip(log, "a", 1).may_have


def test_a_process_that_serves_the_sink_is_not_fenced() -> None:
    place = plain()
    run = place.open({"a": Recorder()})

    with pytest.raises(HeldError, match="is running on this machine"):
        skipped(place)

    assert read_changes(log_on(place.wal), "a") == []
    run.deliver_all()


@pytest.mark.parametrize("batches", [3, 30])
def test_a_skip_costs_the_same_however_many_batches_wait(batches: int) -> None:
    place = plain()
    list(place.query().batches(place.open({}), batches))
    requests: list[str] = []

    skipped(place, log=log_on(place.wal, lambda what, where: requests.append(f"{what} {where}")))

    assert len([request for request in requests if request.startswith("before")]) == 38


# --- races


def once(path: str, act: Callable[[], object]) -> Callable[[str, str], None]:
    """A hook that acts once, just before an object is created."""
    done: list[str] = []

    def hook(what: str, where: str) -> None:
        if (what, where) == ("before create", path) and not done:
            done.append(path)
            act()

    return hook


def test_a_batch_that_is_delivered_meanwhile_is_not_skipped() -> None:
    place = plain()
    hook = once(paths.term(paths.committer_role("a"), 3), lambda: drained(place, Recorder()))

    assert skipped(place, log=log_on(place.wal, hook)).outcome == "delivered"
    assert [change.outcome for change in changes_of(log_on(place.wal), "a", "a")] == ["delivered"]


def test_a_process_that_marks_the_batch_at_the_last_moment_wins() -> None:
    """It was superseded while its last chunk was in flight."""
    place = plain()
    made = marker(place, 0)

    def mark() -> None:

        log = log_on(place.wal)
        log.create(paths.marker("a", 1), msgspec.structs.replace(made, batch_id=1, **log.stamp()))

    done = skipped(place, log=log_on(place.wal, once(paths.marker("a", 1), mark)))

    assert done.outcome == "delivered"


def test_a_process_that_starts_before_the_marker_makes_the_command_stop() -> None:
    place = plain()
    role = paths.committer_role("a")
    hook = once(paths.marker("a", 1), lambda: claim(log_on(place.wal), role))

    with pytest.raises(FencedError):
        skipped(place, log=log_on(place.wal, hook))
    end_roles(place.wal)
    assert skipped(place).outcome == "skipped"


def test_a_skip_that_is_completed_after_its_marker_was_collected_says_that_it_does_not_know() -> None:
    place = plain()
    log = log_on(place.wal)
    order = skip_order(log, "a", 1, why="x")
    write_down(log, order, {**_fields(plan_skip(log, "a", 1))})
    drained(place, Recorder())
    place.wal.delete([paths.marker("a", 1)])

    assert skipped(place).outcome == "passed"
    assert [change.outcome for change in changes_of(log_on(place.wal), "a", "a")] == ["unknown"]


def _fields(plan: SkipPlan) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in SkipPlan.__slots__}


def test_terms_that_were_lost_are_noticed_by_the_marker() -> None:
    place = plain()
    role = paths.committer_role("a")
    place.wal.delete(f"{paths.terms(role)}/{name}" for name in place.wal.list(paths.terms(role)))
    claim(log_on(place.wal), role)
    end_roles(place.wal)

    skipped(place)

    made, before = marker(place, 1), marker(place, 0)
    assert made.term > before.term


# --- killed


KINDS: dict[str, tuple[Callable[[Target], object], Callable[[Target], object]]] = {
    "plain": (lambda _: Recorder(poison), lambda _: Recorder()),
    "idempotent": (lambda _: idempotent(Recorder(poison)), lambda _: idempotent(Recorder())),
    "transactional": (Poisoned, Forgetful),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lost", [False, True], ids=["poison", "lost"])
def test_killed_at_any_request_the_same_command_completes_it(kind: str, lost: bool) -> None:
    bad, good = KINDS[kind]
    targets: list[Target] = []

    def make() -> Place:
        targets.append(target := Target())
        place = stuck(lambda: bad(target), lambda: good(target))
        if lost:
            lose(place, 1, "")
        return place

    for place in killed_everywhere(make, lambda place: place.wal, lambda log, place: skipped(place, log=log)):
        outcomes = [change.outcome for change in changes_of(log_on(place.wal), "a", "a")]
        assert outcomes in ([], ["unfinished"], ["done"])
        assert (is_marked(place, 1)) == (outcomes == ["done"])
        assert skipped(place).outcome == "skipped"
        target = targets[-1]
        drained(place, good(target))
        assert is_marked(place, 2)
        assert marker(place, 1).skipped
        assert [change.outcome for change in changes_of(log_on(place.wal), "a", "a")] == ["done"]
        if kind == "transactional":
            assert [row for row in target.rows if row[0] == 2] == [(2, 0, n) for n in range(5)] + [
                (2, 1, n) for n in range(3)
            ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_start_beside_an_unfinished_skip_loses_and_doubles_nothing(kind: str) -> None:
    """The target was repaired meanwhile, and a query delivers before the command is repeated."""
    bad, good = KINDS[kind]
    targets: list[Target] = []

    def make() -> Place:
        targets.append(target := Target())
        return stuck(lambda: bad(target), lambda: good(target))

    for place in killed_everywhere(make, lambda place: place.wal, lambda log, place: skipped(place, log=log)):
        was_skipped = is_marked(place, 1)
        target = targets[-1]
        run = place.open({"a": good(target)})
        place.stream(run, 3)
        end_roles(place.wal)
        made = marker(place, 1)
        assert made.skipped is was_skipped
        assert is_marked(place, 3)
        wanted = rows_of(ROWS, ROWS, ROWS, ROWS)
        if kind == "transactional":
            got = target.rows if was_skipped else sorted(set(target.rows))
            assert len(set(got)) == len(got)
            assert set(wanted) - set(got) <= {row for row in wanted if row[0] == 1 and was_skipped}
        if read_changes(log_on(place.wal), "a"):
            assert skipped(place).outcome == ("skipped" if was_skipped else "delivered")


def test_a_skip_that_goes_on_without_the_target_forgets_what_its_ledger_said() -> None:
    def die(what: str, where: str) -> None:
        if what == "after create" and "/changes/" in where:
            raise Crash

    place, target = in_a_ledger()
    with pytest.raises(Crash):
        skipped(place, log=log_on(place.wal, die), to=Forgetful(target))
    end_roles(place.wal)

    skipped(place)

    made = marker(place, 1)
    assert made.skipped_rows is None
