"""A forked child that ends normally: it runs none of its parent's exit hooks."""

from __future__ import annotations

import ast
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.runtime.test_process_assumptions import in_child
from tests.support.processes import CHECKOUT, Child
from wal_sink import ConfigError, WalSink
from wal_sink.support.exit_hooks import Owner, at_exit
from wal_sink_backends.sql.postgresql.session import connection_class

BANNED = ("atexit.register", "signal.signal", "weakref.finalize", "tempfile.TemporaryDirectory")
FORKS = """
import warnings
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)  # from Python 3.12 on
"""
HOOKS = """
import os, sys
from wal_sink.support.exit_hooks import at_exit
at_exit(lambda: print("hook in the", "parent" if os.getpid() == parent else "child", flush=True))
at_exit(lambda: print("taken back", flush=True))()
parent = os.getpid()
if pid := os.fork():
    print("child ended with", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
sys.exit(0)
"""
OPENED = """
import os, sys
from wal_sink import WalSink
sink = WalSink(print, wal="memory://wal", checkpoint=sys.argv[1])
sink._own_query.stop = lambda: print("query stopped by the", "parent" if os.getpid() == parent else "child", flush=True)
parent = os.getpid()
with sink:
    if not (pid := os.fork()):
        sys.exit(0)
    print("child ended with", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    sink.drain()
    print("parent goes on", flush=True)
"""


def output_of(program: str, tmp_path: Path, *args: str) -> list[str]:
    with Child.python(FORKS + program, *args, log=tmp_path / "log", limit_s=60) as child:
        return child.succeed().splitlines()


def test_a_hook_runs_in_the_process_that_registered_it_and_in_no_other(tmp_path: Path) -> None:
    assert output_of(HOOKS, tmp_path) == ["child ended with 0", "hook in the parent"]


def test_a_hook_is_called_where_its_owner_is(monkeypatch: pytest.MonkeyPatch) -> None:
    registered: list[Callable[[], None]] = []
    called: list[str] = []
    monkeypatch.setattr("atexit.register", registered.append)
    at_exit(lambda: called.append("hook"))
    registered[0]()
    assert called == ["hook"]
    monkeypatch.setattr("os.getpid", lambda: -1)
    registered[0]()
    assert called == ["hook"]


def test_a_forked_child_that_ends_leaves_the_query_of_its_parent_alone(tmp_path: Path) -> None:
    told = output_of(OPENED, tmp_path, str(tmp_path / "checkpoint"))
    assert told == [
        "child ended with 0",
        "parent goes on",
        "query stopped by the parent",
        "query stopped by the parent",
    ]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_cannot_use_what_its_parent_opened(tmp_path: Path) -> None:
    """Not even while a thread of the parent holds its locks."""
    sink = WalSink(print, wal="memory://forked", checkpoint=str(tmp_path))

    def tried() -> str:
        said = []
        for call in (sink.close, sink.drain, lambda: sink.start(None), lambda: sink.stage(None, 0)):  # type: ignore[arg-type]
            try:
                call()
            except ConfigError as error:
                said.append("and this process is a forked child of that process" in str(error))
        return str(said)

    with sink, sink._committers.opening, sink._closing:
        assert in_child(tried) == "[True, True, True, True]"


def test_every_hook_is_registered_with_its_process() -> None:
    """The linter bans the others: this fails if a rule is taken out of its settings."""
    settings = (CHECKOUT / "pyproject.toml").read_text()
    assert [name for name in BANNED if f'"{name}".msg' not in settings] == []


@pytest.mark.parametrize(("owner", "closed"), [(Owner(), 1), (Owner(pid=-1), 0)], ids=["its own", "its parent's"])
def test_a_connection_to_postgresql_is_closed_by_the_process_that_made_it(owner: Owner, closed: int) -> None:
    """Closing it tells the server to end the session, which a forked child shares with its parent."""
    told: list[str] = []
    # A class for this test: connections that an earlier test left may be collected now, and would count.
    kind: Any = type("Closed", (connection_class(),), {"close": lambda _: told.append("close")})
    connection = kind.__new__(kind)
    connection._owner = owner
    del connection
    gc.collect()
    assert len(told) == closed


def finalizers() -> list[ast.FunctionDef]:
    sources = [file for folder in ("wal_sink", "backends") for file in (CHECKOUT / folder).rglob("*.py")]
    nodes = [node for file in sources for node in ast.walk(ast.parse(file.read_text()))]
    return [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == "__del__"]


def test_what_ends_with_its_last_reference_asks_whose_process_it_is() -> None:
    found = finalizers()
    assert found
    for each in found:
        assert "is_here" in ast.unparse(each.body[0])


def test_what_another_process_opened_is_refused_by_its_id() -> None:
    with pytest.raises(
        ConfigError, match=r"the WAL was opened in process -1, and this process is a forked child of that process"
    ):
        Owner(pid=-1).refuse_child("the WAL")


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_what_was_made_before_a_fork_is_opened_in_the_child(tmp_path: Path) -> None:
    sink = WalSink(print, wal=str(tmp_path / "wal"), checkpoint=str(tmp_path / "checkpoint"))

    def opened() -> str:
        with sink:
            sink.drain()
        return "drained"

    assert in_child(opened) == "drained"


def test_an_owner_is_here_and_not_in_a_child() -> None:
    owner = Owner()
    assert owner.is_here
    assert in_child(lambda: str(owner.is_here)) == "False"
