"""The options of PyMySQL that may stand in the URL of a MariaDB or MySQL database, under PyMySQL's names."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MariadbOptions:
    """What of PyMySQL may stand in the URL.

    With `ssl_ca`, the server has to prove its name; without, TLS is used if the server has it.
    """

    read_default_file: str | None = None
    ssl_ca: str | None = None
    ssl_cert: str | None = None
    ssl_disabled: str | None = None
    """Only the text `true`: the way to have TLS is to leave it out."""
    ssl_key: str | None = None
    unix_socket: str | None = None
