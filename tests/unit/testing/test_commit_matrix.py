"""Commit sinks in the crash matrix: whatever dies, fails or wakes up late, each batch is shown once, in one commit."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from tests.house.kit import LOSSES, What
from tests.house.sinks import BatchCommit, CommitPosition, StagedSegment
from tests.support.contracts import FoldedContract, checks_of, faults, run
from tests.support.lake import Lake, LakeSink, LostRaceError
from wal_sink import ConfigError, Delivery
from wal_sink.testing import CrashMatrix, crash_matrix
from wal_sink.testing.contract.commits import CommitContract

SHORT = [pa.table({"id": [1, 2, 3]}), pa.table({"id": [4]})]
WITH_AN_EMPTY_ONE = [SHORT[0], SHORT[0].slice(0, 0), SHORT[1]]


def test_every_disturbance_shows_every_row_once() -> None:
    lakes: list[Lake] = []

    def new_lake() -> Lake:
        lakes.append(Lake())
        return lakes[-1]

    matrix = crash_matrix(LakeSink, Lake.rows, new_lake, tables=WITH_AN_EMPTY_ONE).check()

    assert (matrix.lost, matrix.repeated, matrix.permitted) == (0, 0, 0)
    assert matrix.crashes > 50
    assert matrix.failures > 20
    assert matrix.takeovers > 20
    used = [lake for lake in lakes if lake.commits]
    assert {lake.commits for lake in used} == {2}, "of three batches one has no rows, and makes no commit"
    assert all(set(lake.written) == set(lake.versions[-1].files) for lake in used), "no file is left over"


def test_every_pair_of_deaths_shows_every_row_once() -> None:
    matrix = crash_matrix(
        LakeSink, Lake.rows, Lake, tables=SHORT, disturb=("dies",), every=3, each_line=False, double=True
    ).check()
    assert matrix.crashes > 100


class _Blind(LakeSink):
    """Asserts nothing: it commits on top of whatever is there."""

    def commit(self, batch: BatchCommit) -> None:
        version = self.next_version(batch, len(self.lake.versions))
        self.lake.append(version, number=len(self.lake.versions))


class _StaleLook(LakeSink):
    """Compares the position, and commits on top of another state than the one it compared."""

    def commit(self, batch: BatchCommit) -> None:
        if self.position() not in {batch.follows, batch.position}:
            raise LostRaceError
        found = self.position()
        if found != batch.position:
            self.lake.append(self.next_version(batch, len(self.lake.versions)), number=len(self.lake.versions))


class _TwoSteps(LakeSink):
    """Shows the rows in one commit, and stores the position in a second one."""

    def commit(self, batch: BatchCommit) -> None:
        if self.position() == batch.position:
            return
        number = len(self.lake.versions)
        version = self.next_version(batch, number)
        self.lake.append(replace(version, positions=self.lake.versions[-1].positions), number=number)
        self.lake.append(version, number=number + 1)


class _RepeatsBlindly(LakeSink):
    """Repeats a commit whose answer was lost, as a client's own retry does."""

    def commit(self, batch: BatchCommit) -> None:
        try:
            super().commit(batch)
        finally:
            number = len(self.lake.versions)
            self.lake.append(self.next_version(batch, number), number=number)


class _DropsUnshown(LakeSink):
    """Deletes files that no version names when it opens: a superseded process may be about to name them."""

    def position(self) -> CommitPosition | None:
        for name in set(self.lake.written) - set(self.lake.versions[-1].files):
            del self.lake.written[name]
        return super().position()


@pytest.mark.parametrize("wrong", [_Blind, _StaleLook, _TwoSteps, _RepeatsBlindly, _DropsUnshown])
def test_the_matrix_finds_a_commit_sink_that_is_none(wrong: type[LakeSink]) -> None:
    matrix = crash_matrix(wrong, _rows_that_are_there, Lake, tables=SHORT)
    assert matrix.violations
    assert "commit" in str(matrix)


def _rows_that_are_there(lake: Lake) -> list[dict[str, object]]:
    """As a reader that takes a missing file for an empty one."""
    lake.written = {name: lake.written[name] for name in lake.written}
    there = tuple(name for name in lake.versions[-1].files if name in lake.written)
    return Lake(lake.written, [replace(lake.versions[-1], files=there)]).rows()


# --- a table that goes back


def _saved(lake: Lake) -> Lake:
    return Lake({**lake.written}, [*lake.versions])


def _restore(lake: Lake, saved: Lake) -> None:
    lake.written, lake.versions = {**saved.written}, [*saved.versions]


def _roll_back(lake: Lake, saved: Lake) -> None:
    lake.restore(saved.commits)


GOES_BACK: dict[str, Any] = {"snapshot": _saved, "restore": _restore, "roll_back": _roll_back}


def _losing(sink: type[LakeSink], what: What, **how: Any) -> CrashMatrix:
    return crash_matrix(sink, _rows_that_are_there, Lake, tables=SHORT, disturb=(what,), **(how or GOES_BACK))


@pytest.mark.parametrize("what", LOSSES)
def test_a_table_that_goes_back_at_any_point_is_found_out(what: What) -> None:
    matrix = _losing(LakeSink, what).check()
    assert matrix.losses > 20
    assert (matrix.verdict, matrix.lost, matrix.repeated) == ("detected", 0, 0)


class _IgnoresRollbacks(LakeSink):
    """Takes a position that is there for one that the table shows."""

    def position(self) -> CommitPosition | None:
        found = super().position()
        return found and replace(found, is_shown=True)


class _Remembers(LakeSink):
    """Reads the table once."""

    known: CommitPosition | None = None

    def position(self) -> CommitPosition | None:
        return self.known or super().position()

    def commit(self, batch: BatchCommit) -> None:
        number = len(self.lake.versions)
        self.lake.append(self.next_version(batch, number), number=number)
        self.known = batch.position


@pytest.mark.parametrize(
    ("wrong", "what"), [(_IgnoresRollbacks, "loses rows"), (_Remembers, "loses rows"), (_Remembers, "forgets")]
)
def test_a_sink_that_ignores_a_table_that_went_back_is_found(wrong: type[LakeSink], what: What) -> None:
    with pytest.raises(AssertionError, match=r"the target lost .*newest commit(?s:.*) lost: (?s:.*)is_shown=False"):
        _losing(wrong, what).check()


def test_a_table_goes_back_only_by_functions_of_its_test() -> None:
    for what in LOSSES:
        with pytest.raises(
            ConfigError, match=r"LakeSink gets whole batches .* That of a CommitSink goes back by functions of"
        ):
            crash_matrix(LakeSink, Lake.rows, Lake, disturb=(what,))
    with pytest.raises(ConfigError, match="goes back by functions of yours"):
        _losing(LakeSink, "forgets", snapshot=_saved, roll_back=_roll_back)
    assert crash_matrix(LakeSink, Lake.rows, Lake, tables=SHORT, disturb=("fails", *LOSSES)).losses == 0
    assert _losing(LakeSink, "loses rows", snapshot=_saved, roll_back=_roll_back).check().losses > 20


# --- the contract


class LakeContract(FoldedContract):
    every = 3
    each_line = False
    sink: type[LakeSink] = LakeSink

    def make_sink(self, target: Lake) -> Delivery:
        return Delivery(self.sink(target), where="driver")

    def rows_in(self, target: Lake) -> list[dict[str, Any]]:
        return _rows_that_are_there(target)

    def another(self, target: Lake) -> Lake:  # noqa: ARG002
        return Lake()

    def snapshot(self, target: Lake) -> Lake:
        return _saved(target)

    def restore(self, target: Lake, saved: Lake) -> None:
        _restore(target, saved)

    def roll_back(self, target: Lake, saved: Lake) -> None:
        _roll_back(target, saved)


def test_a_commit_sink_keeps_its_contract() -> None:
    outcomes = run(LakeContract(), Lake)
    assert outcomes.failed == {}
    assert {f"test_{check}" for check in checks_of(CommitContract)} <= {*outcomes.passed}


class _NoTwoAlike(LakeSink):
    """Gives the same rows another name each time."""

    def prepare(self, segment: StagedSegment) -> str:
        name = f"{segment.id}-{len(self.lake.written)}"
        self.lake.written[name] = segment.data
        return name

    def commit(self, batch: BatchCommit) -> None:
        number = len(self.lake.versions)
        self.lake.append(self.next_version(batch, number), number=number)


class _ShowsEarly(LakeSink):
    def prepare(self, segment: StagedSegment) -> str:
        name = super().prepare(segment)
        head = self.lake.versions[-1]
        self.lake.versions.append(replace(head, files=(*head.files, name)))
        return name


class _TellsNoName(LakeSink):
    def prepare(self, segment: StagedSegment) -> Any:
        super().prepare(segment)


class _SharesThePosition(LakeSink):
    def open(self, context: Any) -> None:
        self.slot = context.wal_id


class _KeepsQuiet(LakeSink):
    """Tells nobody that it committed nothing."""

    def commit(self, batch: BatchCommit) -> None:
        if self.position() in {batch.follows, batch.position}:
            super().commit(batch)


BROKEN = (
    (_Blind, "a_commit_that_comes_late_is_refused", "never sent"),
    (_Blind, "a_batch_that_was_committed_may_be_prepared_and_committed_again", "repeated"),
    (_NoTwoAlike, "a_batch_that_was_committed_may_be_prepared_and_committed_again", "repeated"),
    (_ShowsEarly, "a_batch_shows_with_its_position_in_one_commit", "0 rows in the target when rows were prepared"),
    (_TellsNoName, "a_batch_shows_with_its_position_in_one_commit", "4096 characters from prepare"),
    (_SharesThePosition, "another_sink_has_a_position_of_its_own", "under context.wal_id and context.sink"),
    (_KeepsQuiet, "a_commit_that_comes_late_is_refused", "an exception from a commit that comes late"),
)
"""By wrong sink: a check that fails it, and a part of the report."""


@pytest.mark.parametrize(("wrong", "check", "told"), BROKEN)
def test_the_contract_finds_a_wrong_commit_sink(wrong: type[LakeSink], check: str, told: str) -> None:
    contract = type(wrong.__name__, (LakeContract,), {"sink": wrong})()
    assert re.search(told, faults(contract, Lake(), check)[check])
