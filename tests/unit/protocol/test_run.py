"""One run: what opening asks, in which order; whose failure concerns whom; what a run forgets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.house.log import (
    MARGIN,
    Holding,
    Log,
    NameRecord,
    OwnerRecord,
    RenamedRecord,
    RetiredRecord,
    SegmentLimits,
    TakeOver,
    TermRecord,
    claim,
    holder_of,
    paths,
)
from tests.house.protocol import Run, StagingContext, read_names
from tests.house.sinks import Chunk
from tests.house.support import Events, ProcessIdentity, StoppedError
from tests.simulation.histories.lives import lower_retention
from tests.support.small_run import Place, Recorder, before_create, out_of_use, served_sink
from tests.support.vault import Vault, VaultSink
from wal_sink.errors import CorruptError, DeliveryError, HeldError, StoreError
from wal_sink.protocol import collect as collection
from wal_sink.protocol.checkpoint import Offsets
from wal_sink.protocol.stage import Attempt
from wal_sink.settings import Delivery, Retry, Settings
from wal_sink.support.logs import subject
from wal_sink.testing import simulated_runtime


def failing(chunk: Chunk) -> None:  # noqa: ARG001
    raise ConnectionError("down")


def test_staging_tasks_are_told_all_that_they_need() -> None:
    settings = Settings(chunk_rows=3, chunk_bytes=2 << 20, segment_bytes=5 << 20)
    place = Place()
    run = place.open({"a": Recorder(), "b": VaultSink(Vault())}, settings=settings)
    place.stream(run, 0)
    wal = run.history.wal
    attempt = Attempt(7, term=4, number=2, folder="the/folder", offsets=Offsets("", ""))

    found = run.staging_context(attempt, columns=["x", "y"], spark_schema="{}")

    preparation = run.committers[1].served_sink.preparation
    assert wal is not None
    assert preparation is not None
    assert found == StagingContext(
        folder="the/folder",
        limits=SegmentLimits(chunk_rows=3, chunk_bytes=2 << 20, segment_bytes=5 << 20),
        run_id=run.log.run_id,
        wal_id=wal.wal_id,
        batch_id=7,
        term=4,
        columns=("x", "y"),
        spark_schema="{}",
        keep_segments=True,
        preparations=(preparation,),
    )


def test_opening_probes_the_store_as_the_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def probe(store: object, *, runtime: object, single_writer: object) -> None:
        asked.append((store, runtime, single_writer))

    monkeypatch.setattr("wal_sink.protocol.run.probe", probe)
    place, runtime = Place(), simulated_runtime()
    for single_writer in (True, False):
        Run(place.wal, place.checkpoint, Settings(single_writer=single_writer), runtime=runtime).open()

    assert asked == [(place.wal, runtime, True), (place.wal, runtime, False)]


def test_a_registration_names_the_sink_its_kind_its_guarantee_and_its_identity() -> None:
    place = Place()
    run = Run(place.wal, place.checkpoint, Settings(), runtime=simulated_runtime())
    given = replace(served_sink(run, "a", Delivery(Recorder(), guarantee="at_most_once")), identity="the target")

    run.open([given])

    registration = place.wal.read(paths.sink("a"))
    for part in (b'"name":"a"', b'"sink_kind":"plain"', b'"at_most_once":true', b'"identity":"the target"'):
        assert part in registration


def test_later_entries_of_the_checkpoint_are_looked_for_only_if_asked() -> None:
    place, sink = Place(), Recorder()
    run = place.open({"a": sink})
    list(place.query().batches(run, 2))
    place.checkpoint.delete(["commits/0"])

    assert not run.advance(run.committers[0])
    assert run.advance(run.committers[0], search=True)
    assert sink.batches == [0]


def test_batches_of_a_sink_that_gave_up_stay_pending_and_their_manifests_are_forgotten() -> None:
    place = Place()
    run = place.open({"a": Recorder(), "b": Delivery(failing, retry=Retry(attempts=1))})
    list(place.query().batches(run, 1))
    with pytest.raises(DeliveryError):
        run.advance(run.committers[1])
    assert run.history.staged(0) is not None

    run.advance(run.committers[0])

    assert run.history.pending(before=1)[0] == 1
    assert run.history.staged(0) is None


def test_manifests_are_kept_again_for_a_sink_that_goes_on_after_it_gave_up() -> None:
    place = Place()
    flaky = Recorder(lambda chunk: failing(chunk) if flaky.tries == 1 else None)
    run = place.open({"a": Recorder(), "b": Delivery(flaky, retry=Retry(attempts=1))})
    list(place.query().batches(run, 3))
    with pytest.raises(DeliveryError):
        run.advance(run.committers[1])
    assert run.advance(run.committers[1])

    run.advance(run.committers[0])
    run.advance(run.committers[0])

    assert run.history.staged(0) is None
    assert run.history.staged(1) is not None


def test_manifests_of_pending_batches_are_kept_where_every_sink_gave_up() -> None:
    place = Place()
    flaky = Recorder(lambda chunk: failing(chunk) if chunk.batch_id else None)
    run = place.open({"a": Delivery(flaky, retry=Retry(attempts=1))})
    list(place.query().batches(run, 2))

    with pytest.raises(DeliveryError):
        run.deliver_all()

    assert run.history.staged(0) is None
    assert run.history.staged(1) is not None


def test_the_decisions_of_batches_that_every_sink_has_are_forgotten() -> None:
    place = Place()
    run = place.open({"a": Recorder(), "b": Recorder()})
    list(place.query().batches(run, 2))
    run.advance(run.committers[0])
    run.advance(run.committers[0])
    assert sorted(run.shared.releaser._released) == [0, 1]

    run.advance(run.committers[1])

    assert sorted(run.shared.releaser._released) == [1]


def test_the_pause_of_a_run_is_the_one_it_is_given() -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> bool:
        pauses.append(seconds)
        return len(pauses) > 1

    place = Place()
    run = Run(place.wal, place.checkpoint, Settings(), pause=pause)

    run.shared.sleep_s(5)
    with pytest.raises(StoppedError, match="the run is ending"):
        run.shared.sleep_s(6)

    assert pauses == [5, 6]


def ended_with(place: Place, sinks: dict[str, object]) -> Log:
    """Serve these sinks with a run that ends. Returns a log for a command."""
    run = place.open(sinks)
    place.stream(run, 0)
    run.end()
    return Log(place.wal, simulated_runtime(seed=4711), "tool")


def test_a_stager_claims_the_next_term_each_time_a_query_starts() -> None:
    place = Place()
    run = place.open({})

    run.become_stager()

    assert place.wal.list(paths.terms(paths.STAGER_ROLE)) == ["0000000001.json", "0000000002.json"]


def opened_or_ended(place: Place, *names: str, **given: Any) -> Run:
    run = Run(place.wal, place.checkpoint, Settings(chunk_rows=2), runtime=simulated_runtime(seed=4712))
    run.open_or_end(
        [served_sink(run, name, Recorder()) for name in names],
        **{"moved_from": None, "take_over": TakeOver.IF_GONE, **given},
    )
    return run


def test_a_start_that_fails_leaves_no_term_that_looks_served() -> None:
    place = Place()
    log = ended_with(place, {"a": Recorder(), "b": Recorder()})
    create = place.wal.create

    def fails_at_the_second(path: str, data: bytes) -> None:
        if path.startswith(paths.terms(paths.committer_role("b"))):
            raise StoreError("no answer")
        create(path, data)

    place.wal.create = fails_at_the_second  # type: ignore[method-assign]

    with pytest.raises(StoreError, match="no answer"):
        opened_or_ended(place, "a", "b")

    assert holder_of(log, paths.committer_role("a"), 2).state is Holding.ENDED


def test_a_start_takes_over_from_a_process_that_runs_only_with_always() -> None:
    place = Place()
    place.stream(place.open({"a": Recorder()}), 0)

    with pytest.raises(HeldError, match="sink 'a'"):
        opened_or_ended(place, "a")
    assert opened_or_ended(place, "a", take_over=TakeOver.ALWAYS).committers[0].term.number == 2


def test_a_start_takes_over_from_an_unknown_process_only_with_unless_running() -> None:
    place = Place()
    log, role = ended_with(place, {"a": Recorder()}), paths.committer_role("a")
    place.wal.delete([paths.term(role, 1), paths.ended(role, 1)])
    unknown = TermRecord(
        role=role, term=1, run_id="r", process="p:1", holder=ProcessIdentity(host="elsewhere", pid=1), **log.stamp()
    )
    log.create(paths.term(role, 1), unknown)

    with pytest.raises(HeldError, match="it is not known whether that process ended"):
        opened_or_ended(place, "a")
    assert opened_or_ended(place, "a", take_over=TakeOver.UNLESS_RUNNING).committers[0].term.number == 2


def test_a_start_takes_over_from_no_process_that_came_after_its_look() -> None:
    place = Place()
    role = paths.committer_role("a")
    ended_with(place, {"a": Recorder()})
    before_create(place.wal, paths.term(role, 2), lambda: place.open({"a": Recorder()}))

    with pytest.raises(HeldError, match=r"sink 'a' .*\(term 2\) and is running on this machine"):
        opened_or_ended(place, "a")

    assert paths.term(role, 3) not in place.wal.list("", recursive=True)


def test_a_start_that_one_sinks_process_refuses_claims_the_term_of_no_other_sink() -> None:
    place = Place()
    ended_with(place, {"a": Recorder(), "b": Recorder()})
    place.open({"b": Recorder()})

    with pytest.raises(HeldError, match="sink 'b'"):
        opened_or_ended(place, "a", "b")

    assert paths.term(paths.committer_role("a"), 2) not in place.wal.list("", recursive=True)


def test_a_sink_that_has_its_last_batch_is_retired_once() -> None:
    place = Place()
    place.stream(place.open({"a": Recorder()}), 1)
    run = place.open({"b": Delivery(Recorder(), start_from="earliest", through=1)}, stages=False)
    run.deliver_all()
    assert [sink.is_retired for sink in read_names(run.log).sinks] == [False, True]
    place.requests.clear()

    assert not run.advance(run.committers[0])

    assert place.requests == []


def test_a_committer_without_any_term_fences_one_that_may_still_live() -> None:
    place, role = Place(), paths.committer_role("a")
    place.open({"a": Recorder()})
    place.wal.delete([paths.term(role, 1)])

    assert place.open({"a": Recorder()}).committers[0].term.number == 1 + MARGIN


def test_a_stager_whose_terms_are_gone_is_above_those_that_the_newest_batch_names(
    caplog: pytest.LogCaptureFixture,
) -> None:
    place = Place()
    run = [place.open({}) for _ in range(3)][-1]
    query = place.query()
    query.start_batch(0, 0)
    query.stage(run, 0)
    place.wal.delete([paths.term(paths.STAGER_ROLE, number) for number in (2, 3)])

    place.open({})

    assert f"{paths.BATCHES}/0 names term 3" in caplog.text
    assert max(place.wal.list(paths.terms(paths.STAGER_ROLE))) == f"{3 + MARGIN + 1:010}.json"


def test_a_newest_batch_that_names_no_term_asks_for_no_higher_one() -> None:
    place = Place()
    staged = place.open({})
    query = place.query()
    query.start_batch(0, 0)
    query.stage(staged, 0)
    place.wal.delete([name for name in place.wal.list("", recursive=True) if name.startswith(paths.batch(0))])
    place.wal.create(f"{paths.batch(0)}/notes.txt", b"by hand")

    place.open({})

    assert place.wal.list(paths.terms(paths.STAGER_ROLE)) == ["0000000001.json", "0000000002.json"]


def test_a_run_that_stages_knows_whether_only_siblings_came_after_it() -> None:
    """A run that does not stage has no term that could be superseded."""
    place = Place()
    older = place.open({})
    assert not older.is_superseded_by_siblings()
    older.become_stager()
    assert not older.is_superseded_by_siblings()
    place.open({}).become_stager()
    assert older.is_superseded_by_siblings(), "both runs are of this process"


def test_a_start_lists_all_terms_at_once_and_the_first_one_neither_terms_nor_sinks() -> None:
    place = Place()
    run = place.open({"a": Recorder(), "b": Recorder()})
    assert not {"list terms", "list sinks"} & set(place.requests)
    place.stream(run, 0)

    place.requests.clear()
    place.open({"a": Recorder(), "b": Recorder()})
    assert [request for request in place.requests if request.startswith("list terms")] == ["list terms"]


def test_what_is_logged_of_a_start_and_of_a_batch_that_is_staged_names_wal_and_batch() -> None:
    place, seen = Place(), list[tuple[object, ...]]()

    def note() -> None:
        seen.append((subject()["wal"], subject()["batch"]))

    before_create(place.wal, paths.term(paths.committer_role("a"), 1), note)
    run = opened_or_ended(place, "a")
    run.become_stager()
    before_create(place.wal, paths.manifest(0, 1, 1), note)
    before_create(place.wal, paths.WAL, note)  # by `begin_staging`
    next(place.query().batches(run, 1))

    assert seen == [(place.wal.root, None), (place.wal.root, 0), (place.wal.root, 0)]


def test_a_start_at_another_place_records_the_move() -> None:
    place, copy = Place(), Place()
    ended_with(place, {"a": Recorder()})
    for name in place.wal.list("", recursive=True):
        copy.wal.create(name, place.wal.read(name))

    with out_of_use(place.wal):
        opened_or_ended(
            Place(wal=copy.wal, checkpoint=place.checkpoint),
            "a",
            moved_from=place.wal.root,
            take_over=TakeOver.ALWAYS,
        )

    assert copy.wal.list(paths.MOVES) == ["0000000001.json"]


@pytest.mark.parametrize("measures", [False, True])
def test_staging_tasks_measure_where_the_run_does(*, measures: bool) -> None:
    place = Place()
    run = Run(place.wal, place.checkpoint, Settings(), events=Events(measures=measures))
    run.open()
    run.become_stager()
    next(place.query().batches(run, 1))
    attempt = Attempt(7, term=4, number=2, folder="the/folder", offsets=Offsets("", ""))

    assert run.staging_context(attempt, columns=["x"], spark_schema="{}").measured is measures


def test_a_two_phase_sink_that_was_renamed_prepares_under_its_first_name() -> None:
    place = Place()
    log = ended_with(place, {"a": VaultSink(Vault()), "b": Recorder()})
    for name in ("a", "b"):
        new = f"new-{name}"
        log.create(paths.renamed(new), RenamedRecord(name=new, folder=name, **log.stamp()))
        log.create(paths.owner(new), OwnerRecord(name=new, folder=name, **log.stamp()))
        log.create(paths.sink_name(name, 1), NameRecord(number=1, name=new, **log.stamp()))

    run = place.open({"new-a": VaultSink(Vault()), "new-b": Recorder()})

    two_phase, plain = (committer.served_sink for committer in run.committers)
    assert two_phase.preparation is not None
    assert (two_phase.name, two_phase.shown, two_phase.preparation.sink) == ("a", "new-a", "a")
    assert (plain.name, plain.shown, plain.preparation) == ("b", "new-b", None)


def test_a_sink_that_has_its_last_batch_holds_back_no_collection_of_the_same_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collection, "COLLECT_EVERY_BATCHES", 1)
    place = Place()
    run = place.open({})
    list(place.query().batches(run, 10))
    sinks = {
        "ends": Delivery(Recorder(), start_from="earliest", through=1),
        "stays": Delivery(Recorder(), start_from="earliest"),
    }

    drain = place.open(sinks, stages=False, settings=lower_retention(2))
    drain.deliver_all()

    retired = drain.log.require(RetiredRecord, paths.retired("ends"))
    assert (retired.through, retired.run_id) == (1, drain.log.run_id)
    assert drain.log.low_water() == 9 - 2


def test_a_start_that_claims_the_next_terms_reads_the_record_of_the_wal_once() -> None:
    place = Place()
    ended_with(place, {"a": Recorder()})
    place.requests.clear()

    place.open({"a": Recorder()}, stages=False)

    assert place.requests.count(f"read {paths.WAL}") == 1


def test_a_start_that_claims_behind_another_makes_sure_that_the_wal_is_still_here() -> None:
    """The other may have been a move, for which a person removes the record."""
    place, role = Place(), paths.committer_role("a")
    log = ended_with(place, {"a": Recorder()})

    def moved() -> None:
        place.wal.delete([paths.WAL])
        claim(log, role)

    before_create(place.wal, paths.term(role, 2), moved)

    with pytest.raises(CorruptError, match=r"wal\.json is gone"):
        place.open({"a": Recorder()}, stages=False)
