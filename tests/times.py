"""`make test-times`: write tests/slow.txt, the functions of tests that take more than a second of a processor.

Measured are the quick ones and those listed; what is slow by rule is not run. The tests run as in `make test`, those of
the core with coverage, but in the order of the files. A listed function leaves the list only below 0.7 s, and a skipped
one not at all, so that two machines write the same list.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.support.fixtures.times import FOLDERS, LIMIT_S, Time
from tests.support.processes import CHECKOUT

LIST = CHECKOUT / "tests" / "slow.txt"
HEAD = "# seconds of a processor, function; written by `make test-times`\n"
STAYS_S = 0.7


def main() -> None:
    """Measure and write the list. Exit with the code of pytest; 0 and 1 leave a new list."""
    with tempfile.TemporaryDirectory() as folder:
        code, times = _measured(Path(folder))
    if code not in (0, 1):
        sys.exit(f"pytest ended with code {code}: {LIST.relative_to(CHECKOUT)} stays as it was")
    before = read(LIST.read_text())
    after = still_slow(before, times)
    LIST.write_text(text_of(after))
    for sign, changed in (("+", after.keys() - before.keys()), ("-", before.keys() - after.keys())):
        sys.stdout.writelines(f"{sign} {function}\n" for function in sorted(changed))
    sys.stdout.write(f"{LIST.relative_to(CHECKOUT)}: {len(after)} functions, {sum(after.values()):.0f} s\n")
    sys.exit(code)


def _measured(folder: Path) -> tuple[int, dict[str, Time]]:
    file = folder / "times.json"
    chosen = ["-m", "not slow or listed", "-p", "no:randomly", "-p", "no:xdist", "-q", "--times", str(file)]
    covered = ["--cov", "--cov-report=", "--cov-fail-under=0"]
    code = subprocess.run(
        [sys.executable, "-m", "pytest", *FOLDERS, *chosen, *covered],
        cwd=CHECKOUT,
        env={**os.environ, "COVERAGE_FILE": str(folder / "coverage")},
        check=False,
    ).returncode
    written = json.loads(file.read_text()) if file.exists() else {}
    return code, {function: Time(**facts) for function, facts in written.items()}


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
