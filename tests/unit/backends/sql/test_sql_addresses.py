"""URLs of databases: what they say, what they may not say, and what nobody may read of them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.chunks import CONTEXT
from tests.support.refusals import unrefused
from wal_sink.errors import ConfigError, PermanentError
from wal_sink_backends.sql.mariadb.dialect import Mariadb
from wal_sink_backends.sql.postgresql.dialect import Postgresql
from wal_sink_backends.sql.sink import SqlSink
from wal_sink_backends.sql.sqlite import Sqlite
from wal_sink_backends.sql.urls import mariadb_sink, postgresql_sink, sqlite_sink


def parameters(sink: SqlSink) -> dict[str, Any]:
    """Return the parameters that the driver gets."""
    dialect = sink._dialect
    assert isinstance(dialect, (Postgresql, Mariadb))
    return dialect._parameters()


def test_all_of_a_postgresql_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP", "hunter2")
    sink = postgresql_sink(
        "postgresql://etl@db:5433/sh%6Fp?table=or%20ders&schema=s&mode=upsert&key=id,day&newer_by=at&create_table=false"
        "&may_drop_rows=true"
        "&password_env=SHOP&busy_timeout_s=3&connect_timeout_s=4&statement_timeout_s=5.5&sslmode=verify-full"
    )
    assert repr(sink) == "SqlSink('postgresql://db:5433/shop/s', 'or ders', mode='upsert', key=('id', 'day'))"
    assert sink._target.creates is False
    assert sink._may_drop_rows is True
    assert sink._newer_by == ("at",)
    given = parameters(sink)
    names = ("host", "port", "dbname", "user", "password", "sslmode", "connect_timeout", "tcp_user_timeout")
    assert [given[name] for name in names] == ["db", "5433", "shop", "etl", "hunter2", "verify-full", 4, 5500]
    assert "hunter2" not in pickle.dumps(sink).decode("latin-1")


@pytest.mark.parametrize(
    ("hosts", "host", "port"),
    [
        ("", None, None),
        ("db", "db", None),
        ("[::1]:5433", "::1", "5433"),
        ("a:1,b,c:3", "a,b,c", "1,,3"),
        ("%2Fvar%2FRun", "/var/Run", None),
        ("%2Fvar%2FRun:5433", "/var/Run", "5433"),
    ],
)
def test_hosts_of_postgresql(hosts: str, host: str | None, port: str | None) -> None:
    given = parameters(SqlSink(f"postgresql://{hosts}/shop", "orders"))
    assert (given.get("host"), given.get("port")) == (host, port)
    assert "user" not in given
    assert "password" not in given


@pytest.mark.parametrize("scheme", ["mariadb", "mysql"])
def test_all_of_a_mariadb_url(scheme: str) -> None:
    sink = mariadb_sink(f"{scheme}://etl:hunter%402@db/shop?table=orders&schema=other&ssl_ca=/etc/ca.pem")
    assert repr(sink) == "SqlSink('mariadb://db/shop/other', 'orders', mode='append')"
    given = parameters(sink)
    names = ("host", "port", "database", "user", "password", "ssl_ca", "ssl_verify_cert", "ssl_verify_identity")
    assert [given[name] for name in names] == ["db", 3306, "shop", "etl", "hunter@2", "/etc/ca.pem", True, True]


def test_an_option_file_may_tell_the_port() -> None:
    given = parameters(mariadb_sink("mysql:///shop?table=orders&read_default_file=/etc/my.cnf"))
    assert "port" not in given
    assert "host" not in given


def test_urls_that_cannot_work() -> None:
    def make(url: str) -> None:
        postgresql_sink(url)

    cases: list[tuple[Any, ...]] = [
        ("postgresql://u:hunter2@db/shop", "expected the name of a table"),
        ("postgresql://u:hunter2@db/shop?table=t&tabel=x&a=b", "unknown options a, tabel; known are table, mode"),
        ("postgresql://u:hunter2@db/shop?table=t&busy_timeout_s=nan", "busy_timeout_s=nan: expected a number"),
        ("postgresql://u:hunter2@db/shop/more?table=t", "expected postgresql://user@host:port/database"),
        ("postgresql://u:hunter2@db/shop?table=t&mode=replace", "mode='replace': expected one of 'append', 'upsert'"),
        ("postgresql://u:hunt?er2@db/shop?table=t", "as %2F, %3F and %40"),
        ("postgresql://u:hunt/er2@db/shop?table=t", "as %2F, %3F and %40"),
        ("postgresql://u:hunt er2@db/shop?table=t", "^postgresql://…: the URL has blanks or line breaks"),
        ("postgresql://u:hunt er2@db/shop", "the URL has blanks"),
        ("postgresql://u:hunt\ter2@db:port/shop?table=t", "the URL has blanks"),
        ("postgresql://u:hunt er2@db/shop?table=t&tabel=x", "the URL has blanks"),
        ("postgresql://u:hunter2@db/shop?table=t\n", "the URL has blanks"),
    ]
    assert unrefused(ConfigError, make, cases, hidden=("hunt", "er2")) == []


def test_arguments_that_cannot_work() -> None:
    def make(url: str, arguments: dict[str, Any]) -> None:
        given: dict[str, Any] = {"table": "flights"} | arguments
        SqlSink(url, **given)

    cases: list[tuple[Any, ...]] = [
        ("postgresql://me:hunter2@db:x/shop", {}, "expected host:port"),
        ("postgresql://me:hunter2@db/shop?sslmod=off", {}, "unknown options sslmod; known are application_name"),
        ("postgresql://me:hunt?er2@db/shop", {}, "as %2F, %3F and %40"),
        ("postgresql://me:hunt/er2@db/shop", {}, "as %2F, %3F and %40"),
        ("me:hunter2@db/shop", {}, "cannot reach '\\?' databases"),
        ("postgresql://me:hunter2@db/shop", {"password_env": "X"}, "Use only one of them"),
        ("postgresql://db/shop", {"table": "t" * 64}, "at most 63 bytes"),
        ("postgresql://db/shop", {"schema": ""}, "expected the name of a schema"),
        ("postgresql://db/shop", {"statement_timeout_s": 0}, "statement_timeout_s=0: expected a number"),
        ("mariadb://me:hunter2@db", {}, "expected one host and a database"),
        ("mariadb://a,b/shop", {}, "expected one host and a database"),
        ("mysql://db/shop?sslmode=off", {}, "unknown options sslmode; known are read_default_file"),
        ("mysql://db/shop?ssl_disabled=no", {}, "expected ssl_disabled=true"),
        ("sqlite:///x.db", {"schema": "s"}, "neither schema nor password_env"),
    ]
    assert unrefused(ConfigError, make, cases, hidden=("hunt", "er2")) == []


@pytest.mark.parametrize("url", ["mariadb://u:hunt er2@db/shop", "mysql://u:hunt er2@db", "sqlite://u:hunt er2@db"])
def test_a_password_with_a_blank_does_not_show(url: str) -> None:
    with pytest.raises(ConfigError, match="://…: ") as caught:
        SqlSink(url, "orders")
    assert "hunt" not in str(caught.value)
    assert "er2" not in str(caught.value)


def test_all_of_an_sqlite_url(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a file.db?table=t&mode=upsert&key=id,day&create_table=false&busy_timeout_s=2.5"
    sink = sqlite_sink(url)
    assert repr(sink) == f"SqlSink('sqlite:///{tmp_path}/a file.db', 't', mode='upsert', key=('id', 'day'))"
    assert sink._target.creates is False
    assert isinstance(sink._dialect, Sqlite)
    assert sink._dialect.busy_timeout_s == 2.5
    for wrong in ("busy_timeout_s=0", "schema=x"):
        with pytest.raises(ConfigError, match=wrong.partition("=")[0]):
            sqlite_sink(f"sqlite:///{tmp_path}/x.db?table=t&{wrong}")


def test_the_environment_leads_to_no_other_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOSTADDR", "127.0.0.1")
    with pytest.raises(PermanentError, match=r"PGHOSTADDR .* would lead to another server than the URL's host"):
        SqlSink("postgresql://etl@db/shop", "t").open(CONTEXT)


def test_an_unopened_sink_says_so() -> None:
    with pytest.raises(RuntimeError, match="is not open"):
        SqlSink("postgresql://db/shop", "orders").last("slot")


def test_may_drop_rows_is_true_or_false() -> None:
    with pytest.raises(ConfigError, match="may_drop_rows='no': expected True or False"):
        SqlSink("sqlite:////data/shop.db", "t", may_drop_rows=cast("Any", "no"))
