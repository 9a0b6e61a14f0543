"""The requests of a run on a real server, spoilt in drawn ways: see `spoiling`.

The server decides here: SeaweedFS, MinIO, Azurite, fake-gcs-server, and HDFS over both of its protocols.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import partial

from tests.chaos.faulty_proxy import Answer, Exchange, Request
from tests.chaos.hdfs_proxies import Cut
from tests.chaos.scenario import Effort, Outcome, Scenario
from tests.chaos.spoiling import (
    IMPATIENT,
    LAW,
    PATIENT,
    UNIT,
    Act,
    Client,
    Fault,
    Stage,
    change_answer,
    do_later,
    flipped,
    leave,
    mix_up,
    say,
    shortened,
    spoil_some,
    stop_half_way,
    to_answers_with_body,
)
from tests.chaos.store_places import STORES, ServedStore, place_at
from tests.support.servers.tcp_proxy import How

SOON: Client = {**IMPATIENT, "read_timeout": 2}
_DROP, _RESET, _SILENCE = Exchange.drop, Exchange.reset, Exchange.keep_silent
_BROKEN, _BUSY, _EMPTY = Answer(500, b"set by a test"), Answer(503, b"set by a test"), Answer(200)


def _to_writes(request: Request, _: Answer) -> bool:
    return request.method in {"PUT", "POST", "DELETE"}


def _to_bodies(request: Request, _: Answer) -> bool:
    return len(request.body) > 1


def _to_reads(request: Request, answer: Answer) -> bool:
    return request.method == "GET" and answer.status == 200 and bool(answer.body)


def _to_objects(request: Request, answer: Answer) -> bool:
    """Tell whether an object is read, rather than a listing or a status."""
    return _to_reads(request, answer) and not any(
        word in request.target for word in ("list-type", "comp=list", "/o?", "op=LISTSTATUS", "op=GETFILESTATUS")
    )


def _stop_upload(exchange: Exchange, chance: random.Random) -> None:
    """End the connections in both directions while the server has a part of the body."""
    exchange.forward_part(chance.randrange(len(exchange.request.body)))
    exchange.drop()


OVER_HTTP = (
    Fault("connection dropped before the effect", leave(_DROP)),
    Fault("connection dropped after the effect", leave(_DROP, done=True)),
    Fault("connection reset before the effect", leave(_RESET)),
    Fault("connection reset amid the answer", stop_half_way(_RESET), to_answers_with_body),
    Fault("connection dropped amid the request", _stop_upload, _to_bodies),
    Fault("answer lost, the client asks again", leave(_DROP, done=True), _to_writes, client=PATIENT),
    Fault("500 without effect", say(_BROKEN)),
    Fault("500 after the effect", say(_BROKEN, done=True), _to_writes),
    Fault("503 without effect", say(_BUSY)),
    Fault("503 after the effect", say(_BUSY, done=True), _to_writes),
    Fault("answer cut short", stop_half_way(_DROP), to_answers_with_body),
    Fault("answer shortened, its length too", change_answer(shortened), to_answers_with_body),
    Fault("empty answer of success", say(_EMPTY, done=True), to_answers_with_body),
    Fault("bit flipped in an object", change_answer(flipped), _to_objects),
    Fault("no answer in time, no effect", leave(_SILENCE), client=SOON),
    Fault("no answer in time, after the effect", leave(_SILENCE, done=True), client=SOON),
    Fault("dropped, its effect comes later", do_later(now_too=False), _to_writes, late=True),
    Fault("done, and done again later", do_later(now_too=True), _to_writes, late=True),
)
_ONLY_WHOLE_URLS = Fault("answer to a read of another object", mix_up, _to_objects)
"""Only where the address of an object is the same for a read and for a write."""


def _cut(how: How) -> Act:
    def act(cut: Cut, _: random.Random) -> None:
        cut.cut(how)

    return act


OVER_RPC = (
    Fault("connection cut before the effect", _cut("before")),
    Fault("connection cut amid a message", _cut("halfway")),
    Fault("connection cut after the effect", _cut("after")),
    Fault("no answer in time", _cut("swallow"), client=SOON),
)
FAULTS: Mapping[str, Sequence[Fault]] = {
    **{store.name: (*OVER_HTTP, _ONLY_WHOLE_URLS) for store in STORES},
    "fake-gcs-server": OVER_HTTP,
    "WebHDFS": OVER_HTTP,
    "HDFS": OVER_RPC,
}


def run(store: ServedStore, effort: Effort) -> Outcome:
    effort.folder.mkdir(parents=True, exist_ok=True)
    with store.start(effort.folder) as server:
        return run_at(store, server, effort)


def run_at(store: ServedStore, server: object, effort: Effort, *, least: int = 1) -> Outcome:
    """Spoil requests to a running server, at least so many."""
    with place_at(store, server) as place:
        return spoil_some(FAULTS[store.name], Stage(place), effort, rounds=store.rounds, least=least)


SCENARIOS: Sequence[Scenario] = tuple(
    Scenario(f"{store.name}: requests spoilt", LAW, UNIT, partial(run, store)) for store in STORES
)
