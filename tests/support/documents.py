"""Checks that several documents share: whether a named file, test, function, law or scenario exists."""

from __future__ import annotations

import ast
import re
import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.support.processes import CHECKOUT

NOT_IN_GIT = {".git", ".venv", ".cache", "dist", "demo-out", "site", "__pycache__", "spark-warehouse", "metastore_db"}


@cache
def tracked_files(checkout: Path = CHECKOUT) -> tuple[Path, ...]:
    """Return the files git knows, read from its index. Without one (an unpacked archive), the files that lie here."""
    index = _git_folder(checkout) / "index"
    if index.is_file():
        paths = (checkout / name for name in names_in_index(index.read_bytes()))
        return tuple(path for path in paths if path.is_file())
    everything = (path for path in checkout.rglob("*") if path.is_file())
    return tuple(path for path in everything if not NOT_IN_GIT & set(path.relative_to(checkout).parts))


def _git_folder(checkout: Path) -> Path:
    """Return git's folder. In a second work tree, `.git` is a file that names it."""
    place = checkout / ".git"
    return checkout / place.read_text().removeprefix("gitdir: ").strip() if place.is_file() else place


def names_in_index(index: bytes) -> list[str]:
    """Return the names in git's index (gitformat-index), so that a test needs neither git nor a process."""
    signature, version, count = struct.unpack_from(">4sLL", index)
    if signature != b"DIRC" or version not in (2, 3):
        told = f"expected git's index of version 2 or 3, found {signature!r}, version {version}"
        raise ValueError(f"{told}: git update-index --index-version 2")
    names: dict[str, None] = {}
    at = 12
    for _ in range(count):
        (flags,) = struct.unpack_from(">H", index, at + 60)
        begins = at + (64 if flags & 0x4000 else 62)  # an extended entry has two more bytes
        ends = index.index(b"\0", begins)
        names[index[begins:ends].decode()] = None
        at += (ends - at) // 8 * 8 + 8  # zeros fill an entry up to a multiple of 8
    return list(names)


@cache
def syntax_of(source: str) -> ast.Module:
    """Return the syntax tree of a source: parsed once, because several checks read all sources."""
    return ast.parse(source)


@cache
def tree_of(file: str) -> ast.Module:
    return syntax_of(_text_of(file))


def _text_of(file: str) -> str:
    path = CHECKOUT / file
    assert path.is_file(), f"no file {file}"
    return path.read_text()


@cache
def definitions(file: str) -> frozenset[str]:
    """Return the tests of a file, by the names that pytest gives them."""
    names: set[str] = set()
    for node in ast.parse(_text_of(file)).body:  # the trees of all tests would take hundreds of MB
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names |= {f"{node.name}::{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return frozenset(names)


@cache
def places(file: str) -> frozenset[str]:
    """Return the definitions of a file: functions, classes, `Class.method`, constants, and calls at both levels."""
    return frozenset(name for name, _ in places_in(tree_of(file).body, ""))


def places_in(body: list[ast.stmt], head: str) -> Iterator[tuple[str, ast.stmt]]:
    """Yield each place of a module or class with its statement. Statements inside a function belong to the function."""
    for node in body:
        if isinstance(node, ast.If | ast.Try | ast.With):
            yield from places_in([inner for inner in ast.iter_child_nodes(node) if isinstance(inner, ast.stmt)], head)
        elif isinstance(node, ast.ClassDef):
            yield f"{head}{node.name}", node
            yield from places_in(node.body, f"{head}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{head}{node.name}", node
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield f"{head}{ast.unparse(node.value.func)}", node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((f"{head}{name}", node) for target in targets for name in _names(target))


def _names(target: ast.expr) -> list[str]:
    return [node.id for node in ast.walk(target) if isinstance(node, ast.Name)]


@cache
def laws() -> frozenset[str]:
    """Return the invariants and properties that TLC checks in the models of `make spec`."""
    texts = [(CHECKOUT / "specs" / f"{name}.tla").read_text() for name in ("WalSink", "TwoPhase")]
    defined = {name for text in texts for name in re.findall(r"^(\w+) ==", text, flags=re.MULTILINE)}
    checked: set[str] = set()
    for model in (CHECKOUT / "specs").glob("*.cfg"):
        listed = re.search(r"^(?:INVARIANTS?|PROPERT(?:Y|IES))\s+((?:\w+\s+)*)", model.read_text(), flags=re.MULTILINE)
        assert listed, f"{model.name} checks nothing"
        checked |= set(listed[1].split())
    return frozenset(defined & checked)


@cache
def scenarios() -> frozenset[str]:
    """Return the names of the scenarios of `make chaos`."""
    from tests.chaos.__main__ import all_scenarios  # noqa: PLC0415 - half a second, which few checks need

    return frozenset(scenario.name for scenario in all_scenarios())


def check_exists(check: str) -> bool:
    """Tell whether the check exists. It is `spec::Law`, `chaos::scenario` or `tests/….py::test`."""
    kind, _, name = check.partition("::")
    if kind == "spec":
        return name in laws()
    return name in (scenarios() if kind == "chaos" else definitions(kind))


def is_test(check: str) -> bool:
    """Tell whether the check names a test that pytest would run: a function `test_…` of a file of `tests/`."""
    file, _, name = check.partition("::")
    named_so = name.rpartition("::")[2].startswith("test_")
    return file.startswith("tests/") and named_so and name in definitions(file)
