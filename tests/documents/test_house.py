"""Many tests use the same things of the inside of the package: tests/house names them once."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.support.processes import CHECKOUT

PUBLIC = {
    *(
        "wal_sink",
        "wal_sink.errors",
        "wal_sink.operate.replay",
        "wal_sink.settings",
        "wal_sink.sinks",
        "wal_sink.testing",
    ),
    "wal_sink.wrap",
}
"""Modules for users."""
FEW = 2
"""So many files may take a name from the module that has it: mostly the tests of that module."""


def test_what_more_than_two_files_take_from_the_inside_comes_from_the_house() -> None:
    files: dict[str, set[str]] = defaultdict(set)
    for path in (CHECKOUT / "tests").rglob("*.py"):
        if path.parent.name != "house":
            for name in taken_from_inside(path):
                files[name].add(str(path.relative_to(CHECKOUT)))

    assert {name: sorted(users) for name, users in files.items() if len(users) > FEW} == {}
    assert files, "nothing is taken from the inside: the names of modules have changed"


def taken_from_inside(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module not in PUBLIC:
            yield from (f"{node.module}.{each.name}" for each in node.names if node.module.startswith("wal_sink."))
