"""The state tables of a committer and of its thread: whole, without a dead end, and told in docs/ARCHITECTURE.md."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_type_hints

from tests.house.protocol import Committer, CommitterThread
from wal_sink.committer import states
from wal_sink.lifecycle import thread_states

ARCHITECTURE = Path(__file__).resolve().parents[2] / "docs" / "ARCHITECTURE.md"


@dataclass(frozen=True)
class Table:
    name: str
    module: ModuleType
    actions: Mapping[Any, Callable[..., Enum]]
    begins: Collection[Enum]
    ends: Collection[Enum]

    @property
    def next(self) -> Mapping[Enum, Mapping[Enum, Enum]]:
        found: Mapping[Enum, Mapping[Enum, Enum]] = self.module.NEXT
        return found

    @property
    def states(self) -> set[Enum]:
        return set(self.module.State)

    def __str__(self) -> str:
        return self.name


TABLES = [
    Table(
        "thread",
        thread_states,
        CommitterThread._ACTIONS,
        [thread_states.State.QUIET],
        [thread_states.State.ENDED],
    ),
    Table(
        "batch",
        states,
        Committer._ACTIONS,
        [states.State.UNCONFIRMED, states.State.READY],
        states.ENDS,
    ),
]


def declared(action: Callable[..., Enum]) -> set[Enum]:
    """Return the events that an action may observe, by its type, to which mypy holds it."""
    return set(get_args(get_type_hints(action)["return"]))


def returned(action: Callable[..., Enum]) -> set[str]:
    """The observations that are named in an action's body."""
    function = ast.parse(textwrap.dedent(inspect.getsource(action))).body[0]
    assert isinstance(function, ast.FunctionDef)
    named = (node for statement in function.body for node in ast.walk(statement) if isinstance(node, ast.Attribute))
    return {node.attr for node in named if isinstance(node.value, ast.Name) and node.value.id == "Seen"}


def reached(begins: Collection[Enum], follow: Mapping[Enum, set[Enum]]) -> set[Enum]:
    found: set[Enum] = set()
    open_states = set(begins)
    while open_states:
        found |= open_states
        open_states = {after for state in open_states for after in follow.get(state, set())} - found
    return found


def test_every_state_but_the_ends_has_one_action_and_a_row() -> None:
    for table in TABLES:
        assert set(table.next) == set(table.actions) == table.states - set(table.ends), table


def test_every_observation_of_every_state_has_exactly_one_transition() -> None:
    for table in TABLES:
        for state, action in table.actions.items():
            assert set(table.next[state]) == declared(action), state
            assert {seen.name for seen in declared(action)} == returned(action), state


def test_no_row_and_no_transition_is_written_twice() -> None:
    """The second would silently replace the first."""
    for table in TABLES:
        rows = next(
            node.value
            for node in ast.parse(inspect.getsource(table.module)).body
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "NEXT"
        )
        assert isinstance(rows, ast.Dict)
        for written in (rows, *rows.values):
            assert isinstance(written, ast.Dict)
            keys = [ast.unparse(key) for key in written.keys if key is not None]
            assert len(keys) == len(set(keys)) == len(written.keys), table


def test_every_observation_is_made_in_some_state() -> None:
    for table in TABLES:
        assert {seen for row in table.next.values() for seen in row} == set(table.module.Seen), table


def test_every_state_is_reached_and_an_end_is_reached_from_every_state() -> None:
    for table in TABLES:
        follow = {state: set(row.values()) for state, row in table.next.items()}
        assert reached(table.begins, follow) == table.states
        for state in table.states:
            assert reached([state], follow) & set(table.ends), state


def test_the_document_has_the_tables_of_the_code() -> None:
    lines = ARCHITECTURE.read_text().splitlines()
    for table in TABLES:
        rows = [
            f"| {table} | `{state.name}` | {state.value} | {_transitions(table.next.get(state, {}))} |"
            for state in table.module.State
        ]
        assert [line for line in lines if line.startswith(f"| {table} | `")] == rows


def _transitions(row: Mapping[Enum, Enum]) -> str:
    return ", ".join(f"{seen.name} → `{after.name}`" for seen, after in row.items())
