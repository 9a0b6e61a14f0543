"""`SqlSink` by URL: entry points of group `wal_sink.backends`."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from wal_sink.errors import ConfigError
from wal_sink.support.secrets import mask_url
from wal_sink_backends.common.options import Options, options_in, options_of, taken
from wal_sink_backends.sql.base.server import refuse_at_behind_host, refuse_blanks, shown_scheme
from wal_sink_backends.sql.sink import OF_LIBPQ, OF_PYMYSQL, SqlSink

_OPTIONS = options_of(SqlSink, "url")
_OF_SQLITE = options_of(SqlSink, "url", "schema", "password_env", "connect_timeout_s", "statement_timeout_s")


def sqlite_sink(url: str) -> SqlSink:
    """`sqlite:////absolute/path.db?table=orders&mode=upsert&key=id,day`: rows and position in one transaction.

    Further options are the arguments of `SqlSink` by their names, except those for servers.
    """
    bare, _, query = url.partition("?")
    return _sink(bare, options_in(query, url, _OF_SQLITE), url)


def postgresql_sink(url: str) -> SqlSink:
    """`postgresql://user@host:port/db?table=orders&schema=shop&mode=upsert&key=id`: exactly once."""
    return _server_sink(url, OF_LIBPQ)


def mariadb_sink(url: str) -> SqlSink:
    """`mariadb://user@host:port/db?table=orders&mode=upsert&key=id,day` (or `mysql://…`): exactly once."""
    return _server_sink(url, OF_PYMYSQL)


def _server_sink(url: str, of_driver: Options) -> SqlSink:
    """A sink on a server. Options of its driver stay in the URL that the sink gets."""
    refuse_blanks(url)
    bare, _, query = url.partition("?")
    if "@" in query:
        refuse_at_behind_host(url, shown_scheme(url))
    values = options_in(query, url, {**_OPTIONS, **of_driver})
    kept = [part for part in query.split("&") if unquote(part.partition("=")[0]) in of_driver]
    return _sink(f"{bare}?{'&'.join(kept)}" if kept else bare, taken(values, _OPTIONS), url)


def _sink(address: str, values: dict[str, Any], url: str) -> SqlSink:
    if "table" not in values:
        raise ConfigError(f"{mask_url(url)}: expected the name of a table. Add ?table=NAME")
    return SqlSink(address, **values)
