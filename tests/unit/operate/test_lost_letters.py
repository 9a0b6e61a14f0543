"""After a `catch-up`, dead letters are due again that were sent to the target after its backup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import pytest

from tests.house.log import encode, paths
from tests.house.operate import Check
from tests.house.sinks import Position
from tests.support.forgetting import Forgetful, Row, Target
from tests.support.repairs import killed_everywhere, log_on, remade
from tests.support.small_run import Place
from tests.unit.operate.test_catch_up import BATCH_COMMITS, caught_up, delivered, planned
from wal_sink.log.records import Replayed
from wal_sink.operate.replay import DeadLetters, ReplayResult


def replayed() -> tuple[Place, Target, list[Row]]:
    """The backup was made before a dead letter of the sink's first batch and one of a later batch were sent again. Of
    the second one, the target refused a row once more, and got it by another replay.
    """
    target = Target(bad=frozenset({(0, 0, 1), (2, 0, 0), (2, 0, 1)}))
    place = delivered(target, 2, on_rejected="dead_letter")
    backup = target.commits[: 3 * BATCH_COMMITS - 2]
    target.bad = frozenset({(2, 0, 0)})
    assert letters(place).replay(Forgetful(target)) == ReplayResult(2, 2, 1)
    target.bad = frozenset()
    assert letters(place).replay(Forgetful(target)) == ReplayResult(1, 1, 0)
    rows = target.rows
    target.commits = backup
    return place, target, rows


def letters(place: Place) -> DeadLetters:
    return DeadLetters(log_on(place.wal), name="a")


def test_dead_letters_that_were_sent_again_after_the_backup_are_due_again() -> None:
    place, target, rows = replayed()
    plan = planned(place, Forgetful(target))
    assert (plan.lost_letters, plan.rows_of_letters, plan.replayed_letters) == (3, 3, 0)

    done = caught_up(place, Forgetful(target))

    assert (done.letters_due, done.rows_due, done.letters_unknown) == (3, 3, 0)
    assert set(rows) - set(target.rows) == {(0, 0, 1), (2, 0, 0), (2, 0, 1)}
    assert Check(place.wal).run() == []
    assert letters(place).replay(Forgetful(target)) == ReplayResult(3, 3, 1)  # the earlier refusal counts
    assert target.rows == rows
    assert letters(place).replay(Forgetful(target)) == ReplayResult(0, 0, 0)
    assert planned(place, Forgetful(target)).lost_letters == 0


def test_dead_letters_are_due_again_if_the_target_lacks_no_batch() -> None:
    place, target, rows = replayed()
    caught_up(place, Forgetful(target))
    backup = list(target.commits)
    letters(place).replay(Forgetful(target))
    target.commits = backup

    plan = planned(place, Forgetful(target))
    assert (plan.batches, plan.is_behind, plan.lost_letters) == ((), False, 3)
    assert caught_up(place, Forgetful(target)).letters_due == 3
    letters(place).replay(Forgetful(target))
    assert target.rows == rows


def test_dead_letters_that_the_target_has_stay_sent() -> None:
    place, target, rows = replayed()
    caught_up(place, Forgetful(target))
    letters(place).replay(Forgetful(target))
    sent = [commit for commit in target.commits if commit.slot.count("/") > 2]
    target.commits = [commit for commit in target.commits if commit not in sent][:BATCH_COMMITS] + sent

    done = caught_up(place, Forgetful(target))

    assert (done.batches, done.letters_due, done.letters_unknown) == (2, 0, 0)
    assert target.rows == rows


def test_killed_at_any_request_no_letter_is_forgotten_and_no_row_is_doubled() -> None:
    for place, target, rows in killed_everywhere(
        remade(replayed), lambda each: each[0].wal, lambda log, each: caught_up(each[0], Forgetful(each[1]), log=log)
    ):
        assert caught_up(place, Forgetful(target)).letters_due in {0, 3}  # 0: it was complete
        letters(place).replay(Forgetful(target))
        assert target.rows == rows


@pytest.mark.parametrize("to", ["function", "other target", "older version"])
def test_of_letters_that_were_sent_elsewhere_nobody_knows(to: str) -> None:
    target = Target(bad=frozenset({(1, 0, 1)}))
    place = delivered(target, 2, on_rejected="dead_letter")
    target.forget(BATCH_COMMITS)
    letters(place).replay({"function": lambda _: None}.get(to, Other(Target())))
    if to == "older version":
        [path] = [path for path in place.wal.list("", recursive=True) if path.endswith(paths.REPLAYED)]
        record = log_on(place.wal).require(Replayed, path)
        assert record.target == "other"
        place.wal.delete([path])
        place.wal.create(path, encode(msgspec.structs.replace(record, target="")))

    done = caught_up(place, Forgetful(target))

    assert (done.letters_due, done.letters_unknown, done.batches) == (0, 1, 1)
    assert list(letters(place).due()) == []


class Other(Forgetful):
    def describe(self) -> str:
        return "other"


def test_a_letter_of_which_the_target_refused_everything_again_is_not_lost() -> None:
    target = Target(bad=frozenset({(1, 0, 1)}))
    place = delivered(target, 2, on_rejected="dead_letter")
    assert letters(place).replay(Forgetful(target)) == ReplayResult(1, 0, 1)
    target.forget(BATCH_COMMITS + 3)

    done = caught_up(place, Forgetful(target))

    assert (done.letters_due, done.letters_unknown) == (0, 0)
    assert len(list(letters(place).due())) == 1


def test_a_letter_that_was_deleted_cannot_be_sent_again() -> None:
    place, target, _ = replayed()
    folder = paths.dead_letter_folder("a", 0)
    place.wal.delete([f"{folder}/{name}" for name in place.wal.list(folder) if name.endswith(".parquet")])
    plan = planned(place, Forgetful(target))
    assert (plan.lost_letters, plan.replayed_letters) == (2, 1)


def test_other_files_beside_dead_letters_are_no_records() -> None:
    place, target, _ = replayed()
    place.wal.create(f"{paths.dead_letter_folder('a', 0)}/notes{paths.REPLAYED}", b"x")
    assert planned(place, Forgetful(target)).lost_letters == 3


def test_the_target_is_asked_for_many_letters_at_once() -> None:
    target = Target(bad=frozenset((1, 0, row) for row in range(1, 1300, 2)))
    place = delivered(target, 1, rows=lambda _: [1300], on_rejected="dead_letter")
    target.bad = frozenset()
    letters(place).replay(Forgetful(target))
    sink = Asked(target)

    plan = planned(place, sink)

    assert (plan.lost_letters, plan.replayed_letters) == (0, 0)
    assert [count for count in sink.asked if count > 1] == [500, 150]


class Asked(Forgetful):
    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.asked: list[int] = []

    def positions(self, slots: Sequence[str]) -> Mapping[str, Position | None]:
        self.asked.append(len(slots))
        return super().positions(slots)
