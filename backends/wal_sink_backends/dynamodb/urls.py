"""The sinks of DynamoDB by URL: an entry point of group `wal_sink.backends`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from wal_sink.errors import ConfigError
from wal_sink.redaction import mask_url
from wal_sink_backends.common.url_options import UrlOptions, names_of, options_of
from wal_sink_backends.dynamodb.sink import DynamoDbPutSink, DynamoDbSink


@dataclass(frozen=True, slots=True)
class ModeOption:
    """Which of the two sinks a URL names."""

    mode: Literal["transactional", "put"] = "transactional"


_TRANSACTIONAL = options_of(DynamoDbSink)
_PUT = options_of(DynamoDbPutSink)


def dynamodb_sink(url: str) -> DynamoDbSink | DynamoDbPutSink:
    """A sink by URL: `dynamodb://orders?region=eu-central-1&mode=put`. `mode` is `transactional` (default) or `put`.

    Further options are the arguments of both sinks, by their names.
    """
    bare, _, query = url.partition("?")
    options = UrlOptions(query, url, ModeOption, _TRANSACTIONAL, _PUT)
    mode = options.read(ModeOption).mode
    own = _PUT if mode == "put" else _TRANSACTIONAL
    if unfit := options.not_of(ModeOption, own):
        raise ConfigError(
            f"{mask_url(url)}: mode={mode} has no options {', '.join(unfit)}; options of this mode: "
            f"{', '.join(names_of(own))}"
        )
    parts = urlsplit(bare)
    if not parts.netloc or parts.path.strip("/") or "#" in bare:
        raise ConfigError(f"{mask_url(url)}: expected dynamodb://TABLE?region=…")
    arguments = options.arguments(own)
    return DynamoDbPutSink(parts.netloc, **arguments) if mode == "put" else DynamoDbSink(parts.netloc, **arguments)
