"""The guards of each function: `python -m tests.support.guarded [CHECKOUT] [--mutants] [--against OLDER]`.

Three guards: every branch of the function has to be covered (`[tool.coverage.run]` of pyproject.toml), its module may
import no pyspark (the test that imports each module of the core alone), and mutants are made of it (`make mutation`).
Each checkout answers for itself: by its pyproject.toml, its tests, its `benchmarks/mutation/run.py`. Statements are
counted as coverage counts them. A nested function belongs to the outer one; `<module>` is the rest of a file.

With `--against`, each function of the older checkout is looked for in the newer one, in this order: at the same place;
under the same qualified name elsewhere; under the same name, with the same body; by the likeness of its body. The file
`renamed.toml` beside the mutation tests maps old names to new ones first, such as `Serving = "ServedSink"`. Pairs that
were found by likeness are listed, for a reader to judge.
"""

from __future__ import annotations

import argparse
import ast
import fnmatch
import json
import re
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

from coverage import Coverage

from tests.support.processes import CHECKOUT

FOLDERS = ("wal_sink", "backends", "examples")
RENAMED = "benchmarks/mutation/renamed.toml"
FEW = 3
"""Functions of fewer statements are not looked for under another name: too many look alike."""
ALIKE, ALIKE_UNDER_OTHER_NAME = 0.6, 0.75
"""How alike two bodies have to be, by `difflib`, to count as one function that was changed."""
LAYER_TEST = "test_the_core_imports_neither_pyspark_nor_a_backend"
COUNTING_MUTANTS = """
import collections, json, sys
sys.path.insert(0, sys.argv[1])
import run
run.prepare()
counts = {file: collections.Counter(mutant.function for mutant in run.mutants_of(file)) for file in run.core_files()}
json.dump(counts, sys.stdout)
"""
GUARDS = ("branch coverage", "no pyspark", "mutants")


@dataclass(frozen=True, slots=True)
class Function:
    """One function of a checkout, with its guards."""

    file: str
    name: str
    """The name, qualified within its module."""
    body: str
    """The code without comments, docstring and layout."""
    statements: int
    is_covered: bool
    is_without_pyspark: bool
    mutants: int | None
    """The number of mutants. None if they were not counted."""

    @property
    def guards(self) -> set[str]:
        held = (self.is_covered, self.is_without_pyspark, bool(self.mutants))
        return {guard for guard, is_held in zip(GUARDS, held, strict=True) if is_held}

    def __str__(self) -> str:
        return f"{self.file}::{self.name}"


def functions_of(checkout: Path, *, with_mutants: bool) -> list[Function]:
    """List every function of a checkout, and the rest of each file under the name `<module>`."""
    settings = tomllib.loads((checkout / "pyproject.toml").read_text())["tool"]["coverage"]["run"]
    without_pyspark = modules_without_pyspark(checkout)
    mutants = mutants_of(checkout) if with_mutants else None
    found: list[Function] = []
    for path in sorted(path for folder in FOLDERS for path in (checkout / folder).rglob("*.py")):
        file = path.relative_to(checkout).as_posix()
        is_covered = file.split("/")[0] in settings["source"] and not any(
            fnmatch.fnmatch(file, p) for p in settings["omit"]
        )
        module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        found += [
            Function(file, name, body, count, is_covered, module in without_pyspark, _mutants(mutants, file, name))
            for name, body, count in _parts(path)
        ]
    unknown = {file: names for file, names in (mutants or {}).items() if names}
    if unknown:
        raise LookupError(f"mutants of functions that {checkout} does not define: {unknown}")
    return found


def _mutants(counted: dict[str, dict[str, int]] | None, file: str, name: str) -> int | None:
    """Take the mutants of a function out of the counts, which name it by its module or by the stem of its file."""
    if counted is None:
        return None
    module = file.removeprefix("wal_sink/").removesuffix(".py").replace("/", ".")
    of_file = counted.get(file, {})
    return of_file.pop(f"{module}.{name}", 0) + of_file.pop(f"{module.rpartition('.')[2]}.{name}", 0)


def modules_without_pyspark(checkout: Path) -> frozenset[str]:
    """Ask the checkout which modules the test of the layers imports."""
    holding = [path for path in (checkout / "tests").rglob("test_*.py") if f"def {LAYER_TEST}(" in path.read_text()]
    if len(holding) != 1:
        raise LookupError(f"{LAYER_TEST} is defined in {len(holding)} files of {checkout}/tests, not in one")
    file = holding[0].relative_to(checkout).as_posix()
    ask = f"import runpy, sys; sys.path.insert(0, '.'); print(*runpy.run_path({file!r})['_core_modules']())"
    return frozenset(_output([sys.executable, "-c", ask], checkout).split())


def mutants_of(checkout: Path) -> dict[str, dict[str, int]]:
    """Let the mutation tests of the checkout make their mutants; needs mutmut. Counts by file and function."""
    folder = checkout / "benchmarks" / "mutation"
    counted: dict[str, dict[str, int]] = json.loads(
        _output([sys.executable, "-c", COUNTING_MUTANTS, str(folder)], checkout)
    )
    return counted


def _output(command: list[str], checkout: Path) -> str:
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(command)} in {checkout} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    return done.stdout


def _parts(path: Path) -> Iterator[tuple[str, str, int]]:
    """Yield name, body and number of statements of each function of a file, then of its rest."""
    _, statements, *_ = Coverage(data_file=None, config_file=False).analysis2(str(path))
    rest, names = set(statements), Counter[str]()
    for name, node in _defined(ast.parse(path.read_text()).body, ""):
        names[name] += 1  # the getter and the setter of a property share a name
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        own = {line for line in statements if first <= line <= (node.end_lineno or first)}
        rest -= own
        yield name + f"#{names[name]}" * (names[name] > 1), _normalized(node), len(own)
    yield "<module>", "", len(rest)


def _defined(body: Iterable[ast.stmt], head: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield head + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _defined(node.body, f"{head}{node.name}.")
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from _defined([inner for inner in ast.iter_child_nodes(node) if isinstance(inner, ast.stmt)], head)


def _normalized(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    told = node.body[1:] if ast.get_docstring(node) is not None else node.body
    return "\n".join([ast.unparse(node.args), *map(ast.unparse, told)])


@dataclass(frozen=True, slots=True)
class Pair:
    """One function in two checkouts, and how it was found in the newer one."""

    before: Function
    after: Function
    how: str

    @property
    def lost(self) -> list[str]:
        """The guards that the function had before and does not have now."""
        return [guard for guard in GUARDS if guard in self.before.guards - self.after.guards]


class Matching:
    """The search for each function of the older list in the newer one. The rest is gone, or new."""

    def __init__(self, before: list[Function], after: list[Function], renamed: dict[str, str]) -> None:
        self._renamed = [(re.compile(rf"(?<!\w){re.escape(old)}(?!\w)"), new) for old, new in renamed.items()]
        self.gone = [function for function in before if function.name != "<module>"]
        self.new = [function for function in after if function.name != "<module>"]
        self.pairs: list[Pair] = []
        now = self._now
        self._pair("same place", [(old.file, now(old.name)) for old in self.gone], [(f.file, f.name) for f in self.new])
        self._pair(
            "same name and body", *([(now(f.name), now(f.body)) for f in side] for side in (self.gone, self.new))
        )
        self._pair(
            "same last name and body",
            *([(_last(now(f.name)), now(f.body)) for f in side] for side in (self.gone, self.new)),
        )
        self._pair_by_likeness()

    def _now(self, text: str) -> str:
        for old, new in self._renamed:
            text = old.sub(new, text)
        return text

    def _pair(self, how: str, gone: list[tuple[str, str]], new: list[tuple[str, str]]) -> None:
        """Pair those of equal keys, in their order."""
        waiting: dict[tuple[str, str], list[Function]] = defaultdict(list)
        for key, function in zip(reversed(new), reversed(self.new), strict=True):
            waiting[key].append(function)
        for key, function in zip(gone, list(self.gone), strict=True):
            if waiting[key]:
                self._found(function, waiting[key].pop(), how)

    def _pair_by_likeness(self) -> None:
        """Pair the most alike first."""
        words = {id(f): re.findall(r"\w+|[^\w\s]", self._now(f.body)) for f in [*self.gone, *self.new]}
        names = {id(f): self._now(f.name) for f in [*self.gone, *self.new]}
        alike: list[tuple[float, int, Function, Function]] = []
        for old in self.gone:
            matcher = SequenceMatcher(None, b=words[id(old)], autojunk=False)
            for new in self.new:
                matcher.set_seq1(words[id(new)])
                is_named_so = _last(names[id(old)]) == _last(names[id(new)])
                if not is_named_so and min(old.statements, new.statements) < FEW:
                    continue
                least = ALIKE if is_named_so else ALIKE_UNDER_OTHER_NAME
                if matcher.real_quick_ratio() >= least <= matcher.quick_ratio() and matcher.ratio() >= least:
                    alike.append((matcher.ratio() + (names[id(old)] == names[id(new)]), len(alike), old, new))
        taken: set[int] = set()
        for likeness, _, old, new in sorted(alike, key=lambda found: (-found[0], found[1])):
            if not taken & {id(old), id(new)}:
                taken |= {id(old), id(new)}
                same_name = names[id(old)] == names[id(new)]
                self._found(old, new, f"{100 * (likeness - same_name):.0f} % alike")

    def _found(self, old: Function, new: Function, how: str) -> None:
        self.pairs.append(Pair(old, new, how))
        self.gone = [function for function in self.gone if function is not old]
        self.new = [function for function in self.new if function is not new]


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def comparison(before: list[Function], after: list[Function], renamed: dict[str, str]) -> str:
    """Say what became of every function that was guarded, and which are new."""
    matching = Matching(before, after, renamed)
    guarded = [function for function in matching.gone if function.guards]
    lost = [pair for pair in matching.pairs if pair.lost]
    judged = [pair for pair in matching.pairs if pair.how.endswith("alike") and pair.before.guards]
    how = Counter("by likeness" if pair.how.endswith("alike") else pair.how for pair in matching.pairs)
    return "\n".join(
        [
            "Before: " + totals(before),
            "After:  " + totals(after),
            "Found again: " + ", ".join(f"{count} {kind}" for kind, count in how.items()),
            *_section("Guarded before, not so now", [f"{p.before} ({', '.join(p.lost)}) is {p.after}" for p in lost]),
            *_section("Guarded before, not found now", [_shown(function) for function in guarded]),
            *_section("Found by likeness", [f"{pair.before} is {pair.after}, {pair.how}" for pair in judged]),
            *_section("New", [_shown(function) for function in matching.new]),
            "",
        ]
    )


def _section(title: str, lines: list[str]) -> list[str]:
    return ["", f"{title}: {len(lines)}", *(f"  {line}" for line in lines)]


def totals(functions: list[Function]) -> str:
    """Count functions, statements and mutants under each guard."""
    told = []
    for guard in GUARDS[:2]:
        held = [function for function in functions if guard in function.guards]
        count = sum(function.name != "<module>" for function in held)
        files = len({function.file for function in held})
        told.append(f"{guard}: {files} files, {count} functions, {sum(f.statements for f in held)} statements")
    counted = [function.mutants for function in functions if function.mutants is not None]
    told.append(
        f"mutants: {sum(counted)} of {sum(map(bool, counted))} functions" if counted else "mutants: not counted"
    )
    return "; ".join(told)


def _shown(function: Function) -> str:
    mutants = "" if function.mutants is None else f", {function.mutants} mutants"
    held = " and ".join(sorted(function.guards & set(GUARDS[:2]))) or "unguarded"
    return f"{function}: {held}, {function.statements} statements{mutants}"


def main() -> None:
    """Print what is guarded in a checkout, or compare it with an older one."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.guarded", description="List what is guarded.")
    parser.add_argument("checkout", nargs="?", type=Path, default=CHECKOUT, help="any state of this repository")
    parser.add_argument("--against", type=Path, metavar="OLDER", help="compare with this older checkout")
    parser.add_argument("--mutants", action="store_true", help="count mutants too; needs the group `mutation`")
    given = parser.parse_args()
    after = functions_of(given.checkout.resolve(), with_mutants=given.mutants)
    if given.against is None:
        sys.stdout.write("\n".join([*map(_shown, after), totals(after), ""]))
        return
    names = given.checkout / RENAMED
    renamed = tomllib.loads(names.read_text()) if names.exists() else {}
    before = functions_of(given.against.resolve(), with_mutants=given.mutants)
    sys.stdout.write(comparison(before, after, renamed))


if __name__ == "__main__":
    main()
