"""Checks that several documents share: whether a named file, test, function, law or scenario exists."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.chaos.__main__ import all_scenarios
from tests.support.processes import CHECKOUT

NOT_IN_GIT = {".git", ".venv", ".cache", "dist", "demo-out", "site", "__pycache__", "spark-warehouse", "metastore_db"}


def tracked_files(checkout: Path = CHECKOUT) -> list[Path]:
    """Return the files git knows. Without git or its folder (an unpacked archive), return the files that lie here."""
    if shutil.which("git") and (checkout / ".git").exists():
        git = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
        listed = subprocess.run(git, cwd=checkout, capture_output=True, text=True, check=True).stdout
        return [checkout / name for name in listed.split("\0") if name and (checkout / name).is_file()]
    everything = (path for path in checkout.rglob("*") if path.is_file())
    return [path for path in everything if not NOT_IN_GIT & set(path.relative_to(checkout).parts)]


@cache
def tree_of(file: str) -> ast.Module:
    path = CHECKOUT / file
    assert path.is_file(), f"no file {file}"
    return ast.parse(path.read_text())


@cache
def definitions(file: str) -> frozenset[str]:
    """Return the tests of a file, by the names that pytest gives them."""
    names: set[str] = set()
    for node in tree_of(file).body:
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
