"""The API reference of the site has every exported name once, and no other."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.documents import tree_of
from tests.support.processes import CHECKOUT

PAGES = CHECKOUT / "docs" / "api"
_DIRECTIVE = re.compile(r"^::: (\S+)$", re.MULTILINE)


def _public_modules() -> list[str]:
    """The packages that export names, and `wal_sink.wrap`: the modules that a program may import."""
    found = []
    for folder in (CHECKOUT / "wal_sink", CHECKOUT / "backends" / "wal_sink_backends"):
        for path in sorted(folder.rglob("*.py")):
            name = (
                path.relative_to(folder.parent).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
            )
            if (path.name == "__init__.py" or name == "wal_sink.wrap") and _has_all(path):
                found.append(name)
    return found


def _has_all(path: Path) -> bool:
    body = tree_of(path.relative_to(CHECKOUT).as_posix()).body
    names = [target for node in body if isinstance(node, ast.Assign) for target in node.targets]
    return any(isinstance(name, ast.Name) and name.id == "__all__" for name in names)


MODULES = _public_modules()


def _found(path: str) -> Any:
    """The object behind a dotted path of a module and a name in it, or behind that of a module."""
    module, _, name = path.rpartition(".")
    if path in MODULES:
        return importlib.import_module(path)
    if module not in MODULES:
        raise LookupError(f"{path}: {module} exports nothing")
    found = importlib.import_module(module)
    if name not in found.__all__:
        raise LookupError(f"{module} does not export {name}")
    return getattr(found, name)


def _documented(pages: Path = PAGES) -> list[str]:
    return [name for page in sorted(pages.glob("*.md")) for name in _DIRECTIVE.findall(page.read_text())]


def _exported() -> Iterator[tuple[str, Any]]:
    for module in MODULES:
        for name in importlib.import_module(module).__all__:
            yield f"{module}.{name}", getattr(importlib.import_module(module), name)


def _faults(documented: list[str]) -> list[str]:
    """Names that are absent, documented more than once, or not exported."""
    objects = []
    faults = []
    for path in documented:
        try:
            objects.append(id(_found(path)))
        except LookupError as error:
            faults.append(str(error))
    often = Counter(objects)
    for path, thing in _exported():
        if often[id(thing)] != 1:
            faults.append(f"{path} is documented {often[id(thing)]} times")
    return faults


def test_every_exported_name_is_documented_once_and_no_other() -> None:
    assert _faults(_documented()) == []
    assert {"wal_sink", "wal_sink.wrap", "wal_sink.testing", "wal_sink_backends.sql"} <= set(MODULES)
    assert "wal_sink_backends.http.sink" not in MODULES


def test_every_documented_name_has_a_docstring() -> None:
    """A type alias has a text that follows it in its module: mkdocstrings shows it, and Python does not keep it."""
    classes = [path for path in _documented() if inspect.isroutine(_found(path)) or inspect.isclass(_found(path))]
    assert [path for path in classes if not inspect.getdoc(_found(path))] == []
    assert len(classes) > 50
