"""The options of PyMySQL that may stand in the URL of a MariaDB or MySQL database, under PyMySQL's names."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MariadbOptions:
    """Options that the URL may hold.

    With `ssl_ca`, the server has to prove its name. Without it, TLS is used if the server offers it.
    """

    read_default_file: str | None = None
    ssl_ca: str | None = None
    ssl_cert: str | None = None
    ssl_disabled: str | None = None
    """Only the text `true` is allowed; leave the option out to use TLS."""
    ssl_key: str | None = None
    unix_socket: str | None = None
