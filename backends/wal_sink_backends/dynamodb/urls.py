"""The sinks of DynamoDB by URL: an entry point of group `wal_sink.backends`."""

from __future__ import annotations

from urllib.parse import urlsplit

from wal_sink.errors import ConfigError
from wal_sink.support.secrets import mask_url
from wal_sink_backends.common.options import options_by_mode, options_of
from wal_sink_backends.dynamodb.sink import DynamoDbPutSink, DynamoDbSink

_OPTIONS = {"transactional": options_of(DynamoDbSink, "table"), "put": options_of(DynamoDbPutSink, "table")}


def dynamodb_sink(url: str) -> DynamoDbSink | DynamoDbPutSink:
    """A sink by URL: `dynamodb://orders?region=eu-central-1&mode=put`. `mode` is `transactional` (default) or `put`.

    Further options are the arguments of the sink of this mode, by their names.
    """
    bare, _, query = url.partition("?")
    mode, values = options_by_mode(query, url, "mode", _OPTIONS)
    parts = urlsplit(bare)
    if not parts.netloc or parts.path.strip("/") or "#" in bare:
        raise ConfigError(f"{mask_url(url)}: expected dynamodb://TABLE?region=…")
    return DynamoDbPutSink(parts.netloc, **values) if mode == "put" else DynamoDbSink(parts.netloc, **values)
