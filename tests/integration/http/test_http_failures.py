"""Connections that fail, and processes that are killed on either side of them."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.house.sinks import Chunk
from tests.support.http_collection import IDS, Collection, chunk, opened, refuse_3, write
from tests.support.processes import CHECKOUT, Child
from tests.support.servers.http_target import Fault, HttpTarget
from tests.support.servers.ports import free_port
from tests.support.servers.tls import Authority
from tests.support.waiting import wait_until
from wal_sink.errors import DeliveryError, OutcomeUnknownError, PermanentError
from wal_sink.settings import Delivery
from wal_sink.testing import query_into
from wal_sink_backends.http.sink import HttpLookupSink, HttpSink, TargetFailedError
from wal_sink_backends.http.urls import http_sink

# Connections.


@pytest.mark.parametrize("cut", ["before", "after"])
def test_no_answer_is_an_unknown_outcome_and_a_key_makes_it_harmless(keyed: Collection, cut: str) -> None:
    keyed.server.faults.append(Fault(cut=cut))
    sink = HttpSink(keyed.url, idempotent=True)
    with pytest.raises(
        OutcomeUnknownError,
        match=r"could not be read \(RemoteProtocolError.*It is not known whether the request took effect",
    ):
        write(sink)
    assert keyed.ids == (IDS if cut == "after" else [])
    write(sink)
    assert keyed.ids == IDS


def test_an_answer_that_is_late_is_an_unknown_outcome(keyed: Collection) -> None:
    given_up = threading.Event()
    keyed.server.faults.append(Fault(until=given_up))
    with pytest.raises(OutcomeUnknownError, match="ReadTimeout"):
        write(HttpSink(keyed.url, timeout_s=0.2))
    wait_until(lambda: bool(keyed.server.requests), "the request arrived: later it would be one of the next test")
    given_up.set()


def test_nobody_listening() -> None:
    url = f"http://127.0.0.1:{free_port()}/orders"
    with pytest.raises(TargetFailedError, match=r"cannot be reached, and nothing was sent: .*Connection refused"):
        write(HttpSink(url))


def test_a_host_that_is_not_there() -> None:
    with pytest.raises(TargetFailedError, match=r"http://nowhere\.invalid/orders cannot be reached"):
        write(HttpSink("http://user:hunter2@nowhere.invalid/orders"))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"), "ours")


@pytest.fixture
def tls_target(tmp_path: Path, authority: Authority) -> Iterator[HttpTarget]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.certificate("127.0.0.1"))
    with HttpTarget(tmp_path / "rows.db", tls=context) as server:
        yield server


def test_a_certificate_is_checked(tls_target: HttpTarget, authority: Authority) -> None:
    url = f"{tls_target.url}/plain/orders"
    with pytest.raises(PermanentError, match=r"CERTIFICATE_VERIFY_FAILED.*pass verify="):
        write(HttpSink(url))
    write(HttpSink(url, verify=str(authority.file)))
    write(HttpSink(url, verify=False))
    assert [row["id"] for row in tls_target.store.rows("orders")] == IDS * 2


def test_a_file_of_certificates_that_is_not_there() -> None:
    with pytest.raises(PermanentError, match="the client cannot be made: FileNotFoundError"):
        write(HttpSink("https://127.0.0.1/x", verify="/nowhere/ca.pem"))


# Through the core.


def test_an_api_that_fails_now_and_then_gets_every_row_once(keyed: Collection) -> None:
    faults = [
        Fault(status=503),
        Fault(cut="after"),
        Fault(cut="before"),
        Fault(status=429, headers={"Retry-After": "0"}),
    ]
    keyed.server.faults += faults
    with query_into(HttpSink(keyed.url, idempotent=True)) as query:
        query.batch(pa.table({"id": IDS}))
        query.batch(pa.table({"id": [6, 7]}))
    assert keyed.ids == [*IDS, 6, 7]
    assert not any(fault.times for fault in faults)


def test_a_lookup_spares_what_an_answer_got_lost_for(plain: Collection) -> None:
    plain.server.faults += [Fault(cut="after")]
    sink = HttpLookupSink(plain.url, lookup_url=f"{plain.url}/chunks/{{key}}")
    with query_into(sink) as query:
        query.batch(pa.table({"id": [1, 2]}))
    assert plain.ids == [1, 2]
    assert [seen.method for seen in plain.server.requests] == ["POST", "GET", "GET"]  # the last for what nobody sent


def test_without_a_lookup_or_keys_it_repeats(plain: Collection) -> None:
    plain.server.faults += [Fault(cut="after")]
    with query_into(HttpSink(plain.url)) as query:
        query.batch(pa.table({"id": [1, 2]}))
    assert plain.ids == [1, 2, 1, 2]


def test_what_is_refused_stops_the_delivery_with_the_reason(keyed: Collection) -> None:
    keyed.server.refuse = refuse_3
    with query_into(Delivery(HttpSink(keyed.url, body="rows", idempotent=True))) as query:
        with pytest.raises(DeliveryError, match="id 3 is refused"):
            query.batch(pa.table({"id": IDS}))
        keyed.server.forget()
        query.restart()
    assert sorted(keyed.ids) == IDS


# Killed processes.


def test_an_api_killed_in_mid_chunk_and_started_again_has_every_row_once(tmp_path: Path) -> None:
    """The API's process is killed again and again while the core delivers to it."""
    program = CHECKOUT / "tests" / "support" / "servers" / "http_target.py"
    port = free_port()
    database = tmp_path / "rows.db"

    def serve(number: int) -> Child:
        return Child.python(program, str(database), str(port), log=tmp_path / f"{number}.log")

    def restart(at: int, sink: HttpSink, some: Chunk, server: Child) -> Child:
        server.kill()
        with pytest.raises((TargetFailedError, OutcomeUnknownError)):
            sink.write(some)
        server = serve(at)
        server.wait_for_output("serving")
        return server

    sink = http_sink(f"http://127.0.0.1:{port}/keys/orders#idempotent=true&body=rows")
    server = serve(0)
    try:
        server.wait_for_output("serving")
        with opened(sink):
            for batch in range(30):
                some = chunk(*range(batch * 5, batch * 5 + 5), batch_id=batch)
                if batch % 10 == 5:
                    server = restart(batch, sink, some, server)
                sink.write(some)
                sink.write(some)
    finally:
        server.kill()
    with contextlib.closing(sqlite3.connect(database)) as connection:
        rows = [json.loads(row)["id"] for (row,) in connection.execute("SELECT row FROM rows")]
    assert rows == list(range(150))
