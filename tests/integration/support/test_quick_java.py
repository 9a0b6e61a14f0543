"""The archive of Spark's classes that all tests start from: without it they take twice as long, and nothing says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.programs import quick_java


def test_the_life_that_writes_it_is_told_of_no_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Java writes none if it was told to use one that is not there."""
    monkeypatch.setattr(quick_java, "_FOLDER", tmp_path)
    monkeypatch.setattr(quick_java, "_TYPICAL_LIFE", "import os; print(os.environ['JDK_JAVA_OPTIONS'] == '')")
    monkeypatch.delenv("WAL_SINK_TEST_ALL", raising=False)
    quick_java.main()
    assert quick_java.archive().with_suffix(".log").read_text() == "True\n"


def test_where_nothing_may_be_missing_it_must_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick_java, "_FOLDER", tmp_path)
    monkeypatch.setattr(quick_java, "_TYPICAL_LIFE", "")
    monkeypatch.setenv("WAL_SINK_TEST_ALL", "1")
    with pytest.raises(SystemExit, match="wrote no archive"):
        quick_java.main()


def test_what_is_there_is_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick_java, "_FOLDER", tmp_path)
    quick_java.archive().write_bytes(b"there")
    quick_java.main()
    assert list(tmp_path.iterdir()) == [quick_java.archive()]
