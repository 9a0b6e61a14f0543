"""Which versions of Spark and Python go together, and a Python without PySpark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyspark
import pytest

from tests.house.spark import version_of
from wal_sink import ConfigError, WalSink
from wal_sink.spark import environment as versions
from wal_sink.spark.environment import check_pyspark, check_versions


def session_of(version: str) -> Any:
    return SimpleNamespace(version=version)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("3.5.0", (3, 5)),
        ("3.5.1-amzn-0", (3, 5)),
        ("4.0.0.dev2", (4, 0)),
        ("4.3.0", (4, 3)),
        ("4.3", (4, 3)),
    ],
)
def test_a_known_version_is_told_by_major_and_minor(text: str, found: tuple[int, int]) -> None:
    assert version_of(text) == found


@pytest.mark.parametrize("text", ["3.4.4", "3.10.0", "3.50.1", "4.4.0", "4.10.0", "5.0.0", "2.4", "", "next", "v4.0.0"])
def test_any_other_version_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match=rf"does not know Spark {text}\. It knows 3\.5 and 4\.0 to 4\.3: use one"):
        version_of(text)


def test_a_session_of_the_version_of_pyspark_is_fine() -> None:
    assert check_versions(session_of(pyspark.__version__)) == version_of(pyspark.__version__)


def test_a_session_of_another_version_than_pyspark_is_refused() -> None:
    with pytest.raises(
        ConfigError,
        match=rf"has PySpark {pyspark.__version__}, but the session runs Spark 4\.0\.1\. Look at SPARK_HOME",
    ):
        check_versions(session_of("4.0.1"))


def test_spark_3_5_is_refused_above_python_3_11(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "3.5.9")
    monkeypatch.setattr(versions, "_python", lambda: (3, 11))
    assert check_versions(session_of("3.5.9")) == (3, 5)
    monkeypatch.setattr(versions, "_python", lambda: (3, 12))
    with pytest.raises(ConfigError, match=r"Spark 3\.5\.9 .* up to 3\.11, but this is Python 3\.12\. Use Python 3\.11"):
        check_versions(session_of("3.5.9"))


def test_without_pyspark_a_query_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    check_pyspark()
    monkeypatch.setattr(versions, "find_spec", lambda _: None)
    sink = WalSink(print, wal="wal", checkpoint="checkpoint")
    nothing: Any = None
    with pytest.raises(ConfigError, match=r"has no PySpark.*with its extra spark, or: pip install pyspark"):
        sink.run(nothing)
