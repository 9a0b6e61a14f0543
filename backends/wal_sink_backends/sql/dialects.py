"""The choice of a dialect by the URL of a database."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

from wal_sink.errors import ConfigError
from wal_sink.support.secrets import mask_url
from wal_sink_backends.common.options import Options, refuse_braces
from wal_sink_backends.sql.base.dialect import Dialect, Limits
from wal_sink_backends.sql.base.server import BLANK, address_in, shown_scheme

_TEXT = (str,)
OF_LIBPQ: Options = dict.fromkeys(
    (
        *("application_name", "channel_binding", "gssencmode", "krbsrvname", "passfile", "require_auth", "service"),
        *("sslcert", "sslcrl", "sslkey", "sslmode", "sslrootcert", "target_session_attrs"),
    ),
    _TEXT,
)
"""Options that the URL of a PostgreSQL database may hold, under libpq's names."""
OF_PYMYSQL: Options = dict.fromkeys(
    ("read_default_file", "ssl_ca", "ssl_cert", "ssl_disabled", "ssl_key", "unix_socket"), _TEXT
)
"""The same of MariaDB, under PyMySQL's names. With `ssl_ca` the server has to prove its name. Without it, TLS is used
if the server offers it.
"""


def dialect_of(url: str, limits: Limits, *, schema: str | None, password_env: str | None) -> Dialect:
    """The dialect for a URL, which is not shown in messages: it may hold a password. `ConfigError` if there is none."""
    make = _DIALECTS.get(url.partition("://")[0])
    if make is None:
        raise ConfigError(
            f"SqlSink cannot reach {shown_scheme(url)!r} databases: expected sqlite:///file.db, "
            "sqlite:////folder/file.db, postgresql://user@host/database or mariadb://user@host/database"
        )
    return make(url, limits, schema, password_env)


def _sqlite(url: str, limits: Limits, schema: str | None, password_env: str | None) -> Dialect:
    from wal_sink_backends.sql.sqlite import Sqlite  # noqa: PLC0415 - a sink loads only its own database's driver

    rest = url.partition("://")[2]
    path = rest.removeprefix("/")
    shown = "sqlite://…" if BLANK.search(url) else mask_url(url)  # a file's name may have blanks
    if rest == path or path in ("", ":memory:") or "?" in path:
        raise ConfigError(f"{shown}: expected sqlite:///relative.db or sqlite:////absolute.db, a file without options")
    refuse_braces("url", url)
    if schema or password_env:
        raise ConfigError(f"{shown}: SQLite has neither schema nor password_env. Omit these options")
    return Sqlite(str(Path(path).absolute()), socket.gethostname(), limits.busy_timeout_s)


def _postgresql(url: str, limits: Limits, schema: str | None, password_env: str | None) -> Dialect:
    from wal_sink_backends.sql.postgresql.dialect import Postgresql  # noqa: PLC0415 - as above

    address = address_in(url, "postgresql", OF_LIBPQ, schema=schema, password_env=password_env)
    return Postgresql(address, limits)


def _mariadb(url: str, limits: Limits, schema: str | None, password_env: str | None) -> Dialect:
    from wal_sink_backends.sql.mariadb.dialect import Mariadb  # noqa: PLC0415 - as above

    address = address_in(url, "mariadb", OF_PYMYSQL, schema=schema, password_env=password_env)
    if len(address.hosts) > 1 or not address.database:
        raise ConfigError(f"{mask_url(url)}: expected one host and a database, mariadb://user@host/database")
    if address.options.get("ssl_disabled", "true") != "true":
        raise ConfigError(f"{mask_url(url)}: expected ssl_disabled=true. To use TLS, omit this option")
    return Mariadb(address, limits)


_Make = Callable[[str, Limits, "str | None", "str | None"], Dialect]
_DIALECTS: dict[str, _Make] = {
    "sqlite": _sqlite,
    "postgresql": _postgresql,
    "postgres": _postgresql,
    "mariadb": _mariadb,
    "mysql": _mariadb,
}
