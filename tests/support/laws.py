"""The table of docs/GUARANTEES.md, made from docs/laws.toml: `python -m tests.support.laws --write`."""

from __future__ import annotations

import argparse
import re
import tomllib

from tests.support.processes import CHECKOUT

SOURCE = CHECKOUT / "docs/laws.toml"
PAGE = CHECKOUT / "docs/GUARANTEES.md"
BEGIN, END = "<!-- laws -->", "<!-- /laws -->"
LAWS = {"stands still": "a late call", "forgets": "rows and positions lost", "loses rows": "only rows lost"}
"""The disturbances of `crash_matrix` in the order of the columns, with the columns' names."""
_BETWEEN = re.compile(f"(?<={re.escape(BEGIN)}\n\n).*?(?=\n{re.escape(END)})", re.DOTALL)

Verdicts = dict[str, dict[str, str]]
"""By sink and disturbance."""


def read_laws() -> Verdicts:
    """Read docs/laws.toml of this checkout."""
    return tomllib.loads(SOURCE.read_text())


def with_table(page: str, verdicts: Verdicts) -> str:
    """Return the page with the table of these verdicts: sinks of equal ones share a row.

    Raises `ValueError` if the page has no place for it.
    """
    rows: dict[tuple[str, ...], list[str]] = {}
    for sink, found in verdicts.items():
        rows.setdefault(tuple(found[law] for law in LAWS), []).append(sink)
    lines = [("sink", *LAWS.values()), *((", ".join(sinks), *found) for found, sinks in rows.items())]
    head, *body = (f"| {' | '.join(line)} |" for line in lines)
    table = "\n".join([head, "|---" * (len(LAWS) + 1) + "|", *body, ""])
    changed, count = _BETWEEN.subn(lambda _: table, page)
    if count != 1:
        raise ValueError(f"{PAGE.name}: expected one pair of {BEGIN} and {END}, found {count}")
    return changed


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.laws", description="See above.")
    parser.add_argument("--write", action="store_true", help=f"write the table of {PAGE.relative_to(CHECKOUT)}")
    if parser.parse_args().write:
        PAGE.write_text(with_table(PAGE.read_text(), read_laws()))


if __name__ == "__main__":
    main()
