"""Terms: of all who claim, the last one holds the role; every other is told so."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import msgspec
import pytest

from tests.house.log import MARGIN, Log, TakeOver, Term, TermRecord, claim, note_end, paths, terms
from tests.house.stores import MemoryStore, Store, StoreSpec
from tests.house.support import ProcessIdentity
from tests.support.logged import said_here
from tests.support.side_by_side import side_by_side
from tests.support.small_run import Place, Recorder, before_create
from wal_sink.errors import FencedError, HeldError, StoreError
from wal_sink.log.terms import MOST_FILLED, claim_above, claim_above_seen, is_superseded_by_siblings, renew
from wal_sink.support.clock import process_name
from wal_sink.testing import FaultyStore, simulated_runtime

_numbers = itertools.count()


def store() -> MemoryStore:
    return MemoryStore(StoreSpec(f"memory://terms-{next(_numbers)}"))


def log(on: Store) -> Log:
    runtime = simulated_runtime(next(_numbers))
    return Log(on, runtime, run_id=runtime.new_id())


def test_the_first_term_is_one_and_each_claim_counts_on() -> None:
    on = store()

    assert [claim(log(on), "role").number for _ in range(3)] == [1, 2, 3]


def test_the_holder_passes_its_check_and_everyone_before_it_is_fenced_with_the_place_to_look() -> None:
    on = store()
    terms = [claim(log(on), "role") for _ in range(3)]

    terms[-1].check(on)
    for term in terms[:-1]:
        with pytest.raises(FencedError, match=paths.term("role", term.number + 1)):
            term.check(on)


@pytest.mark.parametrize(
    ("claimants", "expected"),
    [
        ([], False),
        (["sibling"], True),
        (["sibling", "sibling"], True),
        (["sibling", "other"], False),
        (["other", "sibling"], False),
        (["unknown"], False),
        (["orphan"], False),
        (["damaged"], False),
        (["older version"], False),
    ],
)
def test_a_holder_knows_whether_only_its_siblings_came_after_it(
    claimants: list[str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that the same parent started. Whatever is not known counts as a stranger."""
    here = ProcessIdentity(host="h", pid=7, boot_id="b", pid_namespace="n", started=3, parent=5, parent_started=2)
    changes: dict[str, dict[str, Any]] = {
        "sibling": {"pid": 8},
        "other": {"pid": 8, "parent": 6},
        "orphan": {"parent": 0, "parent_started": 0},
        "unknown": {"boot_id": ""},
    }
    on = store()
    mine = claim(log(on), "role")
    for number, claimant in enumerate(claimants, 2):
        if claimant == "damaged":
            on.create(paths.term("role", number), b"{")
            continue
        identity = None if claimant == "older version" else msgspec.structs.replace(here, **changes[claimant])
        monkeypatch.setattr(terms, "process_identity", lambda identity=identity: identity)
        claim(log(on), "role")
    monkeypatch.setattr(terms, "process_identity", lambda: here)

    assert is_superseded_by_siblings(log(on), mine) is expected


def test_processes_that_claim_at_the_same_time_get_different_terms() -> None:
    on = store()

    won = side_by_side(8, lambda: claim(log(on), "role").number)

    assert sorted(won) == list(range(1, 9))


@pytest.mark.parametrize("when", ["before create", "after create"])
def test_a_lost_answer_to_a_claim_leaves_one_holder(when: str) -> None:
    on, failures = store(), [1]

    def hook(what: str, where: str) -> None:
        if what == when and failures and failures.pop():
            raise StoreError(where)

    term = claim(log(FaultyStore(on, hook)), "role")

    assert term.number == 1
    assert on.list(paths.terms("role")) == ["0000000001.json"]


def test_a_claim_that_could_not_be_checked_is_an_error_and_not_a_pass() -> None:
    on = store()
    term = claim(log(on), "role")

    def down(what: str, where: str) -> None:
        raise StoreError(f"{what} {where}")

    with pytest.raises(StoreError):
        term.check(FaultyStore(on, down))


def test_a_term_that_another_took_meanwhile_is_passed_over() -> None:
    on = store()
    before_create(on, paths.term("role", 1), lambda: claim(log(on), "role"))

    assert claim(log(on), "role").number == 2


def test_a_renewed_term_is_the_next_and_fences_the_one_before() -> None:
    on = store()
    mine = log(on)
    term = claim(mine, "role")

    following = renew(mine, term)

    assert following == Term("role", 2)
    following.check(on)
    with pytest.raises(FencedError):
        term.check(on)
    record = mine.find(TermRecord, paths.term("role", 2))
    assert record is not None
    assert (record.role, record.term, record.run_id) == ("role", 2, mine.run_id)


def test_a_superseded_process_cannot_renew_its_term() -> None:
    on = store()
    mine = log(on)
    term = claim(mine, "role")
    claim(log(on), "role")

    with pytest.raises(
        FencedError, match=r"term 1 of 'role' .*terms/role/0000000002\.json.*: a newer process took over"
    ):
        renew(mine, term)


# Terms that were lost, and terms that others know.


def lose(on: MemoryStore, *numbers: int) -> None:
    on.delete(paths.term("role", number) for number in numbers)


def numbers(on: MemoryStore) -> list[int]:
    return [int(name.removesuffix(".json")) for name in on.list(paths.terms("role"))]


def test_where_all_terms_of_a_role_are_gone_the_claim_jumps_and_fences_who_may_still_live() -> None:
    on = store()
    living = [claim(log(on), "role") for _ in range(MARGIN)]
    lose(on, *range(1, MARGIN + 1))
    living[-1].check(on)  # nobody can tell it yet

    new = claim(log(on), "role", was_held=True)

    assert new.number == MARGIN + 1
    assert numbers(on) == list(range(1, MARGIN + 2))
    new.check(on)
    for term in living:
        with pytest.raises(FencedError):
            term.check(on)


def test_where_the_first_terms_are_gone_the_claim_is_the_next_one_and_puts_them_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    on = store()
    terms = [claim(log(on), "role") for _ in range(5)]
    lose(on, 1, 2, 3)

    with caplog.at_level(logging.WARNING):
        assert claim(log(on), "role").number == 6

    assert numbers(on) == [1, 2, 3, 4, 5, 6]
    assert "terms of 'role'" in caplog.text
    assert paths.term("role", 4) in caplog.text
    assert "life-cycle rule" in caplog.text
    with pytest.raises(FencedError):
        terms[1].check(on)


def test_a_gap_is_looked_at_once_more(caplog: pytest.LogCaptureFixture) -> None:
    """Some stores list what is created meanwhile in part."""
    on = store()
    for _ in range(3):
        claim(log(on), "role")
    listed, list_ = [["0000000001.json", "0000000003.json"]], on.list

    def once(prefix: str, *, after: str = "", recursive: bool = False) -> list[str]:
        return listed.pop() if listed else list_(prefix, after=after, recursive=recursive)

    on.list = once  # type: ignore[method-assign]

    assert claim(log(on), "role").number == 4
    assert not said_here(caplog)


def test_a_claim_above_fences_everybody_below() -> None:
    on = store()
    terms = [claim(log(on), "role") for _ in range(3)]

    above = claim_above(log(on), "role", 40)

    assert above == Term("role", 41)
    assert numbers(on) == list(range(1, 42))
    assert all(log(on).require(TermRecord, paths.term("role", number)).term == number for number in numbers(on))
    above.check(on)
    for number in (*(term.number for term in terms), 4, 40):  # 4 to 40: of holders whose terms were lost
        with pytest.raises(FencedError):
            Term("role", number).check(on)


def test_a_claim_far_above_creates_what_fences_the_last_holder_and_the_nearest_numbers() -> None:
    on = store()
    claim(log(on), "role")

    assert claim_above(log(on), "role", 100_000).number == 100_001

    assert numbers(on) == [1, 2, *range(100_001 - MOST_FILLED, 100_002)]
    with pytest.raises(FencedError):
        Term("role", 1).check(on)


def test_who_claims_while_another_jumps_is_fenced_or_comes_after() -> None:
    on = store()
    claim(log(on), "role")
    others: list[Term] = []
    before_create(on, paths.term("role", 7), lambda: others.append(claim(log(on), "role")))
    above = claim_above(log(on), "role", 9)
    after = claim(log(on), "role")

    assert [term.number for term in (*others, above, after)] == [7, 10, 11]
    for term in (*others, above):
        with pytest.raises(FencedError):
            term.check(on)


@pytest.mark.parametrize(("take_over", "may"), [(TakeOver.ALWAYS, True), (TakeOver.IF_GONE, False)])
def test_a_claim_after_a_gap_takes_over_only_whom_it_may(take_over: TakeOver, may: bool) -> None:
    """Another process, which lives, claims the same term a moment earlier."""
    on = store()
    for _ in range(3):
        claim(log(on), "role")
    note_end(log(on), "role", 3)
    on.delete([paths.term("role", 2)])
    before_create(on, paths.term("role", 4), lambda: claim_above(log(on), "role", 3))
    if may:
        assert claim(log(on), "role", take_over=take_over).number == 5
    else:
        with pytest.raises(HeldError, match="term 4"):
            claim(log(on), "role", take_over=take_over)


def test_a_term_above_all_that_is_seen_is_gone_on_under_without_a_request() -> None:
    on, seen = store(), list[str]()
    term = claim(log(on), "role")

    assert claim_above_seen(log(FaultyStore(on, lambda what, _: seen.append(what))), term, 0, "a marker") == term
    assert seen == []


def test_a_term_that_is_seen_and_was_not_claimed_was_lost(caplog: pytest.LogCaptureFixture) -> None:
    on = store()
    term = claim(log(on), "role")

    above = claim_above_seen(log(on), term, 5, "the newest marker")

    assert above.number == 5 + MARGIN + 1
    assert "the newest marker names term 5" in caplog.text
    with pytest.raises(FencedError):
        Term("role", 5).check(on)


def test_a_record_under_the_term_of_this_process_shows_that_another_run_held_it() -> None:
    """Another run held a term of this number: the terms were lost, and both claimed it."""
    on = store()
    term = claim(log(on), "role")

    assert claim_above_seen(log(on), term, term.number, "the newest marker").number == term.number + MARGIN + 1


def test_a_term_that_a_successor_claimed_is_its_own() -> None:
    on = store()
    term = claim(log(on), "role")
    claim(log(on), "role")

    with pytest.raises(FencedError):
        claim_above_seen(log(on), term, 2, "the newest marker")


def test_a_role_costs_at_most_two_requests_beyond_what_is_read_after_it_anyway() -> None:
    """A committer's newest marker was read before there was this rule, and the stager's batches were listed."""
    place = Place()
    run = place.open({"a": Recorder()})
    place.stream(run, 2)
    place.requests.clear()

    place.open({"a": Recorder()})

    newest = paths.batch_name(2)
    of_committer = ["create terms/committer-a/0000000002.json"]
    of_stager = ["create terms/stager/0000000002.json", f"list batches/{newest}"]
    evidence = ["list sinks/a/markers", f"read sinks/a/markers/{newest}.json"]
    asked = [name for name in place.requests if "terms/" in name or name in (*of_stager, *evidence)]
    assert asked == [*of_committer, *evidence, *of_stager]


def test_a_process_that_was_superseded_names_the_newer_one() -> None:
    on = store()
    term = claim(log(on), "committer-a")
    claim(log(on), "committer-a")

    with pytest.raises(FencedError) as caught:
        term.check(on)

    assert f"a newer process took over: {process_name()}, at " in str(caught.value)
    assert "Let one supervisor run one process of each sink" in str(caught.value)


def test_a_term_whose_record_cannot_be_read_supersedes_too() -> None:
    on = store()
    term = claim(log(on), paths.STAGER_ROLE)
    on.create(paths.term(paths.STAGER_ROLE, 2), b"damaged")

    with pytest.raises(FencedError, match=r"a newer process took over\. Stop this process$"):
        term.check(on)
