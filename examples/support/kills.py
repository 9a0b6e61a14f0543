"""Kill the process of a query at random moments, start it again, and find out what each kill interrupted."""

from __future__ import annotations

import argparse
import random
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from support.home import Home, Progress
from support.processes import Child, kill, wait_at_most

from tests.support.processes import ChildError, python_environment

__all__ = ["arguments", "files_for", "live_and_die"]

FILES_A_LIFE = 4
"""A process gets this many batches at most before it is killed, so that work remains for the next processes."""
LIFE_LIMIT_S = 240.0
TOO_BUSY = "Python worker failed to connect back"
"""How a query ends if a Python worker did not start within ten seconds. Spark has no setting for this time."""


def arguments(description: str | None, *, rows: int, kills: int = 6) -> argparse.ArgumentParser:
    """The arguments that all these examples have. `--query` is the process that is killed."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--kills", type=int, default=kills)
    parser.add_argument("--rows", type=int, default=rows, help="in each file")
    parser.add_argument("--seed", type=int, default=7, help="seed for the input and for the moments of the kills")
    parser.add_argument("--query", metavar="FOLDER", help=argparse.SUPPRESS)
    return parser


def files_for(kills: int, *, at_least: int = 3) -> int:
    """The number of input files that leaves work for every process."""
    return FILES_A_LIFE * kills + at_least


Turn = Callable[[Child, Home, Progress, random.Random], None]
"""Waits for the moment of a kill: a process, its home, the progress when it started, and the chance."""


@dataclass(frozen=True)
class Interrupted:
    """The work that a kill interrupted, according to the files that the dead process left."""

    staging: bool
    """Spark had begun a batch in this process, and the batch was not complete."""
    delivery: bool
    """A batch was complete, and the target had not all of it."""
    half_delivered: bool
    """The target had rows of such a batch, written by this process."""

    @classmethod
    def between(cls, home: Home, before: Progress, after: Progress) -> Interrupted:
        """`before`: when the process started; `after`: when it was dead."""
        took_over = after.terms > before.terms
        own_batch = after.begun > before.begun or home.staged_by(after.terms, after.begun)
        moved = after.complete > before.complete or after.delivered > before.delivered or after.ledger != before.ledger
        unfinished = after.complete > after.delivered
        return cls(
            staging=took_over and own_batch and after.begun > after.complete,
            delivery=took_over and moved and unfinished,
            half_delivered=after.in_target > after.delivered and after.ledger != before.ledger,
        )


def live_and_die(home: Home, kills: int, seed: int, *more: str, ledger: bool = True) -> None:
    """Run this program's query. Kill it `kills` times with SIGKILL, start it anew each time, and let the last one end.

    The kills take turns: in the middle of a delivery, in the middle of a batch that is computed and staged, and any
    time after a takeover, perhaps before the first new batch. Each comes after a random time. Raises `AssertionError`
    if what the dead processes left does not show that they were interrupted there. `ledger`: the target has the ledger
    of `SqlSink`, which tells that a batch is half delivered. `more`: further arguments of the program.
    """
    chance = random.Random(seed)
    home.scratch.mkdir(parents=True, exist_ok=True)
    turns: list[Turn] = [_half_delivered if ledger else _before_a_delivery_ends, _in_a_batch, _any_time]
    found: Counter[str] = Counter()
    for number in range(kills):
        turn = turns[number % len(turns)]
        before = home.progress()

        def die(child: Child, turn: Turn = turn, before: Progress = before) -> None:
            turn(child, home, before, chance)
            kill(child)

        _live(home, more, die)
        what = Interrupted.between(home, before, home.progress())
        found["staging"] += what.staging
        found["delivery"] += what.delivery
        found["half"] += what.half_delivered
        found["neither"] += not (what.staging or what.delivery)
    _live(home, more, lambda child: child.succeed())
    half = f" ({found['half']} of them with a part of its rows in the target)" if ledger else ""
    print(
        f"killed {kills} times: {found['staging']} in a batch that was being computed or staged, {found['delivery']} "
        f"before a complete batch was delivered{half}, {found['neither']} elsewhere"
    )
    assert found["half" if ledger else "delivery"] >= (kills + 2) // 3, "too few kills interrupted a delivery"
    assert found["staging"] >= (kills + 1) // 3, "too few kills interrupted a batch that was computed or staged"


def _live(home: Home, more: tuple[str, ...], act: Callable[[Child], object]) -> None:
    """Start the query's process and do `act` with it. Again, if Spark gave up waiting for a Python worker to start."""
    program = [sys.executable, str(Path(sys.argv[0]).resolve()), "--query", str(home.root), *more]
    environment = python_environment({"TMPDIR": str(home.scratch), "SPARK_LOCAL_DIRS": str(home.scratch)})
    for last_one in (False, False, True):
        with Child(program, log=home.root / "log", env=environment, limit_s=LIFE_LIMIT_S) as child:
            try:
                act(child)
            except ChildError:
                if last_one or TOO_BUSY not in child.output:
                    raise
                print("this machine is too busy: Spark waited ten seconds for a Python worker. It is started again")
            else:
                return


def _half_delivered(child: Child, home: Home, before: Progress, chance: random.Random) -> None:
    """Wait until the target has rows of a new batch, and not all of them."""
    first = before.in_target + chance.randrange(2)

    def begun() -> bool:
        now = home.progress()
        return now.in_target > max(first, now.delivered) and now.ledger != before.ledger

    _stop_while(begun, child, chance.uniform(0, 0.1), "a batch was being delivered")


def _before_a_delivery_ends(child: Child, home: Home, before: Progress, chance: random.Random) -> None:
    """Wait until a new batch is complete, and not marked as delivered."""
    first = before.complete + chance.randrange(2)

    def begun() -> bool:
        now = home.progress()
        return now.complete > max(first, now.delivered)

    _stop_while(begun, child, chance.uniform(0, 0.2), "a complete batch was being delivered")


def _in_a_batch(child: Child, home: Home, before: Progress, chance: random.Random) -> None:
    """Wait until Spark began a new batch, and did not complete it."""
    first = before.begun + chance.randrange(2)

    def begun() -> bool:
        now = home.progress()
        return now.begun > max(first, now.complete)

    _stop_while(begun, child, chance.uniform(0, 0.3), "a batch was being computed")


def _any_time(child: Child, home: Home, before: Progress, chance: random.Random) -> None:
    child.wait_until(lambda: home.progress().terms > before.terms, "it took over")
    wait_at_most(chance.uniform(0, 3), lambda: home.progress().begun >= before.begun + FILES_A_LIFE - 1)


def _stop_while(happens: Callable[[], bool], child: Child, delay_s: float, what: str) -> None:
    """Stop the process `delay_s` after `happens` became true.

    If it is no longer true by then, let the process go on, and try it again the next time with half the delay. A
    stopped process does nothing more, so the kill that follows finds it in that very moment.
    """
    while True:
        child.wait_until(happens, what)
        wait_at_most(delay_s, lambda: False)
        child.send_to_all(signal.SIGSTOP)
        try:
            if happens():
                return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
            # The stopped process holds SQLite's lock, so nobody can see what the target has at this moment.
        child.send_to_all(signal.SIGCONT)
        delay_s /= 2
