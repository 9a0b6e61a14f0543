"""`make test-times`: write tests/slow.txt, the functions of tests that take more than a second of a processor.

Measured are the quick ones and those listed; what is slow by rule is not run. The tests run in the groups of `make
test`. A listed function leaves the list only below 0.7 s, and a skipped one not at all, so that two machines write the
same list.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

from tests.run import QUICK_GROUPS, WORK, Run, times_of
from tests.support.fixtures.times import LIMIT_S, Time
from tests.support.processes import CHECKOUT

LIST = CHECKOUT / "tests" / "slow.txt"
HEAD = "# seconds of a processor, function; written by `make test-times`\n"
STAYS_S = 0.7


def main() -> None:
    """Run the groups and write the list. A test that failed leaves a new list, too, and the exit code 1."""
    WORK.mkdir(parents=True, exist_ok=True)
    run = Run(seed=0, also="listed")
    for group in QUICK_GROUPS:
        times_of(group.name).unlink(missing_ok=True)
    run.groups(QUICK_GROUPS, lanes=2)
    times: dict[str, Time] = {}
    for group in QUICK_GROUPS:
        if not times_of(group.name).exists():
            sys.exit(f"the group {group.name} did not end: {LIST.relative_to(CHECKOUT)} stays as it was")
        written = json.loads(times_of(group.name).read_text())
        times |= {function: Time(**facts) for function, facts in written.items()}
    before = read(LIST.read_text())
    after = still_slow(before, times)
    LIST.write_text(text_of(after))
    for sign, changed in (("+", after.keys() - before.keys()), ("-", before.keys() - after.keys())):
        sys.stdout.writelines(f"{sign} {function}\n" for function in sorted(changed))
    sys.stdout.write(f"{LIST.relative_to(CHECKOUT)}: {len(after)} functions, {sum(after.values()):.0f} s\n")
    sys.exit(0 if run.green else 1)


def read(text: str) -> dict[str, float]:
    """Return the functions of a list with their seconds."""
    lines = (line.partition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {function: float(seconds) for seconds, _, function in lines}


def still_slow(before: Mapping[str, float], times: Mapping[str, Time]) -> dict[str, float]:
    """Return the functions of the new list. Those that were not measured are gone, or slow by rule."""
    found = {}
    for function, time in times.items():
        if time.was_skipped and function in before:
            found[function] = before[function]
        elif time.seconds > LIMIT_S or (function in before and time.seconds >= STAYS_S):
            found[function] = time.seconds
    return found


def text_of(slow: Mapping[str, float]) -> str:
    """Return the text of a list."""
    return HEAD + "".join(f"{seconds:.1f} {function}\n" for function, seconds in sorted(slow.items()))


if __name__ == "__main__":
    main()
