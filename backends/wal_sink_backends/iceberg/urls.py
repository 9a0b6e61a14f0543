"""`IcebergSink` by URL: an entry point of group `wal_sink.backends`."""

from __future__ import annotations

from wal_sink.errors import ConfigError
from wal_sink.support.secrets import is_secret_name, mask_url
from wal_sink_backends.common.options import options_in, options_of
from wal_sink_backends.iceberg.sink import IcebergSink

_OPTIONS = {**options_of(IcebergSink, "table"), "catalog.": [str]}
_PREFIX = "catalog."


def iceberg_sink(url: str) -> IcebergSink:
    """A sink by URL: `iceberg://lake.orders?catalog.type=rest&catalog.uri=https://catalog&create=true`.

    Options are the arguments of `IcebergSink` by their names; `catalog.NAME=value` is a property of the catalogue.
    Secrets come from the environment: `options_from_env=NAME:VARIABLE`.
    """
    bare, _, query = url.partition("?")
    if "=" in bare.partition("#")[2]:
        raise ConfigError(f"{mask_url(url)}: expected '?' before the options, not '#'")
    values = options_in(query, url, _OPTIONS)
    catalog = {name.removeprefix(_PREFIX): values.pop(name) for name in [*values] if name.startswith(_PREFIX)}
    for name, value in catalog.items():
        if is_secret_name(name) or "@" in value:
            raise ConfigError(
                f"iceberg://…: expected no secrets in the URL. Write options_from_env={name}:VARIABLE: the sink reads "
                "this environment variable where it runs"
            )
    return IcebergSink(bare.removeprefix("iceberg://"), catalog=catalog, **values)
