"""Twenty thousand histories of fixed seeds keep every law, and break one if the core has a bug.

The first thousand are quick, in functions of less than a second each. The others are a slow test, in portions that
several workers share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest

from tests.simulation import planted_bugs as bugs
from tests.simulation.histories.__main__ import main
from tests.simulation.histories.counting import Drawing, check_touched, first_broken, play_seeds
from tests.simulation.histories.drawing import FAMILY, draw, draw_family
from tests.simulation.histories.plans import KINDS, Deed, Tampering
from tests.simulation.histories.playing import Played, play, play_family, small_world
from tests.simulation.planted_bugs import Plant
from wal_sink.protocol.segment_delivery import Records

pytestmark = pytest.mark.no_cover

HISTORIES = 20_000
QUICK = 1_000
PORTION = 3_800
"""Number of histories in a portion of the slow ones. Seldom things must happen in each portion, too."""

LEAST_TOUCHED = {
    Deed.CRASH: 8000,
    "collected": 2000,
    "stood still": 2000,
    "woke up": 2000,
    "fenced": 1000,
    "late send": 200,
    "repeated chunk": 500,  # 600 before some families of twelve got commit sinks and rolls, which repeat none
    "replayed batch": 800,
    "partial deletion": 400,
    "error before effect": 500,
    "lost answer": 400,
    "sink failed before its effect": 60,
    "sink failed after its effect": 60,
    Deed.FULL: 150,
    Deed.DELAY: 150,
    Deed.LOSE: 300,
    Deed.LEAVE: 300,
    Deed.WAKE: 300,
    "query restarted": 400,
    "query failed": 150,
    Tampering.FORGET: 700,
    Tampering.SAME: 500,
    Tampering.OTHER: 400,
    "refused history": 300,
    "committed": 1500,
    "gone": 100,
    "aborted": 60,
    "roll of several batches": 500,
    "shuffled listing": 3000,
    "listing in two looks": 1000,
}
"""The least number of histories in which each thing must happen. Fewer mean that the histories became trivial."""

SEEDS_THAT_ONCE_FAILED = (
    20261122000038902,  # an earlier query collected a batch that a later one was about to stage
    20261122000293932,  # a checkpoint that was restored and then lost a commit
    20261122000437971,  # a sink registered after batch 0 was collected
    20261122000722571,
    20261122000822630,  # a batch without its commit in a restored checkpoint
    20261122001222023,  # a two-phase sink of a process that slept while its batch was delivered and collected
    20261122001895703,  # the same, while the checkpoint still has the same plan
    20261122002290833,
    20261122002539811,
    20261122003195584,
    20261122003210128,
    20261122003725895,
    20261122001224796,  # a checkpoint restored twice; in between, a process woke up and released an incomplete batch
    20261122002309530,
    20261122001085637,  # a group that was marked late and collected while a newer process delivered it
    20261122001618468,
    20261122003757944,
    20261122003577090,  # a sink registered while the batch it begins with was being deleted
    20261122008901959,
    901754004008885,  # a process that slept between the newest marker and its batch, which was collected meanwhile
)


def every_law_holds(
    first: int, count: int, tell: Callable[[str], None], families: Drawing = draw_family
) -> dict[str, int]:
    """Play these histories. Return in how many of them each thing happened."""
    total = play_seeds(first, count, families)
    tell(f"{total.histories} histories, {total.points} points, {total.per_second:.0f} histories/s/core")
    assert not total.broken, "\n".join(total.complaints())
    assert total.histories == count
    return total.touched


def test_every_law_holds_in_histories_0_to_199(tell: Callable[[str], None]) -> None:
    assert every_law_holds(0, 200, tell)["nothing"] < 200 / 5


def test_every_law_holds_in_histories_200_to_399(tell: Callable[[str], None]) -> None:
    assert every_law_holds(200, 200, tell)["nothing"] < 200 / 5


def test_every_law_holds_in_histories_400_to_599(tell: Callable[[str], None]) -> None:
    assert every_law_holds(400, 200, tell)["nothing"] < 200 / 5


def test_every_law_holds_in_histories_600_to_799(tell: Callable[[str], None]) -> None:
    assert every_law_holds(600, 200, tell)["nothing"] < 200 / 5


def test_every_law_holds_in_histories_800_to_999(tell: Callable[[str], None]) -> None:
    assert every_law_holds(800, 200, tell)["nothing"] < 200 / 5


def test_every_law_holds_in_histories_of_rolls(tell: Callable[[str], None]) -> None:
    touched = every_law_holds(0, 600, tell, partial(draw_family, rolls=True))

    assert touched["roll of several batches"] > 600 / 3


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", range(QUICK, HISTORIES, PORTION))
def test_every_law_holds_in_the_other_nineteen_thousand_histories(first: int, tell: Callable[[str], None]) -> None:
    touched = every_law_holds(first, PORTION, tell)

    check_touched(touched, LEAST_TOUCHED, share=PORTION / (HISTORIES - QUICK))
    assert touched["nothing"] < PORTION / 8


@pytest.mark.parametrize("seed", SEEDS_THAT_ONCE_FAILED)
def test_a_history_that_once_broke_a_law_breaks_none_now(seed: int) -> None:
    with small_world():
        assert play(draw(seed)).violations == []


def test_a_history_that_once_broke_a_law_of_its_kind_of_sink_breaks_none_now() -> None:
    """The seed draws a two-phase sink now, so the plan names the kind of sink that failed."""
    plan = replace(draw(20261122000442549), kinds=("at_most_once",), forgets=False)
    with small_world():
        assert play(plan).violations == []


def test_every_kind_of_sink_is_drawn() -> None:
    drawn = {kind for seed in range(0, 100 * FAMILY, FAMILY) for kind in draw(seed).kinds}

    assert drawn == set(KINDS)


def test_deaths_that_are_played_together_come_out_as_each_alone() -> None:
    families = [family for family in map(draw_family, range(60)) if family.together]
    assert len(families) >= 30

    with small_world():
        for family in families:
            for plan, together in zip(family.plans, play_family(family.plans), strict=True):
                alone = play(plan)
                assert (together.violations, together.hits) == (alone.violations, alone.hits), f"seed {plan.seed}"


def test_a_seed_is_replayed_point_by_point(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "11"]) == 0
    first = capsys.readouterr().out
    assert main(["--seed", "11"]) == 0

    assert capsys.readouterr().out == first
    assert "before create offsets/0" in first
    assert "** crash" in first
    assert "seed 11: every law holds" in first


def test_new_seeds_are_printed_so_that_the_same_histories_can_be_played_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--first", "new", "--count", "8"]) == 0
    first = capsys.readouterr().out.splitlines()
    command, _, arguments = first[0].partition(" --")
    assert command == "python -m tests.simulation.histories"
    assert main(f"--{arguments}".split()) == 0

    again = capsys.readouterr().out.splitlines()
    assert again[3:] == first[3:] != []  # the lines before tell times


FOUND_BY: dict[Plant, int] = {
    bugs.marker_before_delivery: 0,
    bugs.no_progress_reload_at_takeover: 9,
    bugs.gate_ignored: 0,
    bugs.release_not_pinned: 0,
    bugs.no_lookup: 34,
    bugs.record_skipped: 15,
    bugs.record_before_sending: 22,
    bugs.low_water_after_deletion: 8,
    bugs.retention_ignores_what_is_undelivered: 8,
    bugs.term_not_checked: 55,
    bugs.replay_restaged: 33,
    bugs.highest_manifest_not_chosen: 416,
    bugs.dead_letters_not_kept_at_takeover: 15,
    bugs.no_second_read_at_takeover: 1_183,
    bugs.batches_start_at_the_newest: 13,
    bugs.failures_counted_as_done: 137,
    bugs.marker_skipped: 0,
    bugs.release_not_confirmed: 1_101,
    bugs.ambiguous_answer_taken_for_success: 131,
    bugs.ambiguous_answer_taken_for_failure: 131,
    bugs.term_not_renewed_after_a_lost_job: 54,
    bugs.term_not_checked_after_the_record: 7_142,
    bugs.retention_ignores_absent_sinks: 1_968,
    bugs.known_batch_taken_for_a_replay: 5,
    bugs.doubtful_chunk_not_looked_up: 134,
    bugs.highest_manifest_by_attempt_alone: 416,
    bugs.what_is_gone_taken_for_committed: 0,
    bugs.what_was_committed_is_not_remembered: 48,
    bugs.preparation_not_recorded: 1_443,
    bugs.every_sink_served_in_groups: 25,
}
"""The history that finds each bug. If it no longer does, the test searches all histories, and names another one."""


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("plant", FOUND_BY, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found_by_its_history(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = FOUND_BY[plant]
    with small_world():
        assert play(draw(seed)).violations == [], "this history breaks a law without the bug"

        plant(monkeypatch)
        found = first_broken((seed, play(draw(seed))) for seed in (seed,))
        assert found is not None, f"not by history {seed}, but by {first_broken(_histories())}"


def test_an_error_of_the_planted_code_finds_no_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Records, "create", lambda: None)  # as if the method had other arguments now

    with small_world(), pytest.raises(AssertionError, match="unexpected TypeError"):
        first_broken(_histories())


def _histories() -> Iterator[tuple[int, Played]]:
    """Play all histories."""
    for family in map(draw_family, range(HISTORIES // FAMILY)):
        played = play_family(family.plans) if family.together else [play(plan) for plan in family.plans]
        yield from ((plan.seed, each) for plan, each in zip(family.plans, played, strict=True))
