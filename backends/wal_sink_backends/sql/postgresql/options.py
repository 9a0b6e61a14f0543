"""The options of libpq that may stand in the URL of a PostgreSQL database, under libpq's names."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PostgresqlOptions:
    """Options that the URL may hold; libpq reads their texts."""

    application_name: str | None = None
    channel_binding: str | None = None
    gssencmode: str | None = None
    krbsrvname: str | None = None
    passfile: str | None = None
    require_auth: str | None = None
    service: str | None = None
    sslcert: str | None = None
    sslcrl: str | None = None
    sslkey: str | None = None
    sslmode: str | None = None
    sslrootcert: str | None = None
    target_session_attrs: str | None = None
