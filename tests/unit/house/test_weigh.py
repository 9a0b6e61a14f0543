"""The figures of `make weigh`: a small tree, a small command line, and one real batch."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import click
import pytest

from tests.support.weigh import (
    Sources,
    Verbs,
    rooms_of,
    sources_of,
    trip_in,
    verbs_of,
)

MODULE = '''"""A docstring
of two lines."""

import os  # with a comment

# a comment
LIMIT = 3
"""The meaning of the name."""


class Place(
    Record,
    frozen=True,
):
    """A class."""

    text = """a text of

    three lines"""

    async def wait(self) -> None:
        """A method."""

        def inner() -> int:
            return (
                # why
                LIMIT
            )
'''
CODE = 1 + 1 + 4 + 3 + 1 + 1 + 3
"""The import, the limit, the head of the class, its text, and three parts of functions."""
LINES = 28


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout without git."""
    files = {
        "wal_sink/__init__.py": "",
        "wal_sink/errors.py": "class Wrong(Exception): ...\n",
        "wal_sink/log/records.py": MODULE,
        "wal_sink/log/inner/long.py": "x = 1\n" * 70,
        "wal_sink/log/notes.txt": "no code\n",
        "tests/test_wal.py": "def test_wal() -> None:\n    assert True",
        ".venv/wal_sink/other.py": "x = 1\n",
        "README.md": "# wal-sink\n\nthree words more\n",
        "docs/deep/page.md": "one two",
        "examples/README.md": "not counted",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_comments_docstrings_and_blank_lines_are_no_code(checkout: Path) -> None:
    assert sources_of([checkout / "wal_sink/log/records.py"]) == Sources(
        files=1, lines=LINES, code=CODE, functions=2, classes=1, below_70_lines=1
    )


def test_a_room_holds_the_files_of_its_inner_folders(checkout: Path) -> None:
    rooms = rooms_of(checkout)
    assert list(rooms) == ["(top)", "log"]
    assert rooms["log"] == Sources(2, LINES + 70, CODE + 70, functions=2, classes=1, below_70_lines=1)
    assert rooms["(top)"] == Sources(2, 1, 1, functions=0, classes=1, below_70_lines=1)


def test_a_command_line_has_the_verbs_and_options_that_its_help_shows() -> None:
    wal = click.Option(["-w", "--wal"])
    switch = click.Option(["--wait/--no-wait"])
    look = click.Command("look", params=[wal, click.Argument(["name"])])
    end = click.Command("end", params=[wal, switch, click.Option(["--old"], hidden=True)])
    secret = click.Command("secret", params=[wal], hidden=True)
    inner = click.Group("sinks", commands=[end, secret], params=[switch])
    main = click.Group("main", commands=[look, inner], params=[click.Option(["--version"])])
    assert verbs_of(main) == Verbs(verbs=2, options=3)


def test_the_trip_of_a_batch_is_the_same_twice(tmp_path: Path) -> None:
    first, second = trip_in(tmp_path / "first"), trip_in(tmp_path / "second")
    assert first == second
    assert {"protocol/run.py", "stores/local.py"} <= {*first.staging} & {*first.delivering}
    assert not any(file.startswith("testing/") for file in (*first.staging, *first.delivering))
    assert first.frames > 5
    assert (sys.getprofile(), threading.getprofile()) == (None, None)
