"""The archive of Spark's classes that all tests start from: without it they take twice as long, and nothing says so."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests import quick_java
from tests.components import require
from tests.fixtures_spark import JAVA_HINT


@pytest.mark.spark
def test_a_new_checkout_gets_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require(shutil.which("java") is not None, JAVA_HINT)
    monkeypatch.setattr(quick_java, "_FOLDER", tmp_path)
    quick_java.main()
    assert quick_java.archive().parent == tmp_path
    assert quick_java.archive().stat().st_size > 10 << 20


def test_what_is_there_is_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick_java, "_FOLDER", tmp_path)
    quick_java.archive().write_bytes(b"there")
    quick_java.main()
    assert list(tmp_path.iterdir()) == [quick_java.archive()]
