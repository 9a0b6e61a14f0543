"""Arguments and URLs of `DeltaSink`, right and wrong, its library, and the secrets that it never shows."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.delta_tables import ROWS, batch, context, made, opened, rows_in
from tests.support.refusals import unrefused
from wal_sink.errors import ConfigError, PermanentError, StoreError
from wal_sink_backends.delta import DeltaSink
from wal_sink_backends.delta.urls import delta_sink

SECRET = "hunter2-of-the-lake"  # noqa: S105 - not a secret
UNREACHABLE = {
    "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
    "AWS_ALLOW_HTTP": "true",
    "AWS_ACCESS_KEY_ID": "a",
    "AWS_REGION": "us-east-1",
    "max_retries": "0",
}


def test_arguments_that_cannot_work() -> None:
    def make(table: str, arguments: dict[str, Any]) -> None:
        DeltaSink(table, **arguments)

    cases: list[tuple[Any, ...]] = [
        ("", {}, "the URL of a store is empty"),
        ("memory://x", {}, "^memory://x: expected a local folder, or the URL of a table that begins with s3://, gs://"),
        ("http://:hunter2@host/x", {}, "^http://host/x: expected a local folder"),
        ("simplecache::s3://bucket/x", {}, "expected a local folder"),
        ("s3://", {}, "names no bucket"),
        ("/tables/{date}", {}, "expected no braces"),
        ("/x", {"create": "yes"}, "create='yes': expected True or False"),
        ("/x", {"rolled_back": "ignore"}, "rolled_back='ignore': expected one of 'refuse', 'accept'"),
    ]
    assert unrefused(ConfigError, make, cases) == []


def test_urls_that_cannot_work() -> None:
    def make(url: str) -> None:
        delta_sink(url)

    cases: list[tuple[Any, ...]] = [
        ("delta:///x#create=true", "expected '[?]' before the options, not '#'"),
        ("delta:///x?make=true", "unknown options make; known are options_from_env, mode, key, newer_by, "),
        ("delta:///x?create=perhaps", "create='perhaps': expected true or false"),
        ("delta:///x?evolve=perhaps", "evolve='perhaps'"),
        ("delta://x/y", "a local folder has no host"),
        ("delta+memory://x", "expected a local folder"),
    ]
    assert unrefused(ConfigError, make, cases) == []


@pytest.mark.parametrize(
    ("url", "told", "folder"),
    [
        ("delta:///lake/orders", "DeltaSink('file:///lake/orders')", "file:///lake/orders"),
        ("delta+s3://bucket/orders/?create=true", "DeltaSink('s3://bucket/orders')", "s3://bucket/orders"),
    ],
)
def test_a_url_names_a_table(url: str, told: str, folder: str) -> None:
    sink = delta_sink(url)
    assert (repr(sink), sink.describe(), sink.writes_files_to) == (told, told, folder)


def test_a_table_by_url_is_written(tmp_path: Path) -> None:
    sink = delta_sink(f"delta://{tmp_path}/table?create=true&rolled_back=refuse")
    sink.open(context())
    sink.commit(batch(sink, 0))
    assert rows_in(tmp_path / "table") == ROWS.to_pylist()


def copied(sink: DeltaSink) -> DeltaSink:
    found: DeltaSink = pickle.loads(pickle.dumps(sink))  # noqa: S301 - as it travels to executors
    return found


def test_a_sink_travels_before_it_is_opened(tmp_path: Path) -> None:
    made(tmp_path)
    sink = copied(DeltaSink(str(tmp_path), storage_options={"timeout": "10s"}))
    with pytest.raises(RuntimeError, match=r"not open: call open\(\) first"):
        sink.position()
    sink.open(context())
    sink.commit(batch(sink, 0))
    sink.close()
    assert copied(sink).describe() == sink.describe()


def test_secrets_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Mapping[str, Any]] = [
        {"storage_options": {**UNREACHABLE, "AWS_SECRET_ACCESS_KEY": SECRET}},
        {"storage_options": UNREACHABLE, "options_from_env": {"AWS_SECRET_ACCESS_KEY": "LAKE_SECRET"}},
    ]
    monkeypatch.setenv("LAKE_SECRET", SECRET)
    for arguments in given:
        sink = DeltaSink(f"s3://bucket/{SECRET[:3]}/orders", **arguments)
        with pytest.raises(StoreError) as caught:
            sink.examine(None)
        told = f"{sink!r} {sink.describe()} {caught.value} {caught.value.__cause__}"
        assert SECRET not in told
        assert "s3://bucket/hun/orders: reading the table: " in told
        assert "127.0.0.1:9" in told, "an address is no secret"
        assert "\x1b" not in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_missing_variable_is_named(tmp_path: Path) -> None:
    sink = DeltaSink(str(tmp_path), options_from_env={"AWS_SECRET_ACCESS_KEY": "NO_SUCH_VARIABLE"})
    for call in (lambda: sink.examine(None), lambda: sink.open(context())):
        with pytest.raises(PermanentError, match="the environment variable NO_SUCH_VARIABLE is not set"):
            call()


def test_a_missing_library_is_told_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    sink = DeltaSink(str(tmp_path))
    with pytest.raises(
        ConfigError, match=r"Install wal-sink with its extra delta, or: pip install 'deltalake>=1\.6,<1"
    ):
        sink.open(context())


def test_another_version_of_the_library_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deltalake.__version__", "1.7.0")
    with pytest.raises(ConfigError, match=r"was tried with deltalake 1\.6 only, and 1\.7\.0 is installed"):
        DeltaSink(str(tmp_path)).examine(None)


def test_the_files_of_a_local_table_are_made_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, real = list[str](), os.fsync

    def noted(number: int) -> None:
        synced.append(Path(f"/proc/self/fd/{number}").readlink().name)
        real(number)

    made(tmp_path)
    monkeypatch.setattr("os.fsync", noted)
    with opened(tmp_path) as sink:
        sink.commit(batch(sink, 0))
    assert synced == [f"wal-sink-wal-default-{0:032x}.parquet", tmp_path.name, f"{1:020}.json", "_delta_log"]
