"""The graph of rooms: which folder of the packages imports which. `python -m tests.support.rooms [CHECKOUT]` prints it.

A room is a folder at any depth below `wal_sink/` or `backends/wal_sink_backends/`. A module that lies directly in one
of these two is a room by itself. An arrow leads from a room to a room that it imports. These imports count:

- every import of a module, also inside functions and under `TYPE_CHECKING`;
- not those of an `__init__.py` that only re-exports. It holds nothing but its docstring, imports, names such as
  `__all__`, and `__getattr__`. Each of its names stands for the module that the name comes from, also where it is
  read from the package (`import wal_sink`, `wal_sink.Sink`); the package as a whole stands for all that it re-exports;
- not imports of a name given as text (`importlib`).

The floor of a room is one more than the highest floor that it imports; the rooms of a circle share a floor.
"""

from __future__ import annotations

import argparse
import ast
import sys
import textwrap
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.support.documents import syntax_of
from tests.support.processes import CHECKOUT
from tests.support.rooms_drawing import DRAWING, drawing

PACKAGES = {"wal_sink": "wal_sink", "wal_sink_backends": "backends/wal_sink_backends"}
"""The folder of each package, by the name under which it is imported."""
DECLARATION = "docs/rooms.toml"
MOST_FLOORS = 8
HEAD = """\
# Which room imports which, from the ground up. A room is a folder below wal_sink/, or below
# backends/wal_sink_backends/ ("backends/…"); a module directly in one of these two is a room by
# itself. Each __init__ says what happens there. Each room stands under its floor, with the rooms
# that it imports. tests/support/rooms.py says which imports count; tests/documents/test_rooms.py
# holds this list to them. A new arrow is a decision: first look for a way without it.
# `python -m tests.support.rooms` prints the rooms as they are; with --write it writes this list,
# and docs/assets/rooms.svg.
"""

Arrow = tuple[str, str]
Declared = dict[str, dict[str, list[str]]]
"""The rooms of each floor, with the rooms that they import."""


@dataclass(frozen=True)
class Graph:
    """Rooms, and for each arrow between two of them the imports that make it, as `module > module`."""

    rooms: frozenset[str]
    arrows: dict[Arrow, list[str]]

    def imported_by(self, room: str) -> list[str]:
        """Return the rooms that a room imports, sorted."""
        return sorted(target for source, target in self.arrows if source == room)

    @cached_property
    def floors(self) -> dict[str, int]:
        """The floor of each room."""
        floors: dict[str, int] = {}

        def floor(room: str) -> int:
            if room not in floors:
                below = self._reached[room] - self._circle(room)
                floors[room] = 1 + max(map(floor, below), default=0)
            return floors[room]

        return {room: floor(room) for room in sorted(self.rooms)}

    @cached_property
    def circles(self) -> list[list[str]]:
        """Groups of rooms in which each reaches every other."""
        found = {tuple(sorted(self._circle(room))) for room in self.rooms}
        return sorted(list(circle) for circle in found if len(circle) > 1)

    def _circle(self, room: str) -> set[str]:
        return {room, *(other for other in self._reached[room] if room in self._reached[other])}

    @cached_property
    def _reached(self) -> dict[str, set[str]]:
        """Return the rooms that each room imports, directly or through others."""
        reached = {room: set(self.imported_by(room)) for room in self.rooms}
        while True:
            further = {room: rooms.union(*(reached[other] for other in rooms)) for room, rooms in reached.items()}
            if further == reached:
                return reached
            reached = further


@dataclass(frozen=True)
class Module:
    """One source file of the packages."""

    name: str
    is_init: bool
    tree: ast.Module

    @property
    def room(self) -> str:
        """The name of its room in the declaration."""
        package, *parts = self.name.split(".")
        if not self.is_init and len(parts) == 1:
            parts = [f"{parts[0]}.py"]
        elif not self.is_init:
            parts = parts[:-1]
        return "/".join(["backends"] * (package == "wal_sink_backends") + (parts or ["__init__.py"]))

    @property
    def tells_of_its_room(self) -> bool:
        """Tell whether its docstring is that of its room."""
        return self.is_init or self.room.endswith(".py")

    @cached_property
    def only_re_exports(self) -> bool:
        """Tell whether it is an `__init__.py` that only says where names come from."""
        return self.is_init and all(map(_re_exports, self.tree.body))

    @cached_property
    def imports(self) -> list[tuple[str, str, str]]:
        """Every import as (module, name in it, name here). Both names are empty if the module itself is imported."""
        return [found for node in ast.walk(self.tree) for found in self._imports_of(node)]

    def _imports_of(self, node: ast.AST) -> Iterator[tuple[str, str, str]]:
        if isinstance(node, ast.Import):
            yield from ((alias.name, name, "") for alias in node.names for name in self._names_used_of(alias))
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                parts = [*self.name.split("."), *[""] * self.is_init]
                module = ".".join([*parts[: -node.level], *[module] * bool(module)])
            yield from ((module, alias.name, alias.asname or alias.name) for alias in node.names)

    def _names_used_of(self, alias: ast.alias) -> list[str]:
        """Return the names that are read from a module, or one empty name if the module is used in another way."""
        here = alias.asname or alias.name
        uses = [node for node in ast.walk(self.tree) if isinstance(node, ast.Name) and node.id == here]
        owners = [node for node in ast.walk(self.tree) if isinstance(node, ast.Attribute) and node.value in uses]
        return sorted({node.attr for node in owners}) if owners and len(owners) == len(uses) else [""]


def _re_exports(node: ast.stmt) -> bool:
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING" and not node.orelse and all(map(_re_exports, node.body))
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return all(isinstance(target, ast.Name) and target.id.startswith("__") for target in targets)
    if isinstance(node, ast.FunctionDef):
        return node.name in {"__getattr__", "__dir__"}
    return isinstance(node, ast.Import | ast.ImportFrom) or _is_text(node)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


class Sources(dict[str, Module]):
    """The modules of a checkout by their dotted names."""

    def __init__(self, checkout: Path) -> None:
        super().__init__()
        for package, folder in PACKAGES.items():
            for path in sorted((checkout / folder).rglob("*.py")):
                parts = [package, *path.relative_to(checkout / folder).with_suffix("").parts]
                is_init = parts[-1] == "__init__"
                name = ".".join(parts[:-1] if is_init else parts)
                self[name] = Module(name, is_init, syntax_of(path.read_text()))
        if not self:
            raise FileNotFoundError(f"{checkout} holds none of the packages {sorted(PACKAGES)}")

    def graph(self) -> Graph:
        """Return the rooms and arrows that the imports make."""
        arrows: dict[Arrow, list[str]] = defaultdict(list)
        counted = [module for module in self.values() if not module.only_re_exports]
        for module in counted:
            for target in sorted(set(self._targets(module))):
                if self[target].room != module.room:
                    arrows[module.room, self[target].room].append(f"{module.name} > {target}")
        return Graph(frozenset(module.room for module in counted), dict(arrows))

    def _targets(self, module: Module) -> Iterator[str]:
        for source, name, _ in module.imports:
            if source.partition(".")[0] in PACKAGES:
                yield from self._modules_behind(source, name, module, frozenset())

    def _modules_behind(self, source: str, name: str, importer: Module, seen: frozenset[Arrow]) -> Iterator[str]:
        """Yield the modules that hold `name` of the module `source`, or all of `source` where nothing is named."""
        if (source, name) in seen:
            return
        if f"{source}.{name}" in self:
            source, name = f"{source}.{name}", ""
        elif source not in self:
            raise LookupError(f"{importer.name} imports {source}, which does not exist")
        found = self[source]
        if not found.only_re_exports:
            yield source
            return
        ours = [line for line in found.imports if line[0].partition(".")[0] in PACKAGES]
        named = [line for line in ours if line[2] == name] or ([] if name.startswith("__") else ours)
        for module, inner, _ in named:
            yield from self._modules_behind(module, inner, found, seen | {(source, name)})


def differences(declared: Declared, graph: Graph) -> list[str]:
    """Say where the declaration and the imports differ, and where the graph breaks its laws."""
    listed = [(room, floor, rooms) for floor, table in declared.items() for room, rooms in table.items()]
    told = {room: floor for room, floor, _ in listed}
    true = {room: f"floor-{floor}" for room, floor in graph.floors.items()}
    arrows = {(room, target) for room, _, rooms in listed for target in rooms}
    names = [room for room, _, _ in listed]
    circles = [f"a circle of {', '.join(circle)}: {'; '.join(imports_of(circle, graph))}" for circle in graph.circles]
    return [
        *circles,
        *(f"{room} is on {true[room]}" for room, n in graph.floors.items() if n > MOST_FLOORS),
        *(f"room {room} is not declared" for room in sorted(graph.rooms - told.keys())),
        *(f"room {room} is declared and does not exist" for room in sorted(told.keys() - graph.rooms)),
        *(f"room {room} is declared twice" for room in sorted(told) if names.count(room) > 1),
        *(
            f"arrow {source} -> {target} is not declared: {'; '.join(graph.arrows[source, target])}"
            for source, target in sorted(graph.arrows.keys() - arrows)
        ),
        *(
            f"arrow {source} -> {target} is declared and not used"
            for source, target in sorted(arrows - {*graph.arrows})
        ),
        *(
            f"{room} is on {true[room]}, not {told[room]}"
            for room in sorted(told.keys() & true)
            if told[room] != true[room]
        ),
    ]


def imports_of(rooms: list[str], graph: Graph) -> list[str]:
    """List the imports between these rooms."""
    return [line for arrow, lines in sorted(graph.arrows.items()) if set(arrow) <= set(rooms) for line in lines]


def undocumented(checkout: Path) -> list[str]:
    """List the folders of modules whose `__init__.py` is missing or has no docstring."""
    folders = {path.parent for folder in PACKAGES.values() for path in (checkout / folder).rglob("*.py")}
    return sorted(folder.relative_to(checkout).as_posix() for folder in folders if not _docstring(folder))


def drawn(checkout: Path) -> str:
    """Return the drawing that fits a checkout."""
    sources = Sources(checkout)
    graph = sources.graph()
    told = {module.room: ast.get_docstring(module.tree) for module in sources.values() if module.tells_of_its_room}
    return drawing(graph.floors, {room: told[room] or room for room in graph.rooms})


def _docstring(folder: Path) -> str | None:
    init = folder / "__init__.py"
    return ast.get_docstring(syntax_of(init.read_text())) if init.exists() else None


def declaration(graph: Graph) -> str:
    """Write the declaration that fits the graph."""
    text = HEAD
    for floor in sorted(set(graph.floors.values())):
        text += f"\n[floor-{floor}]\n"
        for room in (room for room, its in graph.floors.items() if its == floor):
            targets = ", ".join(f'"{target}"' for target in graph.imported_by(room))
            line = f'"{room}" = [{targets}]'
            if len(line) > 100:
                line = f'"{room}" = [\n' + textwrap.indent(textwrap.fill(targets + ",", 98), "  ") + "\n]"
            text += line + "\n"
    return text


def read_declaration(checkout: Path) -> Declared:
    """Read the declared graph of a checkout."""
    declared: Declared = tomllib.loads((checkout / DECLARATION).read_text())
    return declared


def report(graph: Graph) -> str:
    """Show rooms from the roof to the ground, then the counts and the circles."""
    lines = [
        f"{floor:2} {room} -> {' '.join(graph.imported_by(room))}".rstrip(" ->")
        for room, floor in sorted(graph.floors.items(), key=lambda item: (-item[1], item[0]))
    ]
    core = {room for room in graph.rooms if not room.startswith("backends/")}
    for what, rooms in (("wal_sink", core), ("with backends", graph.rooms)):
        arrows = sum(source in rooms for source, _ in graph.arrows)
        floors = max(graph.floors[room] for room in rooms)
        lines.append(f"{what}: {len(rooms)} rooms, {arrows} arrows, {floors} floors")
    lines.append(f"circles: {len(graph.circles)}")
    for circle in graph.circles:
        lines += [f"circle of {len(circle)}: {' '.join(circle)}", *(f"  {line}" for line in imports_of(circle, graph))]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the graph of a checkout, or write its declaration."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.rooms", description="Print the graph of rooms.")
    parser.add_argument("checkout", nargs="?", type=Path, default=CHECKOUT, help="any state of this repository")
    parser.add_argument(
        "--write", action="store_true", help=f"write {DECLARATION} and {DRAWING}: a new arrow is a decision"
    )
    given = parser.parse_args()
    graph = Sources(given.checkout).graph()
    sys.stdout.write(report(graph))
    if given.write:
        (given.checkout / DECLARATION).write_text(declaration(graph))
        (given.checkout / DRAWING).write_text(drawn(given.checkout))
        sys.stdout.write(f"written: {DECLARATION}, {DRAWING}. Look at the diff: each new arrow is a decision.\n")


if __name__ == "__main__":
    main()
