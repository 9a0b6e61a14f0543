"""Commit sinks in the crash matrix: whatever dies, fails or wakes up late, each batch is shown once, in one commit."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from tests.house.sinks import BatchCommit, CommitPosition
from tests.support.lake import Lake, LakeSink, LostRaceError
from wal_sink.testing import crash_matrix

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
