"""The sinks of files by URL: entry points of group `wal_sink.backends`."""

from __future__ import annotations

from wal_sink.errors import ConfigError
from wal_sink.support.secrets import mask_url
from wal_sink_backends.common.options import options_by_mode, options_of
from wal_sink_backends.files.chunk_sink import FilesSink
from wal_sink_backends.files.two_phase_sink import TwoPhaseFilesSink

_OPTIONS = {"chunk": options_of(FilesSink, "url"), "two-phase": options_of(TwoPhaseFilesSink, "url")}


def files_sink(url: str) -> FilesSink | TwoPhaseFilesSink:
    """`files:///folder?format=csv` or `files+s3://bucket/prefix?format=parquet`: one object per chunk.

    With `commit=two-phase` one per segment, appearing at once. Further options are the arguments of `FilesSink` or
    `TwoPhaseFilesSink`, by their names.
    """
    bare, _, query = url.partition("?")
    if "=" in bare.partition("#")[2]:
        raise ConfigError(f"{mask_url(url)}: expected '?' before the options, not '#'")
    address = bare.removeprefix("files+").replace("files://", "file://", 1)
    commit, values = options_by_mode(query, url, "commit", _OPTIONS)
    return TwoPhaseFilesSink(address, **values) if commit == "two-phase" else FilesSink(address, **values)
