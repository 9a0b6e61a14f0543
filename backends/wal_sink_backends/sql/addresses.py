"""From the URL of a database to its dialect, and the sinks by URL: entry points of group `wal_sink.backends`."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from wal_sink.errors import ConfigError
from wal_sink.redaction import mask_url
from wal_sink_backends.common.url_options import options_in
from wal_sink_backends.sql.base.dialect import Dialect, Limits

if TYPE_CHECKING:
    from wal_sink_backends.sql.sink import SqlSink

POSTGRESQL_OPTIONS = (
    *("application_name", "channel_binding", "gssencmode", "krbsrvname", "passfile", "require_auth", "service"),
    *("sslcert", "sslcrl", "sslkey", "sslmode", "sslrootcert", "target_session_attrs"),
)
"""What of libpq may stand in the URL, under its own names."""
MARIADB_OPTIONS = ("read_default_file", "ssl_ca", "ssl_cert", "ssl_disabled", "ssl_key", "unix_socket")
"""The same of PyMySQL. With `ssl_ca` the server has to prove its name; without, TLS is used if the server has it."""
SINK_OPTIONS = (
    *("table", "schema", "mode", "key", "newer_by", "create_table", "may_drop_rows", "password_env", "maps"),
    *("busy_timeout_s", "connect_timeout_s", "statement_timeout_s"),
)

_BLANK = re.compile(r"\s")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a database is and who asks. It travels to executors; a password given by URL goes with it, never shown."""

    scheme: str
    hosts: tuple[tuple[str, int | None], ...]
    """Host and port; PostgreSQL takes several, one after the other. Empty: the driver's own default."""
    database: str
    user: str | None
    password: str | None = field(default=None, repr=False)
    password_env: str | None = None
    schema: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        hosts = ",".join(f"{host}:{port}" if port else host for host, port in self.hosts)
        return f"{self.scheme}://{hosts}/{self.database}"


def dialect_of(url: str, limits: Limits, *, schema: str | None, password_env: str | None) -> Dialect:
    """The dialect for a URL, which is not shown in messages: it may hold a password. `ConfigError` if there is none."""
    make = _DIALECTS.get(url.partition("://")[0])
    if make is None:
        raise ConfigError(
            f"SqlSink cannot reach {_scheme(url)!r} databases: expected sqlite:///file.db, sqlite:////folder/file.db, "
            "postgresql://user@host/database or mariadb://user@host/database"
        )
    return make(url, limits, schema, password_env)


def _sqlite(url: str, limits: Limits, schema: str | None, password_env: str | None) -> Dialect:
    from wal_sink_backends.sql.sqlite import Sqlite  # noqa: PLC0415 - one database's driver is not another's

    rest = url.partition("://")[2]
    path = rest.removeprefix("/")
    shown = "sqlite://…" if _BLANK.search(url) else mask_url(url)  # a file's name may have blanks
    if rest == path or path in ("", ":memory:") or "?" in path:
        raise ConfigError(f"{shown}: expected sqlite:///relative.db or sqlite:////absolute.db, a file without options")
    if schema or password_env:
        raise ConfigError(f"{shown}: SQLite has neither schema nor password_env")
    return Sqlite(str(Path(path).absolute()), socket.gethostname(), limits.busy_timeout_s)


def _postgresql(url: str, limits: Limits, schema: str | None, password_env: str | None) -> Dialect:
    from wal_sink_backends.sql.postgresql.dialect import Postgresql  # noqa: PLC0415 - as above

    address = _address(url, "postgresql", POSTGRESQL_OPTIONS, schema, password_env)
    return Postgresql(address, limits)


def _mariadb(url: str, limits: Limits, schema: str | None, password_env: str | None) -> Dialect:
    from wal_sink_backends.sql.mariadb.dialect import Mariadb  # noqa: PLC0415 - as above

    address = _address(url, "mariadb", MARIADB_OPTIONS, schema, password_env)
    if len(address.hosts) > 1 or not address.database:
        raise ConfigError(f"{mask_url(url)}: expected one host and a database, mariadb://user@host/database")
    if address.options.get("ssl_disabled", "true") != "true":
        raise ConfigError(f"{mask_url(url)}: expected ssl_disabled=true, or nothing of it")
    return Mariadb(address, limits)


_Make = Callable[[str, Limits, "str | None", "str | None"], Dialect]
_DIALECTS: dict[str, _Make] = {
    "sqlite": _sqlite,
    "postgresql": _postgresql,
    "postgres": _postgresql,
    "mariadb": _mariadb,
    "mysql": _mariadb,
}


def _refuse_blanks(url: str) -> None:
    """Before anything of the URL is shown: what masks a password ends at a blank."""
    if _BLANK.search(url):
        raise ConfigError(f"{_scheme(url)}://…: the URL has blanks or line breaks; write %20 for a blank, or drop them")


def _scheme(url: str) -> str:
    """To be shown."""
    scheme = url.partition("://")[0]
    return scheme if re.fullmatch(r"[\w+.-]+", scheme) else "?"


def _address(url: str, scheme: str, known: tuple[str, ...], schema: str | None, password_env: str | None) -> Address:
    _refuse_blanks(url)
    authority, _, behind = url.partition("://")[2].partition("/")
    if "@" in behind or "?" in authority.rpartition("@")[0]:  # perhaps the end of a password: it must not show
        raise ConfigError(
            f"{scheme}://…: write /, ? and @ in a password, and @ in an option, as %2F, %3F and %40; expected "
            f"{scheme}://user@host:port/database?option=value"
        )
    rest, _, query = url.partition("://")[2].partition("?")
    authority, _, database = rest.partition("/")
    who, at, hosts = authority.rpartition("@")
    user, colon, password = who.partition(":")
    if colon and password_env:
        raise ConfigError(f"{mask_url(url)}: a password in the URL and password_env={password_env!r}: give one of them")
    if "/" in database or "#" in url.rpartition("@")[2]:
        raise ConfigError(f"{mask_url(url)}: expected {scheme}://user@host:port/database?option=value")
    return Address(
        scheme=scheme,
        hosts=tuple(_host(host, url) for host in hosts.split(",") if host),
        database=unquote(database),
        user=unquote(user) if at and user else None,
        password=unquote(password) if colon else None,
        password_env=password_env,
        schema=schema,
        options=options_in(query, known, url),
    )


def _host(text: str, url: str) -> tuple[str, int | None]:
    """`host`, `host:port`, `[::1]:port`, or a percent-encoded folder of a socket."""
    if "%2f" in text.lower():
        folder, _, port = text.partition(":")
        return unquote(folder), int(port) if port.isdecimal() else None
    try:
        parts = urlsplit(f"//{text}")
        return unquote(parts.hostname or ""), parts.port
    except ValueError:  # its message shows what may be a part of a password
        raise ConfigError(f"{mask_url(url)}: expected host:port, with a number from 1 to 65535 as the port") from None


# By URL.


def postgresql_sink(url: str) -> SqlSink:
    """`postgresql://user@host:port/db?table=orders&schema=shop&mode=upsert&key=id`: exactly once."""
    return _sink(url, POSTGRESQL_OPTIONS)


def mariadb_sink(url: str) -> SqlSink:
    """`mariadb://user@host:port/db?table=orders&mode=upsert&key=id,day` (or `mysql://…`): exactly once."""
    return _sink(url, MARIADB_OPTIONS)


def _sink(url: str, drivers: tuple[str, ...]) -> SqlSink:
    from wal_sink_backends.sql.sink import SqlSink  # noqa: PLC0415 - which is built on this module

    _refuse_blanks(url)
    bare, _, query = url.partition("?")
    if "@" in query:
        _address(url, bare.partition("://")[0], (), None, None)  # refuses it
    given = options_in(query, (*SINK_OPTIONS, *drivers), url)
    if "table" not in given:
        raise ConfigError(f"{mask_url(url)}: which table? Add ?table=NAME")
    own: dict[str, Any] = {name: parsed_option(name, given[name], url) for name in SINK_OPTIONS if name in given}
    rest = [part for part in query.split("&") if unquote(part.partition("=")[0]) in drivers]
    return SqlSink(f"{bare}?{'&'.join(rest)}" if rest else bare, own.pop("table"), **own)


def parsed_option(name: str, text: str, url: str) -> Any:
    """An option of `SqlSink` as its argument; `url` is for messages."""
    if name == "key":
        return tuple(column for column in text.split(",") if column)
    if name in ("create_table", "may_drop_rows"):
        if text not in ("true", "false"):
            raise ConfigError(f"{mask_url(url)}: {name}={text!r}: expected true or false")
        return text == "true"
    if not name.endswith("_s"):
        return text
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{mask_url(url)}: {name}={text!r}: expected a number of seconds") from None
