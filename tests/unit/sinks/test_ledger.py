"""The rule by which a transactional target knows a chunk again, in every order of term, batch, segment and rows."""

from __future__ import annotations

import dataclasses
import pickle
import re

import pytest

from wal_sink import LedgerEntry, Position
from wal_sink.errors import FencedError, ForgottenError
from wal_sink.testing.contract.ledger_cases import CASES, REFUSALS, SLOT, STORED, Case, Follows

WHERE = "ledger in db://shop"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_chunk_is_new_known_or_refused(case: Case) -> None:
    if case.verdict in REFUSALS:
        kind, told = REFUSALS[case.verdict]
        with pytest.raises(kind, match=told) as caught:
            LedgerEntry.is_known(case.found, case.chunk(), WHERE)
        assert caught.type is kind
    else:
        assert LedgerEntry.is_known(case.found, case.chunk(), WHERE) is (case.verdict == "known")


@pytest.mark.parametrize("case", [case for case in CASES if case.verdict in REFUSALS], ids=str)
def test_a_refusal_says_which_chunk_and_which_ledger(case: Case) -> None:
    chunk = case.chunk()
    place = f"batch {case.batch_id}, chunk {chunk.key}, slot {SLOT!r} of {WHERE}: "
    with pytest.raises(REFUSALS[case.verdict][0], match=f"^{re.escape(place)}"):
        LedgerEntry.is_known(case.found, chunk, WHERE)


@pytest.mark.parametrize(
    ("start", "follows", "held"),
    [(0, "stored", "batch 7, row 4"), (0, "nothing", "nothing"), (4, "stored", "batch 8, row 4")],
)
def test_a_target_that_is_behind_is_told_where_it_was_expected(start: int, follows: Follows, held: str) -> None:
    found = LedgerEntry(5, Position(SLOT, batch_id=6, rows=2, segment_id="l"))
    with pytest.raises(
        ForgottenError, match=rf"the slot is at batch 6, row 2, expected it at {held}\. The target lost"
    ):
        LedgerEntry.is_known(found, Case(5, 8, "n", (4, 5), start, 6, "forgotten", follows).chunk(), WHERE)


@pytest.mark.parametrize("case", [case for case in CASES if case.end == 3], ids=str)
def test_the_term_alone_is_checked_without_a_look_at_the_rows(case: Case) -> None:
    if case.term < STORED.term:
        with pytest.raises(
            FencedError,
            match="a process with term 5 has already written to this slot, but the term of this process is 4",
        ):
            STORED.check_term(case.chunk(), WHERE)
    else:
        STORED.check_term(case.chunk(), WHERE)


@pytest.mark.parametrize("case", [case for case in CASES if case.verdict == "new"], ids=str)
def test_what_was_stored_with_a_chunk_knows_it_again(case: Case) -> None:
    chunk = case.chunk()
    entry = LedgerEntry.of(chunk)
    assert entry == LedgerEntry(case.term, Position(SLOT, case.batch_id, case.end, case.segment_id))
    assert LedgerEntry.is_known(entry, chunk, WHERE)
    assert LedgerEntry.is_known(entry, dataclasses.replace(chunk, term=case.term + 1), WHERE), "of any later term"


def test_an_entry_travels() -> None:
    assert pickle.loads(pickle.dumps(STORED)) == STORED  # noqa: S301 - as Spark does
