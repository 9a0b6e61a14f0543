"""The ready sinks by URL, found through the entry points of group `wal_sink.backends`."""

from __future__ import annotations

from typing import Any, cast
from urllib.parse import urlsplit

from wal_sink.errors import ConfigError
from wal_sink.redaction import mask_url
from wal_sink.sinks.json_rows import Maps
from wal_sink_backends.common.url_options import options_in
from wal_sink_backends.files.chunk_sink import FilesSink
from wal_sink_backends.files.formats import Format
from wal_sink_backends.files.two_phase_sink import TwoPhaseFilesSink
from wal_sink_backends.sql.addresses import parsed_option
from wal_sink_backends.sql.sink import SqlSink

_SQLITE_OPTIONS = ("table", "mode", "key", "newer_by", "create_table", "may_drop_rows", "busy_timeout_s", "maps")
_TWO_PHASE_OPTIONS = ("name_template", "part_bytes", "held_folder")


def sqlite_sink(url: str) -> SqlSink:
    """`sqlite:////absolute/path.db?table=orders&mode=upsert&key=id,day`: rows and position in one transaction.

    More options: `newer_by`, `create_table`, `may_drop_rows`, `busy_timeout_s`.
    """
    options = options_in(urlsplit(url).query, _SQLITE_OPTIONS, url)
    if "table" not in options:
        raise ConfigError(f"{mask_url(url)}: which table? Add ?table=NAME")
    arguments: dict[str, Any] = {name: parsed_option(name, text, url) for name, text in options.items()}
    return SqlSink(_bare(url), arguments.pop("table"), **arguments)


def files_sink(url: str) -> FilesSink | TwoPhaseFilesSink:
    """`files:///folder?format=csv` or `files+s3://bucket/prefix?format=parquet`: one object per chunk.

    With `commit=two-phase` one per segment, appearing at once; options then: `name_template`, `part_bytes`,
    `held_folder`.
    """
    options = options_in(urlsplit(url).query, ("format", "commit", "maps", *_TWO_PHASE_OPTIONS), url)
    address = _bare(url).removeprefix("files+").replace("files://", "file://", 1)
    form = cast("Format", options.pop("format", "jsonl"))
    commit = options.pop("commit", "chunk")
    maps = cast("Maps", options.pop("maps", "object"))
    if commit not in {"chunk", "two-phase"}:
        raise ConfigError(f"{mask_url(url)}: commit={commit}: expected chunk (each as it comes) or two-phase")
    if commit == "two-phase":
        arguments: dict[str, Any] = dict(options)
        if "part_bytes" in options:
            arguments["part_bytes"] = _whole_number("part_bytes", options["part_bytes"], url)
        return TwoPhaseFilesSink(address, format=form, maps=maps, **arguments)
    if options:
        raise ConfigError(f"{mask_url(url)}: {', '.join(sorted(options))} needs commit=two-phase besides")
    return FilesSink(address, format=form, maps=maps)


def _whole_number(name: str, text: str, url: str) -> int:
    if not text.isascii() or not text.isdecimal():
        raise ConfigError(f"{mask_url(url)}: {name}={text!r}: expected a whole number")
    return int(text)


def _bare(url: str) -> str:
    return url.partition("?")[0]
