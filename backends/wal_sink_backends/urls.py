"""The ready sinks by URL, found through the entry points of group `wal_sink.backends`."""

from __future__ import annotations

from typing import Any, Literal, cast
from urllib.parse import parse_qsl, urlsplit

from wal_sink.errors import ConfigError
from wal_sink.stores.spec import mask_url
from wal_sink_backends.files import FilesSink
from wal_sink_backends.sql import SqlSink
from wal_sink_backends.sql_addresses import parsed_option


def sqlite_sink(url: str) -> SqlSink:
    """`sqlite:////absolute/path.db?table=orders&mode=upsert&key=id,day`: rows and position in one transaction.

    Options besides: `create_table`, `busy_timeout_s`.
    """
    options = _options(url, "table", "mode", "key", "create_table", "busy_timeout_s")
    if "table" not in options:
        raise ConfigError(f"{mask_url(url)}: which table? Add ?table=NAME")
    arguments: dict[str, Any] = {name: parsed_option(name, text, url) for name, text in options.items()}
    return SqlSink(_bare(url), arguments.pop("table"), **arguments)


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
