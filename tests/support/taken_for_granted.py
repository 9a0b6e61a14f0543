"""The places where the sources rely on undocumented behaviour of others, found in the sources, so without a list.

A place is named as in docs/assumptions.toml: `file.py::function`, `file.py::Class.method` or `file.py::CONSTANT`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

from tests.support.documents import places_in, tree_of
from tests.support.processes import CHECKOUT

_PRIVATE = re.compile(r"_(?:j(?!ob_|udge)[a-z]\w*|gateway|instantiatedSession|active_spark_context)")
"""PySpark's own names for its objects of the JVM. `_job_…` and `_judge` are names of wal-sink."""
_UNDOCUMENTED = {"pythonExec", "java_exception", "cloudpickle", "ArrowTableToRowsConversion", "clock_gettime"}
"""Names that look public but are not documented."""
_SPARKS_WORDS = re.compile(r"(?:spark|sql|streaming)(?:\.\w+)+")
"""Keys of settings and of local properties."""
_SPARKS_FILES = re.compile(r"(?:offsets|commits|sources)(?:/.*)?|metadata")
_CHECKPOINT = "wal_sink/protocol/checkpoint"
_PROGRAMS = "wal_sink/cli/"
"""Programs choose settings and signals only for themselves."""
_LOCAL_PROPERTIES = {"getLocalProperty", "setLocalProperty"}
_PROCESS = {"register_at_fork", "getpid", "register", "unregister", "signal"}
_PROCESS_MODULES = {"os", "atexit", "signal"}
_SINKS = {"Sink", "TransactionalSink", "TwoPhaseSink", "CommitSink", "SegmentSink", "BatchSink", "Dialect"}


@cache
def reliances() -> set[str]:
    """List places that call private or undocumented parts of Spark, py4j, a client library or the process."""
    found: set[str] = set()
    for file in _sources("wal_sink", "backends"):
        for name, node in _leaves(tree_of(file).body):
            if any(_relies(file, inner) for inner in ast.walk(node)) or _is_marked(file, node):
                found.add(f"{file}::{name}")
    return found


def store_primitives() -> set[str]:
    """List the places where a kind of store carries out a promise of `Store` or `SegmentStream`."""
    base = {node.name: node for node in tree_of("wal_sink/stores/base.py").body if isinstance(node, ast.ClassDef)}
    promises = {
        kind: {inner.name for inner in base[kind].body if isinstance(inner, ast.FunctionDef) and _decorated(inner)}
        for kind in ("Store", "SegmentStream")
    }
    return {
        f"{file}::{node.name}.{inner.name}"
        for file in _sources("wal_sink/stores")
        for node in tree_of(file).body
        if isinstance(node, ast.ClassDef)
        for kind in _bases(node) & promises.keys()
        for inner in node.body
        if isinstance(inner, ast.FunctionDef) and inner.name in promises[kind]
    }


def sinks() -> set[str]:
    """List every concrete sink of the backends, and every dialect of the sink for databases."""
    classes = {
        node.name: (file, node)
        for file in _sources("backends")
        for node in tree_of(file).body
        if isinstance(node, ast.ClassDef)
    }

    def is_sink(name: str) -> bool:
        return name in _SINKS or (name in classes and any(map(is_sink, _bases(classes[name][1]))))

    return {
        f"{file}::{name}"
        for name, (file, node) in classes.items()
        if any(map(is_sink, _bases(node))) and "ABC" not in _bases(node) and not _is_abstract(node)
    }


def _sources(*folders: str) -> list[str]:
    files = (path for folder in folders for path in (CHECKOUT / folder).rglob("*.py"))
    return sorted(str(path.relative_to(CHECKOUT)) for path in files)


def _leaves(body: list[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """List the places that have their own code. A class is represented by its members."""
    return ((name, node) for name, node in places_in(body, "") if not isinstance(node, ast.ClassDef))


def _relies(file: str, node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        named = _PRIVATE.fullmatch(node.attr) or node.attr in _LOCAL_PROPERTIES | _UNDOCUMENTED
        return bool(named) or (_is_of_process(node) and not file.startswith(_PROGRAMS))
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _is_word(file, node.value)
    return isinstance(node, ast.Name) and node.id in _py4j_names(file) | _UNDOCUMENTED


def _is_of_process(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in _PROCESS_MODULES and node.attr in _PROCESS


def _is_word(file: str, text: str) -> bool:
    if file.startswith(_CHECKPOINT) and _SPARKS_FILES.fullmatch(text):
        return True
    if file.startswith(_PROGRAMS):
        return False
    return bool(_PRIVATE.fullmatch(text) or _SPARKS_WORDS.fullmatch(text))


@cache
def _py4j_names(file: str) -> set[str]:
    imports = (node for node in ast.walk(tree_of(file)) if isinstance(node, ast.ImportFrom))
    return {name.name for node in imports if (node.module or "").startswith("py4j") for name in node.names}


def _is_marked(file: str, node: ast.stmt) -> bool:
    """Tell whether the linter was told to accept a private name of another library."""
    return any("noqa" in line and "SLF001" in line for line in _lines(file)[node.lineno - 1 : node.end_lineno])


@cache
def _lines(file: str) -> list[str]:
    return (CHECKOUT / file).read_text().splitlines()


def _decorated(function: ast.FunctionDef) -> bool:
    names = {name.id for name in function.decorator_list if isinstance(name, ast.Name)}
    return "abstractmethod" in names and "property" not in names


def _bases(node: ast.ClassDef) -> set[str]:
    return {base.id for base in node.bases if isinstance(base, ast.Name)}


def _is_abstract(node: ast.ClassDef) -> bool:
    return any(isinstance(inner, ast.FunctionDef) and _decorated(inner) for inner in node.body)
