"""Checkpoints that lose an entry, are restored or vanish between two runs. Such changes make other sinks repeat rows.

All runs of a scenario happen in one Spark. Its query runs over the present files at each turn.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tests.chaos.lives import SINKS, Chain, Turns, add_counts, guarded, tally
from tests.chaos.scenario import Effort, Outcome, Scenario
from tests.chaos.targets import PLAIN
from tests.support.streams import copy_of, restore

SEGMENTS = 2
DELETED, RESTORED, GONE = 30, 20, 12
DONE = "done"

Round = Callable[[Chain, Turns], str]
"""One round of a scenario. Returns a description of it."""


def _commit_deleted(chain: Chain, turns: Turns) -> str:
    """Delete the newest entries of `commits/`, so that Spark runs its last batch again, and add new rows."""
    chain.feed(chain.chance.randint(1, 3))
    _expect(chain, turns, DONE)
    doomed = chain.chance.choice([1, 1, 1, 2])
    for batch_id in range(chain.seen().completed, chain.seen().completed - doomed, -1):
        _delete_entry(chain.job.place.checkpoint / "commits", batch_id)
    chain.feed(chain.chance.randint(0, 1))
    _expect(chain, turns, DONE)
    return f"{doomed} of commits/ deleted"


def _checkpoint_restored(chain: Chain, turns: Turns) -> str:
    """Restore an older checkpoint. It works over the same files and is refused over others."""
    checkpoint = chain.job.place.checkpoint
    chain.feed(1)
    _expect(chain, turns, DONE)
    older = copy_of(checkpoint, "older")
    chain.feed(chain.chance.randint(2, 4))
    _expect(chain, turns, DONE)
    newer = copy_of(checkpoint, "newer")
    restore(older, checkpoint)
    try:
        if chain.chance.random() < 0.5:
            _expect(chain, turns, DONE)
            return "restored over the same files"
        _refused_over_other_files(chain, turns)
        restore(newer, checkpoint)
        _expect(chain, turns, DONE)
        return "restored over other files"
    finally:
        shutil.rmtree(older)
        shutil.rmtree(newer)


def _refused_over_other_files(chain: Chain, turns: Turns) -> None:
    """Hide the first file that the restored checkpoint has not read yet, so that known batch ids mean other rows."""
    files = sorted(chain.job.place.feed.folder.glob("*.json"))
    hidden = files[chain.seen().files + 1]
    elsewhere = chain.root / hidden.name
    hidden.rename(elsewhere)
    try:
        _expect_refusal(chain, turns, "HistoryError")
    finally:
        elsewhere.rename(hidden)


def _checkpoint_gone(chain: Chain, turns: Turns) -> str:
    """Delete the checkpoint, or give it another query's id. It is refused before anything is staged."""
    checkpoint = chain.job.place.checkpoint
    chain.feed(chain.chance.randint(1, 2))
    _expect(chain, turns, DONE)
    kept = copy_of(checkpoint, "kept")
    shutil.rmtree(checkpoint)
    another = chain.chance.random() < 0.5
    if another:
        checkpoint.mkdir()
        (checkpoint / "metadata").write_text('{"id":"00000000-0000-4000-8000-000000000000"}')
    chain.feed(1)
    _expect_refusal(chain, turns, "HistoryError")
    restore(kept, checkpoint)
    shutil.rmtree(kept)
    _expect(chain, turns, DONE)
    return "another query's" if another else "deleted"


def _expect(chain: Chain, turns: Turns, expected: str) -> None:
    found = turns.run()
    if not found.startswith(expected):
        shown = found.replace(str(chain.root), "…")[:200]
        chain.violations.append(f"{chain.root.name}: expected {expected}, found {shown}")


def _expect_refusal(chain: Chain, turns: Turns, error: str) -> None:
    """Expect that the run fails with this error, and that neither targets nor the WAL's batches change."""
    before = _held(chain)
    _expect(chain, turns, error)
    if _held(chain) != before:
        chain.violations.append(f"{chain.root.name}: {error} was raised, but rows or batches were added")


def _held(chain: Chain) -> tuple[list[int], list[str]]:
    batches = chain.job.place.wal / "batches"
    return [len(chain.targets.rows(name)) for name in SINKS], sorted(str(path) for path in batches.rglob("*"))


def _delete_entry(folder: Path, number: int) -> None:
    (folder / str(number)).unlink(missing_ok=True)
    (folder / f".{number}.crc").unlink(missing_ok=True)


def _replayed(name: str, one: Round, whole: int, effort: Effort) -> Outcome:
    chain = Chain(effort.folder / name, random.Random(effort.seed), partitions=SEGMENTS)
    done: Counter[str] = Counter()

    def lives() -> None:
        with Turns(chain) as turns:
            for _ in range(effort.times(whole)):
                done[one(chain, turns)] += 1
            chain.feed(1)
            _expect(chain, turns, DONE)

    guarded(effort.seed, chain, lives)
    outcome = Outcome(rounds=done.total())
    rows = add_counts(outcome, chain, allowed=0)
    outcome.detail = "\n".join([tally("rounds", done), tally("rows by target", Counter(rows))])
    outcome.detail += f"\n- every repeat on the {PLAIN} target counts: nothing crashed, so none is permitted"
    return outcome


SCENARIOS: Sequence[Scenario] = (
    Scenario(
        "commits deleted",
        "a batch that Spark runs again because the newest entry of commits/ is gone reaches no target twice",
        "restart",
        partial(_replayed, "commits-deleted", _commit_deleted, DELETED),
    ),
    Scenario(
        "checkpoint restored",
        "an older checkpoint works over the same input and is refused over other input, before anything is delivered",
        "restore",
        partial(_replayed, "checkpoint-restored", _checkpoint_restored, RESTORED),
    ),
    Scenario(
        "checkpoint gone",
        "a WAL refuses a deleted checkpoint and another query's checkpoint; with the right one it goes on",
        "refusal",
        partial(_replayed, "checkpoint-gone", _checkpoint_gone, GONE),
    ),
)
