"""`docs/rooms.toml` names the rooms and what each imports, and `docs/assets/rooms.svg` draws them: no more and no less.

Small made-up trees show that every difference is found.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.support.processes import CHECKOUT
from tests.support.rooms import (
    Graph,
    Sources,
    declaration,
    differences,
    drawn,
    read_declaration,
    report,
    undocumented,
)
from tests.support.rooms_drawing import DRAWING

TOWN = {
    "wal_sink/__init__.py": '"""Names."""\nfrom wal_sink.roof import top\n__all__ = ["top"]\n',
    "wal_sink/ground.py": '"""Ground."""\nlow = 1\n',
    "wal_sink/store/__init__.py": '"""Keeps."""\nfrom wal_sink.store.disk import kept\n',
    "wal_sink/store/disk.py": "from wal_sink.ground import low as kept\n",
    "wal_sink/roof.py": "from wal_sink.store import kept as top\n",
    "backends/wal_sink_backends/__init__.py": '"""Ready."""\n',
    "backends/wal_sink_backends/db/__init__.py": '"""A database."""\n',
    "backends/wal_sink_backends/db/sink.py": "from wal_sink import top\n",
}


def _build(root: Path, sources: dict[str, str]) -> Path:
    for name, text in sources.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def _graph(root: Path, changed: dict[str, str] | None = None) -> Graph:
    """Return the graph of the made-up tree, with modules of `wal_sink/` added or replaced."""
    files = {f"wal_sink/{name}.py": text for name, text in (changed or {}).items()}
    return Sources(_build(root, {**TOWN, **files})).graph()


def test_the_declared_graph_is_the_graph_of_the_imports() -> None:
    assert differences(read_declaration(CHECKOUT), Sources(CHECKOUT).graph()) == []


def test_every_room_says_what_happens_there_and_one_that_does_not_is_told(tmp_path: Path) -> None:
    assert undocumented(CHECKOUT) == []
    silent = {"wal_sink/mute/__init__.py": "", "wal_sink/mute/one.py": "", "wal_sink/bare/one.py": '"""Text."""\n'}
    assert undocumented(_build(tmp_path, {**TOWN, **silent})) == ["wal_sink/bare", "wal_sink/mute"]


def test_every_form_of_import_makes_an_arrow(tmp_path: Path) -> None:
    forms = [
        "from wal_sink.roof import top\n",
        "import wal_sink.roof\n",
        "from wal_sink import roof\n",
        "from wal_sink import top\n",
        "from wal_sink import *\n",
        "import wal_sink\n",
        "from . import roof\n",
        "from .roof import top as other\n",
        "def later():\n    from wal_sink.roof import top\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from wal_sink.roof import top\n",
    ]
    made = {text: _graph(tmp_path, {"extra": text}).arrows.get(("extra.py", "roof.py")) for text in forms}
    assert made == {text: ["wal_sink.extra > wal_sink.roof"] for text in forms}


def test_a_circle_is_told_with_the_imports_that_make_it_even_if_it_is_declared(tmp_path: Path) -> None:
    graph = _graph(tmp_path, {"ground": "def late():\n    import wal_sink.roof\n"})
    circle = differences(tomllib.loads(declaration(graph)), graph)
    assert len(circle) == 1
    assert circle[0].startswith("a circle of ground.py, roof.py, store: ")
    assert "wal_sink.ground > wal_sink.roof" in circle[0]
    assert set(graph.floors.values()) == {1, 2}
    assert "  wal_sink.ground > wal_sink.roof\n" in report(graph)


def test_the_drawing_is_that_of_the_rooms_from_the_roof_to_the_ground(tmp_path: Path) -> None:
    assert (CHECKOUT / DRAWING).read_text() == drawn(CHECKOUT), "python -m tests.support.rooms --write"
    town = drawn(_build(tmp_path, TOWN))
    order = ["Floor 4", "backends/db", "A database", "Floor 3", "roof.py", "Floor 2", "Keeps", "Floor 1", "Ground"]
    found = re.findall(rf">({'|'.join(map(re.escape, order))})<", town)
    assert found == order


def test_a_purpose_that_does_not_fit_into_its_box_is_told(tmp_path: Path) -> None:
    long = {"wal_sink/ground.py": f'"""{"many words " * 40}."""\nlow = 1\n'}
    with pytest.raises(ValueError, match=r"ground\.py: shorten"):
        drawn(_build(tmp_path, {**TOWN, **long}))
