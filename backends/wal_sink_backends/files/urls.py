"""The sinks of files by URL: entry points of group `wal_sink.backends`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from wal_sink.errors import ConfigError
from wal_sink.redaction import mask_url
from wal_sink_backends.common.url_options import UrlOptions, options_of
from wal_sink_backends.files.chunk_sink import FilesSink
from wal_sink_backends.files.two_phase_sink import TwoPhaseFilesSink


@dataclass(frozen=True, slots=True)
class CommitOption:
    """Which of the two sinks a URL names: `chunk` is `FilesSink`, `two-phase` is `TwoPhaseFilesSink`."""

    commit: Literal["chunk", "two-phase"] = "chunk"


_STORE = {"storage_options", "options_from_env"}
_CHUNK = options_of(FilesSink, without={*_STORE, "name_template"})
_TWO_PHASE = options_of(TwoPhaseFilesSink, without=_STORE)


def files_sink(url: str) -> FilesSink | TwoPhaseFilesSink:
    """`files:///folder?format=csv` or `files+s3://bucket/prefix?format=parquet`: one object per chunk.

    With `commit=two-phase` one per segment, appearing at once; options then: `name_template`, `part_bytes`,
    `held_folder`. `maps` is an option of both.
    """
    bare, _, query = url.partition("?")
    if "=" in bare.partition("#")[2]:
        raise ConfigError(f"{mask_url(url)}: expected '?' before the options, not '#'")
    options = UrlOptions(query, url, CommitOption, _CHUNK, _TWO_PHASE)
    address = bare.removeprefix("files+").replace("files://", "file://", 1)
    if options.read(CommitOption).commit == "two-phase":
        return TwoPhaseFilesSink(address, **options.arguments(_TWO_PHASE))
    if of_two_phase := options.not_of(CommitOption, _CHUNK):
        raise ConfigError(
            f"{mask_url(url)}: {', '.join(of_two_phase)} needs commit=two-phase. Add commit=two-phase, or omit "
            "the options that need it"
        )
    return FilesSink(address, **options.arguments(_CHUNK))
