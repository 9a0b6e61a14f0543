"""CONTRIBUTING.md, SECURITY.md and CHANGELOG.md name files, folders and commands that exist. `test_links.py` has links.

Small made-up texts show that each of them is noticed if it does not.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.support.processes import CHECKOUT
from tests.support.workflows import ci_checks, make_targets

PAGES = ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
CONTRIBUTING = (CHECKOUT / "CONTRIBUTING.md").read_text()
WIDTH = 100
_CODE = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(
    r"(?:wal_sink|backends|tests|docs|examples|benchmarks|specs|\.github|\.ci)/[\w./-]*|[\w-]+\.(?:toml|txt|md)"
)
_MAKE = re.compile(r"(?:^ {4}|`)make ([a-z][a-z0-9-]*(?: [a-z][a-z0-9-]*)*)", re.MULTILINE)
_MODULE = re.compile(r"python -m ((?:tests|benchmarks|examples)[\w.]*)")
_CI = re.compile(r"\.ci/run ([a-z][a-z-]*)")


def wrong(text: str) -> list[str]:
    """Return everything that a text names and that does not exist."""
    return [*_wrong_paths(text), *_wrong_commands(text)]


def _wrong_paths(text: str) -> Iterator[str]:
    for code in _CODE.findall(text):
        path = code.partition("::")[0]
        there = (CHECKOUT / path).exists() or (CHECKOUT / "docs" / path).exists()
        if _PATH.fullmatch(path) and "NAME" not in path and not there:
            yield f"no file {path}"


def _wrong_commands(text: str) -> Iterator[str]:
    for targets in _MAKE.findall(text):
        yield from (f"no target {name}" for name in targets.split() if name not in make_targets())
    yield from (f"no check {name}" for name in _CI.findall(text) if name not in ci_checks())
    for module in _MODULE.findall(text):
        path = CHECKOUT / module.replace(".", "/")
        if not path.with_suffix(".py").is_file() and not (path / "__main__.py").is_file():
            yield f"no module {module}"


def test_everything_that_a_page_names_exists_and_its_lines_are_wrapped() -> None:
    texts = {page: (CHECKOUT / page).read_text() for page in PAGES}
    assert [f"{page}: {fault}" for page, text in texts.items() for fault in wrong(text)] == []
    lines = [(page, line) for page, text in texts.items() for line in text.splitlines()]
    assert [(page, line) for page, line in lines if len(line) > WIDTH and not line.startswith("|")] == []


def test_a_name_of_nothing_is_noticed() -> None:
    planted = [
        ("see `wal_sink/gone.py`", "no file wal_sink/gone.py"),
        ("see `tests/documents/test_gone.py::test_it`", "no file tests/documents/test_gone.py"),
        ("see `gone.toml`", "no file gone.toml"),
        ("run `make gone`", "no target gone"),
        ("    make check gone    # two", "no target gone"),
        ("run `.ci/run gone`", "no check gone"),
        ("run `python -m tests.support.gone --write`", "no module tests.support.gone"),
    ]
    assert [wrong(text) for text, _ in planted] == [[said] for _, said in planted]


def test_the_map_of_the_tests_is_whole() -> None:
    folders = {f"tests/{path.name}/" for path in (CHECKOUT / "tests").iterdir() if path.is_dir() and _is_kept(path)}
    table = CONTRIBUTING.partition("## Map of the tests")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(tests/\w+/)` \|", table, flags=re.MULTILINE)) == folders


def _is_kept(folder: Path) -> bool:
    return any(path.is_file() and path.suffix != ".pyc" for path in folder.rglob("*"))


def test_the_newest_changes_are_those_of_the_version() -> None:
    version = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["version"]
    newest = re.search(
        r"^## (\S+) \((unreleased|\d{4}-\d\d-\d\d)\)$", (CHECKOUT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert newest
    assert newest[1] == version
