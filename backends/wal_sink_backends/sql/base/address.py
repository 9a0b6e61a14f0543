"""The address of a database server, read from a URL whose password is never shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from wal_sink.errors import ConfigError
from wal_sink.redaction import mask_url
from wal_sink_backends.common.url_options import Options, options_in

BLANK = re.compile(r"\s")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a database is and which user connects.

    It travels to executors with the URL's password, which is never shown.
    """

    scheme: str
    hosts: tuple[tuple[str, int | None], ...]
    """Host and port; PostgreSQL takes several, one after the other. Empty: the driver's own default."""
    database: str
    user: str | None
    password: str | None = field(default=None, repr=False)
    password_env: str | None = None
    schema: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of the driver, under its own names."""

    def __str__(self) -> str:
        hosts = ",".join(f"{host}:{port}" if port else host for host, port in self.hosts)
        return f"{self.scheme}://{hosts}/{self.database}"


def address_in(url: str, scheme: str, of_driver: Options, *, schema: str | None, password_env: str | None) -> Address:
    """The address in a URL `scheme://user:password@host:port/database?option=value`.

    `of_driver` are the options that may follow. Raises `ConfigError` for a URL that cannot work.
    """
    refuse_blanks(url)
    refuse_at_behind_host(url, scheme)
    rest, _, query = url.partition("://")[2].partition("?")
    authority, _, database = rest.partition("/")
    login, at, hosts = authority.rpartition("@")
    user, colon, password = login.partition(":")
    if colon and password_env:
        raise ConfigError(
            f"{mask_url(url)}: the URL holds a password, but password_env={password_env!r} is given too. Use only one "
            "of them"
        )
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
        options=options_in(query, url, of_driver),
    )


def refuse_blanks(url: str) -> None:
    """Raise `ConfigError` for a URL with blanks, before any part of it is shown: masking a password ends at a blank."""
    if BLANK.search(url):
        raise ConfigError(
            f"{shown_scheme(url)}://…: the URL has blanks or line breaks; write %20 for a blank, or drop them"
        )


def refuse_at_behind_host(url: str, scheme: str) -> None:
    """Raise `ConfigError` for an `@` that may end a password. The message shows nothing of the URL."""
    authority, _, behind = url.partition("://")[2].partition("/")
    if "@" in behind or "?" in authority.rpartition("@")[0]:
        raise ConfigError(
            f"{scheme}://…: write /, ? and @ in a password, and @ in an option, as %2F, %3F and %40; expected "
            f"{scheme}://user@host:port/database?option=value"
        )


def shown_scheme(url: str) -> str:
    """The scheme of a URL for messages; `?` in place of text that is no scheme."""
    scheme = url.partition("://")[0]
    return scheme if re.fullmatch(r"[\w+.-]+", scheme) else "?"


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
