"""Targets that lose what they acknowledged: each row is there once, or an error reports its loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.simulation import planted_bugs as bugs
from tests.simulation.histories.__main__ import main
from tests.simulation.histories.counting import check_touched, first_broken, play_seeds
from tests.simulation.histories.drawing import FAMILY
from tests.simulation.histories.drawing_losses import draw_losing, draw_losing_commits, draw_losing_family
from tests.simulation.histories.plans import COMMITTING, FORGETTING, At, Deed, Fault, LifePlan, Plan, Shape
from tests.simulation.histories.playing import Played, play, small_world
from tests.simulation.planted_bugs import Plant

pytestmark = pytest.mark.no_cover

HISTORIES = 6_000
QUICK = 80
PORTION = 2_960
"""Number of histories in a portion of the slow ones, which several workers share."""

LEAST_TOUCHED: dict[str, int] = {
    Deed.FORGET: 1500,
    Deed.FORGET_SLOT: 800,
    Deed.REPLACE: 800,
    Deed.CRASH: 200,
    Deed.LOSE: 100,
    Deed.LEAVE: 150,
    "written again": 1500,
    "refused history": 1500,
    "stood still": 1500,
    "fenced": 800,
    "late send": 200,
    "collected": 600,
}
"""The least number of histories in which each thing must happen. Fewer mean that the histories became trivial."""
LEAST_TOUCHED_OF_COMMITS: dict[str, int] = {
    Deed.FORGET: 1200,
    Deed.RESTORE: 1400,
    Deed.REPLACE: 550,
    Deed.CRASH: 600,
    Deed.LEAVE: 80,
    "written again": 750,
    "built on a restored state": 300,
    "refused by its position": 200,
    "refused history": 2400,
    "stood still": 1100,
    "fenced": 750,
    "late send": 100,
    "collected": 700,
    "roll of several batches": 550,
}
"""The same of commit sinks."""

SEEDS_THAT_ONCE_FAILED = (
    21,  # after an error no row was left to send, and the batch was marked without a question to the target
    224,  # the same, after a question that failed
    446,  # last_delivered was read before the WAL's owner was known: the slots had wrong names
)

TWO_SEGMENTS: Shape = ((3, 2), (1,))

KINDS = ("transactional", COMMITTING)


def every_law_holds(kind: str, first: int, count: int, tell: Callable[[str], None]) -> dict[str, int]:
    """Play these histories. Return in how many of them each thing happened."""
    commits = kind == COMMITTING
    total = play_seeds(first, count, partial(draw_losing_family, commits=commits))
    tell(f"forgetting targets: {total.histories} histories, {total.points} points, {total.per_second:.0f}/s/core")
    assert not total.broken, "\n".join(total.complaints(" --losses --commits" if commits else " --losses"))
    assert total.histories == count
    return total.touched


@pytest.mark.parametrize("kind", KINDS)
def test_every_law_holds_in_the_first_histories_where_targets_forget(kind: str, tell: Callable[[str], None]) -> None:
    assert every_law_holds(kind, 0, QUICK, tell)["nothing"] < QUICK / 6


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", range(QUICK, HISTORIES, PORTION))
@pytest.mark.parametrize("kind", KINDS)
def test_every_law_holds_where_targets_forget(kind: str, first: int, tell: Callable[[str], None]) -> None:
    touched = every_law_holds(kind, first, PORTION, tell)

    least = LEAST_TOUCHED_OF_COMMITS if kind == COMMITTING else LEAST_TOUCHED
    check_touched(touched, least, share=PORTION / (HISTORIES - QUICK))
    assert touched["nothing"] < PORTION / 6


@pytest.mark.parametrize("seed", SEEDS_THAT_ONCE_FAILED)
def test_a_history_of_a_forgetting_target_that_once_broke_a_law_breaks_none_now(seed: int) -> None:
    with small_world():
        assert play(draw_losing(seed)).violations == []


def losing_plan(
    *faults: Fault,
    kind: str = "transactional",
    batches: Shape = TWO_SEGMENTS,
    forgotten: int = 0,
    by: Deed = Deed.FORGET,
    refusing: int = 0,
) -> Plan:
    """A plan of one life with faults, and of the last life."""
    return Plan(
        kinds=(kind,),
        batches=batches,
        acts=((LifePlan(faults=faults),),),
        last=LifePlan(forgotten=forgotten, forgotten_by=by),
        refusing=refusing,
    )


def played(plan: Plan) -> Played:
    with small_world():
        return play(plan)


@pytest.mark.parametrize("deed", sorted(FORGETTING - {Deed.RESTORE}))
@pytest.mark.parametrize("refusing", [0, 2], ids=["takes all", "refuses rows"])
def test_a_loss_at_any_point_of_a_life_is_made_good_or_told(deed: Deed, refusing: int) -> None:
    again, told = losses_at_any_point(deed, refusing=refusing)

    assert again >= 20
    assert told >= 20


@pytest.mark.parametrize("deed", [Deed.FORGET, Deed.REPLACE, Deed.RESTORE])
def test_a_loss_at_any_point_of_a_life_in_which_a_commit_has_no_answer_is_made_good_or_told(deed: Deed) -> None:
    again, told = losses_at_any_point(deed, Fault(Deed.FAIL, At(1, "after sink")), kind=COMMITTING)

    assert again >= 3
    assert told >= 20


def losses_at_any_point(deed: Deed, *others: Fault, **of: Any) -> tuple[int, int]:
    """Play a loss of each size at each point. Returns in how many plays rows came back, and in how many a process
    reported that they were lost.
    """
    points = played(losing_plan(*others, **of)).points
    again = told = 0

    for size in (1, 2, 99):
        for number in range(1, points):
            outcome = played(losing_plan(Fault(deed, At(number), size), *others, **of))
            assert outcome.violations == [], f"{deed} of {size} at point {number}"
            again += outcome.hits["written again"] > 0
            told += outcome.hits["refused history"] > 0
    return again, told


@pytest.mark.parametrize("batches", [TWO_SEGMENTS, ((2,), (2, 2))], ids=str)
@pytest.mark.parametrize(
    ("kind", "by"), [("transactional", Deed.FORGET), (COMMITTING, Deed.FORGET), (COMMITTING, Deed.RESTORE)]
)
def test_a_crash_after_any_effect_and_a_loss_before_the_next_life_are_made_good_or_told(
    kind: str, by: Deed, batches: Shape
) -> None:
    again = told = 0

    for forgotten in (1, 2, 3):
        for effect in range(1, 45):
            crash = Fault(Deed.CRASH, At(effect, "after"))
            outcome = played(losing_plan(crash, kind=kind, batches=batches, forgotten=forgotten, by=by))
            assert outcome.violations == [], f"crash after effect {effect}, {forgotten} commits forgotten"
            again += outcome.hits["written again"] > 0
            told += outcome.hits["refused history"] > 0

    assert again >= (3 if kind == COMMITTING else 6)
    assert told >= 20


def test_a_target_that_forgets_nothing_of_what_is_marked_ends_no_life() -> None:
    """The target forgets only the batch under way. A delivery has enough attempts for two losses."""
    twice = [Fault(Deed.FORGET, At(number, "after sink"), 1) for number in (2, 2)]
    outcome = played(losing_plan(*twice, batches=((4, 3),)))

    assert outcome.violations == []
    assert outcome.hits["written again"] >= 2
    assert outcome.hits["refused history"] == 0


def test_a_batch_without_rows_does_not_hide_what_the_target_forgot_before_it() -> None:
    outcome = played(losing_plan(Fault(Deed.FORGET, At(2, "after create", "/markers/"), 1), batches=((2,), (), ())))

    assert outcome.violations == []
    assert outcome.hits["refused history"] >= 1


def test_a_slot_that_later_batches_do_not_use_is_not_forgotten_unseen() -> None:
    for number in range(1, 6):
        fault = Fault(Deed.FORGET_SLOT, At(number, "after sink"), 1)
        for seed in range(2):  # one seed for each of the two slots
            outcome = played(replace(losing_plan(fault, batches=((1, 1), (1,), (1,), (1,))), seed=seed))
            assert outcome.violations == []
            assert outcome.hits["written again"] + outcome.hits["refused history"] >= 1


def test_a_seed_is_replayed_point_by_point(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--losses", "--seed", "1"]) == 0

    said = capsys.readouterr().out
    assert "-- sink 'default': " in said
    assert "seed 1: every law holds" in said


def test_the_command_counts_what_happened(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--losses", "--count", str(5 * FAMILY)]) == 0

    assert Deed.FORGET in capsys.readouterr().out


FOUND_BY: dict[Plant, int] = {
    bugs.memory_outranks_the_target: 6,
    bugs.a_gap_is_accepted: 27,
    bugs.what_a_segment_follows_is_ignored: 27,
    bugs.finished_segments_not_asked_again: 6,
    bugs.no_question_before_the_marker: 2,
    bugs.dead_letters_kept_again: 4,
    bugs.only_the_chunk_in_hand_may_have_been_sent: 549,
    bugs.last_delivered_not_read_at_the_start: 1,
    bugs.last_delivered_not_read_at_the_end: 1,
    bugs.last_delivered_not_compared: 0,
    bugs.slots_not_read_before_their_segment: 1,
}
"""The history that finds each bug. If it no longer does, the test searches all histories, and names another one."""
FOUND_BY_COMMITS: dict[Plant, int] = {
    bugs.last_delivered_not_read_at_the_start: 1,
    bugs.last_delivered_not_read_at_the_end: 1,
    bugs.commit_position_not_compared: 1,
    bugs.a_commit_that_is_not_shown_counts: 1,
    bugs.a_batch_that_was_rolled_back_counts_as_committed: 17,
    bugs.what_was_committed_is_committed_again: 43,
    bugs.what_a_roll_was_shown_as_is_not_marked: 37,
}
"""The same of commit sinks."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("kind", "plant"),
    [*(("transactional", plant) for plant in FOUND_BY), *((COMMITTING, plant) for plant in FOUND_BY_COMMITS)],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_a_planted_bug_is_found_by_its_history(kind: str, plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    draw, found_by = (draw_losing_commits, FOUND_BY_COMMITS) if kind == COMMITTING else (draw_losing, FOUND_BY)
    seed = found_by[plant]
    assert played(draw(seed)).violations == [], "this history breaks a law without the bug"

    plant(monkeypatch)
    if first_broken([(seed, played(draw(seed)))]) is None:
        others = ((each, played(draw(each))) for each in range(HISTORIES))
        pytest.fail(f"not by history {seed}, but by {first_broken(others)}")
