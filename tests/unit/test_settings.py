"""Values of the public contract show what they hold, less what is secret."""

from __future__ import annotations

import functools

from wal_sink import WalSink
from wal_sink.settings import Delivery


def test_a_delivery_shows_its_policies() -> None:
    shown = repr(Delivery("sqlite:///orders.db", on_failure="park"))
    assert shown.startswith(
        "Delivery(to='sqlite:///orders.db', guarantee=None, where='auto', max_concurrency=None, threads_per_task=1, "
    )
    assert "on_failure='park'" in shown


def test_a_delivery_shows_no_credentials() -> None:
    url = "postgres://user:hush@host/db?table=orders&password=hush"
    assert "to='postgres://host/db'," in repr(Delivery(url))
    for to in (url, functools.partial(print, url), {"a": Delivery(url)}):
        assert "hush" not in repr(Delivery(to))


def test_no_attribute_of_a_walsink_shows_what_it_was_given() -> None:
    given = WalSink(print, wal="memory://w", checkpoint="/c", checkpoint_options={"secret": "hush"})
    for name, value in vars(given).items():
        assert "hush" not in repr(value), name
