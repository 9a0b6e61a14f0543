"""The rule by which a transactional target knows a chunk again, in every order of term, batch, segment and rows."""

from __future__ import annotations

import dataclasses
import pickle
import re

import pytest

from tests.house.kit import CASES, REFUSALS, SLOT, STORED
from tests.house.sinks import Chunk
from wal_sink.errors import FencedError, OutcomeUnknownError, WalSinkError
from wal_sink.sinks import LedgerEntry, Position
from wal_sink.testing.contract.ledger_cases import Case, Follows

WHERE = "ledger in db://shop"


def decided(case: Case, chunk: Chunk) -> object:
    """The answer of the rule, or the error that it raises."""
    try:
        return LedgerEntry.is_known(case.found, chunk, WHERE)
    except WalSinkError as error:
        return error


def test_a_chunk_is_new_known_or_refused() -> None:
    faults = []
    for case in CASES:
        answer = decided(case, case.chunk())
        if case.verdict in REFUSALS:
            kind, told = REFUSALS[case.verdict]
            is_right = type(answer) is kind and re.search(told, str(answer)) is not None
        else:
            is_right = answer is (case.verdict == "known")
        if not is_right:
            faults.append(f"{case}: expected {case.verdict}, found {answer!r}")
    assert faults == []
    assert {case.verdict for case in CASES} == {"new", "known", *REFUSALS}


def test_a_refusal_says_which_chunk_and_which_ledger() -> None:
    faults = []
    for case in CASES:
        chunk = case.chunk()
        if case.verdict in REFUSALS:
            said = str(decided(case, chunk))
            if not said.startswith(f"batch {case.batch_id}, chunk {chunk.key}, slot {SLOT!r} of {WHERE}: "):
                faults.append(f"{case}: {said}")
    assert faults == []


def test_a_target_that_is_behind_is_told_where_it_was_expected() -> None:
    cases: list[tuple[int, Follows, str]] = [
        (0, "stored", "batch 7, row 4"),
        (0, "nothing", "nothing"),
        (4, "stored", "batch 8, row 4"),
    ]
    for start, follows, held in cases:
        found = LedgerEntry(5, Position(SLOT, batch_id=6, rows=2, segment_id="l"))
        with pytest.raises(
            OutcomeUnknownError, match=rf"the slot is at batch 6, row 2, expected it at {held}\. The target lost"
        ):
            LedgerEntry.is_known(found, Case(5, 8, "n", (4, 5), start, 6, "forgotten", follows).chunk(), WHERE)


def test_the_term_alone_is_checked_without_a_look_at_the_rows() -> None:
    told = "a process with term 5 has already written to this slot, but the term of this process is 4"
    faults = []
    for case in CASES:
        try:
            STORED.check_term(case.chunk(), WHERE)
            is_right = case.term >= STORED.term
        except FencedError as error:
            is_right = case.term < STORED.term and told in str(error)
        if not is_right:
            faults.append(str(case))
    assert faults == []


def test_an_entry_knows_the_chunk_that_it_was_made_of() -> None:
    faults = []
    for case in CASES:
        if case.verdict == "new":
            chunk = case.chunk()
            entry = LedgerEntry.of(chunk)
            later = dataclasses.replace(chunk, term=case.term + 1)
            if (
                entry != LedgerEntry(case.term, Position(SLOT, case.batch_id, case.end, case.segment_id))
                or not LedgerEntry.is_known(entry, chunk, WHERE)
                or not LedgerEntry.is_known(entry, later, WHERE)
            ):
                faults.append(str(case))
    assert faults == []


def test_an_entry_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(STORED)) == STORED  # noqa: S301 - as Spark does
