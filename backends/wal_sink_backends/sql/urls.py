"""`SqlSink` by URL: entry points of group `wal_sink.backends`."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from wal_sink.errors import ConfigError
from wal_sink.redaction import mask_url
from wal_sink_backends.common.url_options import UrlOptions, names_of, options_of
from wal_sink_backends.sql.base.address import refuse_at_behind_host, refuse_blanks, shown_scheme
from wal_sink_backends.sql.mariadb.options import MariadbOptions
from wal_sink_backends.sql.postgresql.options import PostgresqlOptions
from wal_sink_backends.sql.sink import SqlSink

_OPTIONS = options_of(SqlSink)
_SQLITE = options_of(SqlSink, without={"schema", "password_env", "connect_timeout_s", "statement_timeout_s"})


def sqlite_sink(url: str) -> SqlSink:
    """`sqlite:////absolute/path.db?table=orders&mode=upsert&key=id,day`: rows and position in one transaction.

    More options: `newer_by`, `create_table`, `may_drop_rows`, `recreated_table`, `busy_timeout_s`,
    `maps`.
    """
    bare, _, query = url.partition("?")
    return _sink(bare, UrlOptions(query, url, _SQLITE).arguments(_SQLITE), url)


def postgresql_sink(url: str) -> SqlSink:
    """`postgresql://user@host:port/db?table=orders&schema=shop&mode=upsert&key=id`: exactly once."""
    return _server_sink(url, PostgresqlOptions)


def mariadb_sink(url: str) -> SqlSink:
    """`mariadb://user@host:port/db?table=orders&mode=upsert&key=id,day` (or `mysql://…`): exactly once."""
    return _server_sink(url, MariadbOptions)


def _server_sink(url: str, driver_options: type[Any]) -> SqlSink:
    """A sink on a server. Options of its driver stay in the URL that the sink gets."""
    refuse_blanks(url)
    bare, _, query = url.partition("?")
    if "@" in query:
        refuse_at_behind_host(url, shown_scheme(url))
    options = UrlOptions(query, url, _OPTIONS, driver_options)
    for_driver = names_of(driver_options)
    kept = [part for part in query.split("&") if unquote(part.partition("=")[0]) in for_driver]
    return _sink(f"{bare}?{'&'.join(kept)}" if kept else bare, options.arguments(_OPTIONS), url)


def _sink(address: str, arguments: dict[str, Any], url: str) -> SqlSink:
    if "table" not in arguments:
        raise ConfigError(f"{mask_url(url)}: expected the name of a table. Add ?table=NAME")
    return SqlSink(address, arguments.pop("table"), **arguments)
