"""`tests.support.guarded`: which functions are under which guard, and which of them left it between two checkouts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.guarded import LAYER_TEST, Function, comparison, functions_of

LONG = (
    "self, rows\nnew = [row for row in rows if row.key in self.keys]\nself.keys |= {row.key for row in new}\nreturn new"
)
OLD = Function("wal_sink/flat.py", "Ledger.keep", LONG, 5, is_covered=True, is_without_pyspark=True, mutants=7)
MOVED = replace(OLD, file="wal_sink/room/ledger.py")
UNGUARDED = replace(OLD, is_covered=False, is_without_pyspark=False, mutants=0)
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
        import pytest

        @pytest.mark.parametrize("module", ["wal_sink.core"])
        def {LAYER_TEST}(module: str) -> None: ...
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


def _found(before: Function, after: Function, **renamed: str) -> str:
    return comparison([before], [after], renamed)


def test_a_checkout_without_the_test_of_the_layers_is_an_error(tmp_path: Path) -> None:
    (_build(tmp_path) / "tests/test_layers.py").write_text("")
    with pytest.raises(LookupError, match="is defined in 0 files"):
        functions_of(tmp_path, with_mutants=False)


def test_a_function_that_moved_and_kept_its_guards_is_no_difference() -> None:
    told = _found(OLD, MOVED)
    assert "Found again: 1 same name and body" in told
    for title in ("Guarded before, not so now", "Guarded before, not found now", "Found by likeness", "New"):
        assert f"{title}: 0" in told


@pytest.mark.parametrize(
    ("after", "lost"),
    [
        (replace(MOVED, is_covered=False), "branch coverage"),
        (replace(MOVED, is_without_pyspark=False), "no pyspark"),
        (replace(MOVED, mutants=0), "mutants"),
        (replace(OLD, body="self", is_covered=False), "branch coverage"),
        (replace(MOVED, name="Book.keep", is_covered=False), "branch coverage"),
        (replace(MOVED, body=LONG + ".copy()", is_covered=False), "branch coverage"),
        (replace(MOVED, name="Book.hold", body=LONG + ".copy()", is_covered=False), "branch coverage"),
    ],
)
def test_a_guard_that_a_function_lost_is_told_however_the_function_is_found(after: Function, lost: str) -> None:
    assert f"Guarded before, not so now: 1\n  {OLD} ({lost}) is {after}\n" in _found(OLD, after)


def test_a_guarded_function_that_is_gone_is_told_and_so_is_a_new_one() -> None:
    told = _found(OLD, replace(MOVED, name="Ledger.forget", body="self\nself.keys.clear()"))
    gone = f"{OLD}: branch coverage and no pyspark, 5 statements, 7 mutants"
    assert f"Guarded before, not found now: 1\n  {gone}\n" in told
    assert "New: 1\n  wal_sink/room/ledger.py::Ledger.forget: branch coverage and no pyspark" in told


def test_a_function_of_the_same_name_with_another_body_is_not_taken_for_it() -> None:
    told = _found(OLD, replace(MOVED, body="self, path\npath.unlink()"))
    assert "Guarded before, not found now: 1" in told


def test_a_function_that_was_never_guarded_is_not_told_as_lost() -> None:
    assert "Guarded before, not found now: 0" in comparison([UNGUARDED], [], {})


def test_names_that_were_changed_are_mapped_in_qualified_names_and_bodies() -> None:
    small = replace(OLD, body="self\nreturn Ledger.now()", statements=2)
    after = replace(small, file=MOVED.file, name="Book.keep", body="self\nreturn Book.now()")
    assert "Guarded before, not found now: 0" in _found(small, after, Ledger="Book")
    assert "Found again: 1 same name and body" in _found(small, after, Ledger="Book")


def test_of_several_functions_that_are_alike_the_most_alike_is_found() -> None:
    near = replace(MOVED, body=LONG + ".copy()")
    far = replace(near, file="wal_sink/other.py", body=LONG + ".copy()\nself.count += 1")
    told = comparison([OLD], [far, near], {})
    assert f"Found by likeness: 1\n  {OLD} is {near}, " in told
    assert f"New: 1\n  {far}: " in told
