"""The sinks of files by URL: entry points of group `wal_sink.backends`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from wal_sink.errors import ConfigError
from wal_sink.redaction import mask_url
from wal_sink.sinks.json_rows import Maps
from wal_sink_backends.common.url_options import UrlOptions
from wal_sink_backends.files.chunk_sink import FilesSink
from wal_sink_backends.files.formats import Format
from wal_sink_backends.files.two_phase_sink import TwoPhaseFilesSink


@dataclass(frozen=True, slots=True)
class FilesOptions:
    """The arguments of both sinks that a URL may hold."""

    format: Format | None = None
    commit: Literal["chunk", "two-phase"] | None = None
    """Names the sink: `chunk` (the default) is `FilesSink`, `two-phase` is `TwoPhaseFilesSink`."""
    maps: Maps | None = None


@dataclass(frozen=True, slots=True)
class TwoPhaseOptions:
    """The arguments of `TwoPhaseFilesSink` alone that a URL may hold."""

    name_template: str | None = None
    part_bytes: int | None = None
    held_folder: str | None = None


def files_sink(url: str) -> FilesSink | TwoPhaseFilesSink:
    """`files:///folder?format=csv` or `files+s3://bucket/prefix?format=parquet`: one object per chunk.

    With `commit=two-phase` one per segment, appearing at once; options then: `name_template`, `part_bytes`,
    `held_folder`. `maps` is an option of both.
    """
    bare, _, query = url.partition("?")
    if "=" in bare.partition("#")[2]:
        raise ConfigError(f"{mask_url(url)}: expected '?' before the options, not '#'")
    options = UrlOptions(query, url, FilesOptions, TwoPhaseOptions)
    address = bare.removeprefix("files+").replace("files://", "file://", 1)
    arguments, of_two_phase = options.arguments(FilesOptions), options.arguments(TwoPhaseOptions)
    if arguments.pop("commit", "chunk") == "two-phase":
        return TwoPhaseFilesSink(address, **arguments, **of_two_phase)
    if of_two_phase:
        raise ConfigError(
            f"{mask_url(url)}: {', '.join(sorted(of_two_phase))} needs commit=two-phase. Add commit=two-phase, or omit "
            "the options that need it"
        )
    return FilesSink(address, **arguments)
