"""The question of the verbs that repair, and dead letters that come before its answer."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

import wal_sink.cli.repairing
from tests.house.cli import main
from tests.support.staged_log import stage
from wal_sink.cli.repairing import confirm
from wal_sink.errors import ConfigError

_SINKS = """
from wal_sink import Rejected

def refuse(chunk):
    return Rejected({0: "bad"})

def worse(chunk):
    return Rejected({0: "worse"})
"""


@pytest.fixture
def wal(tmp_path: Path) -> str:
    stage(tmp_path, 1, is_over=True)
    return str(tmp_path / "wal")


def invoke(*args: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, args)
    assert result.exit_code == code, (result.output, result.exception)
    return result


@pytest.fixture
def delivered(wal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A WAL whose sink has one dead letter."""
    name = f"repair_sinks_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(_SINKS)
    monkeypatch.syspath_prepend(str(tmp_path))
    args = ("--to", f"{name}:refuse", "--start-from", "earliest", "--on-rejected", "dead_letter")
    invoke("drain", wal, *args)
    return name


@pytest.mark.parametrize("as_json", [True, False])
def test_dead_letters_that_stay_are_told(
    as_json: bool, wal: str, delivered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay is refused for another reason while the command asks."""

    def meanwhile(_question: str, *, yes: bool) -> None:
        assert yes
        invoke("letters", "replay", wal, "--to", f"{delivered}:worse", code=1)

    monkeypatch.setattr(wal_sink.cli.repairing, "confirm", meanwhile)
    args = ("letters", "delete", wal, "--all", "--yes")

    if as_json:
        found = json.loads(invoke(*args, "--json").stdout)
        assert (found["files"], found["stayed"]) == (0, 2)
        assert "named" not in found
    else:
        text = invoke(*args).stdout
        assert "0 files deleted" in text
        assert "2 dead letters stay" in text


def test_without_a_terminal_the_ways_out_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal_sink.cli.repairing, "sys", _Input(is_terminal=False))

    confirm("Skip batch 7?", yes=True)
    with pytest.raises(ConfigError, match=r"Skip batch 7\? .*Add --yes .* or --dry-run .*Nothing was changed"):
        confirm("Skip batch 7?", yes=False)


def test_on_a_terminal_the_answer_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter((True, False))
    monkeypatch.setattr(wal_sink.cli.repairing, "sys", _Input(is_terminal=True))
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
