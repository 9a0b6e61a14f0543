"""The messages of the sources, computed from the syntax trees: which text each error and each warning can have.

A message is often an f-string, or is made by another function. Each placeholder, and each part that is not known before
the program runs, becomes `UNKNOWN`. One message can have several texts, for example one for each side of a condition.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.support.documents import syntax_of
from tests.support.processes import CHECKOUT

PACKAGES = ("wal_sink", "backends/wal_sink_backends")
OTHERS = "wal_sink/support/texts.py"
"""Its functions return the texts of objects that others made: their words are not ours."""
UNKNOWN = "\x00"
MOST_TEXTS = 64
"""Most texts of one message. None of the messages has more."""
FEWEST_LETTERS = 8
"""Letters of a text by which a reader can recognise it. "timed out" has as many."""
DEEPEST = 4
"""How many functions and names deep a text is looked for."""
_PERCENT = re.compile(r"%(?:\.\d+)?[sdrgf]")
_BASES = {"Exception", "BaseException", "KeyboardInterrupt", "Warning", "UserWarning", "RuntimeWarning"}

Scope = Mapping[str, list[ast.expr]]
"""The expressions that a name can stand for."""


@dataclass(frozen=True)
class Site:
    """A place that makes an error, or logs a warning."""

    what: str
    """The class of the error; `warning` for a warning."""
    file: str
    line: int
    texts: tuple[str, ...]
    """Everything that the message can be."""

    @property
    def own_texts(self) -> tuple[str, ...]:
        """The texts with words. A text without words only passes on the message of another program."""
        return tuple(text for text in self.texts if has_words(text, UNKNOWN))

    def __str__(self) -> str:
        shown = " | ".join(text.replace(UNKNOWN, "{}") for text in self.own_texts)
        return f"{self.file}:{self.line}: {self.what}: {shown}"


@dataclass(frozen=True)
class Sources:
    """Everything that the messages of a checkout are computed from."""

    classes: Mapping[str, str]
    """The exception classes of both packages, with the files that define them."""
    parents: Mapping[str, tuple[str, ...]]
    """The classes of ours that each of them derives from, the nearest first."""
    sites: tuple[Site, ...]
    strings: tuple[str, ...]
    """Every text in the sources except docstrings."""


@cache
def read_sources(checkout: Path = CHECKOUT) -> Sources:
    """Read both packages of a checkout."""
    trees = {
        path.relative_to(checkout).as_posix(): syntax_of(path.read_text())
        for package in PACKAGES
        for path in sorted((checkout / package).rglob("*.py"))
    }
    if not trees:
        raise FileNotFoundError(f"{checkout} holds none of {PACKAGES}")
    return _Reader(trees).read()


def has_words(text: str, unknown: str) -> bool:
    """Whether a part between two unknown ones has enough letters to recognise the text by it."""
    return any(sum(map(str.isalpha, part)) >= FEWEST_LETTERS for part in text.split(unknown))


class _Reader:
    """Finds the texts of messages in the trees of all files."""

    def __init__(self, trees: dict[str, ast.Module]) -> None:
        self._trees = trees
        self._functions: dict[str, list[tuple[ast.FunctionDef, str]]] = defaultdict(list)
        self._constants: dict[str, dict[str, list[ast.expr]]] = {}
        self._classes: dict[str, ast.ClassDef] = {}
        self._files: dict[str, str] = {}
        for file, tree in trees.items():
            self._note(file, tree)
        self._of_others = {node.name for node in trees[OTHERS].body if isinstance(node, ast.FunctionDef)}

    def _note(self, file: str, tree: ast.Module) -> None:
        self._constants[file] = _assigned(tree.body)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                self._functions[node.name].append((node, file))
            elif isinstance(node, ast.ClassDef):
                self._classes[node.name] = node
                self._files[node.name] = file

    def read(self) -> Sources:
        errors = {name: self._files[name] for name in self._classes if self._is_exception(name)}
        sites = [
            site
            for file, tree in self._trees.items()
            for site in self._sites(file, tree, self._constants[file], errors)
        ]
        strings = [text for file, tree in self._trees.items() for text in self._strings(tree, self._constants[file])]
        strings += [text for site in sites for text in site.texts]
        parents = {name: tuple(self._parents(name)) for name in errors}
        return Sources(errors, parents, tuple(sites), tuple(dict.fromkeys(strings)))

    def _is_exception(self, name: str) -> bool:
        bases = self._bases(name)
        return any(base in _BASES or (base in self._classes and self._is_exception(base)) for base in bases)

    def _bases(self, name: str) -> list[str]:
        return [ast.unparse(base).rpartition(".")[2] for base in self._classes[name].bases]

    def _parents(self, name: str) -> Iterator[str]:
        for base in self._bases(name):
            if base in self._classes:
                yield base
                yield from self._parents(base)

    def _sites(self, file: str, node: ast.AST, scope: Scope, errors: Mapping[str, str]) -> Iterator[Site]:
        if isinstance(node, ast.FunctionDef):
            scope = {**scope, **_assigned(ast.walk(node))}
        if isinstance(node, ast.Call):
            name = _called(node)
            if name in errors and node.args:
                given = node.args[min(self._place_of_message(name), len(node.args) - 1)]
                yield Site(name, file, node.lineno, self._texts(given, scope, DEEPEST))
            elif name == "warning" and node.args:
                texts = self._texts(node.args[0], scope, DEEPEST)
                if texts == ("%s",) and len(node.args) > 1:
                    texts = self._texts(node.args[1], scope, DEEPEST)
                yield Site("warning", file, node.lineno, tuple(_PERCENT.sub(UNKNOWN, text) for text in texts))
        for child in ast.iter_child_nodes(node):
            yield from self._sites(file, child, scope, errors)

    def _place_of_message(self, name: str) -> int:
        """The place of the argument `message` in a call of the class; 0 if the class has no such argument."""
        for node in self._classes[name].body:
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                names = [argument.arg for argument in node.args.args[1:]]
                return names.index("message") if "message" in names else 0
        bases = [base for each in self._classes[name].bases if (base := ast.unparse(each)) in self._classes]
        return self._place_of_message(bases[0]) if bases else 0

    def _strings(self, tree: ast.Module, scope: Scope) -> Iterator[str]:
        documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp) and id(node) not in documented:
                yield from (_PERCENT.sub(UNKNOWN, text) for text in self._texts(node, scope, 0))

    def _texts(self, node: ast.expr, scope: Scope, depth: int) -> tuple[str, ...]:
        """Everything that an expression can be as text."""
        found = dict.fromkeys(self._each_text(node, scope, depth))
        return tuple(re.sub(f"{UNKNOWN}+", UNKNOWN, text) for text in found)[:MOST_TEXTS]

    def _each_text(self, node: ast.expr, scope: Scope, depth: int) -> list[str]:
        found: list[str] = []
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = [node.value]
        elif isinstance(node, ast.JoinedStr):
            found = self._joined(node.values, scope, depth)
        elif isinstance(node, ast.FormattedValue):
            found = self._each_text(node.value, scope, depth)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            found = self._joined([node.left, node.right], scope, depth)
        elif isinstance(node, ast.IfExp):
            found = [*self._each_text(node.body, scope, depth), *self._each_text(node.orelse, scope, depth)]
        elif isinstance(node, ast.Name) and depth:
            values = scope.get(node.id) or self._imported(node.id)
            inner = {name: each for name, each in scope.items() if name != node.id}
            found = [text for value in values for text in self._texts(value, inner, depth - 1)]
        elif isinstance(node, ast.Call) and depth:
            found = self._of_call(node, scope, depth)
        return found or [UNKNOWN]

    def _joined(self, parts: list[ast.expr], scope: Scope, depth: int) -> list[str]:
        texts = [""]
        for part in parts:
            texts = [head + tail for head in texts for tail in self._texts(part, scope, depth)][:MOST_TEXTS]
        return texts

    def _imported(self, name: str) -> list[ast.expr]:
        """The value of a constant of another file, if only one file has a constant of this name."""
        found = [constants[name] for constants in self._constants.values() if name in constants]
        return found[0] if len(found) == 1 else []

    def _of_call(self, node: ast.Call, scope: Scope, depth: int) -> list[str]:
        """The texts that one of our functions returns. If it only masks its argument, the texts of the argument."""
        texts: list[str] = []
        defined = self._functions.get(_called(node), [])
        if _called(node) in self._of_others:
            return [UNKNOWN]
        if len(defined) == 1:
            function, file = defined[0]
            inner = {**self._constants[file], **_assigned(ast.walk(function))}
            returned = [each.value for each in ast.walk(function) if isinstance(each, ast.Return) and each.value]
            texts = [text for value in returned for text in self._texts(value, inner, depth - 1)]
        if not any(has_words(text, UNKNOWN) for text in texts):
            given = [text for each in node.args for text in self._texts(each, scope, depth - 1)]
            texts = [text for text in given if " " in text] if _called(node) != "join" else []
        return texts or [UNKNOWN]


def _called(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _assigned(nodes: Iterable[ast.AST]) -> dict[str, list[ast.expr]]:
    """The expressions that are assigned to each name. A text that grows keeps its beginning."""
    found: dict[str, list[ast.expr]] = defaultdict(list)
    for node in nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    found[target.id].append(node.value)
        elif isinstance(node, ast.NamedExpr) and isinstance(node.target, ast.Name):
            found[node.target.id].append(node.value)
    return dict(found)
