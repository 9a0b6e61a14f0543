"""The rooms of wal_sink that the ready backends stand on: public names, and a declared list with reasons.

A backend of yours needs public names only. A room leaves this list when nothing of it is needed any more.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import wal_sink
from tests.support.documents import syntax_of
from tests.support.processes import CHECKOUT

BACKENDS = CHECKOUT / "backends"
PUBLIC_MODULES = ("wal_sink.testing", "wal_sink.wrap")
ROOMS: Mapping[str, str] = {
    "wal_sink.support.arguments": "slips in the arguments and options of a sink are answered as those of WalSink are",
    "wal_sink.errors": "errors that tell the core what to do",
    "wal_sink.support.secrets": "the one place that masks secrets in addresses, options and answers",
    "wal_sink.support.logs": "a logging handler that raises must not fail a delivery, so loggers come from `logger_of`",
    "wal_sink.support.clock": "the injected clock, sleep, chance and ids",
    "wal_sink.support.exit_hooks": "a forked child must not run what its parent registered",
    "wal_sink.support.texts": "findings of `examine`, as doctor prints them",
    "wal_sink.sinks": "the sink's interface, ledger entries, values as JSON, certificates",
    "wal_sink.stores": "the folder that the sinks of files write to, and Parquet as segments have it",
}
BASE = "wal_sink_backends.sql.base"


@cache
def imported() -> Mapping[str, list[str]]:
    """Each module of the backends, and the names that it imports."""
    return {_module(file): list(_names_in(file)) for file in sorted(BACKENDS.glob("wal_sink_backends/**/*.py"))}


def test_backends_stand_on_public_names_and_on_the_declared_rooms_and_need_each_of_these() -> None:
    assert imported()
    assert [f"{module}: {name}" for module, name in _of_the_core(imported()) if not _is_allowed(name)] == []
    used = {room for _, name in _of_the_core(imported()) for room in ROOMS if _is_in(name, room)}
    assert set(ROOMS).difference(used) == set()


def test_the_base_of_the_dialects_knows_no_dialect() -> None:
    dialects = ("wal_sink_backends.sql.mariadb", "wal_sink_backends.sql.postgresql", "wal_sink_backends.sql.sqlite")
    base = {module: names for module, names in imported().items() if _is_in(module, BASE)}
    assert base
    assert [(module, name) for module, names in base.items() for name in names if _is_in(name, *dialects)] == []


def _of_the_core(imported: Mapping[str, Iterable[str]]) -> Iterator[tuple[str, str]]:
    for module, names in imported.items():
        yield from ((module, name) for name in names if _is_in(name, "wal_sink"))


def _is_allowed(name: str) -> bool:
    public = (f"wal_sink.{each}" for each in wal_sink.__all__)
    return name == "wal_sink" or _is_in(name, *public, *PUBLIC_MODULES, *ROOMS)


def _is_in(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def _names_in(file: Path) -> Iterator[str]:
    """List the imports of a module as dotted names, also those inside functions and under `TYPE_CHECKING`."""
    for node in ast.walk(syntax_of(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: expected absolute imports"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _module(file: Path) -> str:
    return ".".join(file.relative_to(BACKENDS).with_suffix("").parts).removesuffix(".__init__")
