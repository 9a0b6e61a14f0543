"""Two checkouts are compared, each by its own processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.guarded import LAYER_TEST, functions_of

CHECKOUT = {
    "pyproject.toml": '[tool.coverage.run]\nsource = ["wal_sink"]\nomit = ["wal_sink/shown/*"]\n',
    "wal_sink/core.py": """\
        import os

        class Cell:
            '''A cell.'''

            @property
            def value(self) -> int:
                '''Its value.'''
                def inner() -> int:
                    return 1
                return inner()

            @value.setter
            def value(self, new: int) -> None:
                print(new)
        """,
    "wal_sink/shown/page.py": "def page() -> int:\n    return 1\n",
    "backends/wal_sink_backends/db.py": "def put() -> None:\n    print(1)\n",
    "tests/test_layers.py": f"""\
        def _core_modules() -> list[str]:
            return ["wal_sink.core"]

        def {LAYER_TEST}() -> None: ...
        """,
    "benchmarks/mutation/run.py": """\
        from types import SimpleNamespace

        def prepare() -> None: ...

        def core_files() -> list[str]:
            return ["wal_sink/core.py"]

        def mutants_of(file: str) -> list[SimpleNamespace]:
            return [SimpleNamespace(function="core.Cell.value")] * 3
        """,
}


def _build(root: Path) -> Path:
    for name, text in CHECKOUT.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("\n        ", "\n").removeprefix("        "))
    return root


def test_each_function_of_a_checkout_is_told_with_its_guards(tmp_path: Path) -> None:
    found = {str(function): function for function in functions_of(_build(tmp_path), with_mutants=True)}
    told = {name: (f.is_covered, f.is_without_pyspark, f.statements, f.mutants) for name, f in found.items()}
    assert told == {
        "backends/wal_sink_backends/db.py::put": (False, False, 2, 0),
        "backends/wal_sink_backends/db.py::<module>": (False, False, 0, 0),
        "wal_sink/core.py::Cell.value": (True, True, 5, 3),
        "wal_sink/core.py::Cell.value#2": (True, True, 3, 0),
        "wal_sink/core.py::<module>": (True, True, 2, 0),
        "wal_sink/shown/page.py::page": (False, False, 2, 0),
        "wal_sink/shown/page.py::<module>": (False, False, 0, 0),
    }
    assert found["wal_sink/core.py::Cell.value"].guards == {"branch coverage", "no pyspark", "mutants"}
    assert found["wal_sink/shown/page.py::page"].guards == set()


def test_a_checkout_whose_mutants_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (_build(tmp_path) / "benchmarks/mutation/run.py").write_text("raise ImportError('no mutmut')\n")
    with pytest.raises(RuntimeError, match="no mutmut"):
        functions_of(tmp_path, with_mutants=True)


def test_mutants_of_a_function_that_is_not_found_are_an_error(tmp_path: Path) -> None:
    run = _build(tmp_path) / "benchmarks/mutation/run.py"
    run.write_text(run.read_text().replace("core.Cell.value", "core.Cell.gone"))
    with pytest.raises(LookupError, match=r"does not define: .*core\.Cell\.gone"):
        functions_of(tmp_path, with_mutants=True)
