"""A small part of `make chaos`, with a fixed seed: servers that lose acknowledged commits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import forgetful_targets
from tests.chaos.forgetting import BATCHES, CHUNKS, ONCE, SILENT, Moment, Verdict, count, spans
from tests.chaos.scenario import Effort, Outcome, Scenario

SEED = 352
MOMENTS = 3


@pytest.mark.timeout(300)
@pytest.mark.parametrize("scenario", forgetful_targets.SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_target_that_forgets_has_every_row_once_or_is_refused(scenario: Scenario, tmp_path: Path) -> None:
    outcome = scenario.run(Effort(SEED, tmp_path, MOMENTS / 30))
    assert outcome.holds, outcome
    assert "rows of the batch in progress lost: every row once" in outcome.detail


def test_the_small_part_has_the_kinds_of_moments_there_are() -> None:
    moments = [Moment.drawn(SEED * 1_000 + number) for number in range(MOMENTS)]
    lost_of = {(moment.dies_after - 1) // CHUNKS - moment.held_after // CHUNKS for moment in moments}
    assert {moment.segments > 1 for moment in moments} == {True, False}
    assert lost_of >= {0, 1}, "of the batch in progress, and of the one before"
    assert {moment.refuses for moment in moments} == {True, False}
    assert {moment.delay_s is None for moment in moments} == {True, False}


def test_no_moment_comes_before_the_first_marker() -> None:
    for seed in range(2_000):
        moment = Moment.drawn(seed)
        assert 0 < moment.held_after < moment.dies_after <= BATCHES * CHUNKS
        assert moment.dies_after > CHUNKS


def test_rows_that_were_lost_without_an_error_do_not_hold() -> None:
    outcome, moment = Outcome(), Moment.drawn(7)
    count(outcome, moment, Verdict("HistoryError"))
    assert outcome.holds
    count(outcome, moment, Verdict(SILENT, missing=range(60, 90)))
    assert not outcome.holds
    assert outcome.lost == 30
    (told,) = outcome.violations
    assert told == f"{moment}: 210 of 240 rows, ids 60-89 missing; {SILENT}"
    assert "seed 7" in told


def test_an_error_where_the_rows_could_come_again_does_not_hold() -> None:
    outcome = Outcome()
    count(outcome, Moment.drawn(7), Verdict(ONCE, within_batch=True))
    assert outcome.holds
    count(outcome, Moment.drawn(7), Verdict("HistoryError", within_batch=True))
    assert "the target has every marked row, yet it ended with HistoryError" in outcome.violations[0]


def test_rows_that_are_there_twice_do_not_hold() -> None:
    outcome = Outcome()
    count(outcome, Moment.drawn(7), Verdict("HistoryError", repeated=[3, 4]))
    assert not outcome.holds
    assert "ids 3-4 twice, or misplaced" in outcome.violations[0]


def test_spans() -> None:
    assert spans([1, 2, 3, 7, 9, 10]) == "1-3, 7, 9-10"
