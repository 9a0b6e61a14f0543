"""Transactional targets that lose what they acknowledged: each row is there once, or an error reports its loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.simulation import planted_bugs as bugs
from tests.simulation.histories.__main__ import main
from tests.simulation.histories.counting import check_touched, first_broken, play_seeds
from tests.simulation.histories.drawing import FAMILY
from tests.simulation.histories.drawing_losses import draw_losing, draw_losing_family
from tests.simulation.histories.plans import FORGETTING, At, Deed, Fault, LifePlan, Plan, Shape
from tests.simulation.histories.playing import Played, play, small_world
from tests.simulation.planted_bugs import Plant

pytestmark = pytest.mark.no_cover

HISTORIES = 6_000
QUICK = 80
PORTION = 2_960
"""Number of histories in a portion of the slow ones, which several workers share."""

LEAST_TOUCHED = {
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

SEEDS_THAT_ONCE_FAILED = (
    21,  # after an error no row was left to send, and the batch was marked without a question to the target
    224,  # the same, after a question that failed
    446,  # last_delivered was read before the WAL's owner was known: the slots had wrong names
)

TWO_SEGMENTS: Shape = ((3, 2), (1,))


def every_law_holds(first: int, count: int, tell: Callable[[str], None]) -> dict[str, int]:
    """Play these histories. Return in how many of them each thing happened."""
    total = play_seeds(first, count, draw_losing_family)
    tell(f"forgetting targets: {total.histories} histories, {total.points} points, {total.per_second:.0f}/s/core")
    assert not total.broken, "\n".join(total.complaints(" --losses"))
    assert total.histories == count
    return total.touched


def test_every_law_holds_in_the_first_histories_where_targets_forget(tell: Callable[[str], None]) -> None:
    assert every_law_holds(0, QUICK, tell)["nothing"] < QUICK / 6


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", range(QUICK, HISTORIES, PORTION))
def test_every_law_holds_where_targets_forget(first: int, tell: Callable[[str], None]) -> None:
    touched = every_law_holds(first, PORTION, tell)

    check_touched(touched, LEAST_TOUCHED, share=PORTION / (HISTORIES - QUICK))
    assert touched["nothing"] < PORTION / 6


@pytest.mark.parametrize("seed", SEEDS_THAT_ONCE_FAILED)
def test_a_history_of_a_forgetting_target_that_once_broke_a_law_breaks_none_now(seed: int) -> None:
    with small_world():
        assert play(draw_losing(seed)).violations == []


def losing_plan(
    *faults: Fault, batches: Shape = TWO_SEGMENTS, forgotten: int = 0, refusing: int = 0, stages: bool = True
) -> Plan:
    """A plan of one life with faults, and of the last life."""
    return Plan(
        kinds=("transactional",),
        batches=batches,
        acts=((LifePlan(faults=faults, stages=stages),),),
        last=LifePlan(forgotten=forgotten),
        refusing=refusing,
    )


def played(plan: Plan) -> Played:
    with small_world():
        return play(plan)


@pytest.mark.parametrize("deed", sorted(FORGETTING))
@pytest.mark.parametrize("refusing", [0, 2], ids=["takes all", "refuses rows"])
def test_a_loss_at_any_point_of_a_life_is_made_good_or_told(deed: Deed, refusing: int) -> None:
    points = played(losing_plan(refusing=refusing)).points
    again = told = 0

    for size in (1, 2, 99):
        for number in range(1, points):
            outcome = played(losing_plan(Fault(deed, At(number), size), refusing=refusing))
            assert outcome.violations == [], f"{deed} of {size} at point {number}"
            again += outcome.hits["written again"] > 0
            told += outcome.hits["refused history"] > 0

    assert again >= 20
    assert told >= 20


@pytest.mark.parametrize("batches", [TWO_SEGMENTS, ((2,), (2, 2))], ids=str)
def test_a_crash_after_any_effect_and_a_loss_before_the_next_life_are_made_good_or_told(batches: Shape) -> None:
    again = told = 0

    for forgotten in (1, 2, 3):
        for effect in range(1, 45):
            crash = Fault(Deed.CRASH, At(effect, "after"))
            outcome = played(losing_plan(crash, batches=batches, forgotten=forgotten))
            assert outcome.violations == [], f"crash after effect {effect}, {forgotten} commits forgotten"
            again += outcome.hits["written again"] > 0
            told += outcome.hits["refused history"] > 0

    assert again >= 6
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


@pytest.mark.timeout(600)
@pytest.mark.parametrize("plant", FOUND_BY, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found_by_its_history(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = FOUND_BY[plant]
    assert played(draw_losing(seed)).violations == [], "this history breaks a law without the bug"

    plant(monkeypatch)
    found = first_broken((seed, played(draw_losing(seed))) for seed in (seed,))
    assert found is not None, (
        f"not by history {seed}, but by {first_broken((each, played(draw_losing(each))) for each in range(HISTORIES))}"
    )
