"""The command: play many histories and count what happened in them, or replay one history point by point."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial

from tests.simulation.histories.counting import Count, Drawing, play_on_all_cores
from tests.simulation.histories.drawing import FAMILY, draw_family
from tests.simulation.histories.drawing_losses import draw_losing_family
from tests.simulation.histories.plans import Plan
from tests.simulation.histories.playing import play, small_world


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.histories", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this history and print every point of it")
    parser.add_argument("--count", type=int, default=20_000, help="how many histories to play (default: 20000)")
    parser.add_argument(
        "--first",
        type=first_seed,
        default=0,
        help="the seed of the first history (default: 0), or `new` for one that is made from the time",
    )
    parser.add_argument("--cores", type=int, default=1, help="how many processes play (default: 1)")
    parser.add_argument(
        "--losses", action="store_true", help="play histories with targets that lose what they acknowledged"
    )
    parser.add_argument("--commits", action="store_true", help="with --losses: commit sinks, not transactional ones")
    parser.add_argument("--rolls", action="store_true", help="play histories with sinks that get rolls of batches")
    given = parser.parse_args(arguments)
    option = "".join(f" --{name}" for name in ("losses", "commits", "rolls") if getattr(given, name))
    families: Drawing = partial(draw_family, rolls=given.rolls)
    if given.losses:
        families = partial(draw_losing_family, commits=given.commits)
    if given.seed is not None:
        return replay(families(given.seed // FAMILY).plans[given.seed % FAMILY])
    return play_many(given.first, given.count, given.cores, option=option, families=families)


def first_seed(text: str) -> int:
    """Read `--first`. `new` is the date of today (UTC) and 9 digits: ten thousand seeds for each second of the day."""
    if text != "new":
        return int(text)
    now = datetime.now(UTC)
    second = now.hour * 3600 + now.minute * 60 + now.second
    return int(f"{now:%Y%m%d}{second * 10_000:09}")


def replay(plan: Plan) -> int:
    """Replay one history and print everything that happens in it."""
    with small_world():
        played = play(plan, traced=True)
    _say(repr(plan))
    for line in played.trace:
        _say(line)
    _say(f"seed {plan.seed}: {'; '.join(played.violations) or 'every law holds'}")
    return bool(played.violations)


def play_many(first: int, count: int, cores: int, *, option: str, families: Drawing) -> int:
    """Play many histories and print what happened in them."""
    total, begun = Count(), time.perf_counter()
    _say(f"python -m tests.simulation.histories{option} --first {first} --count {count}")
    sys.stdout.flush()
    for portion in play_on_all_cores(first, count, cores=cores, families=families):
        total.add(portion)
    wall_s = time.perf_counter() - begun
    _say(f"{total.histories} histories in {wall_s:.1f} s on {cores} cores, {total.cpu_s:.1f} s of processor time")
    _say(f"{total.per_second:.0f} histories/s/core, {total.points / total.histories:.0f} points each")
    for name, times in sorted(total.hits.items(), key=lambda item: -total.touched[item[0]]):
        _say(f"  {name:32} {times:8} times in {total.touched[name]:7} histories")
    _say(f"  {'nothing':32} {'':14} in {total.touched['nothing']:7} histories")
    for line in total.complaints(option):
        _say(line)
    _say(f"{total.broken} histories broke a law")
    return bool(total.broken)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
