"""Arguments and URLs of `IcebergSink`, right and wrong, its library, and the secrets that it never shows."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import requests
from requests import PreparedRequest

from tests.support.iceberg_tables import NAME, ROWS, batch, catalog_in, context, made, opened, rows_in
from tests.support.refusals import unrefused
from wal_sink.errors import ConfigError, PermanentError, StoreError
from wal_sink_backends.iceberg import IcebergSink
from wal_sink_backends.iceberg.urls import iceberg_sink

SECRET = "hunter2-of-the-lake"  # noqa: S105 - not a secret
REST = {"type": "rest", "uri": "http://127.0.0.1:9/catalog"}


def test_arguments_that_cannot_work() -> None:
    def make(table: str, arguments: dict[str, Any]) -> None:
        IcebergSink(table, **arguments)

    cases: list[tuple[Any, ...]] = [
        ("", {}, "expected a namespace and a name, such as 'lake.orders'"),
        ("orders", {}, "expected a namespace and a name"),
        ("lake.or ders", {}, "expected a namespace and a name"),
        ("s3://bucket/lake.orders", {}, "expected a namespace and a name"),
        ("lake.x", {"create": "yes"}, "create='yes': expected True or False"),
        ("lake.x", {"rolled_back": "ignore"}, "rolled_back='ignore': expected one of 'refuse', 'accept'"),
    ]
    assert unrefused(ConfigError, make, cases) == []


def test_urls_that_cannot_work() -> None:
    def make(url: str) -> None:
        iceberg_sink(url)

    cases: list[tuple[Any, ...]] = [
        ("iceberg://lake.x#create=true", "expected '[?]' before the options, not '#'"),
        ("iceberg://lake.x?make=true", "unknown options make; known are .*rolled_back"),
        ("iceberg://lake.x?create=perhaps", "create='perhaps': expected true or false"),
        ("iceberg://x", "expected a namespace and a name"),
        (f"iceberg://lake.x?catalog.token={SECRET}", "Write options_from_env=token:VARIABLE"),
        (f"iceberg://lake.x?catalog.uri=postgresql://u:{SECRET}@h/d", "Write options_from_env=uri:VARIABLE"),
    ]
    assert unrefused(ConfigError, make, cases) == []


def test_a_table_by_url_is_written(tmp_path: Path) -> None:
    catalog = catalog_in(tmp_path)
    options = "&".join(f"catalog.{name}={value}" for name, value in catalog.items())
    sink = iceberg_sink(f"iceberg://{NAME}?{options}&create=true&rolled_back=refuse")
    assert repr(sink) == sink.describe() == "IcebergSink('lake.orders')"
    sink.open(context())
    sink.commit(batch(sink, 0))
    sink.close()
    assert rows_in(catalog) == ROWS.to_pylist()


def copied(sink: IcebergSink) -> IcebergSink:
    found: IcebergSink = pickle.loads(pickle.dumps(sink))  # noqa: S301 - as it travels to executors
    return found


def test_a_sink_travels_before_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = catalog_in(tmp_path)
    made(catalog)
    monkeypatch.setenv("CATALOG_URI", catalog.pop("uri"))
    sink = copied(IcebergSink(NAME, catalog=catalog, options_from_env={"uri": "CATALOG_URI"}))
    with pytest.raises(RuntimeError, match=r"not open: call open\(\) first"):
        sink.position()
    sink.open(context())
    sink.commit(batch(sink, 0))
    sink.close()
    assert copied(sink).describe() == sink.describe()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the library, for a catalogue without a server of tokens
def test_secrets_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = [
        {"catalog": {**REST, "token": SECRET}},
        {"catalog": {**REST, "s3.secret-access-key": SECRET}},
        {"catalog": {"type": "rest", "uri": f"http://user:{SECRET}@127.0.0.1:9/catalog"}},
        {"catalog": REST, "options_from_env": {"credential": "LAKE_SECRET"}},
    ]
    monkeypatch.setenv("LAKE_SECRET", f"me:{SECRET}")

    def refuse(_: object, request: PreparedRequest, **__: object) -> None:
        raise requests.ConnectionError(f"{request.url} is unreachable;\n{request.headers} {request.body!r} {SECRET}")

    monkeypatch.setattr("requests.adapters.HTTPAdapter.send", refuse)
    for arguments in given:
        sink = IcebergSink(NAME, **arguments)
        with pytest.raises(StoreError) as caught:
            sink.examine(None)
        told = f"{sink!r} {sink.describe()} {caught.value} {caught.value.__cause__}"
        assert SECRET not in told
        assert "IcebergSink('lake.orders'): opening the catalogue: ConnectionError" in told
        assert "127.0.0.1" in told, "an address is no secret"
        assert "\n" not in str(caught.value)


def test_a_catalogue_that_cannot_be_made_is_an_error_at_once() -> None:
    for catalog in ({"type": "no such"}, {"type": "sql"}, {"type": "sql", "uri": "nonsense"}):
        with pytest.raises((ConfigError, StoreError), match="opening the catalogue"):
            IcebergSink(NAME, catalog=catalog).examine(None)


def test_a_missing_variable_is_named(tmp_path: Path) -> None:
    sink = IcebergSink(NAME, catalog=catalog_in(tmp_path), options_from_env={"uri": "NO_SUCH_VARIABLE"})
    for call in (lambda: sink.examine(None), lambda: sink.open(context())):
        with pytest.raises(PermanentError, match="the environment variable NO_SUCH_VARIABLE is not set"):
            call()


def test_a_missing_library_is_told_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "wal_sink_backends.iceberg.table", raising=False)
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    sink = IcebergSink(NAME, catalog=catalog_in(tmp_path))
    with pytest.raises(ConfigError, match=r"Install wal-sink with its extra iceberg, or: pip install 'pyiceberg\[sql-"):
        sink.open(context())


def test_another_version_of_the_library_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyiceberg.__version__", "0.13.0")
    with pytest.raises(ConfigError, match=r"was tried with pyiceberg 0\.12 only, and 0\.13\.0 is installed"):
        IcebergSink(NAME, catalog=catalog_in(tmp_path)).examine(None)


def test_the_files_of_a_local_table_are_made_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, real = list[str](), os.fsync

    def noted(number: int) -> None:
        synced.append(Path(f"/proc/self/fd/{number}").readlink().name)
        real(number)

    catalog = catalog_in(tmp_path)
    made(catalog)
    monkeypatch.setattr("os.fsync", noted)
    with opened(catalog) as sink:
        sink.commit(batch(sink, 0))
    assert {"data", "metadata"} <= {*synced}
    assert synced[-2].endswith(".metadata.json")
