"""A served sink: what it is known by, and where a two-phase sink is made and prepares its rows."""

from __future__ import annotations

from typing import Any

import pytest

from tests.house.protocol import ServedSink
from tests.house.sinks import Chunk, Sink, promise
from tests.support.vault import Vault, VaultSink
from wal_sink.errors import ConfigError
from wal_sink.protocol.dispatch import serve
from wal_sink.protocol.two_phase import Preparation
from wal_sink.settings import Delivery, Retry

DISPATCHER: Any = object()
LOG: Any = object()


class Plain(Sink):
    def write(self, chunk: Chunk) -> None: ...


def delivery_to(sink: object, **policies: Any) -> Delivery:
    return Delivery(sink, retry=Retry(attempt_timeout_s=7), **policies)


def make() -> Sink:
    raise AssertionError("nothing is made before it is needed")


def test_a_sink_is_served_under_its_name_with_its_promise_and_its_own_dispatcher() -> None:
    sink = Plain()
    delivery = delivery_to(sink, guarantee="at_most_once")
    by_url = delivery_to("plain://there", guarantee="at_most_once")

    served = serve("a", sink, by_url, DISPATCHER, LOG, travels=make)

    assert served == ServedSink("a", delivery, promise(sink, delivery, "a"), DISPATCHER, "Plain")


def test_a_sink_that_cannot_give_the_guarantee_is_refused_by_its_name() -> None:
    sink = Plain()

    with pytest.raises(ConfigError, match="sink 'a': a plain sink does not support exactly_once"):
        serve("a", sink, delivery_to(sink, guarantee="exactly_once"), DISPATCHER, LOG, travels=make)


def test_a_promise_that_is_known_is_kept() -> None:
    sink = Plain()
    known = promise(sink, delivery_to(sink, guarantee="at_most_once"), "a")

    assert serve("a", sink, delivery_to(sink), DISPATCHER, LOG, travels=make, promised=known).promise is known


def test_a_two_phase_sink_that_travels_prepares_rows_where_they_are_staged() -> None:
    sink = VaultSink(Vault())
    delivery = delivery_to(sink)

    served = serve("a", sink, delivery, DISPATCHER, LOG, travels=make, here=lambda: sink)

    promised = promise(sink, delivery, "a")
    assert served == ServedSink(
        "a", delivery, promised, DISPATCHER, "VaultSink", make, Preparation("a", make, attempt_timeout_s=7)
    )


def test_a_two_phase_sink_that_does_not_travel_is_made_here_and_prepares_rows_when_they_are_delivered() -> None:
    sink = VaultSink(Vault())

    served = serve("a", sink, delivery_to(sink), DISPATCHER, LOG, travels=None, here=make)

    assert served.make_sink is make
    assert served.preparation is None


def test_a_two_phase_sink_that_is_only_an_object_is_copied_if_that_is_possible() -> None:
    sink, held = VaultSink(Vault()), VaultSink(Vault())
    held.vault.held = {"a lock": lambda: None}  # type: ignore[dict-item]

    copy = serve("a", sink, delivery_to(sink), DISPATCHER, LOG, travels=None).make_sink
    itself = serve("a", held, delivery_to(held), DISPATCHER, LOG, travels=None).make_sink

    assert copy is not None
    assert itself is not None
    assert type(copy()) is VaultSink
    assert copy() is not sink
    assert itself() is held
