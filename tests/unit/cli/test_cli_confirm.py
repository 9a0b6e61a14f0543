"""The question of the verbs that repair, and dead letters that come before its answer."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

import wal_sink.cli.options
from tests.support.command import invoke, invoke_json
from tests.support.staged_log import stage
from wal_sink.cli.options import confirm
from wal_sink.errors import ConfigError


@pytest.fixture
def wal(tmp_path: Path) -> str:
    """A WAL whose sink has one dead letter."""
    stage(tmp_path, 1, is_over=True)
    args = ("--to", "tests.support.cli_targets:refuse", "--start-from", "earliest", "--on-rejected", "dead_letter")
    invoke("drain", tmp_path / "wal", *args)
    return str(tmp_path / "wal")


@pytest.mark.parametrize("as_json", [True, False])
def test_dead_letters_that_stay_are_told(as_json: bool, wal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay is refused for another reason while the command asks."""

    def meanwhile(_question: str, *, yes: bool) -> None:
        assert yes
        invoke("letters", "replay", wal, "--to", "tests.support.cli_targets:refuse_worse", code=1)

    monkeypatch.setattr(wal_sink.cli.options, "confirm", meanwhile)
    args = ("letters", "delete", wal, "--all", "--yes")

    if as_json:
        found = invoke_json(*args)
        assert (found["files"], found["stayed"]) == (0, 2)
        assert "named" not in found
    else:
        text = invoke(*args).stdout
        assert "0 files deleted" in text
        assert "2 dead letters stay" in text


def test_without_a_terminal_the_ways_out_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal_sink.cli.options, "sys", _Input(is_terminal=False))

    confirm("Skip batch 7?", yes=True)
    with pytest.raises(ConfigError, match=r"Skip batch 7\? .*Add --yes .* or --dry-run .*Nothing was changed"):
        confirm("Skip batch 7?", yes=False)


def test_on_a_terminal_the_answer_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter((True, False))
    monkeypatch.setattr(wal_sink.cli.options, "sys", _Input(is_terminal=True))
    monkeypatch.setattr(click, "confirm", lambda *_, **__: next(answers))

    confirm("Skip batch 7?", yes=False)
    with pytest.raises(SystemExit) as ended:
        confirm("Skip batch 7?", yes=False)
    assert ended.value.code == 1


class _Input:
    """`sys` with or without a terminal."""

    def __init__(self, *, is_terminal: bool) -> None:
        self.stdin = self
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal

    def exit(self, code: int) -> None:
        raise SystemExit(code)
