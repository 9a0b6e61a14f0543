"""Histories and verbs end as `tests/support/verdicts.json` says. `tests/support/verdicts.py` says what to do if not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.planted_bugs import marker_skipped
from tests.support.verdicts import SAMPLE, compare_histories, compare_verbs, main, recorded_in

pytestmark = pytest.mark.no_cover


def test_fifty_histories_end_as_recorded() -> None:
    assert [text for _, text in compare_histories(recorded_in()["histories"]["verdicts"], step=SAMPLE)] == []


@pytest.mark.timeout(1200)
def test_every_history_ends_as_recorded() -> None:
    assert [text for _, text in compare_histories(recorded_in()["histories"]["verdicts"])] == []


@pytest.mark.processes  # doctor asks Java for its version
def test_every_verb_says_what_is_recorded() -> None:
    assert [text for _, text in compare_verbs(recorded_in()["verbs"]["verdicts"])] == []


def test_a_planted_bug_is_told_by_seed_and_field(monkeypatch: pytest.MonkeyPatch) -> None:
    marker_skipped(monkeypatch)
    found = [text for _, text in compare_histories(recorded_in()["histories"]["verdicts"], step=SAMPLE)]
    assert any(text.startswith("drawn 0, marked: default [0") for text in found)


def test_a_recording_needs_a_reason(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--write", str(tmp_path / "verdicts.json")])
