"""The ready sinks by URL, found through the entry points of group `wal_sink.backends`."""

from __future__ import annotations

from typing import Literal, cast
from urllib.parse import parse_qsl, urlsplit

from wal_sink.errors import ConfigError
from wal_sink.stores.spec import mask_url
from wal_sink_backends.files import FilesSink
from wal_sink_backends.sql import SqlSink


def sqlite_sink(url: str) -> SqlSink:
    """`sqlite:////absolute/path.db?table=orders&mode=upsert&key=id,day`: rows and position in one transaction."""
    options = _options(url, "table", "mode", "key")
    if "table" not in options:
        raise ConfigError(f"{mask_url(url)}: which table? Add ?table=NAME")
    key = tuple(column for column in options.get("key", "").split(",") if column)
    mode = cast("Literal['append', 'upsert']", options.get("mode", "append"))
    return SqlSink(_bare(url), options["table"], mode=mode, key=key)


def files_sink(url: str) -> FilesSink:
    """`files:///folder?format=csv` or `files+s3://bucket/prefix?format=parquet`: one object per chunk."""
    options = _options(url, "format")
    address = _bare(url).removeprefix("files+").replace("files://", "file://", 1)
    return FilesSink(address, format=cast("Literal['jsonl']", options.get("format", "jsonl")))


def _bare(url: str) -> str:
    return url.partition("?")[0]


def _options(url: str, *known: str) -> dict[str, str]:
    options = dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))
    unknown = sorted(set(options).difference(known))
    if unknown:
        raise ConfigError(f"{mask_url(url)}: unknown options {', '.join(unknown)}; known are {', '.join(known)}")
    return options
