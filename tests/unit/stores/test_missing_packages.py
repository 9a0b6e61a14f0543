"""The package of a store that is not installed is named, with the extra that brings it."""

from __future__ import annotations

from typing import Any

import fsspec
import pytest

from tests.house.stores import StoreSpec, open_store
from wal_sink.errors import ConfigError


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    cases: list[tuple[str, str]] = [
        ("abfs://lake/wal", r"No module named 'x'\. Install wal-sink with its extra azure, or: pip install adlfs"),
        ("az://lake/wal", r"No module named 'x'\. Install wal-sink with its extra azure, or: pip install adlfs"),
        ("gs://lake/wal", r"No module named 'x'\. Install wal-sink with its extra gcs, or: pip install gcsfs"),
        ("gcs://lake/wal", r"No module named 'x'\. Install wal-sink with its extra gcs, or: pip install gcsfs"),
    ]
    for url, told in cases:

        def refuse(*_: object, **__: Any) -> None:
            raise ImportError("No module named 'x'")

        monkeypatch.setattr(fsspec.core, "url_to_fs", refuse)
        monkeypatch.setattr(fsspec, "get_filesystem_class", refuse)
        with pytest.raises(ConfigError, match=f"{url} needs a package that is not installed: {told}"):
            open_store(StoreSpec(url))
