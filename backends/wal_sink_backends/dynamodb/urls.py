"""The sinks of DynamoDB by URL: an entry point of group `wal_sink.backends`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from wal_sink.errors import ConfigError
from wal_sink.redaction import mask_url
from wal_sink_backends.common.url_options import UrlOptions, names_of
from wal_sink_backends.dynamodb.items import Nulls
from wal_sink_backends.dynamodb.sink import DynamoDbPutSink, DynamoDbSink, RecreatedTable


@dataclass(frozen=True, slots=True)
class ModeOption:
    """Which of the two sinks a URL names."""

    mode: Literal["transactional", "put"] = "transactional"


@dataclass(frozen=True, slots=True)
class TableOptions:
    """The arguments of both sinks that a URL may hold."""

    row_key: str | None = None
    nulls: Nulls | None = None
    region: str | None = None
    endpoint_url: str | None = None
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class TransactionalOptions:
    """The arguments of `DynamoDbSink` alone that a URL may hold."""

    ledger_table: str | None = None
    create_ledger: bool | None = None
    recreated_table: RecreatedTable | None = None


@dataclass(frozen=True, slots=True)
class PutOptions:
    """The arguments of `DynamoDbPutSink` alone that a URL may hold."""

    max_wait_s: float | None = None
    idempotent: bool | None = None


def dynamodb_sink(url: str) -> DynamoDbSink | DynamoDbPutSink:
    """A sink by URL: `dynamodb://orders?region=eu-central-1&mode=put`. `mode` is `transactional` (default) or `put`.

    Further options are the arguments of both sinks, by their names.
    """
    bare, _, query = url.partition("?")
    options = UrlOptions(query, url, ModeOption, TableOptions, TransactionalOptions, PutOptions)
    mode = options.read(ModeOption).mode
    own: type[Any] = PutOptions if mode == "put" else TransactionalOptions
    if unfit := options.not_of(ModeOption, TableOptions, own):
        known = ", ".join((*names_of(TableOptions), *names_of(own)))
        raise ConfigError(f"{mask_url(url)}: mode={mode} has no options {', '.join(unfit)}; it has {known}")
    parts = urlsplit(bare)
    if not parts.netloc or parts.path.strip("/") or "#" in bare:
        raise ConfigError(f"{mask_url(url)}: expected dynamodb://TABLE?region=…")
    arguments = {**options.arguments(TableOptions), **options.arguments(own)}
    return DynamoDbPutSink(parts.netloc, **arguments) if mode == "put" else DynamoDbSink(parts.netloc, **arguments)
