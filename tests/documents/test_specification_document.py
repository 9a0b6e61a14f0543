"""`specs/README.md` and `specs/check.py` name what the specification has, and the reverse."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
SPECS = CHECKOUT / "specs"
MODULES = ("WalSink", "TwoPhase", "Together", "Forgets", "LostObjects", "Lake")
PACKAGES = ("wal_sink", "backends/wal_sink_backends")
CAPITALIZED = r"[A-Z]\w+"


def text_of(module: str) -> str:
    return (SPECS / f"{module}.tla").read_text()


def code_of(module: str) -> str:
    """A module without its comments."""
    return re.sub(r"\\\*.*|\(\*.*?\*\)", "", text_of(module))


def actions(module: str) -> set[str]:
    """Return the actions that `Next` can take. Steps of processes are resolved to their actions."""
    found: set[str] = set()
    open_names = {"Next"}
    bodies = dict(re.findall(r"(?ms)^(\w+)(?:\([^)]*\))? ==(.*?)(?=^\S|\Z)", code_of(module)))
    while open_names:
        name = open_names.pop()
        parts = set(re.findall(rf"\b({CAPITALIZED})(?=\(|\b)", bodies[name])) & set(bodies)
        for part in parts:
            if part.endswith("Step") or part == "Misfortune":
                open_names.add(part)
            elif "'" in bodies[part] or "UNCHANGED" in bodies[part]:
                found.add(part)
    return found


def table() -> list[tuple[str, str]]:
    after = (SPECS / "README.md").read_text().split("## From code to specification")[1]
    _head, _line, *rows = [line.strip("| ").split(" | ") for line in after.splitlines() if line.startswith("|")]
    return [(code, spec) for code, spec in rows]


@cache
def planted() -> frozenset[tuple[str, str]]:
    tree = ast.parse((SPECS / "check.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "PLANTED":
            return frozenset(ast.literal_eval(node.value))
    raise AssertionError("specs/check.py plants nothing")


def test_every_action_is_in_the_table() -> None:
    named = {name for _, spec in table() for name in re.findall(r"`(\w+)`", spec)}
    taken = {module: actions(module) for module in MODULES}
    assert {module: len(found) for module, found in taken.items() if len(found) < 12} == {}
    assert {module: found - named for module, found in taken.items() if found - named} == {}


def test_what_the_table_names_is_in_the_specification() -> None:
    defined = {name for module in MODULES for name in re.findall(r"(?m)^(\w+)(?:\([^)]*\))? ==", code_of(module))}
    named = {name for _, spec in table() for name in re.findall(rf"`({CAPITALIZED})`", spec)}
    assert named - defined == {"Chains"} & named


def test_the_functions_that_the_table_names_exist() -> None:
    code = "\n".join(path.read_text() for package in PACKAGES for path in (CHECKOUT / package).rglob("*.py"))
    defined = set(re.findall(r"(?m)^\s*(?:def|class) (\w+)", code))
    named = [reference for cell, _ in table() for reference in re.findall(r"`([\w.]+)`", cell)]
    gone = [name for name in named if name.split(".")[-1] not in defined | {"tla", "Chains"}]
    assert len(named) > 40
    assert gone == []
    modules = {match.group() for name in named if (match := re.match(r"[a-z_]+(\.[a-z_]+)?(?=\.[A-Za-z_*])", name))}
    assert [each for each in modules if not (CHECKOUT / "wal_sink" / f"{each.replace('.', '/')}.py").is_file()] == []


def test_every_planted_bug_is_in_the_module_of_its_model() -> None:
    absent = []
    for bug, model in sorted(planted()):
        extended = re.search(r"EXTENDS (WalSink|TwoPhase|Forgets|LostObjects|Lake)\b", text_of(model))
        if f'"{bug}"' not in code_of(extended[1] if extended else model):
            absent.append((bug, model))
    assert absent == []


def test_every_bug_that_can_be_planted_is_planted_or_told_to_be_harmless() -> None:
    told = (SPECS / "README.md").read_text()
    bugs = {
        bug
        for module in MODULES
        for names in re.findall(r'BUG (?:=|#|\\in|\\notin) (\{[^}]*\}|"\w+")', code_of(module))
        for bug in re.findall(r'"(\w+)"', names)
    }
    unplanted = bugs - {bug for bug, _ in planted()}
    assert [bug for bug in sorted(unplanted) if bug not in told] == []
