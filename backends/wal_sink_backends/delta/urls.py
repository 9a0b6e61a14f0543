"""`DeltaSink` by URL: an entry point of group `wal_sink.backends`."""

from __future__ import annotations

from wal_sink.errors import ConfigError
from wal_sink.support.secrets import mask_url
from wal_sink_backends.common.options import options_in, options_of
from wal_sink_backends.delta.sink import DeltaSink

_OPTIONS = options_of(DeltaSink, "table")


def delta_sink(url: str) -> DeltaSink:
    """A sink by URL: `delta:///folder/table` or `delta+s3://bucket/table?create=true`.

    Options are the arguments of `DeltaSink` by their names.
    """
    bare, _, query = url.partition("?")
    if "=" in bare.partition("#")[2]:
        raise ConfigError(f"{mask_url(url)}: expected '?' before the options, not '#'")
    table = bare.removeprefix("delta+") if bare.startswith("delta+") else bare.replace("delta://", "file://", 1)
    return DeltaSink(table, **options_in(query, url, _OPTIONS))
